"""The demo's checks can fail: each is given what a broken Sexton would have shown, and says no."""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import pytest

from sexton.core.buffer import ContextBuffer
from sexton.core.tree import ContextTree
from sexton.schemas.commands import CommandKind
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import RecordKind
from sexton.schemas.rpc import Head, Tier
from sexton.schemas.span import SpanVersion
from sexton.worker.demo import checks
from sexton.worker.demo.checks import Check
from sexton.worker.demo.offsets import OffsetMap
from sexton.worker.demo.talk import Followed, MapUsed, Quote, Seen
from sexton.worker.ingest import BadLine, Row, read_transcript

FILE: Final = b'{"role":"user","content":"one"}\nnot json\n{"role":"user","content":"two"}\n{"role":"user"}\n'
ITEMS: Final = list(read_transcript(FILE))
ROWS: Final = [item for item in ITEMS if isinstance(item, Row)]
SPANS: Final = ("l0:a", "l0:b", "l0:c")
QUOTES: Final = [
    Quote(span_id=span_id, data=row.raw, level=Level.L0_VERBATIM, verbatim=True, tier=Tier.COLD)
    for span_id, row in zip(SPANS, ROWS, strict=True)
]
HEAD: Final = Head(revision=4, epoch=3, chain="")
BUMPS: Final = [
    Seen(revision=1, epoch=0, kind=RecordKind.APPENDED),
    Seen(revision=2, epoch=1, kind=RecordKind.COMPACTED),
    Seen(revision=3, epoch=2, kind=RecordKind.REWRITTEN),
    Seen(revision=4, epoch=3, kind=RecordKind.PRUNED),
]
MAP: Final = MapUsed(
    version_before=1,
    version_after=2,
    builds_before=1,
    builds_after=2,
    caught=True,
    words=5,
    misled=4,
    words_now=6,
    exact=6,
    refused=5,
)


def buffer() -> ContextBuffer:
    """Three leaves, the first two under a summary of a summary."""
    made = ContextBuffer("demo")
    for span_id in SPANS:
        made.add(span_id, f"the text of {span_id} at some length")
    made.compact(SPANS[:2], "both", name="s")
    made.compact(["l1:s"], "up", name="r")
    return made


def pointers() -> list[Pointer]:
    made = ContextBuffer("demo")
    for span_id in SPANS:
        made.add(span_id, "text")
    return [made.mint(span_id) for span_id in SPANS]


def outcome(epoch: int) -> Committed:
    spans = (SpanVersion(span_id="l0:a", version=1),)
    return Committed(kind=CommandKind.REWRITE, revision=epoch + 1, epoch=epoch, spans=spans)


def exact(quotes: list[Quote], file: bytes = FILE, changed: frozenset[str] = frozenset()) -> Check:
    return checks.quotes_are_exact("ada", file, ITEMS, quotes, changed)


def test_the_transcript_of_these_tests_has_a_bad_line() -> None:
    """It is passed over, and what stands behind it is still found at its place."""
    assert [False, True, False, False] == [isinstance(item, BadLine) for item in ITEMS]


def test_quotes_that_are_the_files_bytes_hold() -> None:
    """Three rows, three quotes."""
    assert (True, 3) == (exact(QUOTES).held, exact(QUOTES).count)


@pytest.mark.parametrize(
    "sabotage",
    [
        lambda q: [q[0].model_copy(update={"data": b"a summary"}), *q[1:]],
        lambda q: [q[0].model_copy(update={"data": (q[0].data or b"")[:-1]}), *q[1:]],
        lambda q: [q[0].model_copy(update={"data": None, "error": "lost"}), *q[1:]],
        lambda q: [q[1], q[0], q[2]],
        lambda q: q[:2],
        lambda q: [*q, q[0]],
        lambda q: [],
    ],
    ids=["summary", "cut", "error", "swapped", "missing", "too many", "none"],
)
def test_quotes_that_are_not_the_files_bytes_are_caught(
    sabotage: Callable[[list[Quote]], list[Quote]],
) -> None:
    """I1: other bytes, fewer bytes, an error, another line's bytes, no quote at all."""
    assert not exact(sabotage(QUOTES)).held


def test_a_file_that_is_not_all_in_the_rows_is_caught() -> None:
    """I7: the rows and bad lines are all of the file, or something was lost on the way in."""
    assert not exact(QUOTES, FILE + b"more").held


def test_a_span_that_was_changed_on_purpose_is_not_counted() -> None:
    """Its old pointer must not give its bytes; another check sees to that."""
    refused = Quote(span_id="l0:a", error="stale_span")

    found = exact([refused, *QUOTES[1:]], changed=frozenset({"l0:a"}))

    assert (True, 2) == (found.held, found.count)
    assert not exact([refused, *QUOTES[1:]]).held


@pytest.mark.parametrize(
    ("rewritten", "pruned", "held"),
    [
        ("stale_span", "unreachable", True),
        ("unreachable", "stale_span", False),
        ("stale_span", "lost", False),
        ("unavailable", "unreachable", False),
        (None, "unreachable", False),
    ],
)
def test_changed_spans_must_be_refused_for_the_right_reason(
    rewritten: str | None, pruned: str, held: bool
) -> None:
    """Bytes, or another error, will not do."""
    quotes = [
        Quote(span_id="l0:a", error=rewritten, data=None if rewritten else b"old"),
        Quote(span_id="l0:b", error=pruned),
    ]

    assert held == checks.changed_are_refused("ada", quotes, ["l0:a"], ["l0:b"]).held


def test_a_changed_span_that_nobody_asked_for_is_caught() -> None:
    """Nothing was seen, so nothing holds."""
    assert not checks.changed_are_refused("ada", [], ["l0:a"], ["l0:b"]).held


