"""Whole contexts for those who ask: made once, in steps, and kept within bounds."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

import pytest

from sexton.core.answer import snapshot_steps
from sexton.core.snapshot import STEP_ENTRIES, restore
from sexton.core.tree import ContextTree
from sexton.schemas.codec import decode
from sexton.schemas.errors import Unavailable
from sexton.schemas.rpc import SyncPart
from sexton.worker import snapshots as module
from sexton.worker.snapshots import AT_ONCE, Snapshots
from tests.core_kit.build import CONTEXT, append, grown
from tests.support.waiting import deadline


def tree_of(spans: int, context_id: str = CONTEXT) -> ContextTree:
    """A context of so many leaves."""
    tree = ContextTree.empty(context_id)
    for start in range(0, spans, 1000):
        names = [f"n{i}" for i in range(start, min(start + 1000, spans))]
        tree = grown(tree, append(f"e{start}", *names, context_id=context_id))
    return tree


LONG = tree_of(20 * STEP_ENTRIES)


class Bench:
    """Snapshots whose makings are counted, each with the state that it was begun at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_bytes: int = 10**9) -> None:
        self.begun: list[ContextTree] = []
        self.tasks: list[asyncio.Task[None]] = []
        self.snapshots = Snapshots(max_bytes=max_bytes, spawn=self._spawn)
        monkeypatch.setattr(module, "snapshot_steps", self._steps)

    async def end(self) -> None:
        """Cancels all that is being made, as a worker that ends does."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    def _steps(self, tree: ContextTree) -> Iterator[SyncPart | None]:
        self.begun.append(tree)
        return snapshot_steps(tree)


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    bench = Bench(monkeypatch)
    async with deadline(30):
        yield bench
        await bench.end()


async def read(parts: AsyncIterator[bytes]) -> ContextTree:
    """What an asker makes of an answer."""
    found = [decode(SyncPart, part) async for part in parts]
    assert list(range(len(found))) == [part.index for part in found]
    assert [False] * (len(found) - 1) + [True] == [part.last for part in found]
    return restore(part.snapshot for part in found if part.snapshot is not None)


async def test_who_asks_at_one_head_shares_one_snapshot(bench: Bench) -> None:
    """Four at once, and one who comes when it is done: it is made once, and each gets all of it."""
    answers = [bench.snapshots.parts(LONG) for _ in range(4)]
    found = await asyncio.gather(*(read(parts) for parts in answers))
    found.append(await read(bench.snapshots.parts(LONG)))
    assert 1 == len(bench.begun)
    assert all(list(LONG.view()) == list(tree.view()) for tree in found)


async def test_no_turn_takes_more_than_one_step_of_a_snapshot(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get a turn of the loop between any two steps, and a step is bounded in spans."""
    turns = 0
    steps_at: list[int] = []

    def counted(tree: ContextTree) -> Iterator[SyncPart | None]:
        for part in snapshot_steps(tree):
            steps_at.append(turns)
            yield part

    monkeypatch.setattr(module, "snapshot_steps", counted)
    reading = asyncio.create_task(read(bench.snapshots.parts(LONG)))
    while not reading.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(steps_at) >= len(LONG.nodes) / STEP_ENTRIES
    assert len(steps_at) == len(set(steps_at)), "two steps in one turn"


async def test_the_first_part_is_sent_before_the_last_is_made(bench: Bench) -> None:
    """Whoever waits for a long context hears something soon, or would take the worker for gone."""
    parts = bench.snapshots.parts(LONG)
    first = await anext(parts)
    assert not decode(SyncPart, first).last
    assert not bench.tasks[0].done()


async def test_whoever_gave_up_and_asks_again_does_not_begin_anew(bench: Bench) -> None:
    """A making goes on without its asker, or a context that takes longer than a time-out is never had."""
    given_up = bench.snapshots.parts(LONG)
    await anext(given_up)
    await given_up.aclose()  # type: ignore[attr-defined]
    assert LONG.head == (await read(bench.snapshots.parts(LONG))).head
    assert 1 == len(bench.begun)


async def test_a_later_head_is_not_answered_with_an_earlier_one(bench: Bench) -> None:
    """What was committed before the question is in the answer, though a snapshot was under way."""
    first = bench.snapshots.parts(LONG)
    await anext(first)
    later = grown(LONG, append("later", "later"))
    assert later.head == (await read(bench.snapshots.parts(later))).head
    assert 2 == len(bench.begun)


async def test_those_who_wait_for_their_turn_share_the_latest_head(bench: Bench) -> None:
    """A busy context costs one snapshot for all who wait, not one for each head that they asked at."""
    busy = [anext(bench.snapshots.parts(tree_of(9 * STEP_ENTRIES, f"busy{i}"))) for i in range(AT_ONCE)]
    await asyncio.gather(*busy)
    later = grown(LONG, append("later", "later"))
    waiting = [bench.snapshots.parts(LONG), bench.snapshots.parts(later)]
    found = await asyncio.gather(*(read(parts) for parts in waiting))
    assert [later.head, later.head] == [tree.head for tree in found]
    assert AT_ONCE + 1 == len(bench.begun)


async def test_only_so_many_are_made_at_once(bench: Bench) -> None:
    """Each takes a step in every turn: the rest wait."""
    answers = [bench.snapshots.parts(tree_of(9 * STEP_ENTRIES, f"c{i}")) for i in range(AT_ONCE + 2)]
    await anext(answers[0])
    assert AT_ONCE == len(bench.begun)
    await asyncio.gather(*(read(parts) for parts in answers[1:]))
    assert AT_ONCE + 2 == len(bench.begun)


async def test_what_is_kept_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one asked for longest ago goes first."""
    trees = {name: tree_of(100, name) for name in "abc"}
    size_bytes = sum(len(part.wire()) for part in snapshot_steps(trees["a"]) if part is not None)
    bench = Bench(monkeypatch, max_bytes=2 * size_bytes)
    for name in "abacbca":
        await read(bench.snapshots.parts(trees[name]))
    # b went when c came, then a when b came back, then b for a.
    assert list("abcba") == [tree.context_id for tree in bench.begun]
    nothing = Bench(monkeypatch, max_bytes=0)
    for _ in range(2):
        await read(nothing.snapshots.parts(trees["a"]))
    assert 2 == len(nothing.begun)


async def test_a_worker_that_ends_leaves_nobody_waiting(bench: Bench) -> None:
    """The reader is told, and a later one is not given the half."""
    parts = bench.snapshots.parts(LONG)
    await anext(parts)
    await bench.end()
    with pytest.raises(Unavailable):
        await read_on(parts)
    assert LONG.head == (await read(bench.snapshots.parts(LONG))).head


async def read_on(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass
