"""What is said on the wire: messages, subjects, errors, limits. Imports pydantic and nothing else."""

from sexton.schemas.base import SCHEMA_VERSION, Message
from sexton.schemas.commands import Append, CommandKind, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import (
    BoundaryError,
    CallerError,
    CommandRejected,
    HardFailure,
    InvalidInput,
    LeafCorrupt,
    LeafLost,
    PeerError,
    PointerResurrectionError,
    SextonError,
    StaleSpanError,
    TransientError,
    Unavailable,
    Unreachable,
)
from sexton.schemas.ids import Level, level_of, span_id
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import Appended, Compacted, Pruned, RecordKind, Rewritten
from sexton.schemas.span import Labels, NewSpan, SpanState, Strategy, Text

__all__ = [
    "SCHEMA_VERSION",
    "Append",
    "Appended",
    "BoundaryError",
    "CallerError",
    "CommandKind",
    "CommandRejected",
    "Committed",
    "Compact",
    "Compacted",
    "HardFailure",
    "InvalidInput",
    "Labels",
    "LeafCorrupt",
    "LeafLost",
    "Level",
    "Message",
    "NewSpan",
    "NoChange",
    "PeerError",
    "Pointer",
    "PointerResurrectionError",
    "Prune",
    "Pruned",
    "RecordKind",
    "Rejected",
    "RejectionCode",
    "Rewrite",
    "Rewritten",
    "SextonError",
    "SourceRef",
    "SpanState",
    "StaleSpanError",
    "Strategy",
    "Text",
    "TransientError",
    "Unavailable",
    "Unreachable",
    "level_of",
    "span_id",
]
