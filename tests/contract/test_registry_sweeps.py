"""The contract of the registry, as a sweep sees it: marks, quiet, generations. In memory and on servers."""

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from sexton.schemas.errors import LeaseLost, Unavailable
from sexton.schemas.leases import MAX_HOLDERS, MAX_TTL_MS, PinCost
from sexton.worker.adapters import registry as adapter
from sexton.worker.adapters.registry import RedisRegistry
from tests.sim.registry_bench import (
    A,
    B,
    Bench,
    C,
    Client,
    MemoryBench,
    ServerBench,
    connected,
    holders_of,
    look,
)
from tests.support.waiting import deadline

Case = Callable[[Bench], Awaitable[None]]
CASES: Final[list[Case]] = []


def case(function: Case) -> Case:
    CASES.append(function)
    return function


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_in_memory(run: Case) -> None:
    """The registry in memory keeps the contract: what the simulator proves, it proves of this."""
    await run(MemoryBench())


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_on_a_server(run: Case, redis: Redis) -> None:
    """So does the script, on the server's clock."""
    async with deadline(30, run.__name__):
        await run(ServerBench(redis))


# --- what a sweep sees -------------------------------------------------------------------------------------


@case
async def unpinned_versions_are_marked_once(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A)
    assert {} == dict((await look(bench)).marks), "only who says so marks"
    seen = await look(bench, mark=True)
    assert {B, C} == seen.marks.keys()
    assert {seen.generation} == {mark.generation for mark in seen.marks.values()}
    assert {seen.now_ms} == {mark.at_ms for mark in seen.marks.values()}
    await bench.elapse(5)
    assert seen.marks == (await look(bench, mark=True)).marks
    await bench.registry.unmark(bench.context_id, [B])
    assert {C} == (await look(bench)).marks.keys()


@case
async def a_pin_clears_the_mark(bench: Bench) -> None:
    """However it comes, and though it is gone again when the next sweep looks."""
    holder = Client(bench)
    await holder.register()
    await look(bench, mark=True)
    await holder.pin(A)
    await holder.release(A)
    assert {B, C} == (await look(bench)).marks.keys()
    holder.claims = {B: PinCost.CHEAP}
    await holder.announce()
    assert {C} == (await look(bench)).marks.keys()


@case
async def a_mark_counts_in_its_generation(bench: Bench) -> None:
    before = await look(bench, mark=True)
    await bench.take_over()
    after = await look(bench)
    assert before.generation != after.generation
    assert before.marks == after.marks
    await bench.elapse(2)
    marked = await look(bench, mark=True)
    assert {after.generation} == {mark.generation for mark in marked.marks.values()}
    assert all(mark.at_ms > before.now_ms for mark in marked.marks.values())


@case
async def quiet_is_heard_from_every_live_holder(bench: Bench) -> None:
    one, two = Client(bench), Client(bench, "h2")
    assert (await look(bench)).oldest_beat_ms is None
    await one.register(A)
    await two.register()
    await bench.elapse(5)
    marked = await look(bench, mark=True)
    assert not marked.heard_from_all_since(marked.now_ms)
    await bench.elapse(5)
    await one.beat()
    assert not (await look(bench)).heard_from_all_since(marked.now_ms)
    await two.beat()
    assert (await look(bench)).heard_from_all_since(marked.now_ms)


@case
async def who_claims_another_set_has_not_been_heard_out(bench: Bench) -> None:
    """I4: that heartbeat says "I hold what you do not know of". It renews the lease all the same."""
    holder = Client(bench)
    await holder.register()
    await bench.elapse(5)
    marked = await look(bench, mark=True)
    await bench.elapse(5)
    holder.claims = {A: PinCost.CHEAP}
    assert (await holder.beat()).announce
    assert not (await look(bench)).heard_from_all_since(marked.now_ms)
    [info] = await bench.registry.holders(bench.context_id)
    assert info.beat_ms_ago < 5_000
    await holder.announce()
    assert (await look(bench)).heard_from_all_since(marked.now_ms)


@case
async def what_was_heard_in_another_generation_does_not_count(bench: Bench) -> None:
    """C106: that server's clock may have been ahead."""
    holder = Client(bench)
    await holder.register()
    await bench.take_over()
    assert 0 == (await look(bench)).oldest_beat_ms
    await holder.beat()
    seen = await look(bench)
    assert seen.heard_from_all_since(seen.began_ms - 1)


@case
async def the_dead_are_not_waited_for(bench: Bench) -> None:
    await Client(bench, ttl_ms=1).register()
    await bench.elapse(5)
    assert (await look(bench)).oldest_beat_ms is None


# --- generations -------------------------------------------------------------------------------------------


@case
async def a_generation_is_named_by_all_alike(bench: Bench) -> None:
    generation = await bench.registry.generation(bench.context_id)
    await Client(bench).register(A)
    assert generation == await bench.registry.generation(bench.context_id)
    assert generation == (await look(bench)).generation


@case
async def a_loss_begins_a_generation(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A)
    before = await look(bench)
    await bench.elapse(5)
    await bench.lose()
    with pytest.raises(LeaseLost):
        await holder.beat()
    after = await look(bench)
    assert before.generation != after.generation
    assert before.now_ms < after.began_ms <= after.now_ms
    assert (await bench.registry.live(bench.context_id, [A])).age_ms < 60_000


@case
async def a_context_that_was_empty_is_whole_from_birth(bench: Bench) -> None:
    generation = await bench.registry.generation(bench.context_id)
    await bench.registry.born(bench.context_id, generation)
    assert 0 == (await look(bench)).began_ms
    assert MAX_TTL_MS < (await bench.registry.live(bench.context_id, [A])).age_ms
    await bench.take_over()
    assert 0 < (await look(bench)).began_ms


