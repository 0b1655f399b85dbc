"""Leases and pins on the wire: `pin`, `release` and `heartbeat` on `sexton.rpc.<context>.<verb>`.

A holder's operations on its pins are numbered, from one, per incarnation, and sent one at a time; a number
that is not higher than the last one known changes nothing. A heartbeat is no such operation unless it
announces the whole set.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from sexton.schemas.base import MAX_SAFE_INTEGER, Count, Flag, Items, Message, Ordinal, Part
from sexton.schemas.ids import ContextId, Digest, HolderId
from sexton.schemas.rpc import Head, ReplyPart
from sexton.schemas.span import CurrentIdentity, SpanState, SpanVersion

MAX_PINS: Final = 4096
"""Pins of one holder on one context. An announcement of all of them fits into one message."""

MAX_HOLDERS: Final = 1024
"""Holders with a lease on one context. Names are the holders' own to choose: without a bound, one that means
harm could fill the registry of all contexts with them."""

MIN_TTL_MS: Final = 1_000
MAX_TTL_MS: Final = 300_000
"""A lease is never longer. So long does a collector wait after the registry was lost."""

Ttl = Annotated[int, Field(ge=MIN_TTL_MS, le=MAX_TTL_MS, strict=True)]


class PinCost(StrEnum):
    """What it costs a holder to lose the version it pinned."""

    CHEAP = "cheap"
    """An offset map, a token count: rebuilt at once."""
    EXPENSIVE = "expensive"
    """An embedding, an extraction that took a model call."""
    IMMOVABLE = "immovable"
    """The bytes must stay current: a patch in flight, a quote being checked."""


class Pin(SpanVersion):
    """A holder's interest in one version of one span."""

    cost: PinCost = PinCost.CHEAP


class HolderRequest(Message):
    """What every request of a holder says about it."""

    context_id: ContextId
    holder_id: HolderId
    incarnation: Ordinal
    """Grows with each process of this holder id; an older one is fenced."""
    operation: Count
    """Number of this operation; of the last one, in a heartbeat that announces nothing."""
    digest: Digest
    """`pins_digest` of all pins that the holder claims after this operation, unanswered ones included."""


class PinRequest(HolderRequest):
    """Asks to pin versions. The lease must be good."""

    pins: Annotated[Items[Pin], Field(min_length=1, max_length=MAX_PINS)]


class ReleaseRequest(HolderRequest):
    """Lets go of versions. What is not held is let go of already."""

    versions: Annotated[Items[SpanVersion], Field(min_length=1, max_length=MAX_PINS)]


class HeartbeatRequest(HolderRequest):
    """Keeps the lease, and says by a digest what the holder holds."""

    ttl_ms: Ttl
    """The lease is good for at least this long from when the registry hears of it."""
    register_new: Flag = False
    """Begin a new lease: the holder has none, or has lost it."""
    pins: Annotated[Items[Pin], Field(max_length=MAX_PINS)] | None = None
    """The whole set, announced because the registry asked for it or the lease is new."""
    leave: Flag = False
    """Give up the lease and all pins: a clean exit."""


class PinRefusal(StrEnum):
    """Why a pin was not granted."""

    UNKNOWN = "unknown"
    """No such span, or no such version yet."""
    COLLECTING = "collecting"
    """A collector has announced it, or is deleting it."""
    COLLECTED = "collected"
    """Its bytes are gone."""


class RefusedPin(SpanVersion):
    """A pin that was not granted."""

    reason: PinRefusal
    current: CurrentIdentity | None = None
    """What the span is now, if it is known."""


class GrantedPin(Pin):
    """A pin that was granted."""

    state: SpanState
    """Of the version: `live`, `covered`, or `tombstone` if it is superseded."""


class LeaseReply(ReplyPart):
    """Answers `pin`, `release` and `heartbeat`.

    An announced pin that is neither granted nor refused is being changed at that moment: announce it again.
    """

    status: Literal["ok"] = "ok"
    head: Head
    """Of the context: a heartbeat is anti-entropy for free."""
    operation: Count
    """The last operation known to the registry."""
    granted: Items[GrantedPin] = ()
    refused: Items[RefusedPin] = ()
    announce: Flag = False
    """The registry knows another set of pins: announce the whole set."""


class LeaseInfo(Part):
    """A holder, for operators."""

    holder_id: HolderId
    incarnation: Ordinal
    expires_in_ms: Annotated[int, Field(ge=-MAX_SAFE_INTEGER, le=MAX_SAFE_INTEGER, strict=True)]
    """Until the lease ends, by the registry's clock; negative if it has."""
    beat_ms_ago: Count
    pins: Count
    agreed_ms_ago: Count | None = None
    """Since its last heartbeat that claimed the pins known here, as this generation of the registry counts;
    None if there was none. Nothing that was marked after it is collected while the lease is good."""


class PinInfo(Pin):
    """A live pin, for operators."""

    holder_id: HolderId
    held_for_ms: Count
