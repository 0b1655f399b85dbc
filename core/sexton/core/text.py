"""Offsets into UTF-8. Bytes are the unit everywhere; a cut inside a character is refused."""

from typing import Final

from sexton.schemas.errors import BoundaryError, InvalidInput

MARGIN_BYTES: Final = 3
"""A character of UTF-8 reaches at most this far beyond any byte of it."""


def encode(text: str, what: str = "content") -> bytes:
    """The UTF-8 bytes of a text, nothing normalised.

    Raises:
        InvalidInput: the text is empty or holds a lone surrogate, which UTF-8 cannot carry.
    """
    if not text:
        raise InvalidInput(f"{what} is empty", field=what)
    try:
        return text.encode()
    except UnicodeEncodeError as e:
        raise InvalidInput(
            f"{what} holds a lone surrogate at character {e.start}; it is no UTF-8", field=what
        ) from None


def cut(data: bytes, offset: int, length: int) -> bytes:
    """The `length` bytes from `offset`. Raises `BoundaryError` as `check_range` and `check_cut` do."""
    try:
        check_range(len(data), offset, length)
    except BoundaryError as e:
        raise BoundaryError(e.message, **{**e.fields, "nearest": _widened(data, *e.nearest)}) from None
    lo, hi = max(0, offset - MARGIN_BYTES), min(len(data), offset + length + MARGIN_BYTES)
    check_cut(data[lo:hi], offset - lo, length, lo)
    return data[offset : offset + length]


def check_range(size_bytes: int, offset: int, length: int) -> None:
    """Raises `BoundaryError` unless the range is not empty and inside a span of `size_bytes`."""
    if offset < 0 or length < 1 or offset + length > size_bytes:
        start = min(max(offset, 0), size_bytes)
        end = min(max(offset + length, start), size_bytes)
        raise BoundaryError(
            f"{length} bytes at offset {offset} do not lie in a span of {size_bytes} bytes",
            nearest=(start, end),
            offset=offset,
            length=length,
            size_bytes=size_bytes,
        )


def check_cut(window: bytes, offset: int, length: int, window_start: int = 0) -> None:
    """Raises `BoundaryError` if the range cuts a character.

    Args:
        window: the bytes of the range with up to `MARGIN_BYTES` around it, as far as the span has them.
        offset: of the range in the window.
        length: of the range.
        window_start: of the window in the span; the error speaks of offsets in the span.
    """
    start, end = _widened(window, offset, offset + length)
    if (start, end) != (offset, offset + length):
        nearest = (window_start + start, window_start + end)
        raise BoundaryError(
            f"{length} bytes at offset {window_start + offset} cut a character; "
            f"the whole characters around are at {nearest[0]} to {nearest[1]}",
            nearest=nearest,
            offset=window_start + offset,
            length=length,
        )


def is_whole(data: bytes) -> bool:
    """Whether the bytes are whole characters of UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def is_blank(data: bytes) -> bool:
    """Whether nothing of a text would show: no bytes, or only blanks and marks of no width, of any script."""
    return not any(c.isprintable() and not c.isspace() for c in data.decode(errors="replace"))


def _widened(data: bytes, start: int, end: int) -> tuple[int, int]:
    """The range, grown to the whole characters around it."""
    while 0 < start < len(data) and _continues(data, start):
        start -= 1
    while end < len(data) and _continues(data, end):
        end += 1
    return start, end


def _continues(data: bytes, at: int) -> bool:
    return data[at] & 0xC0 == 0x80  # noqa: PLR2004 - 10xxxxxx
