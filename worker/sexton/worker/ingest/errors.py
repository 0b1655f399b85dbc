"""Errors of reading a transcript. Bad lines are none of them: they are reported, one by one."""

from collections.abc import Iterable

from sexton.schemas.errors import CallerError, InvalidInput
from sexton.worker.ingest.model import TranscriptFormat


class TranscriptError(CallerError):
    """A transcript cannot be read. Base of all errors here."""

    code = "transcript"


class TranscriptUnreadableError(TranscriptError):
    """The file cannot be opened or read. The operating system's error is the cause."""

    code = "transcript_unreadable"


class TranscriptTooLargeError(TranscriptError):
    """A JSON document over the limit. JSONL of any length can be read; convert it."""

    code = "transcript_too_large"


class TranscriptChangedError(TranscriptError):
    """The file changed while it was read, other than by growing. Read it again."""

    code = "transcript_changed"


class FormatUnclearError(TranscriptError, InvalidInput):
    """The content does not say which format it is. Name one of `candidates`."""

    code = "format_unclear"

    def __init__(self, why: str, candidates: Iterable[TranscriptFormat]) -> None:
        named = tuple(candidates)
        choice = " or ".join(named)
        super().__init__(f"{why}; say which format it is: {choice}", candidates=named)
        self.candidates = named
