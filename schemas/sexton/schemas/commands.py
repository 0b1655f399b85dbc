"""Commands: what an agent asks for. One message each, on `sexton.cmd.<context>.<kind>`.

A command counts once per `event_id`, however often it is sent. Sending it again with the same bytes is how
a sender that missed the outcome asks for it.
"""

from enum import StrEnum
from typing import Annotated, Final, Literal, Self

from pydantic import Field, TypeAdapter, model_validator

from sexton.schemas.base import Count, Flag, Items, Message, Ordinal, Part
from sexton.schemas.ids import ContentHash, ContextId, Digest, EventId, SpanId, SpanName
from sexton.schemas.limits import MAX_SOURCES, MAX_SPANS_PER_APPEND
from sexton.schemas.span import Labels, NewSpan, Text


class CommandKind(StrEnum):
    """The kinds of command; also the last token of their subjects."""

    APPEND = "append"
    COMPACT = "compact"
    REWRITE = "rewrite"
    PRUNE = "prune"


class CommandBase(Message):
    """What every command says."""

    context_id: ContextId
    """The context to change; the same as in the subject."""
    event_id: EventId
    """Chosen by the sender, unique within the context."""


class Append(CommandBase):
    """Adds leaves at the end of the view. Changes the revision, not the epoch."""

    kind: Literal[CommandKind.APPEND] = CommandKind.APPEND
    spans: Annotated[Items[NewSpan], Field(min_length=1, max_length=MAX_SPANS_PER_APPEND)]
    """In order. All are added, or none."""


class SourceRef(Part):
    """One source of a compaction."""

    span_id: SpanId
    version: Ordinal | None = None
    """The version that the summary was made from, if the sender knows it."""


class Compact(CommandBase):
    """Puts one summary in the place of a contiguous run of the view, one level up.

    Without a summary the service makes one, in a stage of its own, and commits it later under the same
    event id.
    """

    kind: Literal[CommandKind.COMPACT] = CommandKind.COMPACT
    sources: Annotated[Items[SourceRef], Field(max_length=MAX_SOURCES)]
    """In the order of the view. None at all is answered with `no_change`."""
    summary: Text | None = None
    """The summary, if the sender has one."""
    name: SpanName | None = None
    """The summary's id will be `lN:NAME`. Without it the name is the event id."""
    labels: Labels = Labels()
    planned_epoch: Count | None = None
    """The epoch of the view that this was planned on. A source that changed since is `stale_source`."""
    allow_larger: Flag = False
    """Accept a summary that is not smaller than its sources."""
    requested_digest: Digest | None = None
    """Set by the summarise stage: digest of the command that asked for this summary."""


class Rewrite(CommandBase):
    """Changes the bytes of a span in place; its version grows by one.

    At least one of `base_version` and `base_hash` says what the sender believes is there now.
    """

    kind: Literal[CommandKind.REWRITE] = CommandKind.REWRITE
    span_id: SpanId
    base_version: Ordinal | None = None
    base_hash: ContentHash | None = None
    text: Text

    @model_validator(mode="after")
    def _has_base(self) -> Self:
        if self.base_version is None and self.base_hash is None:
            raise ValueError("give base_version, base_hash or both")
        return self


class Prune(CommandBase):
    """Drops a span from the view. Its id is never used again."""

    kind: Literal[CommandKind.PRUNE] = CommandKind.PRUNE
    span_id: SpanId
    base_version: Ordinal | None = None
    """Refuse with `stale_source` unless this is the current version."""


Command = Annotated[Append | Compact | Rewrite | Prune, Field(discriminator="kind")]

COMMAND: Final[TypeAdapter[Append | Compact | Rewrite | Prune]] = TypeAdapter(Command)
"""Validates a command of any kind."""
