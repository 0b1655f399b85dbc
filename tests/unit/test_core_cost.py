"""Deciding and applying cost in proportion to what changes, not to the context's size.

Work is counted, not timed: every call of a function, of Python or of C, and every look at one of the tree's
maps. The maps are replaced by ones that count, and that charge their whole size to whoever walks over them: a
copy or a scan shows, also one that is made in C.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import pytest

from sexton.core.apply import apply
from sexton.core.check import check, mint
from sexton.core.decide import Commit, decide
from sexton.core.pins import Pins
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand
from sexton.schemas.leases import PinCost
from sexton.schemas.span import SpanState
from tests.core_kit.build import CONTEXT, append, committed, compact, contents, digest, grown, prune, rewrite

SMALL, LARGE = 100, 20_000


class CountingMap:
    """A persistent map that counts the entries it is asked about, put into or walked over."""

    def __init__(self, inner: Any, seen: Counter[str]) -> None:
        self.inner, self.seen = inner, seen

    def __getitem__(self, key: Any) -> Any:
        self.seen["looked at"] += 1
        return self.inner[key]

    def __contains__(self, key: Any) -> bool:
        self.seen["looked at"] += 1
        return key in self.inner

    def get(self, key: Any, default: Any = None) -> Any:
        self.seen["looked at"] += 1
        return self.inner.get(key, default)

    def insert(self, key: Any, value: Any) -> CountingMap:
        self.seen["put"] += 1
        return CountingMap(self.inner.insert(key, value), self.seen)

    def remove(self, key: Any) -> CountingMap:
        self.seen["put"] += 1
        return CountingMap(self.inner.remove(key), self.seen)

    def update(self, entries: Any) -> CountingMap:
        self.seen["put"] += len(entries)
        return CountingMap(self.inner.update(entries), self.seen)

    def __iter__(self) -> Iterator[Any]:
        self.seen["walked over"] += len(self.inner)
        return iter(self.inner)

    def keys(self) -> Any:
        self.seen["walked over"] += len(self.inner)
        return self.inner.keys()

    def values(self) -> Any:
        self.seen["walked over"] += len(self.inner)
        return self.inner.values()

    def items(self) -> Any:
        self.seen["walked over"] += len(self.inner)
        return self.inner.items()


def counted(tree: ContextTree, seen: Counter[str]) -> ContextTree:
    maps = ("nodes", "tombstones", "groups", "events")
    counting: dict[str, Any] = {name: CountingMap(getattr(tree, name), seen) for name in maps}
    return replace(tree, **counting)


def work(tree: ContextTree, act: Callable[[ContextTree], object]) -> Counter[str]:
    """What `act` costs on a tree."""
    seen: Counter[str] = Counter()
    counting = counted(tree, seen)

    def called(frame: FrameType, event: str, arg: object) -> None:
        if event in ("call", "c_call"):
            seen["called"] += 1

    before = sys.getprofile()
    gc.disable()  # what listens to the collector, as hypothesis does, would be counted as well
    sys.setprofile(called)
    try:
        act(counting)
    finally:
        sys.setprofile(before)
        gc.enable()
    return seen


def context(spans: int) -> ContextTree:
    """Leaves, the first eight of which are under two levels of summaries; changes in the middle."""
    tree = ContextTree.empty(CONTEXT)
    for start in range(0, spans, 1000):
        names = [f"n{number:05}" for number in range(start, min(start + 1000, spans))]
        tree = grown(tree, append(f"e{start:05}", *names))
    middle = f"l0:n{spans // 2:05}"
    return grown(
        tree,
        compact("low1", *(f"l0:n{number:05}" for number in range(4))),
        compact("low2", *(f"l0:n{number:05}" for number in range(4, 8))),
        compact("high", "l1:low1", "l1:low2"),
        rewrite("rewrite", middle, "another text"),
        prune("prune", f"l0:n{spans // 2 + 1:05}"),
    )


@pytest.fixture(scope="module")
def trees() -> dict[int, ContextTree]:
    return {spans: context(spans) for spans in (SMALL, LARGE)}


def carried_out(command: AnyCommand, pins: Pins | None = None) -> Callable[[ContextTree], object]:
    name, data = digest(command), contents(command)

    def act(tree: ContextTree) -> object:
        decision = decide(tree, command, name, data, pins or {})
        assert isinstance(decision, Commit)
        return apply(tree, decision.record)

    return act


def middle(tree: ContextTree) -> str:
    """The span that was rewritten."""
    ((span_id, _),) = [v for v, stone in tree.tombstones.items() if stone.strategy is not None]
    return str(span_id)


RUN = ["l0:n00008", "l0:n00009", "l0:n00010", "l0:n00011"]
COMMANDS: dict[str, AnyCommand] = {
    "append": append("new", "one", "two", "six"),
    "compact": compact("new", *RUN),
    "rewrite": rewrite("new", "l0:n00020", "text"),
    "prune": prune("new", "l0:n00020"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_commit_costs_the_same_in_a_context_of_any_size(trees: dict[int, ContextTree], name: str) -> None:
    """To the call: 100 spans or 20,000."""
    act = carried_out(COMMANDS[name], {("l0:n00020", 1): PinCost.CHEAP})
    small, large = (work(trees[spans], act) for spans in (SMALL, LARGE))

    assert small == large
    assert 0 == large["walked over"]
    assert large["called"] > large["looked at"] > 0, "it did count"


def test_a_repeat_costs_the_same_in_a_context_of_any_size(trees: dict[int, ContextTree]) -> None:
    """One look at the events."""
    command = append("e00000", "other")
    small, large = (
        work(trees[spans], lambda tree: decide(tree, command, digest(command), contents(command)))
        for spans in (SMALL, LARGE)
    )

    assert small == large
    assert 1 == large["looked at"]


@pytest.mark.parametrize(
    "span_id",
    ["l0:n00020", "l0:n00003", "l1:low1", "l2:high", "l0:missing"],
    ids=["live", "covered", "covered summary", "summary", "unknown"],
)
def test_a_check_costs_the_same_in_a_context_of_any_size(trees: dict[int, ContextTree], span_id: str) -> None:
    """A few look-ups: the span, and one a level if a summary will do."""
    costs = []
    for spans in (SMALL, LARGE):
        tree = trees[spans]
        known = span_id if span_id in tree.nodes else "l0:n00020"
        claim = mint(tree, known).model_copy(update={"span_id": span_id, "accept_summary": True})
        costs.append(work(tree, partial(check, claim)))

    assert costs[0] == costs[1]
    assert (0, True) == (costs[1]["walked over"], costs[1]["looked at"] <= 4)


def test_a_check_of_an_old_version_costs_the_same(trees: dict[int, ContextTree]) -> None:
    """The span and its tombstone."""
    costs = []
    for spans in (SMALL, LARGE):
        tree = trees[spans]
        claim = mint(tree, middle(tree)).model_copy(update={"version": 1})
        costs.append(work(tree, partial(check, claim)))

    assert costs[0] == costs[1]


@pytest.mark.parametrize("count", [2, 8, 64])
def test_a_compaction_costs_in_proportion_to_its_sources(trees: dict[int, ContextTree], count: int) -> None:
    """So many looks for each source, whatever is beside it; a constant for the rest."""
    names = [f"l0:n{number:05}" for number in range(10, 10 + count)]
    seen = work(trees[LARGE], carried_out(compact("new", *names)))

    assert seen["looked at"] <= 3 * count + 8
    assert seen["put"] <= count + 4


def test_the_tree_shares_what_did_not_change(trees: dict[int, ContextTree]) -> None:
    """Persistent maps: the nodes beside a change are the very same objects."""
    tree = trees[LARGE]
    after = apply(tree, committed(tree, compact("new", *RUN)).record)
    changed = {span_id for span_id in tree.nodes if tree.nodes[span_id] is not after.nodes[span_id]}

    assert {*RUN, "l2:high", "l0:n00012"} == changed
    assert SpanState.LIVE is tree.nodes[RUN[0]].state, "and the tree before is as it was"


def test_the_view_costs_what_it_yields(trees: dict[int, ContextTree]) -> None:
    """From a span on, not from the beginning."""

    def first_three(tree: ContextTree) -> None:
        view = tree.view("l0:n00050")
        for _ in range(3):
            next(view)

    assert 3 == work(trees[LARGE], first_three)["looked at"]
