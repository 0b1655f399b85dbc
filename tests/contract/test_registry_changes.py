"""The contract of the notes of changes: the same cases in memory, on Valkey and, where it is, on Redis."""

from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Final

import pytest
from redis.asyncio import Redis

from sexton.core.registry import CHANGING_MS
from sexton.schemas.leases import PinCost
from tests.sim.registry_bench import A, B, Bench, C, Client, MemoryBench, ServerBench, look
from tests.support.waiting import deadline
from tests.worker_kit.notes import brief_notes

Case = Callable[[Bench], Awaitable[None]]
CASES: Final[list[Case]] = []

BRIEF_MS: Final = 40
"""How long notes stand in cases that wait for them to run out."""
HOUR_MS: Final = 3_600_000


def case(function: Case) -> Case:
    CASES.append(function)
    return function


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_in_memory(run: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The registry in memory keeps the contract: what the simulator proves, it proves of this."""
    if "run_out" in run.__name__:
        brief_notes(BRIEF_MS, monkeypatch.setattr)
    await run(MemoryBench())


@pytest.mark.parametrize("run", CASES, ids=lambda run: run.__name__)
async def test_on_a_server(run: Case, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does the script, on the server's clock."""
    if "run_out" in run.__name__:
        brief_notes(BRIEF_MS, monkeypatch.setattr)
    async with deadline(30, run.__name__):
        await run(ServerBench(redis))


def test_the_script_knows_the_same_limit() -> None:
    """One number, in two languages."""
    script = files("sexton.worker.adapters").joinpath("registry.lua").read_text()
    assert f"local CHANGING = {CHANGING_MS}\n" in script


async def change(bench: Bench, token: str, *versions: tuple[str, int]) -> dict[tuple[str, int], PinCost]:
    """The live pins that a command finds."""
    return dict((await bench.registry.change(bench.context_id, versions, token)).pins)


async def standing(bench: Bench, *tokens: str) -> set[str]:
    return set(await bench.registry.standing(bench.context_id, tokens))


# --- a pin and a note --------------------------------------------------------------------------------------


@case
async def a_command_sees_the_pins_that_came_before_its_note(bench: Bench) -> None:
    """Or else the pin finds the note: one of the two always sees the other."""
    before, after = Client(bench, "h1"), Client(bench, "h2")
    await before.register()
    await after.register()
    assert {} == (await before.pin(A, cost=PinCost.IMMOVABLE)).changing
    assert {A: PinCost.IMMOVABLE} == await change(bench, "one", A, B)
    taken = await after.pin(A, B, C, cost=PinCost.EXPENSIVE)
    assert taken.taken
    assert {A: {"one"}, B: {"one"}} == taken.changing


@case
async def a_pin_that_finds_a_note_is_registered_all_the_same(bench: Bench) -> None:
    """The next command, and the collector, count it from that moment."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", A)
    await holder.pin(A, cost=PinCost.IMMOVABLE)
    assert {A: PinCost.IMMOVABLE} == await change(bench, "two", A)
    assert ["h1"] == [live.holder_id for live in (await look(bench)).pins[A]]


@case
async def a_cheap_pin_waits_for_nothing(bench: Bench) -> None:
    """No command asks for it. A higher class on the same version does wait."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", A)
    assert {} == (await holder.pin(A)).changing
    assert {A: {"one"}} == (await holder.pin(A, cost=PinCost.EXPENSIVE)).changing


@case
async def an_announced_set_finds_notes_as_a_pin_does(bench: Bench) -> None:
    """Registered with the lease, or later. A plain heartbeat asks for nothing and is told of none."""
    holder = Client(bench)
    await change(bench, "one", A, B)
    assert {A: {"one"}} == (await holder.register(A, cost=PinCost.EXPENSIVE)).changing
    holder.claims = {A: PinCost.IMMOVABLE, B: PinCost.CHEAP, C: PinCost.IMMOVABLE}
    assert {A: {"one"}} == (await holder.announce()).changing
    assert {} == (await holder.beat()).changing


@case
async def an_older_operation_is_told_of_no_note(bench: Bench) -> None:
    """It asks for nothing any more."""
    holder = Client(bench)
    await holder.register()
    late = holder.pin_request([A], PinCost.IMMOVABLE, operation=1)
    late_announcement = holder.heartbeat(pins=holder.pins(), operation=1)
    await holder.pin(B)
    await change(bench, "one", A)
    taken = await bench.registry.pin(late)
    assert (False, {}) == (taken.taken, taken.changing)
    assert {} == (await bench.registry.beat(late_announcement)).changing


