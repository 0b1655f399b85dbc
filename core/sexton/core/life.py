"""The life of a version of a span, as one table.

    live ── compacted ──▶ covered
    live ── rewritten ──▶ tombstone     (the old version; the span lives on under the next one)
    live ── pruned ─────▶ tombstone
    tombstone ── collecting ──▶ collecting ── condemned ──▶ condemned ── collected ──▶ collected
    collecting ── collect_aborted ──▶ tombstone
    collecting ── collecting ──▶ collecting         (left over by a collector that died; a new attempt)

Everything that changes a state asks this table; the picture in `docs/protocol.md` is drawn from it, and a
test says so. A pair that is not in it cannot happen: `decide` refuses the command before, and `apply`
refuses the record.
"""

from typing import Final

from sexton.schemas.errors import LineageError
from sexton.schemas.records import RecordKind
from sexton.schemas.span import SpanState

START: Final = SpanState.LIVE

TRANSITIONS: Final = {
    (SpanState.LIVE, RecordKind.COMPACTED): SpanState.COVERED,
    (SpanState.LIVE, RecordKind.REWRITTEN): SpanState.TOMBSTONE,
    (SpanState.LIVE, RecordKind.PRUNED): SpanState.TOMBSTONE,
    (SpanState.TOMBSTONE, RecordKind.COLLECTING): SpanState.COLLECTING,
    (SpanState.COLLECTING, RecordKind.COLLECTING): SpanState.COLLECTING,
    (SpanState.COLLECTING, RecordKind.COLLECT_ABORTED): SpanState.TOMBSTONE,
    (SpanState.COLLECTING, RecordKind.CONDEMNED): SpanState.CONDEMNED,
    (SpanState.CONDEMNED, RecordKind.COLLECTED): SpanState.COLLECTED,
}


def after(state: SpanState, kind: RecordKind, span_id: str) -> SpanState:
    """The state that a record of `kind` leads to.

    Raises:
        LineageError: no record of that kind can follow that state, so the log is not the one it claims.
    """
    try:
        return TRANSITIONS[state, kind]
    except KeyError:
        raise LineageError(
            f"{span_id} is {state.value} and cannot be {kind.value}", span_id=span_id, state=state.value
        ) from None


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", f"    [*] --> {START.value}"]
    lines += [f"    {a.value} --> {b.value}: {kind.value}" for (a, kind), b in TRANSITIONS.items()]
    return "\n".join(lines)
