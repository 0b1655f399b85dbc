"""The published JSON Schemas and the models say the same, but for the differences in `docs/wire.md`."""

import json
import re
from collections.abc import Collection, Iterator
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator, validators
from jsonschema import ValidationError as SchemaError
from pydantic import ValidationError

from sexton.schemas.errors import PeerError
from tests.schemas_kit.examples import (
    EXAMPLES,
    MESSAGES,
    Place,
    message_name,
    place_of,
    places,
    read,
    replaced,
    without,
)
from tests.schemas_kit.instances import ANY_JSON, SCHEMAS, instances


def _pattern(validator: Any, pattern: str, value: Any, schema: Any) -> Iterator[SchemaError]:
    """As JSON Schema has it. To Python, `$` also matches before a last line end."""
    if isinstance(value, str) and not re.search(re.sub(r"\$$", r"\\Z", pattern), value):
        yield SchemaError(f"does not match {pattern}")


Strict: Final = validators.extend(Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]
VALIDATORS: Final = {name: Strict(schema) for name, schema in SCHEMAS.items()}
NAMES: Final = sorted(MESSAGES)

# There are some forty messages.
FEWER: Final = settings(max_examples=max(10, settings().max_examples // 5))

# What a sender must say and a reader that knows the type does without.
TOLD: Final = {"schema_version", "kind", "status"}

# A schema cannot say these; a reader refuses them nevertheless.
TIED: Final = {
    "value_error",  # one of content and claim; a base; the chunks of a claim; the bytes of a label
    "bytes_invalid_encoding",  # base64 that is none
    "int_type",  # 1.0 is an integer to JSON Schema, and none to a reader
}
PASSED_ON: Final = {("records",), ("fields",)}
"""Fields whose content is not read with the message that they are in."""
WRONG: Final = [-1, 2**53, 1.0, True, "1", "x" * 300, "l9:a", "a\n", "a.b", ""]


@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(data=st.data())
def test_what_the_schema_allows_is_read_and_written_as_it_says(name: str, data: st.DataObject) -> None:
    """A message made from the schema alone is read, keeps every field, and is written as one again."""
    sent = data.draw(instances(name))
    written = json.loads(read(name, _bytes(sent)).wire())
    VALIDATORS[name].validate(written)
    assert [] == list(_lost(sent, written))


@pytest.mark.parametrize("name", NAMES)
@FEWER
@given(data=st.data())
def test_what_is_wrong_to_one_is_wrong_to_the_other(name: str, data: st.DataObject) -> None:
    """A message with one thing changed is refused by both or by neither, but for what is on the lists."""
    sent = data.draw(instances(name))
    at = data.draw(st.sampled_from([at for at, _ in places(sent) if at]))
    dropped = data.draw(st.booleans())
    new = data.draw(ANY_JSON | st.sampled_from(WRONG) | st.just([place_of(sent, at)]))
    changed = without(sent, at) if dropped else replaced(sent, at, new)
    _agree(name, changed, may_lack=TOLD if dropped and at[-1] in TOLD else ())


@pytest.mark.parametrize("name", NAMES)
def test_each_field_with_each_wrong_value(name: str) -> None:
    """Every field of the examples is dropped, made null and given each wrong value in turn: as above."""
    told = set()
    for sent in (json.loads(data) for example, data in EXAMPLES.items() if message_name(example) == name):
        for at, value in places(sent):
            field = tuple(step for step in at if isinstance(step, str))
            if field in told or not at or field[:1] in PASSED_ON:
                continue
            told.add(field)
            for wrong in (*WRONG, None, [value], {"x": value}, []):
                _agree(name, replaced(sent, at, wrong), may_lack=())
            _agree(name, without(sent, at), may_lack=TOLD if at[-1] in TOLD else ())


def _agree(name: str, changed: Any, may_lack: Collection[str]) -> None:
    """Both take it, both refuse it, or one of the known differences explains it."""
    refusals = _refusals(name, changed)
    if VALIDATORS[name].is_valid(changed):
        # A list whose only item is refused is also said to be too short, but never that alone.
        assert refusals <= TIED or ("too_short" in refusals and refusals & TIED)
    else:
        assert refusals or may_lack


@pytest.mark.parametrize("union", ["command", "record", "outcome"])
@given(data=st.data())
def test_a_union_is_what_its_members_are(union: str, data: st.DataObject) -> None:
    """A message of a kind is valid as one of its union, and as one member of it only."""
    sent = data.draw(instances(union))
    VALIDATORS[union].validate(sent)
    members = [name for name in NAMES if SCHEMAS[name]["title"] in SCHEMAS[union]["$defs"]]
    told = "status" if union == "outcome" else "kind"
    assert [sent[told]] == [name for name in members if VALIDATORS[name].is_valid(sent)]


def _bytes(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()


def _refusals(name: str, value: Any) -> set[str]:
    """The types of pydantic's errors; empty if the message is read."""
    try:
        read(name, _bytes(value))
    except PeerError:
        try:
            MESSAGES[name].model_validate_json(_bytes(value))
        except ValidationError as e:
            return {detail["type"] for detail in e.errors()}
        return {"union"}
    return set()


def _lost(sent: Any, written: Any, at: Place = ()) -> Iterator[Place]:
    """Where what was sent is not in what was written. What is null may be left out."""
    match sent, written:
        case dict(), dict():
            for name, item in sent.items():
                if name in written:
                    yield from _lost(item, written[name], (*at, name))
                elif item is not None:
                    yield (*at, name)
        case list(), list() if len(sent) == len(written):
            for index, (item, other) in enumerate(zip(sent, written, strict=True)):
                yield from _lost(item, other, (*at, index))
        case _ if sent != written or type(sent) is not type(written):
            yield at