@case
async def names_are_compared_whole(bench: Bench) -> None:
    """A note of one version is none of another whose name it is a part of."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", ("l0:a", 11), ("l0:ba", 1))
    assert {} == (await holder.pin(A, ("l0:a", 1), cost=PinCost.IMMOVABLE)).changing


# --- how long a note stands --------------------------------------------------------------------------------


@case
async def a_cleared_note_stands_no_more(bench: Bench) -> None:
    """Only that one: another delivery of the same command has another. Clearing twice is clearing once."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", A)
    await change(bench, "two", A)
    for _ in range(2):
        await bench.registry.changed(bench.context_id, "one")
        assert {"two"} == await standing(bench, "one", "two")
    assert {A: {"two"}} == (await holder.pin(A, cost=PinCost.IMMOVABLE)).changing


@case
async def a_note_that_is_written_again_is_one_note(bench: Bench) -> None:
    """As after a lost race: it says what is about to change now."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", A)
    for _ in range(2):
        assert {} == await change(bench, "one", B)
    assert {B: {"one"}} == (await holder.pin(A, B, cost=PinCost.IMMOVABLE)).changing
    await bench.registry.changed(bench.context_id, "one")
    assert set() == await standing(bench, "one")


@case
async def a_note_that_nobody_clears_will_run_out(bench: Bench) -> None:
    """Its worker has died."""
    holder = Client(bench)
    await holder.register()
    await change(bench, "one", A)
    await bench.elapse(BRIEF_MS + 1)
    assert set() == await standing(bench, "one")
    assert {} == (await holder.pin(A, cost=PinCost.IMMOVABLE)).changing


@case
async def a_renewed_note_does_not_run_out_with_the_first(bench: Bench) -> None:
    """It stands for the whole time from then. Others are not renewed with it."""
    await change(bench, "other", A)
    await change(bench, "one", A)
    await bench.elapse(BRIEF_MS // 2)
    await change(bench, "one", A)
    if isinstance(bench, MemoryBench):
        await bench.elapse(BRIEF_MS // 2)
        assert {"one"} == await standing(bench, "one", "other")
    await bench.elapse(BRIEF_MS)
    assert set() == await standing(bench, "one", "other")


@case
async def a_note_by_a_clock_ahead_is_cut_and_will_run_out(bench: Bench) -> None:
    """After a fail-over from a server an hour ahead."""
    if isinstance(bench, MemoryBench):
        bench.now_ms += HOUR_MS
        await change(bench, "one", A)
        bench.now_ms -= HOUR_MS
    else:
        assert isinstance(bench, ServerBench)
        await change(bench, "one", A)
        key = f"sexton:{{{bench.context_id}}}:changing"
        noted = (await bench.contents())[key][b"one"]
        until, _, versions = noted.decode().partition("|")
        await bench.redis.hset(key, "one", f"{int(until) + HOUR_MS}|{versions}")
        await bench.redis.persist(key)
    assert {"one"} == await standing(bench, "one")
    await bench.elapse(BRIEF_MS + 1)
    assert set() == await standing(bench, "one")


@case
async def nothing_touched_is_nothing_noted(bench: Bench) -> None:
    """And a plain look at pins notes nothing."""
    await bench.registry.change(bench.context_id, [], "one")
    await bench.registry.live(bench.context_id, [A])
    assert set() == await standing(bench, "one", "")
    assert set() == await standing(bench)


@case
async def a_server_that_takes_over_with_all_there_is_knows_the_notes(bench: Bench) -> None:
    """An older copy does not: a pin that it grants may come too late for that one command (decision 0022)."""
    copy = await bench.copy()
    await change(bench, "one", A)
    await bench.take_over()
    assert {"one"} == await standing(bench, "one")
    await bench.fall_back(copy)
    assert set() == await standing(bench, "one")


async def test_a_note_that_is_left_over_leaves_no_key(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if nobody asks for it any more."""
    brief_notes(BRIEF_MS, monkeypatch.setattr)
    bench = ServerBench(redis)
    await change(bench, "one", A)
    assert {"changing", "gen"} == {key.split("}:")[1] for key in await bench.contents()}
    await bench.elapse(BRIEF_MS + 1)
    assert {"gen"} == {key.split("}:")[1] for key in await bench.contents()}
