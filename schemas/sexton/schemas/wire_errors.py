"""An error that came over the wire, as the exception it was on the other side.

The counterpart of `sexton.core.answer.error_part`: the code picks the class, the fields come back as what
they were, so that a caller can catch `StaleSpanError` and read its `current` whoever raised it.
"""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import ValidationError

from sexton.schemas import errors
from sexton.schemas.codec import InvalidMessage
from sexton.schemas.errors import BoundaryError, MalformedMessage, PeerError, SextonError
from sexton.schemas.rpc import RpcError
from sexton.schemas.span import CurrentIdentity, Identity

_CODES: Final[Mapping[str, type[SextonError]]] = {
    error.code: error
    for error in (
        errors.SextonError,
        errors.CallerError,
        errors.PeerError,
        errors.TransientError,
        errors.InvalidInput,
        errors.PayloadTooLarge,
        errors.PointerResurrectionError,
        errors.Unreachable,
        errors.LevelMismatch,
        errors.StaleSpanError,
        errors.EpochMismatch,
        errors.HashMismatch,
        errors.PermissionRefused,
        errors.Fenced,
        errors.LeaseLost,
        errors.PinRefused,
        errors.TooManyPins,
        errors.TooManyContexts,
        errors.TooManyHolders,
        errors.Irreducible,
        errors.UnsupportedSchema,
        errors.RevisionGap,
        errors.LineageError,
        errors.Unavailable,
        errors.Unconfirmed,
        errors.OutcomeUnknown,
        errors.Unsettled,
        errors.HardFailure,
        errors.LeafLost,
        errors.LeafCorrupt,
    )
}
"""Errors whose constructor takes a message and any fields. The others have a case of their own below."""

_RESERVED: Final = frozenset({"self", "message", "nearest", "problems"})
"""Names that a constructor takes for itself; a peer's field of that name must not break it."""


def error_from(part: RpcError) -> SextonError:
    """The exception that a peer raised. To be raised here, not returned to a caller.

    A code that this build does not know gives a `PeerError` whose `fields` hold the code as `code`, beside
    the peer's own fields. `current`, where it is there, is an identity again.
    """
    fields = {name: value for name, value in part.fields.items() if name not in _RESERVED}
    if "current" in fields:
        fields["current"] = _identity(fields["current"])
    match part.code:
        case BoundaryError.code if (nearest := _pair(part.fields.get("nearest"))) is not None:
            return BoundaryError(part.message, nearest=nearest, **fields)
        case MalformedMessage.code:
            return MalformedMessage(part.message, problems=_problems(part.fields.get("problems")), **fields)
        case InvalidMessage.code if "problems" in part.fields:
            return InvalidMessage(part.message, problems=_problems(part.fields["problems"]), **fields)
    known = _CODES.get(part.code)
    if known is None:
        return PeerError(part.message, **{**fields, "code": part.code})
    return known(part.message, **fields)


def _identity(value: Any) -> Any:
    """An identity as it was sent, or the value as it is: a newer peer may say something else there."""
    for model in (CurrentIdentity, Identity):
        try:
            return model.model_validate(value)
        except ValidationError:
            continue
    return value


def _pair(value: Any) -> tuple[int, int] | None:
    match value:
        case [int() as start, int() as end]:
            return start, end
    return None


def _problems(value: Any) -> list[tuple[str, str]]:
    if not isinstance(value, list | tuple):
        return []
    return [(str(entry[0]), str(entry[1])) for entry in value if _is_problem(entry)]


def _is_problem(entry: Any) -> bool:
    return isinstance(entry, list | tuple) and len(entry) == 2  # noqa: PLR2004 - a place, and what is wrong
