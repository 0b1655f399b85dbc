"""Bytes to messages, once. Everything that comes in passes here, so every reader refuses the same things.

The bytes are validated directly (`model_validate_json`): parsing and then validating would cost twice.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json

from sexton.schemas.base import MAX_SAFE_INTEGER, SCHEMA_VERSION, Message
from sexton.schemas.commands import COMMAND, Append, Compact, Prune, Rewrite
from sexton.schemas.errors import InvalidInput, MalformedMessage, SextonError, UnsupportedSchema
from sexton.schemas.ids import token
from sexton.schemas.outcome import OUTCOME, Committed, NoChange, Rejected
from sexton.schemas.records import LOG_RECORD, AnyLogRecord, RecordKind

AnyCommand = Append | Compact | Rewrite | Prune
AnyRecord = AnyLogRecord
AnyOutcome = Committed | NoChange | Rejected

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_MAX_PROBLEMS: Final = 5
_MAX_TEXT: Final = 200
"""Characters of one problem's text, and of its place."""
_RECORD_KINDS: Final = frozenset(kind.value for kind in RecordKind)
_SHAPE: Final = frozenset({"json_invalid", "model_attributes_type", "model_type"})
_plain_word_re: Final = re.compile("[a-z_]{1,40}")


def decode(model: type[M], data: bytes) -> M:
    """Reads one message of a known type.

    Raises:
        MalformedMessage: not JSON, not UTF-8, or not of this shape.
        InvalidMessage: of this shape, with a field that cannot be right.
        UnsupportedSchema: of a newer schema version, or with a part of one.
    """
    try:
        return model.model_validate_json(data)
    except ValidationError as e:
        raise _translated(e, data) from None


def decode_command(data: bytes) -> AnyCommand:
    """Reads a command of any kind. Raises as `decode`."""
    return _decode_union(COMMAND, data)


def decode_outcome(data: bytes) -> AnyOutcome:
    """Reads an outcome of any status. Raises as `decode`."""
    return _decode_union(OUTCOME, data)


def decode_record(data: bytes | Mapping[str, Any]) -> AnyRecord:
    """Reads a log record, from its bytes or as it lies in a `sync` reply.

    Raises:
        MalformedMessage: as `decode`.
        InvalidMessage: as `decode`.
        UnsupportedSchema: of a newer schema version, or of a kind that this reader does not know.
    """
    try:
        if isinstance(data, bytes):
            return LOG_RECORD.validate_json(data)
        return LOG_RECORD.validate_python(data)
    except ValidationError as e:
        raw = _loosely(data) if isinstance(data, bytes) else data
        raise _unknown_record(raw) or _translated(e, raw) from None


def event_id_of(data: bytes) -> str | None:
    """The `event_id` of a command that is otherwise broken, if it has a usable one: whom to answer."""
    found = (_loosely(data) or {}).get("event_id")
    try:
        return token(found, "event_id") if isinstance(found, str) else None
    except InvalidInput:
        return None


def _decode_union(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as e:
        raise _translated(e, data) from None


def _translated(error: ValidationError, data: bytes | Mapping[str, Any] | None) -> SextonError:
    """A newer message fails validation for the right reason: it is newer, not broken."""
    raw = _loosely(data) if isinstance(data, bytes) else data
    details = error.errors(include_url=False, include_input=False)
    version = None if raw is None else raw.get("schema_version")
    if _is_newer(version) or any(_says_newer(detail) for detail in details):
        return _unsupported(version if _is_newer(version) else None)
    problems = [_problem(detail) for detail in details[:_MAX_PROBLEMS]]
    text = "; ".join(f"{place}: {what}" for place, what in problems)
    if len(details) > _MAX_PROBLEMS:
        text += f" (and {len(details) - _MAX_PROBLEMS} more)"
    # What JSON itself refuses has no place in the message; what a field refuses is the sender's to name.
    if raw is None or all(detail["type"] in _SHAPE and not detail["loc"] for detail in details):
        return MalformedMessage(f"not a message: {text}", problems=problems)
    return InvalidMessage(text, problems=problems)


def _problem(detail: ErrorDetails) -> tuple[str, str]:
    """Where and what, in pydantic's words, unless those would quote the message."""
    place = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "union_tag_invalid":
            return detail["ctx"]["discriminator"].strip("'"), "Input should be a known word"
        case "union_tag_not_found":
            return detail["ctx"]["discriminator"].strip("'"), "Field required"
    return place[:_MAX_TEXT] or "message", detail["msg"][:_MAX_TEXT]


def _is_newer(version: Any) -> bool:
    return isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION


def _says_newer(detail: ErrorDetails) -> bool:
    return detail["type"] == "less_than_equal" and detail["loc"][-1:] == ("schema_version",)


def _unsupported(version: int | None) -> UnsupportedSchema:
    shown = version if version is not None and version <= MAX_SAFE_INTEGER else None
    which = "a newer schema version" if shown is None else f"schema version {shown}"
    return UnsupportedSchema(
        f"message of {which}; this build reads up to {SCHEMA_VERSION}",
        schema_version=shown,
        supported=SCHEMA_VERSION,
    )


def _unknown_record(raw: Mapping[str, Any] | None) -> UnsupportedSchema | None:
    """A record of a kind that later writers know. It has a chain, which nothing else with a kind has."""
    kind = None if raw is None or "chain" not in raw else raw.get("kind")
    if not isinstance(kind, str) or kind in _RECORD_KINDS:
        return None
    shown = kind if _plain_word_re.fullmatch(kind) else "?"
    return UnsupportedSchema(f"record of unknown kind {shown}", kind=shown)


class InvalidMessage(MalformedMessage, InvalidInput):
    """JSON and an object, but with a field that cannot be right. `problems` names each."""

    code = "invalid"


def _loosely(data: bytes) -> dict[str, Any] | None:
    """The top-level object of a broken message, if it is one."""
    try:
        raw = from_json(data)
    except ValueError:
        return None
    return raw if isinstance(raw, dict) else None


__all__ = [
    "AnyCommand",
    "AnyOutcome",
    "AnyRecord",
    "InvalidMessage",
    "decode",
    "decode_command",
    "decode_outcome",
    "decode_record",
    "event_id_of",
]
