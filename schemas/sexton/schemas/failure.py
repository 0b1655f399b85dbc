"""Hard failures: proven loss or damage of bytes, or a collection that is stuck. What a pager acts on."""

from enum import StrEnum

from sexton.schemas.base import Count, Message, OpenEnum, Ordinal
from sexton.schemas.ids import ContentHash, ContextId, Digest, SpanId


class FailureReason(OpenEnum):
    """What was proven: of bytes, by a second read past every cache."""

    LOST = "lost"
    """The store answered that it has no such bytes."""
    CORRUPT = "corrupt"
    """The store has bytes of another length or hash."""
    STUCK = "stuck"
    """Announced or condemned by a collector, and not collected for longer than the bound."""


class FailureKind(StrEnum):
    """What a record says of its incident."""

    OBSERVED = "observed"
    """It is so."""
    RESOLVED = "resolved"
    """It is so no more: the whole bytes were found again, or nobody needs them."""


class HardFailureRecord(Message):
    """One observation of a hard failure, or of its end. Repeats share the fingerprint."""

    fingerprint: Digest
    """Digest of reason, context, span, version and hash: what makes two observations the same incident."""
    kind: FailureKind | None = None
    """None: `observed`."""
    reason: FailureReason
    context_id: ContextId
    span_id: SpanId
    version: Ordinal
    content_hash: ContentHash
    """What should be there."""
    size_bytes: Count
    """What should be there."""
    found_hash: ContentHash | None = None
    """What is there instead, if anything."""
    found_size_bytes: Count | None = None
    component: str
    """Who noticed, such as `worker.fetch`."""
    observations: Ordinal | None = None
    """How often it was noticed since the last record, if more than once: repeats that come soon share one."""
