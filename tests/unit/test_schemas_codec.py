"""What comes in and is no message: each kind of it, by name, and what the error says and does not say."""

import json
import traceback
from collections.abc import Callable
from typing import Any, Final

import pytest
from pydantic import ValidationError

from sexton.schemas.base import MAX_SAFE_INTEGER, MAX_UNKNOWN_DEPTH, SCHEMA_VERSION, Message
from sexton.schemas.codec import (
    InvalidMessage,
    decode,
    decode_command,
    decode_outcome,
    decode_record,
    event_id_of,
)
from sexton.schemas.errors import CallerError, InvalidInput, MalformedMessage, PeerError, UnsupportedSchema
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import FetchPart, FetchRequest, SyncPart, Tier
from tests.schemas_kit.examples import EXAMPLES, MESSAGES, message_name, places, read, replaced

MIB: Final = 1024 * 1024
CANARY: Final = "canary7f3a"
LONGEST_ERROR: Final = 1_500

APPEND: Final = json.loads(EXAMPLES["append"])
APPENDED: Final = json.loads(EXAMPLES["appended"])
POINTER: Final = json.loads(EXAMPLES["pointer"])
FETCH: Final = json.loads(EXAMPLES["fetch_request"])

DECODERS: Final[dict[str, Callable[[bytes], Message]]] = {
    "command": decode_command,
    "record": decode_record,
    "outcome": decode_outcome,
    "pointer": lambda data: decode(Pointer, data),
}


def to_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def with_raw(message: dict[str, Any], field: str, raw: bytes) -> bytes:
    """A message with one more field, whose value is given as it is on the wire."""
    rest = {name: value for name, value in message.items() if name != field}
    return to_bytes(rest)[:-1] + b',"' + field.encode() + b'":' + raw + b"}"


NO_MESSAGES: Final = {
    "nothing": b"",
    "blank": b" \n",
    "no JSON": b"hello",
    "half of it": EXAMPLES["append"][:-1],
    "two of them": EXAMPLES["append"] * 2,
    "something behind": EXAMPLES["append"] + b"x",
    "a byte order mark": b"\xef\xbb\xbf" + EXAMPLES["append"],
    "UTF-16": EXAMPLES["append"].decode().encode("utf-16"),
    "Latin-1": with_raw(APPEND, "x", '"é"'.encode("latin-1")),
    "overlong UTF-8": with_raw(APPEND, "x", b'"\xc0\xaf"'),
    "UTF-8 cut off": with_raw(APPEND, "x", b'"\xf0\x9f\xaa"'),
    "lone surrogate, encoded": with_raw(APPEND, "x", b'"\xed\xa0\x80"'),
    "lone surrogate, escaped": with_raw(APPEND, "x", rb'"\ud800"'),
    "surrogates the wrong way round": with_raw(APPEND, "x", rb'"\udc00\ud800"'),
    "lone surrogate in a name": b'{"\\ud800":1,' + EXAMPLES["append"][1:],
    "control character": with_raw(APPEND, "x", b'"\x01"'),
    "NUL behind": EXAMPLES["append"] + b"\0",
    "an array": b"[]",
    "an array of messages": b"[" + EXAMPLES["append"] + b"]",
    "a text": b'"append"',
    "a number": b"1",
    "null": b"null",
    "true": b"true",
    "too deep": with_raw(APPEND, "x", b"[" * 300 + b"]" * 300),
    "too deep objects": with_raw(APPEND, "x", b'{"x":' * 300 + b"1" + b"}" * 300),
    "20 MB of brackets": b"[" * 20 * MIB,
    "20 MB of a text that does not end": b'"' + b"x" * 20 * MIB,
    "20 MB of digits": with_raw(APPEND, "x", b"9" * 20 * MIB),
    "single quotes": b"{'kind':'append'}",
    "comment": EXAMPLES["append"] + b"// done",
    "trailing comma": EXAMPLES["append"][:-1] + b",}",
    "leading zero": with_raw(APPEND, "x", b"01"),
    "plus": with_raw(APPEND, "x", b"+1"),
}


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("data", NO_MESSAGES.values(), ids=NO_MESSAGES)
def test_what_is_no_message_is_malformed(decoder: Callable[[bytes], Message], data: bytes) -> None:
    """Bytes that are not an object in JSON in UTF-8 (C85), whoever reads them."""
    with pytest.raises(MalformedMessage) as caught:
        decoder(data)
    assert MalformedMessage is type(caught.value)
    assert "malformed" == caught.value.code
    assert len(str(caught.value)) <= LONGEST_ERROR


