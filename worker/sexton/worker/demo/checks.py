"""What must hold after the story, each as a function of what was seen from outside.

None of them asks Sexton whether all is well: they compare what holders got with the bytes of the file, and
what holders were told with what was committed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sexton.core.tree import ContextTree
from sexton.schemas.errors import StaleSpanError, Unreachable
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import RecordKind
from sexton.schemas.rpc import Head
from sexton.worker.cli.output import size
from sexton.worker.demo.talk import Followed, MapUsed, Quote
from sexton.worker.ingest import BadLine, Row

_ENOUGH_LEVELS: Final = 2
_BUMPING: Final = frozenset({RecordKind.COMPACTED, RecordKind.REWRITTEN, RecordKind.PRUNED})
"""What can make a pointer wrong, and so has an epoch."""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at."""

    name: str
    held: bool
    count: int
    """How many were looked at and were right."""
    detail: str = ""


def all_of(name: str, wrong: Sequence[str], count: int, detail: str = "") -> Check:
    """Holds if there was something to look at and nothing of it was wrong."""
    shown = ", ".join(wrong[:3]) + (" …" if len(wrong) > 3 else "")  # noqa: PLR2004
    return Check(
        name, not wrong and count > 0, count - len(wrong), f"{len(wrong)} wrong: {shown}" if wrong else detail
    )


def rows_are_leaves(span_ids: Sequence[str], tree: ContextTree) -> Check:
    """Every row has its leaf, and there is no other leaf."""
    leaves = {span_id for span_id, node in tree.nodes.items() if node.level.verbatim}
    wrong = [span_id for span_id in span_ids if span_id not in leaves]
    wrong += sorted(leaves - set(span_ids))
    return all_of("rows that are leaves", wrong, len(span_ids))


def leaves_have_pointers(span_ids: Sequence[str], pointers: Sequence[Pointer]) -> Check:
    """One pointer for each leaf, in order, on verbatim bytes, minted before anything was compacted."""
    wrong = [
        span_id
        for span_id, pointer in zip(span_ids, pointers, strict=False)
        if (pointer.span_id, pointer.level, pointer.epoch) != (span_id, Level.L0_VERBATIM, 0)
    ]
    if len(pointers) != len(span_ids):
        wrong.append(f"{len(pointers)} pointers for {len(span_ids)} leaves")
    return all_of("leaves with a pointer", wrong, len(span_ids), "minted at epoch 0")


def compacted_deep_enough(
    tree: ContextTree, *, before_bytes: int, after_bytes: int, budget_bytes: int
) -> Check:
    """The view came within its budget, over at least two levels of summaries."""
    depth = max((node.level.value for node in tree.view()), default=0)
    summaries = sum(not node.level.verbatim for node in tree.nodes.values())
    return Check(
        "summaries, two levels or more",
        depth >= _ENOUGH_LEVELS and after_bytes <= budget_bytes < before_bytes,
        summaries,
        f"{size(before_bytes)} -> {size(after_bytes)}, to L{depth}",
    )


def quotes_are_exact(
    who: str,
    file: bytes,
    items: Iterable[Row | BadLine],
    quotes: Sequence[Quote],
    changed: frozenset[str],
) -> Check:
    """Every pointer gives exactly the bytes that stand in the file, read from the file itself.

    Args:
        who: asked.
        file: the transcript.
        items: its rows and bad lines, in order.
        quotes: what the pointers led to, one for each row.
        changed: span ids whose bytes were changed on purpose; another check looks at these.
    """
    wrong: list[str] = []
    looked_at = position = 0
    given = iter(quotes)
    for item in items:
        length = item.size_bytes if isinstance(item, BadLine) else len(item.raw)
        there = file[position : position + length]
        position += length
        if isinstance(item, BadLine):
            continue
        quote = next(given, None)
        if quote is None:
            wrong.append(f"line {item.line_number}: no quote")
        elif quote.span_id not in changed and quote.data != there:
            wrong.append(f"line {item.line_number}: {quote.error or 'other bytes'}")
        looked_at += quote is None or quote.span_id not in changed
    if position != len(file):
        wrong.append(f"the rows are {position} bytes of {len(file)}")
    if next(given, None) is not None:
        wrong.append("more quotes than rows")
    return all_of(f"{who}: quotes exact to the byte", wrong, looked_at, _tiers(quotes))