@pytest.mark.parametrize(
    "update", [{"verbatim": False}, {"level": Level.L1_SUMMARY}, {"level": None}], ids=str
)
def test_a_summary_in_a_leafs_place_is_caught(update: dict[str, object]) -> None:
    """Seed: pointer resurrection."""
    assert checks.no_summary_for_a_leaf(QUOTES).held
    assert not checks.no_summary_for_a_leaf([*QUOTES[1:], QUOTES[0].model_copy(update=update)]).held


def test_no_quotes_at_all_show_nothing() -> None:
    """A check that looked at nothing does not hold."""
    assert not checks.no_summary_for_a_leaf([]).held
    assert not checks.summaries_say_so([]).held


def test_a_summary_that_calls_itself_verbatim_is_caught() -> None:
    """Who asked for a summary must be able to tell."""
    summary = Quote(span_id="l0:a", data=b"s", level=Level.L1_SUMMARY, verbatim=False)

    assert checks.summaries_say_so([summary]).held
    assert not checks.summaries_say_so([summary, summary.model_copy(update={"verbatim": True})]).held
    assert not checks.summaries_say_so([summary, QUOTES[0]]).held
    assert not checks.summaries_say_so([Quote(span_id="l0:a", error="unreachable")]).held


@pytest.mark.parametrize(
    ("epochs", "held"),
    [
        ([1, 2, 3], True),
        ([3, 1, 2], True),
        ([1, 2], False),
        ([1, 2, 2, 3], False),
        ([1, 3], False),
        ([], False),
    ],
)
def test_epochs_that_are_not_dense_are_caught(epochs: list[int], held: bool) -> None:
    """I2: one missing, one twice, none."""
    assert held == checks.epoch_is_dense([outcome(epoch) for epoch in epochs], HEAD).held


@pytest.mark.parametrize(
    ("bumps", "held"),
    [
        (BUMPS, True),
        (BUMPS[:-1], False),
        (BUMPS[1:], False),
        ([BUMPS[0], *BUMPS[2:]], False),
        ([*BUMPS, BUMPS[-1]], False),
        ([BUMPS[1], BUMPS[0], *BUMPS[2:]], False),
        ([*BUMPS[:-1], BUMPS[-1].model_copy(update={"epoch": 4})], False),
        ([*BUMPS[:-1], BUMPS[-1].model_copy(update={"kind": RecordKind.APPENDED})], False),
        ([], False),
    ],
    ids=["all", "last missing", "first missing", "gap", "doubled", "order", "jump", "idle", "none"],
)
def test_a_holder_that_missed_a_bump_is_caught(bumps: list[Seen], held: bool) -> None:
    """I6: every revision and every epoch, each once, in order."""
    assert held == checks.saw_every_epoch("ada", Followed(bumps=bumps), HEAD).held


@pytest.mark.parametrize(
    ("update", "held"),
    [
        ({}, True),
        ({"caught": False}, False),
        ({"builds_after": 1}, False),
        ({"builds_before": 3, "builds_after": 4}, False),
        ({"version_after": 1}, False),
        ({"refused": 4}, False),
        ({"exact": 5}, False),
        ({"misled": 0}, False),
        ({"words": 0, "refused": 0}, False),
        ({"words_now": 0, "exact": 0}, False),
    ],
    ids=str,
)
def test_a_stale_offset_map_is_caught(update: dict[str, object], held: bool) -> None:
    """Seed: stale derivation. Not noticed, not rebuilt, rebuilt needlessly, or nothing at stake."""
    assert held == checks.stale_map_was_caught(MAP.model_copy(update=update)).held


def test_rows_without_a_leaf_are_caught() -> None:
    """A row too few, and a leaf too many."""
    tree = buffer().tree

    assert checks.rows_are_leaves(SPANS, tree).held
    assert not checks.rows_are_leaves([*SPANS, "l0:d"], tree).held
    assert not checks.rows_are_leaves(SPANS[:2], tree).held


def test_leaves_without_a_pointer_are_caught() -> None:
    """One for each, in order, at epoch 0, on verbatim bytes."""
    made = pointers()

    assert checks.leaves_have_pointers(SPANS, made).held
    assert not checks.leaves_have_pointers(SPANS, made[:2]).held
    assert not checks.leaves_have_pointers(SPANS, made[::-1]).held
    late = made[0].model_copy(update={"epoch": 1})
    assert not checks.leaves_have_pointers(SPANS, [late, *made[1:]]).held


def test_a_compaction_that_is_not_deep_enough_is_caught() -> None:
    """Over the budget, over one level only, or no compaction at all."""

    def deep(tree: ContextTree, after: int = 50, budget: int = 60) -> bool:
        return checks.compacted_deep_enough(
            tree, before_bytes=100, after_bytes=after, budget_bytes=budget
        ).held

    two_levels = buffer().tree
    one_level = ContextBuffer("demo")
    for span_id in SPANS:
        one_level.add(span_id, "a text of some length")
    one_level.compact(SPANS[:2], "both")

    assert deep(two_levels)
    assert not deep(two_levels, after=61)
    assert not deep(two_levels, budget=200)
    assert not deep(one_level.tree)
    assert not deep(replace(two_levels, first=None))


def test_an_offset_map_is_in_bytes() -> None:
    """Words are found where they are in UTF-8, whatever stands before them."""
    text = "é😀 Ship on Friday, Zoë"
    data = text.encode()

    found = OffsetMap.of(text)

    assert ["é", "Ship", "on", "Friday", "Zoë"] == [place.word for place in found.places]
    assert 0 == found.misled_by(data)
    assert 5 == found.misled_by(b"(edited) " + data)