NO_NUMBERS: Final = [b"NaN", b"Infinity", b"-Infinity", b"1e999", b'[1,{"y":[NaN]}]']


@pytest.mark.parametrize("raw", NO_NUMBERS)
def test_an_unknown_field_holds_no_number_that_json_does_not_know(raw: bytes) -> None:
    """They could only be passed on as null: another message."""
    with pytest.raises(MalformedMessage):
        decode_command(with_raw(APPEND, "x", raw))


@pytest.mark.parametrize(
    "raw", [*NO_NUMBERS, b"true", b"false", b'"1"', b"1.0", b"1.5", b"1e0", b"null", b"[1]", b"{}"]
)
@pytest.mark.parametrize("field", ["version", "offset", "level", "epoch", "schema_version"])
def test_an_integer_is_an_integer(field: str, raw: bytes) -> None:
    """Nothing that could pass for one in another language passes."""
    with pytest.raises(InvalidMessage) as caught:
        decode(Pointer, with_raw(POINTER, field, raw))
    assert field == caught.value.problems[0][0]


@pytest.mark.parametrize("raw", [b"1", b"0", b'"true"', b'"yes"', b"null", b"1.0"])
def test_a_flag_is_true_or_false(raw: bytes) -> None:
    """A text that means yes is none."""
    with pytest.raises(InvalidMessage):
        decode(Pointer, with_raw(POINTER, "accept_summary", raw))


@pytest.mark.parametrize("number", [-1, 2**53, 2**63, 2**64, 10**400])
@pytest.mark.parametrize("field", ["version", "offset", "length", "epoch"])
def test_a_counter_has_bounds(field: str, number: int) -> None:
    """Past 2**53 some readers lose digits, so none gets such a number."""
    with pytest.raises(InvalidMessage):
        decode(Pointer, to_bytes({**POINTER, field: number}))


def test_the_largest_counter_is_kept() -> None:
    """2**53 - 1 comes back as it was."""
    message = decode(Pointer, to_bytes({**POINTER, "epoch": MAX_SAFE_INTEGER}))
    assert MAX_SAFE_INTEGER == message.epoch
    assert MAX_SAFE_INTEGER == json.loads(message.wire())["epoch"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context_id", "a.b"),
        ("context_id", ""),
        ("context_id", "a\n"),
        ("context_id", "x" * 10_240),
        ("span_id", "m1"),
        ("span_id", "l8:m1"),
        ("span_id", "l0:" + "x" * 97),
        ("span_id", "l0:a b"),
        ("level", 8),
        ("level", -1),
        ("version", 0),
        ("content_hash", "sha256:" + "0" * 63),
        ("content_hash", "sha256:" + "G" * 64),
        ("content_hash", "md5:" + "0" * 64),
        ("content_hash", "sha256-l0:" + "0" * 64),
    ],
)
def test_a_field_that_cannot_be_right_is_named(field: str, value: Any) -> None:
    """The error says which field, is the caller's and the peer's at once, and is short."""
    with pytest.raises(InvalidMessage) as caught:
        decode(Pointer, to_bytes({**POINTER, field: value}))
    error = caught.value
    assert [field] == [place for place, _ in error.problems]
    assert "invalid" == error.code
    assert isinstance(error, PeerError)
    assert isinstance(error, CallerError)
    assert len(str(error)) <= 300