def changed_are_refused(
    who: str, quotes: Sequence[Quote], rewritten: Sequence[str], pruned: Sequence[str]
) -> Check:
    """Old pointers to what was rewritten or pruned raise, each its own error, and give no bytes."""
    wanted = {**dict.fromkeys(rewritten, StaleSpanError.code), **dict.fromkeys(pruned, Unreachable.code)}
    errors = {
        quote.span_id: quote.error for quote in quotes if quote.span_id in wanted and quote.data is None
    }
    wrong = [
        f"{span_id}: {errors.get(span_id)}" for span_id, code in wanted.items() if errors.get(span_id) != code
    ]
    return all_of(
        f"{who}: changed spans refused", wrong, len(wanted), ", ".join(dict.fromkeys(wanted.values()))
    )


def no_summary_for_a_leaf(quotes: Iterable[Quote]) -> Check:
    """What came back for a leaf's pointer was verbatim, always."""
    answered = [quote for quote in quotes if quote.data is not None]
    wrong = [
        quote.span_id for quote in answered if not quote.verbatim or quote.level is not Level.L0_VERBATIM
    ]
    return all_of("leaves given, never a summary", wrong, len(answered))


def summaries_say_so(quotes: Sequence[Quote]) -> Check:
    """Who asks for a summary in a leaf's place gets one, and it says that it is one."""
    wrong = [
        quote.span_id
        for quote in quotes
        if quote.data is None or quote.verbatim or quote.level in (None, Level.L0_VERBATIM)
    ]
    return all_of("summaries asked for say so", wrong, len(quotes))


def epoch_is_dense(outcomes: Iterable[Committed], head: Head) -> Check:
    """Each change has an epoch of its own, and there is no epoch without one."""
    epochs = sorted(outcome.epoch for outcome in outcomes)
    right = epochs == list(range(1, head.epoch + 1)) and bool(epochs)
    return Check("epochs dense, one per change", right, len(epochs), f"head at epoch {head.epoch}")


def saw_every_epoch(who: str, followed: Followed, head: Head) -> Check:
    """The holder was told of every revision and every epoch, in order, each once."""
    bumps = followed.bumps
    revisions = [bump.revision for bump in bumps]
    steps = [after.epoch - before.epoch == (after.kind in _BUMPING) for before, after in pairwise(bumps)]
    epochs = {bump.epoch for bump in bumps} - {0}
    right = (
        revisions == list(range(1, head.revision + 1))
        and all(steps)
        and epochs == set(range(1, head.epoch + 1))
    )
    return Check(f"{who}: epochs seen", right, len(epochs), f"{len(bumps)} bumps of {head.revision}")


def stale_map_was_caught(used: MapUsed) -> Check:
    """The offset map outlived the compactions, and did not outlive the rewrite."""
    right = (
        used.caught
        and used.builds_before == 1
        and used.builds_after == used.builds_before + 1
        and used.version_after == used.version_before + 1
        and used.refused == used.words > 0
        and used.exact == used.words_now > 0
        and used.misled > 0
    )
    return Check(
        "stale offsets re-derived",
        right,
        used.refused,
        f"{used.misled} would have cut wrongly",
    )


def _tiers(quotes: Sequence[Quote]) -> str:
    counts: dict[str, int] = {}
    for quote in quotes:
        if quote.tier is not None:
            counts[quote.tier.value] = counts.get(quote.tier.value, 0) + 1
    return ", ".join(f"{count} {tier}" for tier, count in counts.items())
