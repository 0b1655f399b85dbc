"""Exit codes: one for each kind of end, said in one place; the help and the docs say what stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from sexton.holder import BumpsMissed
from sexton.schemas import errors
from sexton.schemas.codec import InvalidMessage
from sexton.schemas.errors import SextonError
from sexton.worker.cli.app import app
from sexton.worker.cli.codes import BadInput, ExitCode, epilog, exit_code_of
from sexton.worker.embedded import DataFolderInUse, ServerExited
from sexton.worker.ingest import FormatUnclearError, TranscriptChangedError
from sexton.worker.provision import ProvisionError

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"
COMMANDS = {
    "up",
    "worker",
    "ingest",
    "compact",
    "rewrite",
    "prune",
    "pointer",
    "resolve",
    "tree",
    "watch",
    "holders",
    "pins",
    "tombstones",
    "gc",
    "verify",
    "demo",
}


def commands() -> dict[str, Any]:
    """All commands by name, as typer made them."""
    found: dict[str, Any] = get_command(app).commands  # type: ignore[attr-defined]
    return found


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.StaleSpanError("x"), ExitCode.POINTER_REFUSED),
        (errors.Unreachable("x"), ExitCode.POINTER_REFUSED),
        (errors.LevelMismatch("x"), ExitCode.POINTER_REFUSED),
        (errors.EpochMismatch("x"), ExitCode.POINTER_REFUSED),
        (errors.HashMismatch("x"), ExitCode.POINTER_REFUSED),
        (errors.LeafLost("x"), ExitCode.HARD_FAILURE),
        (errors.LeafCorrupt("x"), ExitCode.HARD_FAILURE),
        (errors.CommandRejected("x", outcome=None), ExitCode.REJECTED),
        (errors.Irreducible("x"), ExitCode.IRREDUCIBLE),
        (errors.Unavailable("x"), ExitCode.UNAVAILABLE),
        (errors.OutcomeUnknown("x"), ExitCode.UNAVAILABLE),
        (errors.Unconfirmed("x"), ExitCode.UNAVAILABLE),
        (BumpsMissed("x"), ExitCode.UNAVAILABLE),
        (errors.InvalidInput("x"), ExitCode.USAGE),
        (errors.BoundaryError("x", nearest=(0, 1)), ExitCode.USAGE),
        (errors.PayloadTooLarge("x"), ExitCode.USAGE),
        (BadInput("x"), ExitCode.BAD_INPUT),
        (FormatUnclearError("x", ()), ExitCode.BAD_INPUT),
        (TranscriptChangedError("x"), ExitCode.BAD_INPUT),
        (ServerExited("x", server="s"), ExitCode.SERVER),
        (DataFolderInUse("x", server="s"), ExitCode.SERVER),
        (ProvisionError("x"), ExitCode.SERVER),
        (errors.MalformedMessage("x"), ExitCode.INTERNAL),
        (errors.UnsupportedSchema("x"), ExitCode.INTERNAL),
        (SextonError("x"), ExitCode.INTERNAL),
    ],
)
def test_each_error_has_its_code(error: SextonError, code: ExitCode) -> None:
    """Also the ones that are two things at once, such as an unclear format."""
    assert code is exit_code_of(error)


def test_a_message_that_is_invalid_input_too_is_a_matter_of_usage() -> None:
    """`InvalidMessage` is a peer's error by one base and the caller's by the other."""
    assert ExitCode.USAGE is exit_code_of(InvalidMessage("x"))


def test_every_code_says_what_it_means_in_one_line() -> None:
    """A code without a meaning cannot be documented, and two meanings cannot share one."""
    assert all(code.meaning and "\n" not in code.meaning for code in ExitCode)
    assert len(ExitCode) == len({code.meaning for code in ExitCode})
    assert all(f"{code.value}  {code.meaning}" in epilog() for code in ExitCode)


def test_these_commands_are_there() -> None:
    """Scripts rely on the names."""
    assert set() == COMMANDS - set(commands())


def test_the_docs_hold_every_code_as_it_is() -> None:
    """Code and meaning, as a row of the table."""
    rows = set(DOCS.read_text().splitlines())

    assert [] == [code.name for code in ExitCode if f"| {code.value} | {code.meaning} |" not in rows]


def test_the_docs_hold_every_command_with_its_options() -> None:
    """A section for each command; the options that most share stand in one of their own."""
    text = DOCS.read_text()
    sections = dict(re.findall(r"(?ms)^## `sexton (\w+)`\n(.*?)(?=^## |\Z)", text))
    shared = text.partition("## Options that most commands take")[2].partition("\n## ")[0]

    missing = [
        f"{name} {option}"
        for name, command in commands().items()
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and f"`{option}" not in sections.get(name, "") + shared
    ]

    assert set(commands()) == set(sections)
    assert [] == missing


def test_the_docs_name_no_command_that_is_not_there() -> None:
    """What was renamed or removed goes from the docs too."""
    named = set(re.findall(r"`sexton (?!-)(\w+)", DOCS.read_text()))

    assert set() == named - set(commands())