@pytest.mark.parametrize(
    "kind", ["merge", "", "APPEND", "append ", 1, None, True, ["append"], {"append": 1}, "k" * 10_240]
)
def test_a_command_of_an_unknown_kind_is_invalid(kind: Any) -> None:
    """Also if it has a chain, as records do, and whatever its kind is."""
    for command in ({**APPEND, "kind": kind}, {**APPEND, "kind": kind, "chain": "x"}):
        with pytest.raises(InvalidMessage) as caught:
            decode_command(to_bytes(command))
        assert "kind" == caught.value.problems[0][0]
        assert len(str(caught.value)) <= 100


@pytest.mark.parametrize(
    ("decoder", "message"),
    [(decode_command, APPEND), (decode_record, APPENDED), (decode_outcome, {"status": 1})],
)
def test_a_message_that_does_not_say_what_it_is(decoder: Callable[[bytes], Message], message: Any) -> None:
    """A kind is never guessed from the fields."""
    bare = {name: value for name, value in message.items() if name not in ("kind", "status")}
    with pytest.raises(InvalidMessage):
        decoder(to_bytes(bare))


@pytest.mark.parametrize("kind", ["merged", "snapshot_taken", "M" * 10_240, "<script>"])
def test_a_record_of_an_unknown_kind_needs_a_newer_reader(kind: str) -> None:
    """It is not broken, and the reader starts over; from bytes, and as it lies in a sync reply."""
    record = {**APPENDED, "kind": kind}
    for data in (to_bytes(record), record):
        with pytest.raises(UnsupportedSchema) as caught:
            decode_record(data)
        assert len(str(caught.value)) <= 100


@pytest.mark.parametrize("version", [SCHEMA_VERSION + 1, 2**53, 10**400])
def test_a_newer_message_needs_a_newer_reader(version: int) -> None:
    """Whatever else is new in it: a kind, a field of another type."""
    for decoder, message in (
        (decode_command, APPEND),
        (decode_command, {**APPEND, "kind": "merge"}),
        (decode_command, {**APPEND, "spans": "elsewhere"}),
        (decode_record, APPENDED),
        (decode_record, {**APPENDED, "kind": "merged"}),
        (decode_outcome, json.loads(EXAMPLES["rejected"])),
    ):
        with pytest.raises(UnsupportedSchema) as caught:
            decoder(to_bytes({**message, "schema_version": version}))
        assert len(str(caught.value)) <= 100


@pytest.mark.parametrize("example", ["fetch_request", "fetch_part", "sync_part.snapshot"])
def test_a_newer_message_inside_another_needs_a_newer_reader(example: str) -> None:
    """A pointer of a later version is not read as one of today's because it lies in a request of today."""
    sent = json.loads(EXAMPLES[example])
    inner = [at for at, _ in places(sent) if at[-1:] == ("schema_version",) and len(at) > 1]
    assert inner
    for at in inner:
        with pytest.raises(UnsupportedSchema):
            read(message_name(example), to_bytes(replaced(sent, at, SCHEMA_VERSION + 1)))


@pytest.mark.parametrize("version", [0, -1, True, "1", 1.0, None])
def test_a_schema_version_is_a_number_from_one(version: Any) -> None:
    """Anything else is not newer, but broken."""
    with pytest.raises(InvalidMessage):
        decode_command(to_bytes({**APPEND, "schema_version": version}))


def test_a_reader_does_without_a_schema_version() -> None:
    """A message that says none is one of the first."""
    bare = {name: value for name, value in POINTER.items() if name != "schema_version"}
    assert 1 == decode(Pointer, to_bytes(bare)).schema_version


