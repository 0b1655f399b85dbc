"""`docs/wire.md` is written by hand: that it leaves nothing out, and that its examples are messages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.schemas import asyncapi, errors, subjects
from sexton.schemas.asyncapi import HOLDERS, PUBLISH, SUBSCRIBE
from sexton.schemas.base import MAX_UNKNOWN_DEPTH
from sexton.schemas.codec import InvalidMessage
from sexton.schemas.dead import DEAD_LETTER_HEADER
from sexton.schemas.errors import SextonError
from sexton.schemas.ids import TOKEN
from sexton.schemas.json_schema import json_schemas
from sexton.schemas.limits import MAX_CLAIM_CHUNKS, MAX_COMMAND_BYTES, MAX_LABEL_BYTES
from sexton.schemas.outcome import REPLY_HEADER, RejectionCode
from tests.schemas_kit.examples import EXAMPLES

DOCS: Final = Path(__file__).parents[2] / "docs"
TEXT: Final = (DOCS / "wire.md").read_text(encoding="utf-8")
WORDS: Final = set(re.findall(r"`([^`\n]+)`", TEXT))
ROWS: Final = re.findall(r"(?m)^\| `(sexton\.[^`]+)` \| (.+) \| (.+) \| (.+) \|$", TEXT)
CHANNELS: Final[dict[str, dict[str, Any]]] = {
    subject: channel
    for channel in asyncapi.document()["channels"].values()
    if (subject := channel["address"]) is not None
}


def as_written(address: str) -> str:
    """An address of the AsyncAPI document as the page writes it."""
    short = {"context_id": "ctx", "event_id": "event", "partition": "n"}
    return re.sub(r"\{(\w+)\}", lambda m: f"<{short.get(m[1], m[1])}>", address)


def test_every_subject_has_a_row() -> None:
    """And every row is a subject."""
    assert sorted(map(as_written, CHANNELS)) == sorted(subject for subject, *_ in ROWS)


def test_a_row_says_who_may() -> None:
    """Holders where holders may, and nowhere else; and the messages that go over it."""
    rows = {subject: rest for subject, *rest in ROWS}
    for address, channel in CHANNELS.items():
        _, publish, subscribe = rows[as_written(address)]
        assert (HOLDERS in channel[PUBLISH]) == (HOLDERS in publish)
        assert (HOLDERS in channel[SUBSCRIBE]) == (HOLDERS in subscribe)


@pytest.mark.parametrize("name", json_schemas())
def test_every_message_is_named_and_linked(name: str) -> None:
    """With a link to its schema."""
    assert f"[`{name}`](../schemas/json/{name}.schema.json)" in TEXT


def test_every_stream_and_header_is_named() -> None:
    """As they are in the code."""
    streams = {value for name, value in vars(subjects).items() if name.startswith("STREAM_")}
    assert {*streams, REPLY_HEADER, DEAD_LETTER_HEADER, TOKEN} <= WORDS


def test_every_code_is_named() -> None:
    """Of rejections and of errors; the latter under whose turn it is."""
    assert {code.value for code in RejectionCode} <= WORDS
    section = TEXT.partition("Error codes, by whose turn it is")[2].partition("##")[0]
    assert {error.code for error in _errors(SextonError)} - {SextonError.code} <= set(
        re.findall(r"`(\w+)`", section)
    )
    for turn, base in (
        ("the caller's", errors.CallerError),
        ("the peer's", errors.PeerError),
        ("nobody's", errors.TransientError),
        ("an operator's", errors.HardFailure),
    ):
        codes = re.findall(r"`(\w+)`", section.partition(f"**{turn}**")[2].partition("**")[0])
        assert {error.code for error in (base, *_errors(base)) if error is not InvalidMessage} == set(codes)


def _errors(base: type[SextonError]) -> Iterator[type[SextonError]]:
    for error in base.__subclasses__():
        if error.__module__.startswith("sexton.schemas."):
            yield error
        yield from _errors(error)


def test_the_limits_are_the_ones_of_the_code() -> None:
    """Numbers that are written out."""
    assert f"{MAX_COMMAND_BYTES // 1024} KiB" in TEXT
    assert f"{MAX_UNKNOWN_DEPTH} lists and objects deep" in TEXT
    assert f"more than {MAX_CLAIM_CHUNKS} chunks" in TEXT
    assert f"more than {MAX_LABEL_BYTES} bytes" in TEXT


def test_every_example_on_the_page_is_a_golden_one() -> None:
    """What a reader copies is a message."""
    golden = [json.loads(data) for data in EXAMPLES.values()]
    blocks = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert len(blocks) > 10
    assert all(json.loads(block) in golden for block in blocks)


def test_every_link_leads_to_a_file() -> None:
    """Of this checkout."""
    for target in re.findall(r"\]\(([^)#]+)", TEXT):
        assert (DOCS / target).exists(), target
