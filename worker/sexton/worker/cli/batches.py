"""From the rows of a transcript to appends that count once, however often the file is ingested.

A leaf is named by its line and by a digest over all rows up to it. So the same file gives the same names;
a file that has grown since adds what is new; and a row that stands after other rows is another row. What
the context already holds is left out, and an append names itself by its own content: two ingests of one
file at the same time count once, too.
"""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from sexton.schemas.commands import Append
from sexton.schemas.ids import Level, span_id
from sexton.schemas.limits import MAX_SPANS_PER_APPEND
from sexton.schemas.span import NewSpan
from sexton.worker.ingest import Row

BATCH_ROWS: Final = 200
"""Rows of one append."""
BATCH_BYTES: Final = 384 * 1024
"""Bytes of one append, unless a single row has more. JSON adds to them, and still they travel inline."""
_NAME_DIGITS: Final = 24
_EVENT_DIGITS: Final = 40


@dataclass(frozen=True, slots=True)
class Leaf:
    """A row with the id that it has, or will have, in a context."""

    span_id: str
    row: Row


def leaves(rows: Iterable[Row], *, source: str = "") -> Iterator[Leaf]:
    """Names rows. `source` is part of the names: the same rows under another one are other leaves."""
    digest = sha256(source.encode())
    for row in rows:
        # Framed, so that rows cut elsewhere are other rows.
        digest.update(len(row.raw).to_bytes(8))
        digest.update(row.raw)
        name = f"{row.line_number}-{digest.hexdigest()[:_NAME_DIGITS]}"
        yield Leaf(span_id(Level.L0_VERBATIM, name), row)


@dataclass(frozen=True, slots=True)
class Batch:
    """One append, or none if all of the rows are there already."""

    append: Append | None
    present: int
    """How many rows the context has already."""
    size_bytes: int
    """Of all rows, those present included."""


def batches(
    leaves: Iterable[Leaf],
    context_id: str,
    present: Container[str] = frozenset(),
    *,
    rows: int = BATCH_ROWS,
    size_bytes: int = BATCH_BYTES,
) -> Iterator[Batch]:
    """Cuts leaves into appends, in order, without those whose ids are in `present`."""
    rows = min(rows, MAX_SPANS_PER_APPEND)
    batch: list[Leaf] = []
    weight = 0
    for leaf in leaves:
        if batch and (len(batch) == rows or weight + len(leaf.row.raw) > size_bytes):
            yield _batch(batch, context_id, present)
            batch, weight = [], 0
        batch.append(leaf)
        weight += len(leaf.row.raw)
    if batch:
        yield _batch(batch, context_id, present)


def _batch(leaves: list[Leaf], context_id: str, present: Container[str]) -> Batch:
    new = [leaf for leaf in leaves if leaf.span_id not in present]
    return Batch(
        append=_append(context_id, new) if new else None,
        present=len(leaves) - len(new),
        size_bytes=sum(len(leaf.row.raw) for leaf in leaves),
    )


def _append(context_id: str, leaves: list[Leaf]) -> Append:
    spans = tuple(
        NewSpan(name=leaf.span_id.partition(":")[2], content=leaf.row.raw.decode(), labels=leaf.row.labels)
        for leaf in leaves
    )
    draft = Append(context_id=context_id, event_id="ingest", spans=spans)
    digest = sha256(draft.wire()).hexdigest()[:_EVENT_DIGITS]
    return draft.model_copy(update={"event_id": f"ingest-{digest}"})
