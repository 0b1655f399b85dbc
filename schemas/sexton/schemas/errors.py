"""All errors of Sexton, in one tree, split by whose turn it is.

- `CallerError`: the request cannot be met as it stands. Asking again the same way will not help.
- `PeerError`: the other side broke the contract, or speaks a newer one.
- `TransientError`: nothing is known to be wrong with the request; it may be sent again.
- `HardFailure`: verbatim bytes are lost or damaged. Nothing cures that by itself; an operator is paged.

Errors carry fields, so that no program needs to read their prose. `code` is stable and is what goes over
the wire.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class SextonError(Exception):
    """Base of every error that Sexton raises. `fields` holds what the error is about, by name."""

    code: ClassVar[str] = "error"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: Mapping[str, Any] = fields

    def __str__(self) -> str:
        return self.message


class CallerError(SextonError):
    """The caller's turn: the request is wrong, or the world has moved on under it."""

    code = "caller_error"


class PeerError(SextonError):
    """The peer's turn: a message that breaks the protocol, or one of a newer version of it."""

    code = "peer_error"


class TransientError(SextonError):
    """Nobody's turn: a time-out or an outage. The same request may be sent again."""

    code = "transient"


# --- the caller's turn -------------------------------------------------------------------------------


class InvalidInput(CallerError, ValueError):
    """An argument cannot be right whatever the state is: a malformed id, an empty span, a bad offset."""

    code = "invalid"


class PayloadTooLarge(InvalidInput):
    """A message, span or batch is over its limit. `limit` and `actual` are in the unit the text names."""

    code = "too_large"


class BoundaryError(InvalidInput):
    """An offset or length lies outside the span or inside a character.

    `nearest` is a pair of byte offsets: the whole characters around what was asked for, as far as they lie in
    the span. Whoever refused by the span's size alone, without its bytes, knows no characters: then the pair
    is only inside the span.
    """

    code = "boundary"

    def __init__(self, message: str, *, nearest: tuple[int, int], **fields: Any) -> None:
        super().__init__(message, nearest=nearest, **fields)
        self.nearest = nearest


class PointerResurrectionError(CallerError, RuntimeError):
    """A pointer would resolve to something other than the bytes it was minted on.

    Base of all refusals of a pointer. Catch this to say "not this pointer any more"; mint a new one from
    the current state, or ask with `accept_summary=True` if a paraphrase will do.
    """

    code = "pointer_refused"


class Unreachable(PointerResurrectionError):
    """The context, the span or the version is unknown, pruned, or collected."""

    code = "unreachable"


class LevelMismatch(PointerResurrectionError):
    """The pointer's level is not the level of the span in place."""

    code = "level_mismatch"


class StaleSpanError(PointerResurrectionError):
    """The span was rewritten since. `current` is its identity now (span_id, version, hash, epoch)."""

    code = "stale_span"

    def __init__(self, message: str, *, current: Any = None, **fields: Any) -> None:
        super().__init__(message, current=current, **fields)
        self.current = current


class EpochMismatch(PointerResurrectionError):
    """Strict mode only: the pointer is of another epoch and was not re-validated."""

    code = "epoch_mismatch"


class HashMismatch(PointerResurrectionError):
    """The bytes in place are whole, but they are not the bytes that the pointer claims."""

    code = "hash_mismatch"


class Irreducible(CallerError):
    """What remains is pinned, open, fresh or at the top level: the budget cannot be met.

    `view_bytes` and `budget_bytes` say by how much; `kept` counts the spans by the reason they stay.
    """

    code = "irreducible"


class CommandRejected(CallerError):
    """A command was refused and changed nothing. `outcome` is the whole rejection."""

    code = "rejected"

    def __init__(self, message: str, *, outcome: Any) -> None:
        super().__init__(message, outcome=outcome)
        self.outcome = outcome


class PermissionRefused(CallerError):
    """A server refused the credentials, or they do not permit this. Nothing was done.

    `operation` is `connect`, `publish`, `subscribe` or `redis`, `subject` what it was about. Asking
    again does not help: give the user the permission, or use another one's credentials.
    """

    code = "permission_refused"


class Fenced(CallerError):
    """Another process of the same holder id has registered since. `incarnation` is its number."""

    code = "fenced"


class LeaseLost(CallerError):
    """The registry has no good lease of this holder: register, pin again, re-validate, then serve."""

    code = "lease_lost"


class PinRefused(PointerResurrectionError):
    """A version cannot be pinned. `reason` is why, `current` what the span is now."""

    code = "pin_refused"


class TooManyPins(InvalidInput):
    """A holder may not pin more in one context. `limit` says how many."""

    code = "too_many_pins"


class TooManyHolders(CallerError):
    """A context has as many holders with a lease as it may have, which is `limit`. One has to end first."""

    code = "too_many_holders"


class TooManyContexts(InvalidInput):
    """A holder may not open more contexts at once. `limit` says how many; close one first."""

    code = "too_many_contexts"


# --- the peer's turn ---------------------------------------------------------------------------------


class MalformedMessage(PeerError):
    """Bytes that are no message of this protocol. `problems` is a short list of (place, what is wrong)."""

    code = "malformed"

    def __init__(self, message: str, *, problems: Sequence[tuple[str, str]] = (), **fields: Any) -> None:
        super().__init__(message, problems=tuple(problems), **fields)
        self.problems = tuple(problems)


class UnsupportedSchema(PeerError):
    """A message of a newer `schema_version`, or a record of an unknown kind. Upgrade the reader."""

    code = "unsupported_schema"


class RevisionGap(PeerError):
    """A record that is not the next one of its context. The gap must be filled before it can be applied."""

    code = "revision_gap"


class LineageError(PeerError):
    """A record that does not continue this history: the log was recreated or restored. Start over."""

    code = "lineage"


# --- nobody's turn -----------------------------------------------------------------------------------


class Unavailable(TransientError):
    """No answer within the budget, from a peer or a store. Says nothing about whether bytes are lost."""

    code = "unavailable"


class Unconfirmed(TransientError):
    """The holder has not heard of the context's head within its staleness bound, so it serves nothing."""

    code = "unconfirmed"


class OutcomeUnknown(TransientError):
    """A command was sent and no outcome came in time: it may yet commit.

    Send it again with the same event id (`event_id`) to learn what became of it; it counts once.
    """

    code = "outcome_unknown"


class Unsettled(TransientError):
    """An artifact was rebuilt and its span had changed again, as often as the bound allows."""

    code = "unsettled"


# --- an operator's turn ------------------------------------------------------------------------------


class HardFailure(SextonError):
    """Verbatim bytes that a committed record names are gone or damaged."""

    code = "hard_failure"


class LeafLost(HardFailure):
    """The store answered, and it does not have the bytes."""

    code = "lost"


class LeafCorrupt(HardFailure):
    """The store has something under that key, but its length or hash is another."""

    code = "corrupt"
