"""Spans as the wire shows them: identities, labels, states. Content is never among them."""

from enum import StrEnum
from typing import Annotated, Self

from pydantic import AfterValidator, Field, StringConstraints, model_validator

from sexton.schemas.base import Count, Flag, Ordinal, Part
from sexton.schemas.ids import ContentHash, Digest, EventId, GroupId, Level, SpanId, SpanName
from sexton.schemas.limits import MAX_CLAIM_CHUNKS, MAX_LABEL_BYTES, MAX_SPAN_BYTES


def _short(value: str) -> str:
    if len(value.encode()) > MAX_LABEL_BYTES:
        raise ValueError(f"a label has at most {MAX_LABEL_BYTES} bytes of UTF-8")
    return value


LabelText = Annotated[
    str, StringConstraints(min_length=1, max_length=MAX_LABEL_BYTES), AfterValidator(_short)
]


class SpanState(StrEnum):
    """Where a version of a span is in its life. The transitions are one table: `sexton.core.life`."""

    LIVE = "live"
    """In the active view."""
    COVERED = "covered"
    """Under a summary: out of the view, verbatim in the cold store, immutable from here on."""
    TOMBSTONE = "tombstone"
    """Rewritten or pruned, and not yet collected."""
    COLLECTING = "collecting"
    """A collector has announced it; a pin on it is refused."""
    CONDEMNED = "condemned"
    """Its bytes are being deleted; nothing takes that back."""
    COLLECTED = "collected"
    """Its bytes are gone. The id is never used again."""


class Strategy(StrEnum):
    """What a rewrite does with the version it replaces."""

    INVALIDATE_AND_REKEY = "invalidate_and_rekey"
    """The old version can no longer be resolved; its holders re-derive. The default."""
    COPY_ON_REWRITE = "copy_on_rewrite"
    """The old version stays readable for whoever asks for it by name, until it is collected."""


class Labels(Part):
    """What is known of a span besides its bytes."""

    role: LabelText | None = None
    """Who speaks: user, assistant, tool …"""
    group: GroupId | None = None
    """A call and its results share a group; a compaction takes all of it or nothing."""
    media_type: LabelText | None = None
    """Of the bytes, as in HTTP."""
    open: Flag = False
    """This member's group still waits for a result. The latest member of a group decides."""
    kind: LabelText | None = None
    """What sort of entry it was at its source, such as `compaction` or an unknown row type."""


class SpanVersion(Part):
    """One version of one span, by name."""

    span_id: SpanId
    version: Ordinal


class Identity(SpanVersion):
    """What makes a version that version: its level, hash and size."""

    level: Level
    content_hash: ContentHash
    size_bytes: Count


class SpanEntry(Identity):
    """A version with its labels, as a record adds it."""

    labels: Labels = Labels()


class CurrentIdentity(Identity):
    """What a rejection says of a span that was in the way: what it is now, and what covers it."""

    state: SpanState
    epoch: Count
    """The epoch at which it came to be as it is."""
    covered_by: SpanId | None = None


class Claim(Part):
    """A claim check: content that was sent ahead in chunks by the `put` request."""

    digest: Digest
    """SHA-256 of all the bytes."""
    size_bytes: Annotated[int, Field(ge=1, le=MAX_SPAN_BYTES, strict=True)]
    """Of all the bytes."""
    chunk_bytes: Annotated[int, Field(ge=1, le=MAX_SPAN_BYTES, strict=True)]
    """Size of every chunk but the last."""
    upload_id: EventId | None = None
    """Event id of the command that the chunks are left for: they are its alone, and its commit drops them.
    Without it they are shared by all commands of the context that claim the same bytes, until they expire."""

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.chunks > MAX_CLAIM_CHUNKS:
            raise ValueError(f"a claim has at most {MAX_CLAIM_CHUNKS} chunks")
        return self

    @property
    def chunks(self) -> int:
        """How many chunks make up the content."""
        return -(-self.size_bytes // self.chunk_bytes)


class Text(Part):
    """Content of a span to be: inline, or as a claim check. Exactly one of the two."""

    content: str | None = None
    """The text itself. Its UTF-8 bytes are the span's bytes, nothing trimmed, nothing normalised."""
    claim: Claim | None = None
    """Where the text was left, if it is over the inline limit."""

    @model_validator(mode="after")
    def _one_of_two(self) -> Self:
        if (self.content is None) == (self.claim is None):
            raise ValueError("give exactly one of content and claim")
        return self


class NewSpan(Text):
    """A leaf to append."""

    name: SpanName | None = None
    """The span's id will be `l0:NAME`. Without it the name comes from the event id and the position."""
    labels: Labels = Labels()
