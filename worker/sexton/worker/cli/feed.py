"""Feeding a transcript to a context: open it, name its rows, append what is new."""

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Final

from sexton.holder import Context
from sexton.schemas.errors import CommandRejected
from sexton.schemas.outcome import Rejected
from sexton.worker.cli.batches import BATCH_ROWS, batches, leaves
from sexton.worker.cli.codes import BadInput
from sexton.worker.cli.inputs import STDIN, stdin
from sexton.worker.ingest import Row, Transcript, TranscriptFormat, read_transcript

_FIRST_LINE_BYTES: Final = 64 * 1024
_PREFIX_DIGITS: Final = 8


def open_transcript(given: str | bytes, fmt: TranscriptFormat | None = None, source: str = "") -> Transcript:
    """Looks through a transcript: a file by its name, `-` for standard input, or the content itself.

    Its groups are named after its first line, so that two files in one context, whose call ids may be the
    same, keep theirs apart, and a file that has grown keeps its own.

    Raises:
        BadInput: it cannot be opened.
        TranscriptError: it cannot be read as a transcript.
    """
    content, first_line = _content(given)
    prefix = sha256(source.encode() + b"\0" + first_line).hexdigest()[:_PREFIX_DIGITS]
    return read_transcript(content, fmt=fmt, group_prefix=f"{prefix}-")


@dataclass(slots=True)
class Fed:
    """What came of feeding a transcript to a context."""

    added: int = 0
    """Rows that were not there when they were sent, and are now. Of two that send the same ones at one moment
    both count them: an append is known by its content, and both are told that it was committed."""
    present: int = 0
    """Rows that the context had already."""
    appends: int = 0


async def feed(
    context: Context,
    transcript: Transcript,
    *,
    source: str = "",
    rows: int = BATCH_ROWS,
    on_progress: Callable[[int], None] = lambda _: None,
) -> Fed:
    """Appends what the context does not have yet. One append follows the other: the order is the file's.

    Args:
        context: where to.
        transcript: its bad lines are left out.
        source: part of the identity of its rows, see `leaves`.
        rows: of one append, at most.
        on_progress: is told how many bytes of rows each step has dealt with.

    Raises:
        CommandRejected: an append was refused; those before it are committed.
        SextonError: whatever `Context.submit` raises.
    """
    fed = Fed()
    named = leaves((item for item in transcript if isinstance(item, Row)), source=source)
    for batch in batches(named, context.context_id, _Now(context), rows=rows):
        if batch.append is not None:
            outcome = await context.submit(batch.append)
            if isinstance(outcome, Rejected):
                raise CommandRejected(f"{outcome.code.value}: {outcome.message}", outcome=outcome)
            fed.added += len(batch.append.spans)
            fed.appends += 1
        fed.present += batch.present
        on_progress(batch.size_bytes)
    return fed


class _Now:
    """The span ids of a context, as of when one is looked for: somebody else may be feeding it, too."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def __contains__(self, span_id: object) -> bool:
        return span_id in self._context.tree.nodes


def _content(given: str | bytes) -> tuple[Path | bytes, bytes]:
    """A transcript, and its first line. What can be read only once is read into memory."""
    try:
        if isinstance(given, bytes):
            data = given
        elif given == STDIN:
            data = stdin().read()
        elif (path := Path(given)).is_file():
            with path.open("rb") as stream:
                return path, stream.readline(_FIRST_LINE_BYTES).rstrip(b"\n")
        else:
            data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        why = getattr(error, "strerror", None) or error
        raise BadInput(f"cannot read {given!a}: {why}") from error
    return data, data[:_FIRST_LINE_BYTES].partition(b"\n")[0]
