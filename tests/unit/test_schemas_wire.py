"""Yesterday's messages are read today, whole, and tomorrow's lose nothing on the way.

The golden examples in `tests/golden/wire` are the law. One is only ever added: a field that is renamed, moved
or read as another type breaks an example, and a field that no example has is found here.
"""

import json
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from sexton.schemas.base import Part
from sexton.schemas.codec import decode_record
from sexton.schemas.json_schema import json_schemas
from sexton.schemas.rpc import SyncPart
from tests.schemas_kit.examples import (
    EXAMPLES,
    GOLDEN,
    MESSAGES,
    Place,
    message_name,
    place_of,
    places,
    read,
    replaced,
    without,
)

SCHEMAS: Final = json_schemas()
UNKNOWN: Final = {
    "x_text": "naïve 🪦\r\n\u2028\u0007",
    "x_number": 12345678901234567890123,
    "x_fraction": 0.1,
    "x_whole": 1.0,
    "x_true": True,
    "x_deep": {"a": [None, {"b": []}], "": {}},
    "wire": "a method's name",
    "model_config": 1,
    "__class__": 2,
    "": 3,
}
"""What a later sender might say, and what might break a reader that keeps it."""

TIED: Final = {
    *("Text.content", "Text.claim", "NewSpan.content", "NewSpan.claim"),
    *("Rewrite.base_version", "Rewrite.base_hash"),
}
"""Optional, and one of each must be there."""


def to_bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class Named(NamedTuple):
    """A part of a message, or a field of one, that the published schema has a name for."""

    at: Place
    part: str
    field: str | None
    required: bool


def named(example: str) -> list[Named]:
    """All of an example; not what lies inside what is only passed on."""
    schema = SCHEMAS[message_name(example)]
    return list(_named(json.loads(EXAMPLES[example]), schema, schema, ()))


def parts(example: str) -> list[Place]:
    """Where the parts of an example are."""
    return [found.at for found in named(example) if found.field is None]


def _named(value: Any, schema: Any, root: Any, at: Place) -> Iterator[Named]:
    schema = _resolved(value, schema, root)
    match value:
        case dict() if "properties" in schema:
            yield Named(at, schema["title"], None, required=True)
            for name, item in value.items():
                yield Named((*at, name), schema["title"], name, required=name in schema.get("required", ()))
                yield from _named(item, schema["properties"][name], root, (*at, name))
        case list() if "items" in schema:
            for index, item in enumerate(value):
                yield from _named(item, schema["items"], root, (*at, index))


def _resolved(value: Any, schema: Any, root: Any) -> Any:
    while "$ref" in schema or "anyOf" in schema:
        if "$ref" in schema:
            schema = root["$defs"][schema["$ref"].removeprefix("#/$defs/")]
        else:
            null = value is None
            schema = next(s for s in schema["anyOf"] if (s.get("type") == "null") is null)
    return schema


# --- yesterday -------------------------------------------------------------------------------------------


def test_every_message_has_an_example_and_nothing_else_has() -> None:
    """A new message is a new example."""
    assert set(MESSAGES) == {message_name(example) for example in EXAMPLES}


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_comes_back_byte_for_byte(example: str) -> None:
    """Bytes to a message and back: the same bytes (C77), and a line end behind them in the file."""
    data = (GOLDEN / f"{example}.json").read_bytes()
    assert data == read(message_name(example), data).wire() + b"\n"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_what_the_schema_says(example: str) -> None:
    """The published schema allows what was sent yesterday."""
    Draft202012Validator(SCHEMAS[message_name(example)]).validate(json.loads(EXAMPLES[example]))


@pytest.mark.parametrize("example", EXAMPLES)
def test_every_field_of_an_example_is_still_known(example: str) -> None:
    """A field that was renamed would be read as an unknown one, and its meaning lost without an error."""
    assert [] == list(_unknown(read(message_name(example), EXAMPLES[example])))


def test_every_field_of_every_message_is_in_an_example() -> None:
    """So that none can change without breaking one. A new field is a new example."""
    seen = {f"{part}.{field}" for example in EXAMPLES for _, part, field, _ in named(example)}
    wanted = {
        f"{part['title']}.{field}"
        for schema in (SCHEMAS[name] for name in MESSAGES)
        for part in (schema, *schema.get("$defs", {}).values())
        for field in part.get("properties", ())
    }
    assert set() == wanted - seen


def _unknown(part: Part, at: str = "") -> Iterator[str]:
    yield from (f"{at}.{name}" for name in part.__pydantic_extra__)
    for name, value in part.__dict__.items():
        for item in value if isinstance(value, tuple) else (value,):
            if isinstance(item, Part):
                yield from _unknown(item, f"{at}.{name}")


# --- tomorrow --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("example", EXAMPLES)
def test_unknown_fields_are_kept_and_passed_on_at_every_level(example: str) -> None:
    """In each part of a message in turn, and in all of them at once, also through another message."""
    name, sent = message_name(example), json.loads(EXAMPLES[example])
    everywhere = sent
    # The innermost first, so that a part is extended before it is put into the next.
    for at in sorted(parts(example), key=len, reverse=True):
        extended = replaced(sent, at, {**place_of(sent, at), **UNKNOWN})
        assert extended == json.loads(read(name, to_bytes(extended)).wire())
        everywhere = replaced(everywhere, at, {**place_of(everywhere, at), **UNKNOWN})
    assert everywhere == json.loads(read(name, to_bytes(everywhere)).wire())
    Draft202012Validator(SCHEMAS[name]).validate(everywhere)


def test_unknown_fields_of_a_record_in_a_sync_part_are_kept() -> None:
    """Through the part and through the record, in the record and in its spans."""
    part = json.loads(EXAMPLES["sync_part.records"])
    record = part["records"][0]
    record |= UNKNOWN | {"x_null": None}
    record["spans"][0] |= UNKNOWN
    record["spans"][0]["labels"] |= UNKNOWN
    message = read("sync_part", to_bytes(part))
    assert part == json.loads(message.wire())
    assert isinstance(message, SyncPart)
    written = json.loads(decode_record(message.records[0]).wire())
    assert {name: value for name, value in record.items() if value is not None} == written


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_unknown_field_that_is_null_may_be_left_out(example: str) -> None:
    """Null says nothing, in a known field and in an unknown one; inside an unknown one it is kept."""
    sent = json.loads(EXAMPLES[example])
    extended = {**sent, "x_null": None, "x_inside": {"null": None, "list": [None]}}
    written = json.loads(read(message_name(example), to_bytes(extended)).wire())
    assert {**sent, "x_inside": extended["x_inside"]} == written


@pytest.mark.parametrize("example", EXAMPLES)
def test_what_is_optional_may_be_missing(example: str) -> None:
    """A sender of before a field was added is read."""
    sent = json.loads(EXAMPLES[example])
    for at, part, field, required in named(example):
        if field is not None and not required and f"{part}.{field}" not in TIED:
            read(message_name(example), to_bytes(without(sent, at)))


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_has_no_part_that_its_schema_does_not_name(example: str) -> None:
    """The walk above reaches every part, but for what is passed on unread."""
    passed_on = {("records",), ("fields",)}
    reached = parts(example)
    for at, value in places(json.loads(EXAMPLES[example])):
        assert not isinstance(value, dict) or at in reached or at[:1] in passed_on
