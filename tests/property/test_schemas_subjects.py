"""Subjects: what is built is parsed as it was meant, and no token reaches out of its place."""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.schemas import subjects
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import Level, level_of, span_id, token
from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb

TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
TOKENS: Final = st.text("abcXYZ019_-", min_size=1, max_size=64)
KINDS: Final = st.sampled_from(CommandKind)
ODD: Final = [*".*> \n\r\t\0/:$", "\u0430", "\u0435", "\u0660", "\ufb01", "\u200b", "\U0001faa6"]
# Texts that are nearly a token are what a check gets wrong.
NEARLY: Final = st.builds("{}{}{}".format, TOKENS, st.sampled_from(ODD), TOKENS | st.just(""))
TOO_LONG: Final = TOKENS.map(lambda text: text * 65)
NO_TOKENS: Final = (st.text() | NEARLY | TOO_LONG).filter(lambda text: not TOKEN.fullmatch(text))

Build = Callable[[str], str]
OF_A_CONTEXT: Final[dict[str, Build]] = {
    "log": subjects.log,
    "epoch": subjects.epoch,
    "summarise": subjects.summarise,
    "failure": subjects.failure,
    "outcome": partial(subjects.outcome, event_id="event"),
    **{f"rpc {verb}": partial(subjects.rpc, verb=verb) for verb in Verb},
    **{f"ops {verb}": partial(subjects.ops, verb=verb) for verb in OpsVerb},
}
BUILDERS: Final[dict[str, Build]] = {
    **OF_A_CONTEXT,
    **{f"command {kind}": partial(subjects.command, kind=kind) for kind in CommandKind},
    "outcome's event": partial(subjects.outcome, "context"),
    "dead letter": subjects.dead_letter,
    "token": partial(token, what="value"),
}


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@given(value=NO_TOKENS)
def test_a_builder_refuses_what_is_no_token(build: Build, value: str) -> None:
    """Any text that is no token raises `InvalidInput`, nothing else, and a short text."""
    with pytest.raises(InvalidInput) as caught:
        build(value)
    assert len(str(caught.value)) <= 1_000


@pytest.mark.parametrize("build", BUILDERS.values(), ids=BUILDERS)
@given(value=TOKENS)
def test_a_builder_puts_a_token_in_one_place(build: Build, value: str) -> None:
    """What is built has the token as one token of it, and nothing that NATS reads as structure."""
    built = build(value)
    assert value in built.split(".")
    assert re.fullmatch(r"[A-Za-z0-9_.-]+", built)
    assert len(build("x").split(".")) == len(built.split("."))


@pytest.mark.parametrize("build", OF_A_CONTEXT.values(), ids=OF_A_CONTEXT)
@given(context_id=TOKENS)
def test_the_context_comes_back(build: Build, context_id: str) -> None:
    """The context of a subject is the one that it was built for."""
    assert context_id == subjects.context_of(build(context_id))


@given(TOKENS, KINDS, st.integers(0, 9999))
def test_a_command_comes_back_before_and_after_the_transform(
    context_id: str, kind: CommandKind, partition: int
) -> None:
    """A command's subject is parsed as it was published and as it is stored."""
    stored = subjects.partition_filter(partition).replace("*.*", f"{context_id}.{kind}")
    for subject in (subjects.command(context_id, kind), stored):
        assert (context_id, kind) == subjects.parse_command(subject)
        assert context_id == subjects.context_of_command(subject)


@given(st.text() | st.lists(TOKENS | NEARLY | st.sampled_from(["sexton", "cmd", "part", "3"])).map(".".join))
def test_any_subject_is_parsed_or_refused(subject: str) -> None:
    """Parsers raise `InvalidInput`, and what they give is a token."""
    for parse in (subjects.parse_command, subjects.context_of_command, subjects.context_of):
        try:
            found = parse(subject)
        except InvalidInput:
            continue
        assert TOKEN.fullmatch(found if isinstance(found, str) else found.context_id)


@given(st.text() | NEARLY | TOKENS)
def test_nothing_but_an_inbox_is_an_inbox(rest: str) -> None:
    """What passes for an inbox has `_INBOX` in front, only plain tokens behind, and a bound."""
    for subject in (rest, f"_INBOX.{rest}", f"_INBOX{rest}", f"{rest}._INBOX.a", f"_INBOX.{rest}.b"):
        plain = re.fullmatch(r"_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+", subject)
        assert subjects.is_inbox(subject) is (plain is not None and len(subject) <= 256)


@given(st.sampled_from(Level), st.text() | NEARLY | TOKENS)
def test_a_span_id_carries_its_level_or_is_refused(level: Level, name: str) -> None:
    """A span id that is built says its level; a name that could not stand in one is refused."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,96}", name):
        assert level is level_of(span_id(level, name))
    else:
        with pytest.raises(InvalidInput):
            span_id(level, name)
