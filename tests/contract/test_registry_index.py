"""The contract of the sweep index: the same cases in memory, on Valkey and, where there is one, on Redis."""

import uuid
from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from redis.asyncio import Redis

from sexton.schemas.errors import Unavailable
from sexton.worker.adapters.sweep_index import NOTED_FOR_S, RedisSweepIndex
from sexton.worker.shards import SHARDS, shard_of
from tests.sim.registry_bench import Bench, MemoryBench, ServerBench, connected
from tests.support.waiting import deadline

Case = Callable[[Bench], Awaitable[None]]
CASES: Final[list[Case]] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_in_memory(run: Case) -> None:
    """The index in memory keeps the contract."""
    await run(MemoryBench())


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_on_a_server(run: Case, redis: Redis) -> None:
    """So does the one on a server."""
    async with deadline(30, run.__name__):
        await run(ServerBench(redis))


def names(count: int, shard: int = 3) -> list[str]:
    """Context ids of one shard that no other test uses."""
    found: list[str] = []
    while len(found) < count:
        name = f"t_{uuid.uuid4().hex}"
        if shard_of(name) == shard:
            found.append(name)
    return found


async def noted(bench: Bench, ours: list[str], shard: int = 3) -> list[str]:
    return [name for name in await bench.index.contexts(shard, 100_000) if name in set(ours)]


async def grow_old(bench: Bench, context_id: str, seconds: int) -> None:
    """Makes a note as old as that."""
    if isinstance(bench, ServerBench):
        key = f"sexton:{{sweep}}:index:{shard_of(context_id)}"
        await bench.redis.zincrby(key, -seconds, context_id)
    else:
        await bench.elapse(seconds * 1000)


@case
async def a_context_is_noted_in_its_shard(bench: Bench) -> None:
    ours = [name for shard in range(SHARDS) for name in names(1, shard)]
    await bench.index.note(ours)
    await bench.index.note(ours[:2])
    for shard, name in enumerate(ours):
        assert [name] == await noted(bench, ours, shard)


@case
async def those_noted_longest_ago_come_first(bench: Bench) -> None:
    first, second, third = ours = names(3)
    await bench.index.note([second])
    await grow_old(bench, second, 2)
    await bench.index.note([first])
    await grow_old(bench, first, 3)
    if isinstance(bench, MemoryBench):
        await bench.index.note([first])
        await bench.elapse(1_000)
        await bench.index.note([second])
        await bench.elapse(1_000)
    await bench.index.note([third])
    assert [first, second, third] == await noted(bench, ours)
    await bench.elapse(1_001)
    await bench.index.note([first])
    assert [second, third, first] == await noted(bench, ours)


@case
async def many_are_noted_at_once(bench: Bench) -> None:
    """More than one call takes."""
    ours = names(1_500)
    await bench.index.note(ours)
    assert set(ours) == set(await noted(bench, ours))
    assert 10 == len(await bench.index.contexts(3, 10))


@case
async def a_context_is_dropped_unless_it_was_noted_lately(bench: Bench) -> None:
    """I5: a note comes before the record it is about, which may not be there yet when the sweep looks."""
    ours = names(2)
    await bench.index.note(ours[:1])
    await bench.index.drop(ours[0])
    assert ours[:1] == await noted(bench, ours)
    await grow_old(bench, ours[0], NOTED_FOR_S + 2)
    await bench.index.note([ours[0]])
    await bench.index.drop(ours[0])
    assert ours[:1] == await noted(bench, ours)
    await grow_old(bench, ours[0], NOTED_FOR_S + 2)
    await bench.index.drop(ours[0])
    assert [] == await noted(bench, ours)
    await bench.index.drop(ours[1])


@case
async def a_lock_is_held_by_one_and_renewed_by_that_one(bench: Bench) -> None:
    lane = uuid.uuid4().int % 10**9 + 1000
    assert await bench.index.lock(lane, "a", 30)
    assert not await bench.index.lock(lane, "b", 30)
    assert await bench.index.lock(lane, "a", 30)
    await bench.index.unlock(lane, "b")
    assert not await bench.index.lock(lane, "b", 30)
    await bench.index.unlock(lane, "a")
    await bench.index.unlock(lane, "a")
    assert await bench.index.lock(lane, "b", 30)
    assert await bench.index.lock(lane + 1, "a", 30)


@case
async def a_lock_runs_out(bench: Bench) -> None:
    """Whoever held it may have died."""
    lane = uuid.uuid4().int % 10**9 + 1000
    assert await bench.index.lock(lane, "a", 0.01)
    await bench.elapse(20)
    assert await bench.index.lock(lane, "b", 30)
    await bench.index.unlock(lane, "a")
    assert not await bench.index.lock(lane, "a", 30)


async def test_the_index_in_memory_is_complete_on_one_server_and_until_it_is_lost() -> None:
    """As `test_registry_servers.py` shows of real ones."""
    bench = MemoryBench()
    assert not await bench.index.complete()
    await bench.lose()
    await bench.index.set_complete()
    assert not await bench.index.complete()
    await bench.index.set_complete()
    assert await bench.index.complete()
    await bench.take_over()
    assert not await bench.index.complete()


async def test_an_outage_is_no_answer(unused_tcp_port: int) -> None:
    """I9."""
    redis = connected(f"redis://127.0.0.1:{unused_tcp_port}/0", timeout_s=0.2)
    index = RedisSweepIndex(redis)
    try:
        for call in (
            index.note(["ctx"]),
            index.drop("ctx"),
            index.contexts(0, 1),
            index.complete(),
            index.set_complete(),
            index.lock(0, "a", 1),
            index.unlock(0, "a"),
        ):
            with pytest.raises(Unavailable):
                await call
    finally:
        await redis.aclose()
