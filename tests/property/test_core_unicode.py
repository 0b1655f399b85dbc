"""Bytes are the unit: over any text, a range that is whole characters comes back, and no other does."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sexton.core.buffer import ContextBuffer
from sexton.core.check import mint
from sexton.core.text import MARGIN_BYTES, check_cut, check_range, cut, encode, is_blank, is_whole
from sexton.schemas.errors import BoundaryError, InvalidInput

TEXT = st.text(min_size=1, max_size=40)
OFFSET = st.integers(min_value=-8, max_value=180)


def boundaries(text: str) -> set[int]:
    """Where characters begin or end, in bytes; by encoding every prefix."""
    return {len(text[:i].encode()) for i in range(len(text) + 1)}


@given(TEXT, st.data())
@example("é", None)
def test_every_part_of_any_text_comes_back_c83(text: str, data: st.DataObject | None) -> None:
    """C83: minted on characters i to j, resolved to exactly those, before and after it is covered."""
    first = 0 if data is None else data.draw(st.integers(0, len(text) - 1))
    last = len(text) if data is None else data.draw(st.integers(first + 1, len(text)))
    part = text[first:last]
    buffer = ContextBuffer()
    buffer.add("l0:t", text)
    pointer = buffer.mint("l0:t", offset=len(text[:first].encode()), length=len(part.encode()))

    assert part == buffer.resolve(pointer, strict=True).text
    buffer.compact(["l0:t"], "summary", allow_larger=True)
    assert part == buffer.resolve(pointer).text


@given(TEXT, OFFSET, OFFSET)
def test_a_range_is_granted_if_and_only_if_it_is_whole_characters_c81_c82(
    text: str, offset: int, length: int
) -> None:
    """C81, C82: else the nearest boundaries are told; they lie in the text and around what is in it."""
    edges, size = boundaries(text), len(text.encode())
    buffer = ContextBuffer()
    buffer.add("l0:t", text)
    if length > 0 and {offset, offset + length} <= edges:
        pointer = buffer.mint("l0:t", offset=offset, length=length)
        assert text.encode()[offset : offset + length] == buffer.resolve(pointer).data
        return
    with pytest.raises(BoundaryError) as refusal:
        buffer.mint("l0:t", offset=offset, length=length)
    start, end = refusal.value.nearest
    assert {start, end} <= edges
    assert 0 <= start <= end <= size
    if 0 <= offset < offset + length <= size:
        assert max(edge for edge in edges if edge <= offset) == start
        assert min(edge for edge in edges if edge >= offset + length) == end


@given(TEXT, OFFSET, OFFSET)
def test_a_cut_is_refused_at_use_as_it_is_at_mint_c81(text: str, offset: int, length: int) -> None:
    """C81: who made the pointer by hand, with the right hash of half a character, gets the same error."""
    data = text.encode()
    if not (0 <= offset < offset + length <= len(data)) or is_whole(data[offset : offset + length]):
        return
    buffer = ContextBuffer()
    buffer.add("l0:t", text)
    with pytest.raises(BoundaryError) as at_mint:
        buffer.mint("l0:t", offset=offset, length=length)
    by_hand = mint(buffer.tree, "l0:t", offset=offset, length=length, part=data[offset : offset + length])
    with pytest.raises(BoundaryError) as at_use:
        buffer.resolve(by_hand)
    assert at_mint.value.nearest == at_use.value.nearest


@given(TEXT, OFFSET, OFFSET)
def test_a_window_is_enough_to_check_a_cut(text: str, offset: int, length: int) -> None:
    """A range read with `MARGIN_BYTES` around it is judged as if all of the span had been read."""
    data = text.encode()
    if not 0 <= offset < offset + length <= len(data):
        with pytest.raises(BoundaryError):
            check_range(len(data), offset, length)
        return
    lo = max(0, offset - MARGIN_BYTES)
    window = data[lo : offset + length + MARGIN_BYTES]
    assert refused(data, offset, length, 0) == refused(window, offset - lo, length, lo)
    if refused(data, offset, length, 0) is None:
        assert data[offset : offset + length] == cut(data, offset, length)


def refused(window: bytes, offset: int, length: int, window_start: int) -> tuple[str, object] | None:
    try:
        check_cut(window, offset, length, window_start)
    except BoundaryError as e:
        return e.message, e.nearest
    return None


@given(st.text(st.characters(), min_size=1, max_size=20) | st.text(max_size=20))
def test_a_text_is_taken_as_it_is_or_not_at_all_c85(text: str) -> None:
    """C85: empty or with a lone surrogate it is refused; else its bytes are its bytes."""
    try:
        expected = text.encode()
    except UnicodeEncodeError:
        expected = b""
    if expected:
        assert expected == encode(text)
    else:
        with pytest.raises(InvalidInput):
            encode(text)


@given(st.binary(max_size=20))
def test_whole_is_what_decodes(data: bytes) -> None:
    """No more and no less than UTF-8."""
    assert (data.decode(errors="ignore").encode() == data) == is_whole(data)


@given(TEXT)
def test_what_shows_is_not_blank_c47(text: str) -> None:
    """C47: a letter, a digit or a sign anywhere makes a text; blanks alone make none."""
    assert not is_blank(f"{text}a".encode())
    assert is_blank(" ".join(c for c in text if c.isspace()).encode())
