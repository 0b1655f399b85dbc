"""Trees in memory: bounds, the broadcast, the log's tail, snapshots, other lineages."""

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from sexton.core.snapshot import STEP_ENTRIES
from sexton.schemas.codec import AnyRecord, decode_record
from sexton.schemas.commands import Append
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import Committed
from sexton.worker import contexts as module
from sexton.worker.contexts import Contexts, packed, unpacked
from sexton.worker.ports import Entry
from tests.core_kit.build import CONTEXT, append, rewrite
from tests.worker_kit.stores import MemoryHot, MemoryLog, World, carry_out


async def _filled(world: World, count: int, context_id: str = CONTEXT) -> None:
    """Appends of one leaf each, by a worker that the tests do not look at."""
    contexts = world.contexts(snapshot_every=10**6)
    committer = world.committer(contexts)
    start = (await contexts.get(context_id)).tree.revision
    for i in range(start, start + count):
        await carry_out(committer, append(f"e{i}", f"n{i}", context_id=context_id))


def _entries(world: World, context_id: str = CONTEXT) -> list[Entry]:
    assert isinstance(world.log, MemoryLog)
    return world.log.entries[context_id]


def _heads_read(world: World) -> int:
    assert isinstance(world.log, MemoryLog)
    return world.log.heads_read


def _broadcast(world: World, contexts: Contexts, index: int, context_id: str = CONTEXT) -> None:
    """Hands the entry to the worker as the server's republish does."""
    entries = _entries(world, context_id)
    previous = entries[index - 1].sequence if index else 0
    contexts.on_broadcast(context_id, entries[index].sequence, previous, entries[index].data)


class _Tasks:
    """Runs what is spawned, and can be waited for."""

    def __init__(self) -> None:
        self.tasks: list[asyncio.Task[None]] = []

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work))

    async def done(self) -> None:
        await asyncio.gather(*self.tasks)


# --- memory ------------------------------------------------------------------------------------------


async def test_a_tree_in_memory_costs_no_round_trip() -> None:
    """The second look at a context asks nobody."""
    world = World()
    await _filled(world, 3)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    before = _heads_read(world)
    assert 3 == (await contexts.get(CONTEXT)).tree.revision
    assert before == _heads_read(world)


async def test_the_number_of_trees_is_bounded() -> None:
    """The one that was used longest ago goes first, and comes back when it is asked for."""
    world = World()
    for name in ("a", "b", "c"):
        await _filled(world, 1, name)
    contexts = world.contexts(max_contexts=2)
    for name in ("a", "b", "a", "c"):
        await contexts.get(name)
    before = _heads_read(world)
    await contexts.get("a")
    await contexts.get("c")
    assert before == _heads_read(world)
    assert 1 == (await contexts.get("b")).tree.revision
    assert before + 1 == _heads_read(world)


async def test_a_tree_that_was_only_looked_at_goes_first() -> None:
    """A sweep over all contexts of a log does not push out those in use; used again, it is one of them."""
    world = World()
    for name in "abcde":
        await _filled(world, 1, name)
    contexts = world.contexts(max_contexts=3)
    for name in "ab":
        await contexts.get(name)
    for name in "cde":
        assert not contexts.holds(name)
        await contexts.get(name)
        contexts.cool(name)
    assert [True, True, False, False, True] == [contexts.holds(name) for name in "abcde"]
    await contexts.get("e")
    await contexts.get("c")
    assert [False, True, True, False, True] == [contexts.holds(name) for name in "abcde"]


async def test_the_number_of_spans_is_bounded() -> None:
    """Large trees count for what they hold, also when they grow while they are in memory."""
    world = World()
    await _filled(world, 5, "a")
    await _filled(world, 5, "b")
    contexts = world.contexts(max_spans=10)
    await contexts.get("a")
    await contexts.get("b")
    before = _heads_read(world)
    await contexts.get("a")
    assert before == _heads_read(world), "ten spans fit"
    await carry_out(world.committer(contexts), append("more", "x", context_id="a"))
    after = _heads_read(world)
    await contexts.get("b")
    assert after + 1 == _heads_read(world), "eleven do not: the other tree had to go"


async def test_one_tree_larger_than_the_bound_is_still_served() -> None:
    """The bound never empties the cache altogether."""
    world = World()
    await _filled(world, 5)
    contexts = world.contexts(max_spans=1)
    assert 5 == (await contexts.get(CONTEXT)).tree.revision
    before = _heads_read(world)
    await contexts.get(CONTEXT)
    assert before == _heads_read(world)


