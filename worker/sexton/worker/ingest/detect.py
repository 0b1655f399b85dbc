"""Which format a transcript is in, told by its content and never by its name."""

from collections.abc import Iterator
from typing import Any, Final

from sexton.worker.ingest.document import first_messages, is_document
from sexton.worker.ingest.errors import FormatUnclearError
from sexton.worker.ingest.formats import CLAUDE_META_TYPES, PI_TYPES
from sexton.worker.ingest.model import TranscriptFormat
from sexton.worker.ingest.parse import BLANKS, BOM, Problem, parse_object, text_problem

HEAD_BYTES: Final = 64 * 1024
"""How much of a file is enough to tell, up to the end of the line that it ends in."""
_LINES: Final = 64
_UTF16_BOMS: Final = (b"\xff\xfe", b"\xfe\xff")
_JSON_FORMATS: Final = (TranscriptFormat.PI, TranscriptFormat.CLAUDE_CODE, TranscriptFormat.OPENAI)


def detect(head: bytes) -> TranscriptFormat:
    """The format of the file that begins with `head`, which best ends with a line or the file.

    Each of the first lines says by its fields what it is of, so a few bad or unknown lines do no harm.
    Without any JSON object at the start it is plain text.

    Raises:
        FormatUnclearError: lines of several formats, of none that is known, or no text at all.
    """
    text = head.removeprefix(BOM).lstrip(BLANKS)
    if is_document(head):
        return _of_document(head)
    lines = [line for line in text.split(b"\n") if line.strip(BLANKS)][:_LINES]
    objects = [value for line in lines if isinstance(value := parse_object(line), dict)]
    if not objects or (len(objects) * 2 < len(lines) and isinstance(parse_object(lines[0]), Problem)):
        return _text(head)
    found = {fmt for value in objects for fmt in _formats(value)}
    if len(found) != 1:
        why = "lines of more than one format" if found else "JSON lines of no format that is known here"
        raise FormatUnclearError(why, _in_order(found) if found else (*_JSON_FORMATS, TranscriptFormat.TEXT))
    if len(objects) * 2 < len(lines):
        raise FormatUnclearError("most lines are no JSON", _in_order({*found, TranscriptFormat.TEXT}))
    return found.pop()


def _of_document(head: bytes) -> TranscriptFormat:
    """What starts like a JSON document holds messages, or other objects, or is no JSON but prose."""
    messages = first_messages(head)
    if any(isinstance(message.get("role"), str) for message in messages):
        return TranscriptFormat.OPENAI
    if messages:
        raise FormatUnclearError(
            "a JSON document with no messages at its start", (TranscriptFormat.OPENAI, TranscriptFormat.TEXT)
        )
    return _text(head)


def _text(head: bytes) -> TranscriptFormat:
    if head.startswith(_UTF16_BOMS):
        raise FormatUnclearError("UTF-16: convert it to UTF-8", tuple(TranscriptFormat))
    cut = head.rfind(b"\n") + 1 or len(head)  # the last character may be cut through
    if problem := text_problem(head[:cut]):
        raise FormatUnclearError(f"neither JSON nor text: {problem.message}", tuple(TranscriptFormat))
    return TranscriptFormat.TEXT


def _formats(row: dict[str, Any]) -> Iterator[TranscriptFormat]:
    """The format that a row is of, by the fields that only rows of that format have."""
    kind = row.get("type")
    if "role" in row and isinstance(row["role"], str):
        yield TranscriptFormat.OPENAI
    elif not isinstance(kind, str):
        return
    elif _CLAUDE_FIELDS & row.keys() or kind in _CLAUDE_ONLY:
        yield TranscriptFormat.CLAUDE_CODE
    elif "timestamp" in row and (kind in PI_TYPES or isinstance(row.get("message"), dict)):
        yield TranscriptFormat.PI


_CLAUDE_FIELDS: Final = frozenset({"uuid", "parentUuid", "sessionId", "leafUuid"})
# Without one of these fields only a name that nobody else would choose tells.
_CLAUDE_ONLY: Final = frozenset(kind for kind in CLAUDE_META_TYPES if "-" in kind)


def _in_order(formats: set[TranscriptFormat]) -> tuple[TranscriptFormat, ...]:
    return tuple(fmt for fmt in TranscriptFormat if fmt in formats)
