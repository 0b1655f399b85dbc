"""Cutting one JSON document, a list of messages or an object that holds one, into its messages."""

import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from sexton.worker.ingest.cut import KEPT_OF_TOO_LARGE, Piece, json_piece
from sexton.worker.ingest.model import BadReason
from sexton.worker.ingest.parse import BLANKS, BOM, Problem, parse_object

# Strings as a whole, so that a bracket or comma in one does not count. A string that never ends reaches to
# the end of the data, and no quantifier gives anything back, so that the time is linear for any input.
_TOKEN: Final = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[\]{},]', re.DOTALL)
_VALUE_AFTER_KEY: Final = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_KEY: Final = b'"messages"'
_ENOUGH: Final = 16


def is_document(head: bytes) -> bool:
    """Whether chat messages stand in one JSON document, and not one to a line.

    `head` is the beginning of the file, best up to a line end.
    """
    text = head.removeprefix(BOM).lstrip(BLANKS)
    if text.startswith(b"["):
        return True
    if not text.startswith(b"{"):
        return False
    line, _, rest = text.partition(b"\n")
    value = parse_object(line)
    if isinstance(value, Problem):  # one object over several lines, or a bad line of JSONL
        return _goes_on(line) and (_find_list(text) is not None or "role" in _beginning(text))
    return not rest.strip(BLANKS) and "role" not in value and isinstance(value.get("messages"), list)


def _goes_on(line: bytes) -> bool:
    """Whether the object that `line` begins with may go on in the next line."""
    if not line.rstrip(BLANKS).endswith((b"{", b"[", b",", b":")):
        return False
    depth = 0
    for token in _TOKEN.finditer(line):
        depth += token.group() in (b"{", b"[")
        depth -= token.group() in (b"}", b"]")
        if depth == 0:
            return False
    return True


def first_messages(head: bytes) -> list[dict[str, Any]]:
    """Some of the objects that `head`, the beginning of a document, has where messages should be."""
    found = _find_list(head)
    spans = found.elements[:_ENOUGH] if found else []
    values = [parse_object(head[start:end]) for start, end in spans]
    if whole := [value for value in values if isinstance(value, dict)]:
        return whole
    # The first one is not all in the head.
    start = spans[0][0] if spans else 0
    return [value] if (value := _beginning(head[start:])) else []


def _beginning(head: bytes) -> dict[str, Any]:
    """The object that `head` begins with, as far as it goes; empty if it begins with none."""
    try:
        value = from_json(head.removeprefix(BOM), allow_partial="trailing-strings")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


class _List(NamedTuple):
    """Where the list of messages is: behind `[`, before `]`, and its messages between the commas."""

    start: int
    end: int | None
    """None if the document ends before the list does."""
    elements: list[tuple[int, int]]


def cut_document(data: bytes, row_bytes: int) -> Iterator[Piece]:
    """One piece for each message; the first has all that is before it, each all up to the next.

    A document with no list of messages in it is one piece. One that breaks off is cut as far as it goes,
    and its last piece has a problem. A comma too many is taken as glue.
    """
    if not data:
        return
    found = _find_list(data)
    problem = _wrapper_problem(data, found) if found else None
    if found is None or not found.elements or problem:
        yield _limited(_whole(data, problem), row_bytes)
        return
    starts = [0, *(start for start, _ in found.elements[1:]), len(data)]
    line, counted = 1, 0
    for index, (start, end) in enumerate(found.elements):
        line, counted = line + data.count(b"\n", counted, start), start
        raw = data[starts[index] : starts[index + 1]]
        piece = json_piece(line, raw, start - starts[index], end - starts[index])
        if found.end is None and index == len(found.elements) - 1:
            problem = Problem(BadReason.NOT_JSON, "not JSON: the document ends before its list of messages")
            piece = piece._replace(problem=problem)
        yield _limited(piece, row_bytes)


def _whole(data: bytes, problem: Problem | None) -> Piece:
    start = len(BOM) if data.startswith(BOM) else 0
    line = 1 + data.count(b"\n", 0, len(data) - len(data[start:].lstrip(BLANKS)))
    piece = json_piece(line, data, start, len(data))
    return piece._replace(problem=problem or piece.problem)


def _limited(piece: Piece, row_bytes: int) -> Piece:
    if piece.size_bytes <= row_bytes:
        return piece
    problem = Problem(BadReason.TOO_LARGE, f"{piece.size_bytes} bytes, more than the limit")
    return piece._replace(raw=piece.raw[:KEPT_OF_TOO_LARGE], problem=problem)


def _wrapper_problem(data: bytes, found: _List) -> Problem | None:
    """What is wrong with the document around the list, or with what comes after it."""
    if found.end is None:
        return None
    shell = data[: found.start].removeprefix(BOM) + data[found.end :]
    if shell.strip(BLANKS) == b"[]":
        return None
    wrapper = parse_object(shell)
    return wrapper if isinstance(wrapper, Problem) else None


def _find_list(data: bytes) -> _List | None:
    """Finds the outermost list, or the one under `messages` in the outermost object (the last, if many)."""
    text_start = len(BOM) if data.startswith(BOM) else 0
    body = data[text_start:].lstrip(BLANKS)
    first = len(data) - len(body)
    if body.startswith(b"["):
        return _read_list(data, first + 1)
    if not body.startswith(b"{"):
        return None
    found = None
    position, depth = first + 1, 1
    while token := _TOKEN.search(data, position):
        position = token.end()
        symbol = token.group()
        if symbol in (b"{", b"["):
            depth += 1
        elif symbol in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                break
        elif depth == 1 and symbol == _KEY and (colon := _VALUE_AFTER_KEY.match(data, position)):
            position = colon.end()
            if data.startswith(b"[", position):
                found = _read_list(data, position + 1)
                if found.end is None:
                    break
                position = found.end + 1
    return found


def _read_list(data: bytes, start: int) -> _List:
    """The extents of the values in the list whose first byte is at `start`. No recursion: any depth."""
    elements: list[tuple[int, int]] = []
    element, depth = start, 0
    for token in _TOKEN.finditer(data, start):
        symbol = token.group()
        if symbol in (b"{", b"["):
            depth += 1
        elif symbol == b"]" and depth == 0:
            _add(elements, data, element, token.start())
            return _List(start, token.start(), elements)
        elif symbol in (b"}", b"]"):
            depth = max(depth - 1, 0)
        elif symbol == b"," and depth == 0:
            _add(elements, data, element, token.start())
            element = token.end()
    _add(elements, data, element, len(data))
    return _List(start, None, elements)


def _add(elements: list[tuple[int, int]], data: bytes, start: int, end: int) -> None:
    """Adds the value in `data[start:end]` without the blanks around it. Nothing between commas: nothing."""
    text = data[start:end].lstrip(BLANKS)
    if text:
        elements.append((end - len(text), end - len(text) + len(text.rstrip(BLANKS))))
