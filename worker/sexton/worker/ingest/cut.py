"""Cutting a file into pieces that, put together again, are the file.

Nothing is parsed here, and nothing dropped: every byte of the input is in exactly one piece.
"""

import codecs
from collections.abc import Iterator
from typing import BinaryIO, Final, NamedTuple

from sexton.worker.ingest.model import BadReason
from sexton.worker.ingest.parse import BLANKS, BOM, Problem, text_problem

KEPT_OF_TOO_LARGE: Final = 4096
"""Of a line over the limit only so many bytes are kept in memory."""
_SKIP_BYTES: Final = 1 << 20
_DECODER: Final = codecs.getincrementaldecoder("utf-8")
_LONGEST_CHARACTER: Final = 4


class Piece(NamedTuple):
    """A run of bytes, and where its body is."""

    line_number: int
    raw: bytes
    size_bytes: int
    """Length of the run; more than `len(raw)` only for a line over the limit."""
    body_offset: int
    body_size: int
    problem: Problem | None


def cut_lines(stream: BinaryIO, row_bytes: int) -> Iterator[Piece]:
    """One piece for each line, its line end included. Lines end at LF, and nowhere else.

    Memory: one line, and of a line over `row_bytes` no more than that.
    """
    number = 0
    while raw := stream.readline(row_bytes + 1):
        number += 1
        if len(raw) > row_bytes:
            yield _too_large(number, raw, len(raw) + _skip_line(stream, raw))
            continue
        # Not only in the first line: files that begin with a mark are put together with `cat`.
        start = len(BOM) if raw.startswith(BOM) else 0
        yield json_piece(number, raw, start, len(raw))


def json_piece(number: int, raw: bytes, start: int, end: int) -> Piece:
    """A piece whose body is `raw[start:end]` without the blanks around it."""
    stripped = raw[start:end].lstrip(BLANKS)
    offset = end - len(stripped)
    return Piece(number, raw, len(raw), offset, len(stripped.rstrip(BLANKS)), text_problem(raw))


def _too_large(number: int, raw: bytes, size_bytes: int) -> Piece:
    problem = Problem(BadReason.TOO_LARGE, f"{size_bytes} bytes, more than the limit")
    return Piece(number, raw[:KEPT_OF_TOO_LARGE], size_bytes, 0, 0, problem)


def _skip_line(stream: BinaryIO, part: bytes) -> int:
    """Reads on to the end of the line that `part` is of; how many bytes that were."""
    skipped = 0
    while part and not part.endswith(b"\n"):
        part = stream.readline(_SKIP_BYTES)
        skipped += len(part)
    return skipped


def cut_text(stream: BinaryIO, block_bytes: int) -> Iterator[Piece]:
    """Blocks of at most `block_bytes`: as many whole paragraphs as fit.

    A paragraph that does not fit is cut at line ends, and a line that does not fit between characters. A
    line that is no text is a piece of its own. Memory: a block.
    """
    block = b""
    block_line = 1
    paragraphs = 0  # how much of the block is whole paragraphs
    for number, part in _line_parts(stream, block_bytes):
        if problem := text_problem(part):
            if block:
                yield _text_piece(block_line, block)
            yield Piece(number, part, len(part), 0, len(part), problem)
            block, paragraphs = b"", 0
            continue
        while block and len(block) + len(part) > block_bytes:
            end = paragraphs or len(block)
            yield _text_piece(block_line, block[:end])
            block_line += block.count(b"\n", 0, end)
            block, paragraphs = block[end:], 0
        if not block:
            block_line = number
        block += part
        if not part.strip(BLANKS):
            paragraphs = len(block)
    if block:
        yield _text_piece(block_line, block)


def _text_piece(number: int, raw: bytes) -> Piece:
    start = len(BOM) if number == 1 and raw.startswith(BOM) else 0
    size = len(raw) - start if raw[start:].strip(BLANKS) else 0
    return Piece(number, raw, len(raw), start, size, None)


def _line_parts(stream: BinaryIO, limit: int) -> Iterator[tuple[int, bytes]]:
    """Lines with their numbers; those longer than `limit` in parts, cut between characters."""
    number = 1
    carry = b""
    while part := carry + stream.readline(limit - len(carry)):
        carry = b""
        if len(part) == limit and not part.endswith(b"\n"):
            end = _character_end(part)
            part, carry = part[:end], part[end:]
        yield number, part
        number += part.endswith(b"\n")


def _character_end(data: bytes) -> int:
    """Where to cut `data` so that no character is split that goes on behind it, and no CR LF."""
    if data.endswith(b"\r"):
        return len(data) - 1
    for back in range(1, _LONGEST_CHARACTER):
        decoder = _DECODER()
        try:
            decoder.decode(data[-back:])
        except UnicodeDecodeError:  # starts inside a character: look further back
            continue
        unfinished, _ = decoder.getstate()
        return len(data) - len(unfinished)
    return len(data)
