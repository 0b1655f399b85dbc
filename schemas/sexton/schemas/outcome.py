"""Outcomes: every command ends in exactly one of committed, no change, rejected.

Published on `sexton.outcome.<context>.<event_id>`, and to the inbox in the `Sexton-Reply` header if the
command has one.
"""

from typing import Annotated, Final, Literal

from pydantic import Field, TypeAdapter

from sexton.schemas.base import Count, Items, Message, OpenEnum, Ordinal
from sexton.schemas.commands import CommandKind
from sexton.schemas.ids import ContextId, EventId
from sexton.schemas.span import CurrentIdentity, SpanVersion, Strategy

REPLY_HEADER: Final = "Sexton-Reply"
"""Header of a command that names an inbox for its outcome. JetStream takes the reply subject for its own
acknowledgement, so the sender's inbox travels here."""


class RejectionCode(OpenEnum):
    """Why a command was refused. Stable; new ones may be added, and are read as such."""

    MALFORMED = "malformed"
    """Not a command at all: not JSON, not an object, not UTF-8, too deep."""
    INVALID = "invalid"
    """A command with a field that cannot be right; the message names it."""
    TOO_LARGE = "too_large"
    """Over a limit; the message names which."""
    UNSUPPORTED_SCHEMA = "unsupported_schema"
    """Of a newer schema version than this service speaks."""
    EVENT_ID_REUSED = "event_id_reused"
    """Another command has been committed under the same event id."""
    UNKNOWN_CONTEXT = "unknown_context"
    """Nothing was ever appended to it."""
    UNKNOWN_SPAN = "unknown_span"
    SPAN_EXISTS = "span_exists"
    """A span of that id exists or existed. Ids are never used twice."""
    STALE_SOURCE = "stale_source"
    """A source, or the base of a rewrite, is not what the sender believes."""
    PRUNED = "pruned"
    """The span has left the view."""
    COVERED = "covered"
    """The span is under a summary, and immutable."""
    ALREADY_COVERED = "already_covered"
    """A source of the compaction is under a summary already; `spans` names it and what covers it."""
    NOT_CONTIGUOUS = "not_contiguous"
    MIXED_LEVEL = "mixed_level"
    SPLITS_GROUP = "splits_group"
    OPEN_GROUP = "open_group"
    IMMOVABLE = "immovable"
    """A live holder needs it as it is."""
    EMPTY_SUMMARY = "empty_summary"
    NOT_SMALLER = "not_smaller"
    TOP_LEVEL = "top_level"
    TOO_MANY_SOURCES = "too_many_sources"
    CLAIM_MISSING = "claim_missing"
    """The content announced by a claim check is not there, or not whole. Send it again, then the command."""
    SUMMARY_FAILED = "summary_failed"
    """The summariser gave no usable answer within its tries."""
    REGISTRY_UNAVAILABLE = "registry_unavailable"
    """Who holds what it touches could not be asked. Nothing is wrong with it: send it again, the same."""
    DEAD_LETTER = "dead_letter"
    """It could not be carried out and lies among the dead letters. It may have been committed all the same:
    sent again, the same, it gets its outcome."""


class OutcomeBase(Message):
    """What every outcome says."""

    context_id: ContextId | None = None
    event_id: EventId | None = None
    """None only where the command was too broken to name itself."""


class Committed(OutcomeBase):
    """The command is in the log, durably."""

    status: Literal["committed"] = "committed"
    kind: CommandKind
    revision: Ordinal
    epoch: Count
    spans: Items[SpanVersion]
    """Appended: the leaves. Compacted: the summary. Rewritten: the new version. Pruned: the span."""
    strategy: Strategy | None = None
    """Of a rewrite."""
    size_before_bytes: Count | None = None
    """Of a compaction: its sources."""
    size_after_bytes: Count | None = None
    """Of a compaction: its summary."""


class NoChange(OutcomeBase):
    """There was nothing to do. The context is as it was; nothing was logged."""

    status: Literal["no_change"] = "no_change"
    revision: Count
    epoch: Count
    reason: str


class Rejected(OutcomeBase):
    """The command was refused and changed nothing."""

    status: Literal["rejected"] = "rejected"
    code: RejectionCode
    message: str
    spans: Items[CurrentIdentity] = ()
    """The current identity of whatever was in the way."""
    revision: Count | None = None
    """Of the context when it was refused."""
    epoch: Count | None = None


Outcome = Annotated[Committed | NoChange | Rejected, Field(discriminator="status")]

OUTCOME: Final[TypeAdapter[Committed | NoChange | Rejected]] = TypeAdapter(Outcome)
"""Validates an outcome of any status."""