async def test_an_unknown_context_is_not_kept() -> None:
    """Asking for a thousand names that do not exist pushes nothing out."""
    world = World()
    await _filled(world, 1)
    contexts = world.contexts(max_contexts=2)
    await contexts.get(CONTEXT)
    for i in range(10):
        assert 0 == (await contexts.get(f"nobody{i}")).tree.revision
    before = _heads_read(world)
    await contexts.get(CONTEXT)
    assert before == _heads_read(world)


# --- the broadcast -----------------------------------------------------------------------------------


async def test_the_broadcast_keeps_a_tree_fresh() -> None:
    """A record of another worker is taken in without a look at the log."""
    world = World()
    await _filled(world, 1)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    await _filled(world, 2)
    before = _heads_read(world)
    _broadcast(world, contexts, 1)
    _broadcast(world, contexts, 2)
    assert 3 == (await contexts.get(CONTEXT)).tree.revision
    assert before == _heads_read(world)


async def test_broadcasts_that_come_twice_or_late_change_nothing() -> None:
    """I2: an older record is dropped."""
    world = World()
    await _filled(world, 3)
    contexts = world.contexts()
    known = await contexts.get(CONTEXT)
    for index in (0, 2, 1, 2):
        _broadcast(world, contexts, index)
    assert known == await contexts.get(CONTEXT)


async def test_a_missed_broadcast_is_made_up_for() -> None:
    """C86: after a gap the tree is not served again before the log was read."""
    world = World()
    await _filled(world, 1)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    await _filled(world, 2)
    _broadcast(world, contexts, 2)
    assert 3 == (await contexts.get(CONTEXT)).tree.revision
    before = _heads_read(world)
    await contexts.get(CONTEXT)
    assert before == _heads_read(world), "and it is whole again"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"kind":"later","chain":"x"}', b"\xff"])
async def test_a_broadcast_that_is_no_record_only_costs_the_tree(data: bytes) -> None:
    """Whoever may publish there cannot stop a worker: the next use reads the log."""
    world = World()
    await _filled(world, 2)
    contexts = world.contexts()
    known = await contexts.get(CONTEXT)
    contexts.on_broadcast(CONTEXT, known.sequence + 1, known.sequence, data)
    assert known == await contexts.get(CONTEXT)


async def test_a_broadcast_of_another_history_only_costs_the_tree() -> None:
    """I2: a record that does not continue the chain is not taken in."""
    world, other = World(), World()
    await _filled(world, 1)
    await other.outcome(append("other", "n0"))
    await other.outcome(append("e1", "n1"))
    contexts = world.contexts()
    known = await contexts.get(CONTEXT)
    contexts.on_broadcast(CONTEXT, known.sequence + 1, known.sequence, _entries(other)[1].data)
    assert known == await contexts.get(CONTEXT)


async def test_with_the_broadcast_far_fewer_commits_run_into_a_conflict() -> None:
    """Two workers take turns: without the broadcast every commit first loses a race, with it none does."""

    async def conflicts(broadcast: bool) -> int:
        world = World()
        await _filled(world, 1)
        sides = [world.contexts(), world.contexts()]
        committers = [world.committer(contexts) for contexts in sides]
        for contexts in sides:
            await contexts.get(CONTEXT)
        before = _heads_read(world)
        for i in range(20):
            await carry_out(committers[i % 2], append(f"x{i}", f"x{i}"))
            if broadcast:
                for contexts in sides:
                    _broadcast(world, contexts, len(_entries(world)) - 1)
        return _heads_read(world) - before

    assert 0 == await conflicts(broadcast=True)
    assert 19 == await conflicts(broadcast=False)


async def test_a_broadcast_that_is_quicker_than_the_answer_counts_once() -> None:
    """I2: one's own record comes by both ways, in either order."""
    world = World()
    await _filled(world, 1)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    append_to = world.log.append

    async def overtaken(context_id: str, data: bytes, expected: int) -> int:
        sequence = await append_to(context_id, data, expected)
        _broadcast(world, contexts, len(_entries(world)) - 1)
        return sequence

    world.log.append = overtaken  # type: ignore[method-assign]
    for i in range(1, 4):
        done: Any = await carry_out(world.committer(contexts), append(f"own{i}", f"own{i}"))
        assert i + 1 == done.outcome.revision
        _broadcast(world, contexts, i)
    tail = contexts.tail(CONTEXT, 0)
    assert tail is not None
    assert [1, 2, 3, 4] == [record["revision"] for record, _ in tail]
    assert await world.tree() == (await contexts.get(CONTEXT)).tree


# --- the tail ----------------------------------------------------------------------------------------


