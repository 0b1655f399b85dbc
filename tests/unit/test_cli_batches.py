"""Rows to appends: named by what stands before them, bounded, and counted once."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from sexton.holder.claims import pack
from sexton.schemas.commands import Append
from sexton.schemas.limits import MAX_COMMAND_BYTES, MAX_SPANS_PER_APPEND
from sexton.worker.cli.batches import BATCH_BYTES, Batch, Leaf, batches, leaves
from sexton.worker.ingest import Row, read_transcript


def rows(*lines: str) -> list[Row]:
    """Rows of a transcript of chat messages."""
    text = "".join(f'{{"role":"user","content":"{line}"}}\n' for line in lines)
    return [item for item in read_transcript(text.encode()) if isinstance(item, Row)]


def ids(rows: Sequence[Row], source: str = "") -> list[str]:
    return [leaf.span_id for leaf in leaves(rows, source=source)]


def appends(cut: Sequence[Batch]) -> list[Append]:
    return [batch.append for batch in cut if batch.append is not None]


def cut(lines: Sequence[str], *, present: Sequence[str] = (), count: int = 3) -> list[Batch]:
    return list(batches(leaves(rows(*lines)), "demo", frozenset(present), rows=count))


def test_the_same_rows_have_the_same_names() -> None:
    """Whoever ingests a file again finds its leaves there."""
    assert ids(rows("a", "b", "c")) == ids(rows("a", "b", "c"))


def test_a_file_that_has_grown_keeps_its_names() -> None:
    """Only the new rows are new."""
    assert ids(rows("a", "b", "c", "d"))[:3] == ids(rows("a", "b", "c"))


def test_equal_rows_are_different_leaves() -> None:
    """A line that comes twice in a file is there twice."""
    assert 3 == len(set(ids(rows("a", "a", "a"))))


def test_a_row_behind_other_rows_is_another_leaf() -> None:
    """Two files may share a line and share no leaf."""
    assert set() == set(ids(rows("x", "b"))) & set(ids(rows("y", "b")))


def test_rows_cut_elsewhere_are_other_leaves() -> None:
    """The digest is framed: what ends in the same bytes, cut otherwise, is something else."""
    row = rows("a")[0]
    one = [replace(row, raw=b"ab"), replace(row, raw=b"c")]
    other = [replace(row, raw=b"a"), replace(row, raw=b"bc")]

    assert ids(one)[-1] != ids(other)[-1]


def test_another_source_name_makes_other_leaves() -> None:
    """The way to have the same file twice on purpose."""
    assert set() == set(ids(rows("a"), "one")) & set(ids(rows("a"), "two"))


def test_a_name_begins_with_its_line() -> None:
    """So that a person finds the leaf of a line."""
    assert ["l0:1-", "l0:2-"] == [span_id[:5] for span_id in ids(rows("a", "b"))]


def test_batches_hold_so_many_rows() -> None:
    """In the order of the file, the last one what is left."""
    sizes = [len(append.spans) for append in appends(cut(["a", "b", "c", "d", "e", "f", "g"]))]
    texts = [span.content for append in appends(cut(["a", "b", "c", "d"])) for span in append.spans]

    assert [3, 3, 1] == sizes
    assert [row.raw.decode() for row in rows("a", "b", "c", "d")] == texts


def test_batches_hold_so_many_bytes() -> None:
    """A row over the bound is alone, and not refused: it goes as a claim check."""
    named = list(leaves(rows("x" * 100, "y" * 100, "z" * 5000, "a")))

    found = [len(append.spans) for append in appends(list(batches(named, "demo", size_bytes=300)))]

    assert [2, 1, 1] == found


def test_no_batch_is_over_the_limit_of_an_append() -> None:
    """However many rows are asked for."""
    named = [Leaf(f"l0:n{i}", row) for i, row in enumerate(rows(*["a"] * (MAX_SPANS_PER_APPEND + 1)))]

    assert [MAX_SPANS_PER_APPEND, 1] == [
        len(append.spans) for append in appends(list(batches(named, "demo", rows=10**6)))
    ]


def test_what_is_there_is_left_out_and_counted() -> None:
    """A batch that is there as a whole is no append at all."""
    named = ids(rows("a", "b", "c", "d"))

    found = cut(["a", "b", "c", "d"], present=named[:3], count=2)

    assert [2, 1] == [batch.present for batch in found]
    assert [named[3]] == [f"l0:{span.name}" for append in appends(found) for span in append.spans]


def test_an_append_is_named_by_its_content() -> None:
    """Two ingests at the same time send the same commands, which count once."""
    (one,) = appends(cut(["a", "b"]))
    (same,) = appends(cut(["a", "b"]))
    (other,) = appends(cut(["a", "c"]))

    assert one.wire() == same.wire()
    assert one.event_id != other.event_id


def test_labels_go_along() -> None:
    """Role, group, media type and open are those of the row."""
    (row,) = rows("a")
    (append,) = appends(cut(["a"]))

    assert row.labels == append.spans[0].labels


@pytest.mark.parametrize("character", ["\x01", '"', "é", "😀"])
def test_the_worst_batch_fits_into_a_command(character: str) -> None:
    """JSON makes six bytes of some; then the long ones travel as claim checks."""
    size = len(character.encode())
    row = rows("a")[0]
    raw = (character * (BATCH_BYTES // 100 // size)).encode()
    named = [Leaf(f"l0:n{i}", _with_raw(row, raw)) for i in range(100)]

    (append,) = appends(list(batches(named, "demo")))

    assert len(pack(append).body) <= MAX_COMMAND_BYTES


def _with_raw(row: Row, raw: bytes) -> Row:
    return replace(row, raw=raw, body_offset=0, body_size=len(raw))