@case
async def a_birth_in_an_earlier_generation_says_nothing(bench: Bench) -> None:
    generation = await bench.registry.generation(bench.context_id)
    await bench.take_over()
    await bench.registry.born(bench.context_id, generation)
    assert 0 < (await look(bench)).began_ms


@case
async def nothing_asked_is_nothing_held(bench: Bench) -> None:
    live = await bench.registry.live(bench.context_id, [])
    assert {} == live.pins
    assert MAX_TTL_MS <= live.age_ms


@case
async def contexts_share_nothing(bench: Bench) -> None:
    await Client(bench).register(A)
    mine, bench.context_id = bench.context_id, f"{bench.context_id}x"
    assert set() == await holders_of(bench, A)
    with pytest.raises(LeaseLost):
        await Client(bench).beat()
    bench.context_id = mine
    assert {"h1"} == await holders_of(bench, A)


# --- on a server only --------------------------------------------------------------------------------------


async def test_every_script_may_run_twice(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client retries by itself: the second run of the same arguments changes nothing but times."""
    bench = ServerBench(redis)
    real = RedisRegistry._call
    seen: list[str] = []

    async def twice(self: RedisRegistry, context_id: str, operation: str, *args: Any) -> Any:
        first = await real(self, context_id, operation, *args)
        before = await bench.contents()
        second = await real(self, context_id, operation, *args)
        assert _timeless(before) == _timeless(await bench.contents()), operation
        if operation != "holders":  # which tells of ages
            assert _timeless(first) == _timeless(second), operation
        seen.append(operation)
        return second

    monkeypatch.setattr(RedisRegistry, "_call", twice)
    one, two = Client(bench), Client(bench, "h2")
    await bench.registry.born(bench.context_id, await bench.registry.generation(bench.context_id))
    await one.register(A)
    await two.register()
    await two.pin(A, B, cost=PinCost.EXPENSIVE)
    await look(bench, mark=True)
    await two.pin(C)
    await two.withdraw(C)
    await two.beat()
    await two.announce()
    await two.release(A, C)
    await bench.registry.live(bench.context_id, [A, B])
    await bench.registry.change(bench.context_id, [A, B], "token")
    await bench.registry.standing(bench.context_id, ["token"])
    await two.pin(A, cost=PinCost.EXPENSIVE)
    await bench.registry.changed(bench.context_id, "token")
    await bench.registry.unmark(bench.context_id, [C])
    await bench.registry.holders(bench.context_id)
    await bench.registry.held(bench.context_id)
    await Client(bench, "h1", incarnation=2).register(B)
    await two.leave()
    script = adapter._SCRIPT
    assert set(re.findall(r"^function ops\.(\w+)", script, re.MULTILINE)) == set(seen)


def _timeless(value: Any) -> str:
    """Without points in time."""
    if isinstance(value, dict):
        value = sorted((key, _timeless(inside)) for key, inside in value.items())
    return re.sub(r"\b1[0-9]{12}(\.0)?\b", "T", repr(value))


async def test_the_longest_lease_is_the_same_in_both() -> None:
    """A constant of the schemas that the script has to repeat."""
    assert f"local LONGEST = {MAX_TTL_MS}\n" in adapter._SCRIPT
    assert f"local HOLDERS = {MAX_HOLDERS}\n" in adapter._SCRIPT


async def test_a_holder_that_falls_out_leaves_nothing_behind(redis: Redis) -> None:
    """I5: but what remembers it for as long as its messages may be under way."""
    bench = ServerBench(redis)
    holder = Client(bench, ttl_ms=1)
    await holder.register(A, B)
    await bench.elapse(5)
    await look(bench)
    keys = await bench.contents()
    assert {"gen", "holder:h1"} == {key.split("}:")[1] for key in keys}
    assert 0 < await redis.pttl(f"sexton:{{{bench.context_id}}}:holder:h1") <= MAX_TTL_MS
    await holder.register()
    assert -1 == await redis.pttl(f"sexton:{{{bench.context_id}}}:holder:h1")


async def test_many_dead_holders_are_seen_to_a_few_at_a_time(redis: Redis) -> None:
    """Nobody of them counts meanwhile."""
    bench = ServerBench(redis)
    for i in range(20):
        await Client(bench, f"h{i}", ttl_ms=1).register(A)
    await bench.elapse(5)
    left = []
    for _ in range(4):
        assert set() == await holders_of(bench, A)
        left.append(len(await bench.registry.holders(bench.context_id)))
    assert left == sorted(left, reverse=True)
    assert 0 == left[-1]


async def test_an_outage_is_no_answer(unused_tcp_port: int) -> None:
    """I9: unknown is not zero."""
    redis = connected(f"redis://127.0.0.1:{unused_tcp_port}/0", timeout_s=0.2)
    bench = ServerBench(redis, "ctx")
    holder = Client(bench)
    try:
        for call in (
            holder.register(A),
            holder.pin(A),
            holder.release(A),
            holder.withdraw(A),
            bench.registry.live("ctx", [A]),
            bench.registry.change("ctx", [A], "token"),
            bench.registry.changed("ctx", "token"),
            bench.registry.standing("ctx", ["token"]),
            look(bench, mark=True),
            bench.registry.generation("ctx"),
            bench.registry.born("ctx", "g"),
            bench.registry.unmark("ctx", [A]),
            bench.registry.holders("ctx"),
            bench.registry.held("ctx"),
        ):
            with pytest.raises(Unavailable):
                await call
    finally:
        await redis.aclose()