async def test_the_tail_holds_the_records_as_they_are_in_the_log() -> None:
    """A holder that lags a little gets the records, byte for byte, without a look at the log."""
    world = World()
    await _filled(world, 5)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    tail = contexts.tail(CONTEXT, 2)
    assert tail is not None
    assert [decode_record(entry.data) for entry in _entries(world)[2:]] == [
        decode_record(record) for record, _ in tail
    ]
    assert [len(entry.data) for entry in _entries(world)[2:]] == [size for _, size in tail]


async def test_the_tail_is_dense_when_the_broadcast_overtakes_the_log() -> None:
    """A record that comes by the broadcast and by the log is there once, or every sync became a snapshot."""
    world = World()
    await _filled(world, 1)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    await _filled(world, 3)

    async def overtaken(context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        for index, entry in enumerate(_entries(world)):
            if after < entry.sequence <= upto:
                if index == 1:
                    _broadcast(world, contexts, 1)
                    _broadcast(world, contexts, 2)
                yield entry

    world.log.read = overtaken  # type: ignore[method-assign, assignment]
    await contexts.refresh(CONTEXT)
    tail = contexts.tail(CONTEXT, 1)
    assert tail is not None
    assert [2, 3, 4] == [record["revision"] for record, _ in tail]


async def test_a_tail_that_does_not_reach_back_far_enough_says_so() -> None:
    """What is not at hand is not made up."""
    world, tasks = World(), _Tasks()
    await _filled(world, 3)
    first = world.contexts(snapshot_every=1, spawn=tasks)
    await first.get(CONTEXT)
    await tasks.done()
    await _filled(world, 1)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    assert contexts.tail(CONTEXT, 0) is None
    assert [] != contexts.tail(CONTEXT, 3)
    assert contexts.tail("nobody", 0) is None


# --- long logs ---------------------------------------------------------------------------------------


async def test_a_log_that_is_too_long_for_the_time_given_is_read_in_the_end() -> None:
    """A reader that runs out of time leaves what it has read to the next one, or none would ever arrive."""
    world = World()
    await _filled(world, 40)
    contexts = world.contexts()
    tries = 0
    while True:
        tries += 1
        task = asyncio.ensure_future(contexts.get(CONTEXT))
        for _ in range(30):  # the log yields a record per turn
            await asyncio.sleep(0)
        if task.done():
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert tries < 10, "no progress"
    assert tries > 1
    assert 40 == task.result().tree.revision
    tail = contexts.tail(CONTEXT, 0)
    assert tail is not None
    assert 40 == len(tail)


async def test_a_log_that_stops_answering_is_read_on_from_where_it_stopped() -> None:
    """What was read of it is not served as the head in the meantime."""
    world = World()
    await _filled(world, 4)
    contexts = world.contexts()
    whole = world.log.read

    async def broken(context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        async for entry in whole(context_id, after, upto):
            if entry.sequence > 2:
                raise Unavailable("gone")
            yield entry

    world.log.read = broken  # type: ignore[method-assign, assignment]
    with pytest.raises(Unavailable):
        await contexts.get(CONTEXT)
    with pytest.raises(Unavailable):
        await contexts.get(CONTEXT)
    world.log.read = whole  # type: ignore[method-assign]
    assert 4 == (await contexts.get(CONTEXT)).tree.revision


async def test_readers_of_one_context_do_not_read_the_log_twice() -> None:
    """Ten requests for a context that is not in memory replay its log once."""
    world = World()
    await _filled(world, 5)
    contexts, reads = world.contexts(), 0
    whole = world.log.read

    def counted(context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        nonlocal reads
        reads += 1
        return whole(context_id, after, upto)

    world.log.read = counted  # type: ignore[method-assign, assignment]
    found = await asyncio.gather(*(contexts.get(CONTEXT) for _ in range(10)))
    assert {5} == {known.tree.revision for known in found}
    assert 1 == reads


# --- snapshots ---------------------------------------------------------------------------------------


async def _snapshot_at(world: World, revision: int) -> bytes:
    """The snapshot that a worker leaves at a revision."""
    tasks = _Tasks()
    contexts = world.contexts(snapshot_every=revision, spawn=tasks)
    await contexts.get(CONTEXT)
    await tasks.done()
    assert isinstance(world.hot, MemoryHot)
    return world.hot.snapshots[CONTEXT]


async def test_a_snapshot_saves_reading_the_log_from_its_start() -> None:
    """C18: a new worker begins at the snapshot, and knows the events that came before it."""
    world = World()
    await _filled(world, 5)
    await _snapshot_at(world, 5)
    await _filled(world, 2)
    truth = await world.tree()
    read: list[int] = []
    whole = world.log.read

    async def counted(context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        async for entry in whole(context_id, after, upto):
            read.append(entry.sequence)
            yield entry

    world.log.read = counted  # type: ignore[method-assign, assignment]
    contexts = world.contexts()
    assert truth == (await contexts.get(CONTEXT)).tree
    assert [6, 7] == read, "only what came after the snapshot"
    done = await carry_out(world.committer(contexts), append("e0", "n0"))
    assert 7 == len(_entries(world)), done


async def test_a_snapshot_is_taken_every_so_many_records() -> None:
    """Not for each commit, and of the state at that moment."""
    world, tasks = World(), _Tasks()
    contexts = world.contexts(snapshot_every=3, spawn=tasks)
    committer = world.committer(contexts)
    assert isinstance(world.hot, MemoryHot)
    taken: list[bool] = []
    for i in range(7):
        await carry_out(committer, append(f"e{i}", f"n{i}"))
        await tasks.done()
        taken.append(bool(world.hot.snapshots.pop(CONTEXT, None)))
    assert [False, False, True, False, False, True, False] == taken


async def test_the_head_that_was_seen_is_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking for the head of an unchanged context costs the round trip, however large its last record is."""
    world = World()
    contexts = world.contexts()
    await carry_out(world.committer(contexts), append("large", *(f"n{i}" for i in range(1000))))
    cold = world.contexts()
    await cold.refresh(CONTEXT)
    decoded: list[bytes] = []

    def counted(data: bytes) -> AnyRecord:
        decoded.append(data)
        return decode_record(data)

    monkeypatch.setattr(module, "decode_record", counted)
    for known in (contexts, cold):
        for _ in range(3):
            assert 1 == (await known.refresh(CONTEXT)).tree.revision
    assert [] == decoded


async def test_another_record_in_the_place_of_the_head_is_noticed() -> None:
    """I2: the same sequence and another history, under a tree in memory whose head was seen."""
    world, other = World(), World()
    await _filled(world, 2)
    await other.outcome(append("e0", "n0"))
    await other.outcome(append("another", "n1"))
    contexts = world.contexts()
    for _ in range(2):
        await contexts.refresh(CONTEXT)
    contexts._log = other.log
    assert await other.tree() == (await contexts.refresh(CONTEXT)).tree


async def _turns_of(work: Coroutine[Any, Any, object]) -> int:
    """How many turns of the loop others get while something is done."""
    task, turns = asyncio.ensure_future(work), 0
    while not task.done():
        turns += 1
        await asyncio.sleep(0)
    await task
    return turns


async def test_a_long_log_is_read_with_turns_for_others() -> None:
    """Not a whole batch in one go: a turn for each record of the size of a step."""
    world = World()
    committer = world.committer(world.contexts(snapshot_every=10**6))
    for i in range(40):
        await carry_out(committer, append(f"e{i}", *(f"n{i}-{j}" for j in range(100))))
    entries = _entries(world)
    assert min(len(entry.data) for entry in entries) >= module._STEP_BYTES
    contexts = world.contexts(snapshot_every=10**6)

    async def at_hand(context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        for entry in entries:
            yield entry

    world.log.read = at_hand  # type: ignore[method-assign, assignment]
    assert await _turns_of(contexts.get(CONTEXT)) >= len(entries)


async def test_a_snapshot_is_stored_and_loaded_with_turns_for_others() -> None:
    """One for each step of it."""
    world = World()
    contexts = world.contexts(snapshot_every=10**6)
    for i in range(5):
        await carry_out(world.committer(contexts), append(f"e{i}", *(f"n{i}-{j}" for j in range(1000))))
    known = await contexts.get(CONTEXT)
    data = await packed(known)
    assert known.tree == await unpacked(data)
    assert await _turns_of(packed(known)) >= 5000 / STEP_ENTRIES
    assert await _turns_of(unpacked(data)) >= 5000 / STEP_ENTRIES / 2


async def test_a_long_context_is_stored_less_often() -> None:
    """Storing costs in proportion to the context: with its growth, so does what it is spread over."""
    world, tasks = World(), _Tasks()
    contexts = world.contexts(snapshot_every=3, spawn=tasks)
    committer = world.committer(contexts)
    await carry_out(committer, append("long", *(f"n{i}" for i in range(80))))
    assert isinstance(world.hot, MemoryHot)
    taken: list[int] = []
    for i in range(25):
        await carry_out(committer, append(f"e{i}", f"x{i}"))
        await tasks.done()
        if world.hot.snapshots.pop(CONTEXT, None):
            taken.append(i + 2)
    assert [11, 23] == taken


@pytest.mark.parametrize(
    "how", ["cut", "cut after a piece", "flipped", "empty", "no JSON", "later kind", "other context"]
)
async def test_a_damaged_snapshot_is_passed_over(how: str) -> None:
    """I7: whatever lies there, the log decides."""
    world = World()
    await _filled(world, 5)
    good = await _snapshot_at(world, 5)
    assert isinstance(world.hot, MemoryHot)
    world.hot.snapshots[CONTEXT] = {
        "cut": good[: len(good) // 2],
        "cut after a piece": good.rpartition(b"\n")[0],
        "flipped": good[:8] + good[8:].replace(b'"live"', b'"lixe"', 1),
        "empty": b"",
        "no JSON": good[:8] + b"\xff\xfe",
        "later kind": good[:8] + good[8:].replace(b'"kind":"append"', b'"kind":"conjure"'),
        "other context": good[:8] + good[8:].replace(CONTEXT.encode(), b"other", 1),
    }[how]
    assert good != world.hot.snapshots[CONTEXT]
    assert await world.tree() == (await world.contexts().get(CONTEXT)).tree


async def test_a_snapshot_of_another_lineage_is_passed_over() -> None:
    """I2: the log was made anew, and is already longer than the one that the snapshot is of."""
    old = World()
    await _filled(old, 3)
    await old.outcome(rewrite("rw", "l0:n0", "of the old one"))
    snapshot = await _snapshot_at(old, 4)
    world = World(MemoryLog(first_sequence=1000))
    await world.outcome(append("other", "other"))
    await _filled(world, 9)
    assert isinstance(world.hot, MemoryHot)
    world.hot.snapshots[CONTEXT] = snapshot
    assert await world.tree() == (await world.contexts().get(CONTEXT)).tree


async def test_a_snapshot_ahead_of_the_log_is_passed_over() -> None:
    """I2: the log was restored from an older copy."""
    world = World()
    await _filled(world, 5)
    await _snapshot_at(world, 5)
    del _entries(world)[3:]
    assert 3 == (await world.contexts().get(CONTEXT)).tree.revision


async def test_a_snapshot_of_the_same_place_in_another_history_is_passed_over() -> None:
    """I2: the same sequence and the same revision, another chain."""
    old, world = World(), World()
    await _filled(old, 2)
    await world.outcome(append("e0", "n0"))
    await world.outcome(append("another", "n1"))
    assert isinstance(world.hot, MemoryHot)
    world.hot.snapshots[CONTEXT] = await _snapshot_at(old, 2)
    assert await world.tree() == (await world.contexts().get(CONTEXT)).tree


async def test_a_snapshot_carries_the_sequence_it_is_of() -> None:
    """A tail read from the wrong place would leave a gap."""
    world = World(MemoryLog(first_sequence=77))
    await _filled(world, 2)
    assert (78,) == struct.unpack_from(">Q", await _snapshot_at(world, 2))


# --- lineage -----------------------------------------------------------------------------------------


async def test_a_log_made_anew_under_a_running_worker_takes_its_trees_with_it() -> None:
    """No commit counts across lineages: the old tree's sequence is none of the new log."""
    world = World()
    await _filled(world, 3)
    contexts = world.contexts()
    committer = world.committer(contexts)
    await contexts.get(CONTEXT)
    world.log = committer._log = contexts._log = MemoryLog(first_sequence=1000)
    done: Any = await carry_out(committer, Append.model_validate(append("new", "new").model_dump()))
    assert isinstance(done.outcome, Committed)
    assert 1 == done.outcome.revision
    assert ["l0:new"] == list((await world.tree()).nodes)


async def test_a_context_that_has_vanished_from_the_log_is_empty() -> None:
    """Whoever asks for the head is not told what was there once."""
    world = World()
    await _filled(world, 3)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    contexts._log = MemoryLog(first_sequence=1000)
    assert 0 == (await contexts.refresh(CONTEXT)).tree.revision
    assert 0 == (await contexts.get(CONTEXT)).tree.revision


async def test_forgetting_all_reads_all_again() -> None:
    """After a reconnect the log there may be another one."""
    world = World()
    await _filled(world, 2)
    contexts = world.contexts(max_spans=3)
    await contexts.get(CONTEXT)
    contexts.forget_all()
    before = _heads_read(world)
    assert 2 == (await contexts.get(CONTEXT)).tree.revision
    assert before + 1 == _heads_read(world)