def test_a_record_in_a_sync_part_may_be_of_any_kind() -> None:
    """The part is read; the record is refused when it is read."""
    part = json.loads(EXAMPLES["sync_part.records"])
    part["records"][0] |= {"kind": "merged", "new": {"deep": [None, 1]}}
    read_part = decode(SyncPart, to_bytes(part))
    assert part == json.loads(read_part.wire())
    with pytest.raises(UnsupportedSchema):
        decode_record(read_part.records[0])


def test_a_code_that_a_later_service_knows_is_read() -> None:
    """A rejection is a rejection whatever its code; the code is passed on, and equal to its text."""
    sent = {**json.loads(EXAMPLES["rejected"]), "code": "budget_spent"}
    outcome = decode_outcome(to_bytes(sent))
    assert isinstance(outcome, Rejected)
    assert "budget_spent" == outcome.code
    assert outcome.code not in list(RejectionCode)
    assert sent == json.loads(outcome.wire())


def test_a_tier_that_a_later_service_knows_is_read() -> None:
    """Where bytes came from is told, and not acted on."""
    sent = json.loads(EXAMPLES["fetch_part"])
    sent["answer"]["tier"] = "edge_cache"
    part = decode(FetchPart, to_bytes(sent))
    assert part.answer is not None
    assert "edge_cache" == part.answer.tier
    assert part.answer.tier not in list(Tier)
    assert sent == json.loads(part.wire())


@pytest.mark.parametrize("code", ["", "No", "two words", "x" * 65, "é", 1, None])
def test_a_code_is_a_word(code: Any) -> None:
    """An open list of codes is not open to anything."""
    with pytest.raises(InvalidMessage):
        decode_outcome(to_bytes({**json.loads(EXAMPLES["rejected"]), "code": code}))


def test_known_codes_are_the_ones_that_are_known() -> None:
    """Reading a known word gives the member itself."""
    for code in RejectionCode:
        outcome = decode_outcome(Rejected(code=code, message="").wire())
        assert isinstance(outcome, Rejected)
        assert code is outcome.code


@pytest.mark.parametrize("label", ["role", "kind", "media_type"])
def test_labels_are_open_words(label: str) -> None:
    """Labels are the sender's: any text up to 256 bytes, whatever this reader makes of it."""
    for value in ("tombola", "x" * 256, "é" * 128, "🪦" * 64):
        sent = replaced(APPEND, ("spans", 0, "labels", label), value)
        assert sent == json.loads(decode_command(to_bytes(sent)).wire())
    for bad in ("", "x" * 257, "é" * 129, "🪦" * 65, 1, ["x"]):
        with pytest.raises(InvalidMessage):
            decode_command(to_bytes(replaced(APPEND, ("spans", 0, "labels", label), bad)))


@pytest.mark.parametrize("state", ["frozen", "", 1])
def test_a_state_that_is_unknown_is_refused(state: Any) -> None:
    """A reader acts on a state; it must not guess what a new one means."""
    sent = json.loads(EXAMPLES["sync_part.snapshot"])
    with pytest.raises(InvalidMessage):
        decode(SyncPart, to_bytes(replaced(sent, ("snapshot", "spans", 0, "state"), state)))


def test_an_unknown_field_may_be_as_deep_as_the_limit() -> None:
    """And no deeper: the record in a reply must not be too deep for its reader."""
    for depth, refused in ((MAX_UNKNOWN_DEPTH, False), (MAX_UNKNOWN_DEPTH + 1, True)):
        raw = b"[" * depth + b"]" * depth
        label = b'{"open":true,"x":' + raw + b"}"
        data = to_bytes(replaced(APPEND, ("spans", 0, "labels"), "LABELS")).replace(b'"LABELS"', label)
        if refused:
            with pytest.raises(MalformedMessage):
                decode_command(data)
        else:
            assert json.loads(data) == json.loads(decode_command(data).wire())


