"""Garbage is accepted or raises the protocol's error, never anything else. After h11's fuzz rule."""

import json
import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from hypothesis import example, given, settings
from hypothesis import strategies as st

from sexton.schemas.base import Message
from sexton.schemas.codec import decode, decode_command, decode_outcome, decode_record, event_id_of
from sexton.schemas.errors import MalformedMessage, SextonError, UnsupportedSchema
from sexton.schemas.ids import token
from sexton.schemas.rpc import RpcError
from sexton.schemas.wire_errors import error_from
from tests.schemas_kit.examples import EXAMPLES, MESSAGES, message_name, place_of, places, read, replaced
from tests.schemas_kit.instances import instances

LONGEST_ERROR: Final = 1_500
"""Characters. Five problems, each with a place and a text."""

DECODERS: Final[list[Callable[[bytes], Message]]] = [
    decode_command,
    decode_record,
    decode_outcome,
    *(lambda data, name=name: read(name, data) for name in sorted(MESSAGES)),
]
"""All ways for bytes to become a message."""

ODD: Final = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\0", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf"),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-0", b"1.0", b"9007199254740992", b"9" * 5000),
    *(rb"\ud800", rb"\u0000", b'"kind":"prune",', b'"status":"ok",', b'"schema_version":2,', b"{" * 250),
]

LEAVES: Final = st.none() | st.booleans() | st.floats() | st.just(math.inf) | st.integers() | st.text()
NAMES: Final = st.text() | st.sampled_from(["kind", "status", "chain", "schema_version", "spans", "records"])
ANYTHING: Final = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)

MORE: Final = settings(max_examples=5 * settings().max_examples)

WIRES: Final = sorted(EXAMPLES.values())


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A message of the golden ones with up to four accidents."""
    data = draw(st.sampled_from(WIRES))
    for _ in range(draw(st.integers(1, 4))):
        start, end = sorted(draw(st.tuples(*[st.integers(0, len(data))] * 2)))
        put = draw(
            st.just(b"")  # cut out
            | st.sampled_from(ODD)
            | st.binary(max_size=4)
            | st.just(data[start:end] * 2)  # said twice
            | st.just(draw(st.sampled_from(WIRES))[start:end])  # of another message
        )
        end = draw(st.sampled_from([start, end, min(start + 1, len(data))]))
        data = data[:start] + put + data[end:]
    return data


def accepted_or_refused(decoder: Callable[[bytes], Message], data: bytes) -> None:
    """The rule. What is accepted can be written, and is read as the same message again.

    But for the fields that hold nothing: they are left out when it is written, known or not.
    """
    message: Message | MalformedMessage | UnsupportedSchema
    try:
        message = decoder(data)
    except (MalformedMessage, UnsupportedSchema) as e:
        message = e
    if isinstance(message, Message):
        again = decoder(message.wire())
        assert message.model_dump(exclude_none=True) == again.model_dump(exclude_none=True)
        assert again == decoder(again.wire())
    else:
        assert len(str(message)) <= LONGEST_ERROR


@given(st.binary(max_size=200))
@example(b"")
@example(b"\xef\xbb\xbf{}")
@example(b"{}")
@example(b"[]")
def test_any_bytes(data: bytes) -> None:
    """Bytes that were never a message."""
    for decoder in DECODERS:
        accepted_or_refused(decoder, data)


@MORE
@given(damaged())
def test_damaged_messages(data: bytes) -> None:
    """Messages that were cut, joined, doubled or scribbled over."""
    for decoder in DECODERS:
        accepted_or_refused(decoder, data)


def test_an_unknown_field_that_holds_nothing() -> None:
    """It is accepted, and left out when the message is written."""
    for name, wire in EXAMPLES.items():
        for nothing in ("", "later"):
            sent = json.dumps({**json.loads(wire), nothing: None}).encode()
            accepted_or_refused(partial(read, message_name(name)), sent)


@given(st.sampled_from(sorted(EXAMPLES)), ANYTHING, st.data())
def test_any_value_in_any_place(name: str, value: Any, data: st.DataObject) -> None:
    """A message with one value that is something else, or with one field that nobody knows."""
    sent = json.loads(EXAMPLES[name])
    at = data.draw(st.sampled_from([at for at, _ in places(sent)]))
    inside = place_of(sent, at)
    if isinstance(inside, dict) and data.draw(st.booleans()):
        value = {**inside, data.draw(st.text()): value}
    accepted_or_refused(partial(read, message_name(name)), json.dumps(replaced(sent, at, value)).encode())


@given(ANYTHING)
def test_any_json(value: Any) -> None:
    """JSON, and what Python takes for JSON: NaN, lone surrogates."""
    data = json.dumps(value).encode()
    for decoder in DECODERS:
        accepted_or_refused(decoder, data)


@given(st.data())
def test_a_record_in_a_sync_part_is_read_as_from_the_log(data: st.DataObject) -> None:
    """A record that was parsed as part of a reply is the record that its bytes are."""
    record = data.draw(instances("record"))
    assert decode_record(json.dumps(record).encode()) == decode_record(record)


@given(st.dictionaries(NAMES, LEAVES | st.lists(st.integers())))
def test_any_dictionary_as_a_record(value: dict[str, Any]) -> None:
    """What lies in a sync reply need not be a record."""
    try:
        decode_record(value)
    except (MalformedMessage, UnsupportedSchema):
        return
    raise AssertionError("no record has these fields")


@given(damaged() | st.binary(max_size=200))
def test_whoever_can_be_answered_has_a_usable_id(data: bytes) -> None:
    """The event id of a broken command may stand in a subject, or is none."""
    event_id = event_id_of(data)
    assert event_id is None or token(event_id, "event_id") == event_id


@given(instances("rpc_error"))
def test_any_error_part_becomes_an_error(sent: dict[str, Any]) -> None:
    """Whatever code and fields a peer sends, the reader gets an error of ours with its message."""
    part = decode(RpcError, json.dumps(sent).encode())
    error = error_from(part)
    assert isinstance(error, SextonError)
    assert part.message == error.message


def test_every_example_is_a_message() -> None:
    """The messages that are damaged above are whole before."""
    for name, data in EXAMPLES.items():
        assert data == read(message_name(name), data).wire()
