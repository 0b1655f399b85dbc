"""Request and reply on `sexton.rpc.<context>.<verb>`: how holders ask the worker.

A reply may come in several parts, to the same inbox, in order: each has an `index` from zero and the last
one says so. A reader that misses one asks again. An error is one part of its own.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from sexton.schemas.base import Count, Flag, Items, Json, Message, OpenEnum, Ordinal, Part
from sexton.schemas.ids import ContentHash, ContextId, Digest, EventId, Level, SpanId
from sexton.schemas.pointer import Pointer
from sexton.schemas.span import Claim, SpanEntry, SpanState, Strategy

MAX_BUDGET_MS: Final = 600_000
"""Ten minutes: the longest latency budget of a fetch."""


class Verb(StrEnum):
    """What can be asked; also the last token of the subject."""

    SYNC = "sync"
    FETCH = "fetch"
    PUT = "put"
    PIN = "pin"
    RELEASE = "release"
    HEARTBEAT = "heartbeat"


class Head(Part):
    """Where a context's log is."""

    revision: Count
    epoch: Count
    chain: str
    """Chain of the last record; empty before the first one."""


class ReplyPart(Message):
    """What every part of a reply says."""

    context_id: ContextId
    index: Count = 0
    last: Flag = True


class RpcError(ReplyPart):
    """The request was not met. `code` is the code of an error in `sexton.schemas.errors`."""

    status: Literal["error"] = "error"
    code: str
    message: str
    fields: dict[str, Json] = Field(default_factory=dict)


class SyncRequest(Message):
    """Asks for what happened since a revision, or for all there is."""

    context_id: ContextId
    revision: Count = 0
    """The last one that the asker has applied; 0 for none."""
    chain: str = ""
    """The chain at that revision."""
    snapshot: Flag = False
    """Send a snapshot whatever the revision."""
    records_only: Flag | None = None
    """The records themselves are wanted, from the log if need be, and never a snapshot. An answer may hold
    only the first of them: ask on from the last one. An older service may send a snapshot all the same."""


class SnapshotSpan(SpanEntry):
    """One span of a snapshot, at its current version."""

    state: SpanState
    epoch: Count
    """The epoch at which it came to be as it is."""
    covered_by: SpanId | None = None
    sources: Items[SpanId] = ()


class SnapshotTombstone(SpanEntry):
    """An old version that is not collected yet."""

    state: SpanState
    strategy: Strategy | None = None
    """None: it was pruned."""
    epoch: Count
    attempt: EventId | None = None
    """While collecting: the attempt that announced it."""


class SnapshotEvent(Part):
    """A command that was committed. Only workers' own snapshots hold these."""

    event_id: EventId
    digest: Digest
    kind: str
    revision: Ordinal
    epoch: Count
    spans: Items[tuple[SpanId, Ordinal]]
    strategy: Strategy | None = None
    size_before_bytes: Count | None = None
    size_after_bytes: Count | None = None


class Snapshot(Message):
    """A whole context at one revision, or a piece of one.

    Live spans come in the order of the view. Pieces of one snapshot are put together by joining their
    lists in order.
    """

    context_id: ContextId
    head: Head
    spans: Items[SnapshotSpan] = ()
    tombstones: Items[SnapshotTombstone] = ()
    open_groups: Items[str] = ()
    """Groups whose latest member says that a result is missing."""
    events: Items[SnapshotEvent] | None = None
    """Committed commands; None where they were left out."""


class SyncPart(ReplyPart):
    """A part of the answer to `sync`: the head, and either records or a piece of a snapshot."""

    status: Literal["ok"] = "ok"
    head: Head
    records: Items[dict[str, Any]] = ()
    """Log records as they are in the log, in order; also of kinds that this reader may not know."""
    snapshot: Snapshot | None = None
    kept_from: Ordinal | None = None
    """With `records_only`, if the log has lost the first records asked for: the oldest revision it has."""


class FetchRequest(Message):
    """Asks for the bytes of a pointer."""

    context_id: ContextId
    pointer: Pointer
    latest: Flag = False
    """Check against the head of the log, not against what this worker has heard of."""
    strict: Flag = False
    """Refuse a pointer of another epoch instead of re-stamping it."""
    accept_superseded: Flag = False
    """Give an old version if it is still kept, and say so."""
    budget_ms: Annotated[int, Field(ge=1, le=MAX_BUDGET_MS, strict=True)] | None = None
    """Latency budget for the cold store; None for the worker's own."""


class Tier(OpenEnum):
    """Where bytes came from. New ones may be added, and are read as such."""

    MEMORY = "memory"
    HOT = "hot"
    COLD = "cold"


class Answer(Part):
    """What a pointer resolved to."""

    pointer: Pointer
    """Re-stamped to `head.epoch`. Of a summary in a leaf's place: a pointer to that summary."""
    level: Level
    """Of the bytes that follow."""
    verbatim: Flag
    """True only for the original bytes of a leaf."""
    superseded: Flag = False
    """The bytes are of an old version, as asked for."""
    restamped: Flag = False
    """The pointer was of another epoch and has been re-validated."""
    tier: Tier
    span_size_bytes: Count
    """Of the whole span that the bytes are of."""
    span_hash: ContentHash
    """Of the whole span that the bytes are of."""


class FetchPart(ReplyPart):
    """A part of the answer to `fetch`: what it is, in the first one, and a piece of the bytes."""

    status: Literal["ok"] = "ok"
    answer: Answer | None = None
    data: bytes = b""
    """base64url in JSON."""


class PutRequest(Message):
    """Leaves one chunk of a claim check's content with the service."""

    context_id: ContextId
    claim: Claim
    index: Count
    data: bytes
    """base64url in JSON."""


class PutReply(ReplyPart):
    """The chunk is stored."""

    status: Literal["ok"] = "ok"
