"""What a sweep does, step by step: what it counts, what it picks up, what it leaves to the next one."""

from itertools import pairwise

import pytest

from sexton.core.collection import finish
from sexton.core.sweep import Step
from sexton.schemas.errors import Unavailable
from sexton.schemas.leases import PinCost
from sexton.schemas.records import Collected, RecordKind
from sexton.schemas.span import SpanState
from sexton.worker.collect import BATCH, SweepReport
from tests.sim.gates import Way
from tests.sim.ports import CONTEXT
from tests.sim.world import QUIET_MS, TTL_MS, World

OLD = ("l0:a", 1)


def swept(world: World, actor: str = "c1", *, report: bool = False) -> SweepReport:
    """One sweep, alone, to its end."""
    worker = world.workers[f"w{actor[1:]}"]
    found: list[SweepReport] = []

    async def sweep() -> None:
        call = worker.collector.report if report else worker.collector.sweep
        found.append(await call(CONTEXT))

    worker.start(sweep(), actor)
    world.loop.settle()
    world.finish(actor)
    return found[0]


def kinds(world: World) -> list[RecordKind]:
    """The collectors' records."""
    return [r.kind for r in world.stores.records if r.kind.value not in ("appended", "rewritten", "pruned")]


def ready(world: World, *names: str) -> None:
    """Tombstones that the next sweep announces, with nobody there."""
    world.append(*(names or ("a",)))
    for name in names or ("a",):
        world.rewrite(f"l0:{name}")
    swept(world)
    world.elapse(QUIET_MS)


def test_a_tombstone_is_collected_by_the_second_sweep() -> None:
    """I5: marked by the first one, and what was freed is told."""
    with World() as world:
        world.append("a")
        world.rewrite("l0:a")
        first = swept(world)
        assert [Step.WAIT_QUIET] == [stone.step for stone in first.stones]
        assert (0, 0, 1) == (first.collected, first.freed_bytes, first.waiting)
        world.elapse(QUIET_MS)
        second = swept(world)
        assert (1, len(b"a as it was"), 0) == (second.collected, second.freed_bytes, second.waiting)
        assert [RecordKind.COLLECTING, RecordKind.CONDEMNED, RecordKind.COLLECTED] == kinds(world)
        assert not world.stores.has_bytes(OLD)
        assert world.stores.has_bytes(("l0:a", 2))
        assert [] == swept(world).stones
        world.assert_sound()


