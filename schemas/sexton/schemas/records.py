"""Log records: the truth, and the broadcast. A stored record is republished as it is: it is the bump.

The subject `sexton.log.<context>` holds one record per revision. A record names content by hash; it never
holds any.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from sexton.schemas.base import Count, Items, Message, Ordinal
from sexton.schemas.ids import ContextId, Digest, EventId
from sexton.schemas.span import Identity, SpanEntry, SpanVersion, Strategy


class RecordKind(StrEnum):
    """The kinds of record. A reader that meets another one starts over from a snapshot."""

    APPENDED = "appended"
    COMPACTED = "compacted"
    REWRITTEN = "rewritten"
    PRUNED = "pruned"
    COLLECTING = "collecting"
    COLLECT_ABORTED = "collect_aborted"
    CONDEMNED = "condemned"
    COLLECTED = "collected"


class RecordBase(Message):
    """What every record says."""

    context_id: ContextId
    revision: Ordinal
    """Counts all records of the context. Dense: a missing number is a missed record."""
    epoch: Count
    """Counts the changes that can make a pointer wrong. Dense, too; appends leave it as it is."""
    event_id: EventId
    """The command that caused this."""
    digest: Digest
    """Digest of that command's bytes: tells a repeat from another command under the same id."""
    chain: Digest
    """Links the record to the one before it, so that a recreated or restored log is noticed."""


class Appended(RecordBase):
    """Leaves were added at the end of the view."""

    kind: Literal[RecordKind.APPENDED] = RecordKind.APPENDED
    spans: Items[SpanEntry]


class Compacted(RecordBase):
    """A summary took the place of its sources."""

    kind: Literal[RecordKind.COMPACTED] = RecordKind.COMPACTED
    summary: SpanEntry
    sources: Items[SpanVersion]
    """In the order of the view."""
    size_before_bytes: Count
    """Of all sources."""
    size_after_bytes: Count
    """Of the summary."""


class Rewritten(RecordBase):
    """A span has a new version."""

    kind: Literal[RecordKind.REWRITTEN] = RecordKind.REWRITTEN
    before: Identity
    after: Identity
    strategy: Strategy
    """What became of the old version."""


class Pruned(RecordBase):
    """A span left the view."""

    kind: Literal[RecordKind.PRUNED] = RecordKind.PRUNED
    span: Identity


class CollectionBase(RecordBase):
    """What every record of a collector says. None of them makes a pointer wrong: the epoch stays."""

    attempt: EventId
    """Names one try of one collector. Only the same attempt calls off or condemns."""
    versions: Items[SpanVersion]
    """Tombstones. Several share a record."""


class Collecting(CollectionBase):
    """A collector has announced itself. From here on a pin on these versions is refused."""

    kind: Literal[RecordKind.COLLECTING] = RecordKind.COLLECTING


class CollectAborted(CollectionBase):
    """Called off: these are plain tombstones again."""

    kind: Literal[RecordKind.COLLECT_ABORTED] = RecordKind.COLLECT_ABORTED


class Condemned(CollectionBase):
    """The bytes are being deleted. Nothing takes that back; whoever finds it may finish it."""

    kind: Literal[RecordKind.CONDEMNED] = RecordKind.CONDEMNED


class Collected(CollectionBase):
    """The bytes are gone."""

    kind: Literal[RecordKind.COLLECTED] = RecordKind.COLLECTED
    size_freed_bytes: Count


AnyLogRecord = Appended | Compacted | Rewritten | Pruned | Collecting | CollectAborted | Condemned | Collected

LogRecord = Annotated[AnyLogRecord, Field(discriminator="kind")]

LOG_RECORD: Final[TypeAdapter[AnyLogRecord]] = TypeAdapter(LogRecord)
"""Validates a record of any known kind."""
