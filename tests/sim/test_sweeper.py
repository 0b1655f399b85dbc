"""The sweeper: every context that may have tombstones gets its turn, whatever happens to the others."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from sexton.schemas.errors import SextonError, Unavailable
from sexton.worker.collect import Collector, StoneReport, SweepReport
from sexton.worker.contexts import Contexts
from sexton.worker.orphans import OrphanReport, OrphanSweep
from sexton.worker.ports import Log
from sexton.worker.shards import ORPHAN_LANE, SHARDS, shard_of
from sexton.worker.sweeper import Sweeper
from tests.sim.memory_registry import MemoryRegistry
from tests.support.waiting import deadline, eventually


class Bench:
    """A sweeper over an index in memory, with a collector that only counts."""

    def __init__(self, *, per_turn: int = 500) -> None:
        self.now_ms = 1_800_000_000_000
        self.registry = MemoryRegistry(lambda: self.now_ms)
        self.swept: Counter[str] = Counter()
        self.waiting: Counter[str] = Counter()
        """Tombstones that a sweep leaves, by context."""
        self.errors: dict[str, Exception] = {}
        self.logged: list[list[str]] = []

    def sweeper(
        self, name: str = "one", *, interval_s: float = 3_600, contexts: Contexts | None = None
    ) -> Sweeper:
        return Sweeper(
            self.registry,
            cast("Log", self),
            cast("Collector", self),
            interval_s=interval_s,
            lock_s=30,
            new_token=lambda: name,
            contexts=contexts,
        )

    async def sweep(self, context_id: str) -> SweepReport:
        """As `Collector.sweep`."""
        await asyncio.sleep(0)
        self.swept[context_id] += 1
        if context_id in self.errors:
            raise self.errors[context_id]
        stones = [cast("StoneReport", None)] * self.waiting[context_id]
        return SweepReport(context_id, stones)

    async def contexts(self) -> AsyncIterator[list[str]]:
        """As `Log.contexts`."""
        for batch in self.logged:
            await asyncio.sleep(0)
            yield batch

    def elapse(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    def noted(self) -> list[str]:
        return sorted(self.registry.snapshot().noted)


def names(count: int, shard: int | None = None) -> list[str]:
    found: list[str] = []
    number = 0
    while len(found) < count:
        number += 1
        if shard is None or shard_of(f"ctx-{number}") == shard:
            found.append(f"ctx-{number}")
    return found


async def complete(bench: Bench) -> None:
    assert not await bench.registry.complete()
    await bench.registry.set_complete()


async def test_a_turn_sweeps_what_is_noted_in_every_shard() -> None:
    bench = Bench()
    await complete(bench)
    contexts = [name for shard in range(SHARDS) for name in names(2, shard)]
    await bench.registry.note(contexts)
    assert len(contexts) == await bench.sweeper().turn()
    assert Counter(contexts) == bench.swept


async def test_the_index_is_rebuilt_from_the_log_after_a_loss() -> None:
    """I5: all contexts there are, once; those without tombstones are dropped again."""
    bench = Bench()
    contexts = names(7)
    bench.logged = [contexts[:4], contexts[4:]]
    bench.waiting[contexts[0]] = 1
    sweeper = bench.sweeper()
    assert 7 == await sweeper.turn()
    bench.elapse(130)
    assert 7 == await sweeper.turn(), "a note counts for a while: its record may be on its way"
    assert 1 == await sweeper.turn()
    assert contexts[:1] == bench.noted()
    bench.registry.flush()
    assert 7 == await sweeper.turn()
    bench.registry.fail_over(bench.registry.snapshot())
    assert 7 == await sweeper.turn()


async def test_what_was_read_for_a_sweep_alone_is_the_first_to_go() -> None:
    """Unless it was in memory before, or has tombstones, which the next sweep looks at again."""
    bench = Bench()
    held, waiting, other = bench.logged = [names(3)[:1], names(3)[1:2], names(3)[2:]]
    bench.waiting[waiting[0]] = 1
    cooled: list[str] = []

    class Memory:
        def holds(self, context_id: str) -> bool:
            assert 0 == bench.swept[context_id], "asked for after the sweep"
            return [context_id] == held

        def cool(self, context_id: str) -> None:
            assert 1 == bench.swept[context_id]
            cooled.append(context_id)

    assert 3 == await bench.sweeper(contexts=cast("Contexts", Memory())).turn()
    assert other == cooled


async def test_a_loss_while_it_is_rebuilt_is_noticed() -> None:
    """I5: what was noted before is gone, and the next turn begins anew."""
    bench = Bench()
    contexts = names(4)
    bench.logged = [contexts[:2], contexts[2:]]
    note = bench.registry.note
    lose = iter([False, True])

    async def noted(context_ids: Any) -> None:
        if next(lose, False):
            bench.registry.flush()
        await note(context_ids)

    bench.registry.note = noted  # type: ignore[method-assign]
    sweeper = bench.sweeper()
    assert 2 == await sweeper.turn()
    assert 4 == await sweeper.turn()


@pytest.mark.parametrize(
    "error", [Unavailable("no answer"), SextonError("odd"), ValueError("a fault of ours")]
)
async def test_a_context_that_fails_does_not_keep_the_others_from_their_turn(error: Exception) -> None:
    """I5: whatever is wrong with it. It is tried again."""
    bench = Bench()
    await complete(bench)
    contexts = names(5, shard=3)
    await bench.registry.note(contexts)
    bench.errors[contexts[0]] = error
    sweeper = bench.sweeper()
    assert 5 == await sweeper.turn()
    assert 5 == await sweeper.turn()
    assert Counter(dict.fromkeys(contexts, 2)) == bench.swept


async def test_contexts_that_fail_or_wait_go_to_the_end_of_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """I5: more of them than a turn takes do not starve the one behind them."""
    monkeypatch.setattr("sexton.worker.sweeper._PER_TURN", 4)
    bench = Bench()
    await complete(bench)
    *stuck, last = names(9, shard=3)
    for number, name in enumerate(stuck):
        await bench.registry.note([name])
        bench.elapse(1)
        if number % 2:
            bench.errors[name] = Unavailable("no answer")
        else:
            bench.waiting[name] = 1
    await bench.registry.note([last])
    sweeper = bench.sweeper()
    for _ in range(3):
        bench.elapse(1)
        assert 4 == await sweeper.turn()
    assert 1 == bench.swept[last]
    assert {1, 2} >= {bench.swept[name] for name in stuck}


async def test_two_workers_share_the_shards() -> None:
    """One at a time in each; what another one is sweeping is left to it."""
    bench = Bench()
    await complete(bench)
    ours, theirs = names(2, shard=1), names(2, shard=2)
    await bench.registry.note([*ours, *theirs])
    assert await bench.registry.lock(2, "two", 30)
    assert 2 == await bench.sweeper("one").turn()
    assert Counter(ours) == bench.swept
    bench.elapse(31)
    assert 4 == await bench.sweeper("one").turn(), "whoever had the lock has died"


async def test_a_lock_that_was_lost_ends_the_shard() -> None:
    """A convenience, no fence: another worker has gone on with it."""
    bench = Bench()
    await complete(bench)
    contexts = names(3, shard=1)
    await bench.registry.note(contexts)

    sweep = bench.sweep

    async def slow(context_id: str) -> SweepReport:
        bench.elapse(31)
        assert await bench.registry.lock(1, "two", 30)
        return await sweep(context_id)

    bench.sweep = slow  # type: ignore[method-assign]
    assert 1 == await bench.sweeper("one").turn()
    assert not await bench.registry.lock(1, "three", 30), "the other one's lock is still there"


async def test_an_outage_of_the_registry_ends_the_turn() -> None:
    bench = Bench()

    async def down() -> bool:
        raise Unavailable("no answer")

    bench.registry.complete = down  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await bench.sweeper().turn()


@pytest.mark.parametrize("error", [Unavailable("no answer"), ValueError("a fault of ours")])
async def test_it_goes_on_after_a_turn_that_failed(error: Exception) -> None:
    bench = Bench()
    complete_now = bench.registry.complete
    errors = iter([error])

    async def at_first_down() -> bool:
        if (found := next(errors, None)) is not None:
            raise found
        return await complete_now()

    bench.registry.complete = at_first_down  # type: ignore[method-assign]
    bench.logged = [names(3)]
    task = asyncio.create_task(bench.sweeper(interval_s=0.001).run())
    async with deadline(5):
        await eventually(lambda: sum(bench.swept.values()), until=lambda count: count >= 3)
    task.cancel()


async def test_one_worker_sweeps_for_orphans_and_is_not_followed_by_another() -> None:
    bench = Bench()
    runs: list[str] = []

    class Orphans:
        async def run(self) -> OrphanReport:
            runs.append("run")
            if len(runs) == 1:
                raise Unavailable("no answer")
            return OrphanReport()

    sweep = cast("OrphanSweep", Orphans())
    tasks = [
        asyncio.create_task(bench.sweeper(name).run_orphans(sweep, interval_s=0.001))
        for name in ("one", "two")
    ]
    async with deadline(5):
        await eventually(lambda: len(runs), until=lambda count: count >= 3)
    holder, _ = bench.registry.snapshot().locks[ORPHAN_LANE]
    assert holder in ("one", "two")
    for task in tasks:
        task.cancel()