def test_a_thousand_rewrites_of_one_span_all_come_free() -> None:
    """C109, I5: with the number of bytes, in batches, at a cost in proportion to tombstones."""
    with World() as world:
        world.append("a", "b")
        for _ in range(1_000):
            world.rewrite("l0:a")
        swept(world)
        world.elapse(QUIET_MS)
        before = len(world.gates.trace)
        report = swept(world)
        steps = len(world.gates.trace) - before
        sizes = [size for version, size in world.stores.sizes.items() if version[0] == "l0:a"]
        assert 1_000 == report.collected
        assert sum(sizes[:-1]) == report.freed_bytes == world.stores.freed_bytes
        batches = -(-1_000 // BATCH)
        assert batches == kinds(world).count(RecordKind.COLLECTED)
        assert steps <= 1_000 + 10 * batches
        world.assert_sound()
        world.assert_all_freed()


def test_a_report_changes_nothing() -> None:
    """What `gc --dry-run` asks for: no mark, no record."""
    with World() as world:
        world.append("a")
        world.rewrite("l0:a")
        for _ in range(2):
            [stone] = swept(world, report=True).stones
            assert Step.MARK is stone.step
            world.elapse(QUIET_MS)
        swept(world)
        world.elapse(QUIET_MS)
        assert [Step.ANNOUNCE] == [stone.step for stone in swept(world, report=True).stones]
        assert [] == kinds(world)


def test_what_is_held_is_kept_and_the_report_says_by_whom() -> None:
    """I4: whatever the cost; a cheap pin holds as well as another."""
    with World() as world:
        world.append("a", "b")
        world.rewrite("l0:a")
        world.rewrite("l0:b")
        holder = world.registered("h1")
        holder.pin(OLD, cost=PinCost.CHEAP)
        world.finish("h1.op")
        for _ in range(3):
            swept(world)
            world.elapse(QUIET_MS + 1)
            holder.beat()
            world.finish("h1.beat")
        report = swept(world)
        assert [(OLD, Step.KEEP)] == [(stone.version, stone.step) for stone in report.stones]
        [live] = report.stones[0].seen.pins[OLD]
        assert ("h1", PinCost.CHEAP) == (live.holder_id, live.cost)
        assert world.stores.has_bytes(OLD)
        world.release_all()
        world.collect_all()
        world.assert_all_freed()


def test_a_killed_holder_frees_its_pins_with_its_lease() -> None:
    """C95, I5: SIGKILL; the lease runs out, and then the quiet begins."""
    with World() as world:
        world.append("a")
        world.rewrite("l0:a")
        holder = world.registered("h1")
        holder.pin(OLD)
        world.finish("h1.op")
        world.all_die()
        assert [Step.KEEP] == [stone.step for stone in swept(world).stones]
        world.elapse(TTL_MS)
        assert [Step.WAIT_QUIET] == [stone.step for stone in swept(world).stones]
        world.elapse(QUIET_MS)
        assert 1 == swept(world).collected


def test_a_silent_holder_is_waited_for_as_long_as_its_lease_is_good() -> None:
    """I5: and no longer."""
    with World() as world:
        world.append("a")
        world.rewrite("l0:a")
        world.registered("h1")
        swept(world)
        world.elapse(TTL_MS - 1)
        assert [Step.WAIT_QUIET] == [stone.step for stone in swept(world).stones]
        world.elapse(1)
        assert 1 == swept(world).collected


def test_after_a_loss_nothing_is_announced_for_the_longest_lease() -> None:
    """C100: flush or fail-over. Then it goes on."""
    for lose in (World.flush, lambda world: world.fail_over(world.registry.snapshot())):
        with World() as world:
            ready(world)
            lose(world)
            assert [Step.WAIT_HOLD_BACK] == [stone.step for stone in swept(world).stones]
            world.elapse(TTL_MS - 1)
            assert [Step.WAIT_HOLD_BACK] == [stone.step for stone in swept(world).stones]
            world.elapse(1)
            assert 1 == swept(world).collected


@pytest.mark.parametrize("skew_ms", [40 * 60_000, -40 * 60_000])
def test_clocks_forty_minutes_apart_change_nothing(skew_ms: int) -> None:
    """C106: the registry that takes over has another clock; a holder keeps its pin through it."""
    with World() as world:
        world.append("a", "b")
        world.rewrite("l0:a")
        holder = world.registered("h1")
        holder.pin(OLD)
        world.finish("h1.op")
        world.fail_over(world.registry.snapshot(), skew_ms=skew_ms)
        for _ in range(8):
            world.elapse(QUIET_MS)
            for _ in range(2):
                holder.beat()
                world.finish("h1.beat")
            swept(world)
            assert [OLD] == holder.proven()
        world.all_die()
        swept(world)
        world.elapse(300_000)
        world.collect_all()
        world.assert_sound()
        world.assert_all_freed()


@pytest.mark.parametrize(
    "at", ["registry.observe", "log.append:condemned", "cold.delete", "log.append:collected"]
)
def test_a_collector_that_dies_is_followed_by_the_next_sweep(at: str) -> None:
    """I5: wherever it was; what it had announced is announced anew, what it had condemned is finished."""
    with World() as world:
        ready(world)
        world.sweep("c1")
        world.run("c1", "log.append:collecting")
        world.step("c1")
        world.run("c1", at)
        world.kill("c1")
        world.crash_worker("w1")
        world.collect_all()
        world.assert_sound()
        world.assert_all_freed()


def test_a_left_over_that_is_pinned_is_called_off() -> None:
    """C104: a pin from before the announcement, found by whoever comes after the collector died."""
    with World() as world:
        ready(world)
        holder = world.registered("h1")
        world.elapse(1)
        holder.beat()
        world.finish("h1.beat")
        world.sweep("c1")
        world.run("c1", "log.append:collecting")
        holder.pin(OLD)
        world.finish("h1.op")
        world.step("c1")
        world.kill("c1")
        report = swept(world, "c2")
        assert (1, 0) == (report.called_off, report.collected)
        assert [OLD] == holder.proven()
        assert SpanState.TOMBSTONE is world.stores.tree.tombstones[OLD].state
        world.release_all()
        world.collect_all()
        world.assert_all_freed()


def test_two_collectors_at_once_do_no_harm_and_count_once() -> None:
    """Both find the same condemned versions, delete them, and want to record it."""
    with World() as world:
        ready(world, "a", "b")
        world.sweep("c1")
        world.run("c1", "cold.delete")
        world.kill("c1")
        reports: list[SweepReport] = []
        for actor in ("c1", "c2"):
            worker = world.workers[f"w{actor[1:]}"]

            async def sweep(collector: object = worker.collector) -> None:
                reports.append(await collector.sweep(CONTEXT))  # type: ignore[attr-defined]

            worker.start(sweep(), actor)
            world.loop.settle()
            world.run(actor, "log.append:collected")
        world.finish("c2")
        world.finish("c1")
        assert 2 == sum(report.collected for report in reports)
        assert world.stores.freed_bytes == sum(report.freed_bytes for report in reports)
        assert 1 == kinds(world).count(RecordKind.COLLECTED)
        world.assert_sound()


def test_a_part_that_another_one_has_finished_is_not_counted_again() -> None:
    """What is told is what the record says, and not what was meant."""
    with World() as world:
        ready(world, "a", "b")
        world.sweep("c1")
        world.run("c1", "cold.delete")
        world.kill("c1")
        worker = world.workers["w2"]
        reports: list[SweepReport] = []

        async def sweep() -> None:
            reports.append(await worker.collector.sweep(CONTEXT))

        worker.start(sweep(), "c2")
        world.loop.settle()
        world.run("c2", "log.append:collected")
        # Another collector, of an older make, has finished one of the two alone.
        record = finish(world.stores.tree, [OLD], "another")
        assert record is not None
        world.stores.append(record.wire(), world.stores.entries[-1].sequence)
        world.finish("c2")
        assert (1, len(b"b as it was")) == (reports[0].collected, reports[0].freed_bytes)
        world.assert_sound()
        world.assert_all_freed()


@pytest.mark.parametrize("kind", ["collecting", "condemned", "collected"])
@pytest.mark.parametrize("way", [Way.UNANSWERED, Way.LOST, Way.LATE])
def test_a_record_without_an_answer_is_looked_for(kind: str, way: Way) -> None:
    """I8: it may be in the log or not, or come late; the step is taken once, and counted once."""
    with World() as world:
        ready(world)
        reports: list[SweepReport] = []
        worker = world.workers["w1"]

        async def sweep() -> None:
            reports.append(await worker.collector.sweep(CONTEXT))

        worker.start(sweep(), "c1")
        world.loop.settle()
        world.run("c1", f"log.append:{kind}")
        [waiting] = world.gates.of("c1")
        world.let(waiting, way)
        world.finish("c1")
        for ghost in list(world.gates.ghosts):
            world.gates.haunt(ghost)
        assert [RecordKind.COLLECTING, RecordKind.CONDEMNED, RecordKind.COLLECTED] == kinds(world)
        assert (1, world.stores.freed_bytes) == (reports[0].collected, reports[0].freed_bytes)
        world.assert_sound()
        world.assert_all_freed()


@pytest.mark.parametrize("label", ["log.head", "registry.observe", "cold.delete", "registry.unmark"])
def test_an_outage_is_told_and_the_next_sweep_goes_on(label: str) -> None:
    """I9: nothing is decided without an answer."""
    with World() as world:
        ready(world, "a", "b")
        errors: list[Unavailable] = []
        worker = world.workers["w1"]

        async def sweep() -> None:
            try:
                await worker.collector.sweep(CONTEXT)
            except Unavailable as e:
                errors.append(e)

        worker.start(sweep(), "c1")
        world.loop.settle()
        world.run("c1", label)
        world.let(world.gates.of("c1")[0], Way.LOST)
        world.finish("c1")
        assert 1 == len(errors)
        world.collect_all()
        world.assert_sound()
        world.assert_all_freed()


def test_nothing_is_recorded_as_collected_that_was_not_deleted() -> None:
    """I5: one of two deletes fails; the other is recorded, and the next sweep deletes what is left."""
    with World() as world:
        ready(world, "a", "b")
        world.sweep("c1")
        world.run("c1", "cold.delete")
        one, two = world.gates.of("c1")
        world.let(one)
        world.let(two, Way.LOST)
        world.finish("c1")
        assert 1 == kinds(world).count(RecordKind.COLLECTED)
        world.assert_sound()
        assert 1 == swept(world).collected
        world.assert_all_freed()


def test_a_collector_gives_up_after_many_lost_races() -> None:
    """It is bounded; a busy context is swept again later."""
    with World() as world:
        ready(world, "a", "b")
        world.sweep("c1")
        for _ in range(20):
            if not world.gates.of("c1"):
                break
            world.run("c1", "log.append:collecting")
            world.rewrite("l0:b")
            world.step("c1")
            while (waiting := world.gates.of("c1")) and waiting[0].label != "log.append:collecting":
                world.step("c1")
        assert not world.gates.of("c1")
        assert any("lost 8 races" in line for line in world.gates.trace)
        world.assert_sound()


def test_versions_of_a_record_are_in_order_and_no_record_is_larger_than_a_batch() -> None:
    with World() as world:
        world.append("a")
        for _ in range(BATCH + 5):
            world.rewrite("l0:a")
        swept(world)
        world.elapse(QUIET_MS)
        swept(world)
        sizes = [len(r.versions) for r in world.stores.records if isinstance(r, Collected)]
        assert [BATCH, 5] == sizes
        for record in world.stores.records:
            if isinstance(record, Collected):
                assert all(a.version < b.version for a, b in pairwise(record.versions))