def test_the_last_of_two_fields_of_one_name_counts() -> None:
    """For the kind as for any other field: what is checked is what is read."""
    prune = json.loads(EXAMPLES["prune"])
    assert "prune" == read("prune", b'{"kind":"append",' + to_bytes(prune)[1:]).model_dump()["kind"]
    with pytest.raises(InvalidMessage):
        decode_command(with_raw(prune, "kind", b'"prune","kind":"append"'))


@pytest.mark.parametrize("base64", ["!", "AAA*", "AA=A", "A", " AAAA", "AAAA\n", "AA-/", "é"])
def test_bytes_are_base64(base64: str) -> None:
    """Of one alphabet, without blanks."""
    with pytest.raises(InvalidMessage):
        decode(FetchPart, to_bytes({**json.loads(EXAMPLES["fetch_part"]), "data": base64}))


def test_bytes_are_written_in_the_url_safe_alphabet_and_read_in_both() -> None:
    """What is written is padded; what is read need not be."""
    part = json.loads(EXAMPLES["fetch_part"])
    for text in ("_-8=", "/+8=", "_-8", "/+8"):
        read_part = decode(FetchPart, to_bytes({**part, "data": text}))
        assert b"\xff\xef" == read_part.data
        assert "_-8=" == json.loads(read_part.wire())["data"]


@pytest.mark.parametrize(
    ("event_id", "expected"),
    [
        ("ev-1", "ev-1"),
        ("a.b", None),
        ("", None),
        ("x" * 10_240, None),
        ("a\n", None),
        (1, None),
        (None, None),
    ],
)
def test_whom_to_answer(event_id: Any, expected: str | None) -> None:
    """The id of a broken command, if it could stand in the subject of an outcome."""
    assert expected == event_id_of(to_bytes({"event_id": event_id, "spans": 1}))


def test_nobody_to_answer() -> None:
    """Bytes that are no object say no id."""
    for data in NO_MESSAGES.values():
        assert event_id_of(data) in (None, APPEND["event_id"])


# --- what errors say -----------------------------------------------------------------------------------


def said_of(error: BaseException) -> str:
    """All that a log or a caller could get to see of an error."""
    fields = getattr(error, "fields", {})
    return "".join([*traceback.format_exception(error), repr(error), repr(error.args), repr(fields)])


BAD_VALUES: Final = [
    CANARY + "\n",
    CANARY * 1_024,
    [CANARY],
    {CANARY: CANARY},
    [[{CANARY: [CANARY]}]],
    -1,
    None,
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_no_error_repeats_what_was_in_the_message(example: str) -> None:
    """Content reaches no error text, no field and no traceback, and texts are short; each field in turn."""
    sent = json.loads(EXAMPLES[example])
    told = {"kind", "status", "schema_version", "code", "message", "reason"}
    for at, value in places(sent):
        # The rest of the message holds the canary as well, where it may hold any text.
        if isinstance(value, str) and at and at[-1] not in told:
            with_canary = replaced(sent, at, f"{CANARY}{value}")
            sent = with_canary if _refusal(example, with_canary) is None else sent
    errors = [
        error
        for at, _ in places(sent)
        for bad in (BAD_VALUES if at else [])
        if (error := _refusal(example, replaced(sent, at, bad))) is not None
    ]
    assert errors
    for error in errors:
        assert CANARY not in said_of(error)
        assert len(str(error)) <= LONGEST_ERROR


def test_no_error_of_a_union_repeats_the_kind() -> None:
    """A kind of 10 KB is not quoted, in no form."""
    for kind in (CANARY * 1_024, f"{CANARY} ", [CANARY], {CANARY: 1}):
        for decoder in (decode_command, decode_record, decode_outcome):
            for message in ({"kind": kind, "status": kind}, {**APPENDED, "kind": kind, "status": kind}):
                with pytest.raises(PeerError) as caught:
                    decoder(to_bytes(message))
                assert CANARY not in said_of(caught.value)


def test_not_even_broken_json_is_quoted() -> None:
    """The parser says where it stopped, not at what."""
    for data in (
        CANARY.encode(),
        b'{"content":"' + CANARY.encode(),
        b'{"' + CANARY.encode() + b'":' + CANARY.encode() + b"}",
        b'"' + CANARY.encode() + b'\xff"',
    ):
        with pytest.raises(MalformedMessage) as caught:
            decode_command(data)
        assert CANARY not in said_of(caught.value)


def _refusal(example: str, value: Any) -> PeerError | None:
    try:
        read(message_name(example), to_bytes(value))
    except PeerError as e:
        return e
    return None


# --- what a hostile message costs ------------------------------------------------------------------------


def core_schemas(schema: Any) -> list[dict[str, Any]]:
    """Every part of a pydantic core schema."""
    found = []
    match schema:
        case dict():
            found = [schema] if isinstance(schema.get("type"), str) else []
            inner = [value for key, value in schema.items() if key not in ("metadata", "ref")]
            return found + [part for value in inner for part in core_schemas(value)]
        case list() | tuple():
            return [part for value in schema for part in core_schemas(value)]
    return found


@pytest.mark.parametrize("name", MESSAGES)
def test_every_field_of_a_message_is_strict_and_gives_up_early(name: str) -> None:
    """A list stops at its first bad item (`Items`), integers and flags are strict, all parts keep extras."""
    parts = core_schemas(MESSAGES[name].__pydantic_core_schema__)
    kinds = {part["type"] for part in parts}
    assert "model" in kinds
    assert kinds.isdisjoint({"float", "list", "set", "generator"}), "say in the schema how it is bounded"
    for part in parts:
        match part:
            case {"type": "tuple", "variadic_item_index": _}:
                assert part.get("fail_fast") is True, "use Items[...], not tuple[..., ...]"
            case {"type": "bool"}:
                assert part.get("strict") is True, "use Flag, not bool"
            case {"type": "int"}:
                assert part.get("strict") is True, "use Count or Ordinal, or say strict=True"
            case {"type": "model-fields"}:
                assert "allow" == part.get("extras_behavior", part.get("extra_behavior", "allow"))


def test_a_message_full_of_errors_is_told_in_one() -> None:
    """A 1 MiB command of bad spans names the first one; telling all took seconds and a gigabyte."""
    for decoder, message, field in (
        (decode_command, APPEND, "spans"),
        (decode_command, json.loads(EXAMPLES["compact"]), "sources"),
        (decode_record, APPENDED, "spans"),
        (decode_outcome, json.loads(EXAMPLES["committed"]), "spans"),
    ):
        with pytest.raises(InvalidMessage) as caught:
            decoder(to_bytes({**message, field: [0] * (MIB // 4)}))
        # The second may be that no good item is left.
        assert len(caught.value.problems) <= 2


def test_a_20_mb_message_is_read_or_refused() -> None:
    """The size of a command is bounded before it is read; here, it makes no other error."""
    content = "x" * 20 * MIB
    huge = replaced(APPEND, ("spans", 0, "content"), content)
    assert content == decode_command(to_bytes(huge)).model_dump()["spans"][0]["content"]
    with pytest.raises(InvalidMessage) as caught:
        decode_command(to_bytes({**huge, "context_id": content}))
    assert len(str(caught.value)) <= 300


def test_a_message_cannot_be_changed() -> None:
    """What was checked stays as it was checked."""
    pointer = decode(Pointer, to_bytes(POINTER))
    with pytest.raises(ValidationError):
        pointer.version = 2  # type: ignore[misc]


def test_invalid_input_is_one_error_for_callers() -> None:
    """Whoever catches `InvalidInput` catches a message with a bad field as well."""
    with pytest.raises(InvalidInput):
        decode(FetchRequest, to_bytes({**FETCH, "budget_ms": 0}))
