"""Hard failures: proven loss or damage of verbatim bytes. What a pager acts on."""

from enum import StrEnum

from sexton.schemas.base import Count, Message, Ordinal
from sexton.schemas.ids import ContentHash, ContextId, Digest, SpanId


class FailureReason(StrEnum):
    """What was proven, by a second read past every cache."""

    LOST = "lost"
    """The store answered that it has no such bytes."""
    CORRUPT = "corrupt"
    """The store has bytes of another length or hash."""


class HardFailureRecord(Message):
    """One observation of lost or damaged bytes. Repeats share the fingerprint."""

    fingerprint: Digest
    """Digest of reason, context, span, version and hash: what makes two observations the same incident."""
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
