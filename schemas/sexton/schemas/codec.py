"""Bytes to messages, once. Everything that comes in passes here, so every reader refuses the same things.

The bytes are validated directly (`model_validate_json`): parsing and then validating would cost twice.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from sexton.schemas.base import SCHEMA_VERSION, Message
from sexton.schemas.commands import COMMAND, Append, Compact, Prune, Rewrite
from sexton.schemas.errors import InvalidInput, MalformedMessage, SextonError, UnsupportedSchema
from sexton.schemas.outcome import OUTCOME, Committed, NoChange, Rejected
from sexton.schemas.records import LOG_RECORD, Appended, Compacted, Pruned, RecordKind, Rewritten

AnyCommand = Append | Compact | Rewrite | Prune
AnyRecord = Appended | Compacted | Rewritten | Pruned
AnyOutcome = Committed | NoChange | Rejected

M = TypeVar("M", bound=Message)
T = TypeVar("T")

_MAX_PROBLEMS: Final = 5
_RECORD_KINDS: Final = frozenset(kind.value for kind in RecordKind)


def decode(model: type[M], data: bytes) -> M:
    """Reads one message of a known type.

    Raises:
        MalformedMessage: not JSON, not UTF-8, or not of this shape.
        UnsupportedSchema: of a newer schema version.
    """
    try:
        message = model.model_validate_json(data)
    except ValidationError as e:
        raise _translated(e, data) from None
    _check_version(message.schema_version)
    return message


def decode_command(data: bytes) -> AnyCommand:
    """Reads a command of any kind. Raises as `decode`."""
    command = _decode_union(COMMAND, data)
    _check_version(command.schema_version)
    return command


def decode_outcome(data: bytes) -> AnyOutcome:
    """Reads an outcome of any status. Raises as `decode`."""
    outcome = _decode_union(OUTCOME, data)
    _check_version(outcome.schema_version)
    return outcome


def decode_record(data: bytes | Mapping[str, Any]) -> AnyRecord:
    """Reads a log record, from its bytes or as it lies in a `sync` reply.

    Raises:
        MalformedMessage: as `decode`.
        UnsupportedSchema: of a newer schema version, or of a kind that this reader does not know.
    """
    try:
        if isinstance(data, bytes):
            record = LOG_RECORD.validate_json(data)
        else:
            record = LOG_RECORD.validate_python(data)
    except ValidationError as e:
        raise _translated(e, data) from None
    _check_version(record.schema_version)
    return record


def event_id_of(data: bytes) -> str | None:
    """The `event_id` of a command that is otherwise broken, if it has a usable one: whom to answer."""
    raw = _loosely(data)
    found = raw.get("event_id") if raw is not None else None
    return found if isinstance(found, str) else None


def _decode_union(adapter: TypeAdapter[T], data: bytes) -> T:
    try:
        return adapter.validate_json(data)
    except ValidationError as e:
        raise _translated(e, data) from None


def _check_version(version: int) -> None:
    if version > SCHEMA_VERSION:
        raise UnsupportedSchema(
            f"message of schema version {version}; this build reads up to {SCHEMA_VERSION}",
            schema_version=version,
            supported=SCHEMA_VERSION,
        )


def _translated(error: ValidationError, data: bytes | Mapping[str, Any]) -> SextonError:
    """A newer message fails validation for the right reason: it is newer, not broken."""
    raw = data if isinstance(data, Mapping) else _loosely(data)
    if raw is not None:
        version = raw.get("schema_version")
        if isinstance(version, int) and not isinstance(version, bool) and version > SCHEMA_VERSION:
            return UnsupportedSchema(
                f"message of schema version {version}; this build reads up to {SCHEMA_VERSION}",
                schema_version=version,
                supported=SCHEMA_VERSION,
            )
        kind = raw.get("kind")
        if "chain" in raw and isinstance(kind, str) and kind not in _RECORD_KINDS:
            return UnsupportedSchema(f"record of unknown kind {kind[:40]!a}", kind=kind[:40])
    problems = [
        (".".join(str(p) for p in e["loc"]) or "message", e["msg"])
        for e in error.errors(include_url=False, include_context=False, include_input=False)
    ]
    # What JSON itself refuses has no place in the message; what a field refuses is the sender's to name.
    shape = all(e["type"] in {"json_invalid", "model_attributes_type", "model_type"} for e in error.errors())
    text = "; ".join(f"{place}: {what}" for place, what in problems[:_MAX_PROBLEMS])
    more = f" (and {len(problems) - _MAX_PROBLEMS} more)" if len(problems) > _MAX_PROBLEMS else ""
    if shape or raw is None:
        return MalformedMessage(f"not a message: {text}{more}", problems=problems[:_MAX_PROBLEMS])
    return InvalidMessage(f"{text}{more}", problems=problems[:_MAX_PROBLEMS])


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
