"""Reading a transcript: once to see what is in it, and once more for the bytes.

Whether a call is answered, or a parent is in the file, is known only at the file's end. So the first pass
keeps a few facts of each row and no content; the second reads the same bytes again and gives them out.
"""

import io
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final
from zlib import crc32

from sexton.schemas.errors import InvalidInput
from sexton.worker.ingest import pairs
from sexton.worker.ingest.cut import Piece, cut_lines, cut_text
from sexton.worker.ingest.detect import HEAD_BYTES, detect
from sexton.worker.ingest.document import cut_document, is_document
from sexton.worker.ingest.errors import (
    TranscriptChangedError,
    TranscriptTooLargeError,
    TranscriptUnreadableError,
)
from sexton.worker.ingest.formats import Facts, describe
from sexton.worker.ingest.model import (
    JSON_TYPE,
    TEXT_TYPE,
    BadLine,
    BadNote,
    Limits,
    ParentStatus,
    Report,
    Role,
    Row,
    TranscriptFormat,
)
from sexton.worker.ingest.parse import Problem, parse_object

Source = Path | bytes | BinaryIO
"""A file by its path, or the content itself, or an open file such as standard input, read to its end."""

_MIN_TEXT_BLOCK: Final = 16
_MAX_PREFIX: Final = 32


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the first pass keeps of a piece."""

    line_number: int
    kept: int
    size_bytes: int
    checksum: int
    body_offset: int
    body_size: int
    found: Facts | Problem


def read_transcript(
    source: Source,
    *,
    fmt: TranscriptFormat | None = None,
    group_prefix: str = "",
    limits: Limits | None = None,
) -> "Transcript":
    """Looks through a transcript. Iterating over the result gives its rows and bad lines.

    Args:
        source: where it is.
        fmt: its format; None tells it from the content.
        group_prefix: put before every group's name. Keeps files apart that go into one context and may
            use the same call ids. At most 32 of `[A-Za-z0-9_-]`.
        limits: bounds on rows, documents and blocks.

    Raises:
        FormatUnclearError: `fmt` is None and the content does not say.
        TranscriptUnreadableError: the file cannot be opened or read.
        TranscriptTooLargeError: a JSON document over its limit.
        InvalidInput: a prefix or a limit that cannot be.
    """
    limits = limits or Limits()
    if len(group_prefix) > _MAX_PREFIX or not pairs.is_token(group_prefix or "-"):
        raise InvalidInput("group_prefix must match [A-Za-z0-9_-]{0,32}", field="group_prefix")
    if limits.text_block_bytes < _MIN_TEXT_BLOCK or min(limits.row_bytes, limits.document_bytes) < 1:
        raise InvalidInput("limits are positive, and text_block_bytes is at least 16", field="limits")
    opener = _opener(source)
    with _opened(opener) as stream:
        head = stream.read(HEAD_BYTES)
        head += stream.readline(limits.row_bytes)
        stream.seek(0)
        fmt = fmt or detect(head)
        seen = [_see(piece, fmt) for piece in _cut(stream, head, fmt, limits)]
    return Transcript(opener, fmt, seen, group_prefix)


class Transcript:
    """A transcript that was looked through: its report, and its rows as often as they are wanted.

    Iterating reads the source again. Rows that were added to the file since are not seen. Raises
    `TranscriptChangedError` if the bytes are not those of the first pass, and
    `TranscriptUnreadableError` if they cannot be read any more.
    """

    def __init__(
        self,
        opener: Callable[[], BinaryIO],
        fmt: TranscriptFormat,
        seen: list[_Seen],
        group_prefix: str,
    ) -> None:
        self.format: Final = fmt
        self._opener = opener
        self._seen = seen
        self._ids = {piece.found.entry_id for piece in seen if isinstance(piece.found, Facts)} - {None}
        self._pairs = _pair(seen, group_prefix)
        self.report: Final = self._report()

    def __len__(self) -> int:
        """How many rows and bad lines there are."""
        return len(self._seen)

    def __iter__(self) -> Iterator[Row | BadLine]:
        with _opened(self._opener) as stream:
            for index, piece in enumerate(self._seen):
                raw = stream.read(piece.kept)
                if len(raw) != piece.kept or crc32(raw) != piece.checksum:
                    raise TranscriptChangedError(
                        f"the transcript changed at line {piece.line_number} while it was read",
                        line_number=piece.line_number,
                    )
                stream.seek(piece.size_bytes - piece.kept, io.SEEK_CUR)
                yield self._item(index, piece, raw)

    def _item(self, index: int, piece: _Seen, raw: bytes) -> Row | BadLine:
        found = piece.found
        if isinstance(found, Problem):
            return BadLine(piece.line_number, found.reason, found.message, raw, piece.size_bytes)
        membership = self._pairs.members.get(index)
        plain = self.format is TranscriptFormat.TEXT or found.role is Role.BLANK
        return Row(
            line_number=piece.line_number,
            raw=raw,
            role=found.role,
            kind=found.kind,
            group=membership.group if membership else None,
            open=membership.open if membership else False,
            media_type=TEXT_TYPE if plain else JSON_TYPE,
            entry_id=found.entry_id,
            parent_id=found.parent_id or found.elsewhere_id,
            parent_status=self._parent_status(found),
            body_offset=piece.body_offset,
            body_size=piece.body_size,
        )

    def _parent_status(self, row: Facts) -> ParentStatus:
        if row.parent_id is not None and row.parent_id not in self._ids:
            return ParentStatus.MISSING
        if row.elsewhere_id is not None and row.elsewhere_id not in self._ids:
            return ParentStatus.EXTERNAL
        return ParentStatus.NONE if row.parent_id is row.elsewhere_id is None else ParentStatus.PRESENT

    def _report(self) -> Report:
        rows = [(piece.line_number, piece.found) for piece in self._seen if isinstance(piece.found, Facts)]
        parents = [(line_number, self._parent_status(row)) for line_number, row in rows]
        return Report(
            format=self.format,
            size_bytes=sum(piece.size_bytes for piece in self._seen),
            rows=len(rows),
            roles=dict(Counter(row.role.value for _, row in rows)),
            kinds=dict(Counter(row.kind for _, row in rows if row.kind)),
            unknown_kinds=dict(Counter(row.kind for _, row in rows if row.kind and not row.known)),
            calls=self._pairs.calls,
            groups=self._pairs.groups,
            open_groups=self._pairs.open_groups,
            orphan_results=tuple(self._seen[index].line_number for index in self._pairs.orphan_results),
            missing_parents=tuple(line for line, status in parents if status is ParentStatus.MISSING),
            external_parents=tuple(line for line, status in parents if status is ParentStatus.EXTERNAL),
            bad_lines=tuple(
                BadNote(piece.line_number, piece.found.reason, piece.found.message)
                for piece in self._seen
                if isinstance(piece.found, Problem)
            ),
        )


def _cut(stream: BinaryIO, head: bytes, fmt: TranscriptFormat, limits: Limits) -> Iterator[Piece]:
    if fmt is TranscriptFormat.TEXT:
        return cut_text(stream, limits.text_block_bytes)
    if fmt is not TranscriptFormat.OPENAI or not is_document(head):
        return cut_lines(stream, limits.row_bytes)
    data = stream.read(limits.document_bytes + 1)
    if len(data) > limits.document_bytes:
        raise TranscriptTooLargeError(
            f"a JSON document of more than {limits.document_bytes} bytes; convert it to JSONL",
            limit_bytes=limits.document_bytes,
        )
    return cut_document(data, limits.row_bytes)


def _see(piece: Piece, fmt: TranscriptFormat) -> _Seen:
    return _Seen(
        piece.line_number,
        len(piece.raw),
        piece.size_bytes,
        crc32(piece.raw),
        piece.body_offset,
        piece.body_size,
        piece.problem or _find(piece, fmt),
    )


def _find(piece: Piece, fmt: TranscriptFormat) -> Facts | Problem:
    if not piece.body_size:
        return Facts(Role.BLANK)
    if fmt is TranscriptFormat.TEXT:
        return Facts(Role.TEXT)
    row = parse_object(piece.raw[piece.body_offset : piece.body_offset + piece.body_size])
    return row if isinstance(row, Problem) else describe(row, fmt)


def _pair(seen: list[_Seen], group_prefix: str) -> pairs.Pairs:
    pairing = pairs.Pairing()
    for index, piece in enumerate(seen):
        if isinstance(piece.found, Facts):
            pairing.add(index, piece.found.calls, piece.found.results, piece.found.message_id)
    return pairing.solve(group_prefix)


def _opener(source: Source) -> Callable[[], BinaryIO]:
    """A way to open the source twice. What cannot be read twice, such as a pipe, is read into memory."""
    if isinstance(source, Path) and (source.is_file() or not source.exists()):
        return lambda: source.open("rb")
    with _translated():
        if isinstance(source, Path):
            data = source.read_bytes()
        else:
            data = source if isinstance(source, bytes) else source.read()
    return lambda: io.BytesIO(data)


@contextmanager
def _opened(opener: Callable[[], BinaryIO]) -> Iterator[BinaryIO]:
    with _translated(), closing(opener()) as stream:
        yield stream


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise TranscriptUnreadableError(f"cannot read the transcript: {error.strerror or error}") from error
