"""Reading transcripts: the raw bytes of each line, and what is known of it.

No I/O but the file, and nothing of NATS: the command line appends what comes out of here.
"""

from sexton.worker.ingest.detect import detect
from sexton.worker.ingest.errors import (
    FormatUnclearError,
    TranscriptChangedError,
    TranscriptError,
    TranscriptTooLargeError,
    TranscriptUnreadableError,
)
from sexton.worker.ingest.model import (
    BadLine,
    BadNote,
    BadReason,
    Limits,
    ParentStatus,
    Report,
    Role,
    Row,
    TranscriptFormat,
)
from sexton.worker.ingest.reader import Source, Transcript, read_transcript

__all__ = [
    "BadLine",
    "BadNote",
    "BadReason",
    "FormatUnclearError",
    "Limits",
    "ParentStatus",
    "Report",
    "Role",
    "Row",
    "Source",
    "Transcript",
    "TranscriptChangedError",
    "TranscriptError",
    "TranscriptFormat",
    "TranscriptTooLargeError",
    "TranscriptUnreadableError",
    "detect",
    "read_transcript",
]
