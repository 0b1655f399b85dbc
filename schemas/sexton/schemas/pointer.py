"""Pointers: claims of the form "these bytes, at this level, as of this epoch"."""

from sexton.schemas.base import Count, Flag, Message, Ordinal
from sexton.schemas.ids import ContentHash, ContextId, Level, SpanId


class Pointer(Message):
    """A claim on bytes of one version of one span.

    `level` is part of the claim and never changes. It is checked when the pointer is used, not when it is
    made, so a pointer whose level contradicts its `span_id` can be written down and is refused at use.
    """

    context_id: ContextId
    """The context that the span is in."""
    span_id: SpanId
    """The span addressed."""
    level: Level
    """The level that the pointer was minted at."""
    version: Ordinal
    """The version of the span that the pointer was minted on."""
    offset: Count
    """Where the bytes start, in bytes of UTF-8 from the start of the span."""
    length: Count
    """How many bytes of UTF-8."""
    content_hash: ContentHash
    """Hash of exactly the bytes addressed, at this level."""
    epoch: Count
    """The epoch of the context when the pointer was minted or last re-stamped."""
    accept_summary: Flag = False
    """The caller's own judgement that a summary will do. Never assumed on the caller's behalf."""
