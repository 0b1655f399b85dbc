"""The contract of the registry: the same cases in memory, on Valkey and, where there is one, on Redis."""

from collections.abc import Awaitable, Callable
from typing import Final

import pytest
from redis.asyncio import Redis

from sexton.schemas.errors import Fenced, LeaseLost, TooManyHolders, TooManyPins
from sexton.schemas.leases import MAX_HOLDERS, MAX_PINS, MAX_TTL_MS, PinCost
from tests.sim.registry_bench import (
    A,
    B,
    Bench,
    C,
    Client,
    MemoryBench,
    ServerBench,
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


# --- leases ------------------------------------------------------------------------------------------------


@case
async def a_lease_begins_with_a_registration_and_not_before(bench: Bench) -> None:
    holder = Client(bench)
    for call in (holder.beat(), holder.pin(A), holder.release(A)):
        with pytest.raises(LeaseLost):
            await call
    assert [] == await bench.registry.holders(bench.context_id)
    assert not (await holder.register()).announce
    [info] = await bench.registry.holders(bench.context_id)
    assert ("h1", 1, 0) == (info.holder_id, info.incarnation, info.pins)
    assert 0 < info.expires_in_ms <= holder.ttl_ms


@case
async def a_lease_that_has_run_out_holds_nothing(bench: Bench) -> None:
    """C95, I5: its holder hears of it with whatever it says next."""
    holder = Client(bench, ttl_ms=1)
    await holder.register(A)
    await bench.elapse(5)
    assert {} == (await bench.registry.live(bench.context_id, [A])).pins
    assert set() == await holders_of(bench, A)
    for call in (holder.beat(), holder.pin(B), holder.release(A)):
        with pytest.raises(LeaseLost):
            await call
    assert [] == await bench.registry.held(bench.context_id)
    holder.ttl_ms = 60_000
    await holder.register(B)
    assert set() == await holders_of(bench, A), "what an earlier lease held is not held by the next one"
    assert {"h1"} == await holders_of(bench, B)


@case
async def a_renewal_only_extends(bench: Bench) -> None:
    """C96: a heartbeat that asks for less shortens nothing."""
    holder = Client(bench, ttl_ms=60_000)
    await holder.register(A)
    holder.ttl_ms = 1
    await holder.beat()
    await bench.elapse(5)
    assert {"h1"} == await holders_of(bench, A)
    [info] = await bench.registry.holders(bench.context_id)
    assert 30_000 < info.expires_in_ms


@case
async def a_lease_written_by_a_clock_ahead_is_cut_to_the_longest_there_is(bench: Bench) -> None:
    """C106, I5: after a fail-over from a server an hour ahead, the dead fall out in bounded time."""
    holder = Client(bench, ttl_ms=3_600_000)
    await holder.register(A)
    await look(bench)
    [info] = await bench.registry.holders(bench.context_id)
    assert info.expires_in_ms <= MAX_TTL_MS


@case
async def leaving_gives_up_lease_and_pins(bench: Bench) -> None:
    """A clean exit. The fence against older processes stays."""
    holder, other = Client(bench, incarnation=2), Client(bench, "h2")
    await holder.register(A, B)
    await other.register(A)
    await holder.leave()
    assert {"h2"} == await holders_of(bench, A)
    assert ["h2"] == [info.holder_id for info in await bench.registry.holders(bench.context_id)]
    with pytest.raises(LeaseLost):
        await holder.beat()
    await holder.leave()
    with pytest.raises(Fenced):
        await Client(bench, incarnation=1).beat()


@case
async def what_comes_after_the_farewell_begins_nothing(bench: Bench) -> None:
    """I5: a message from before, late. Its lease would hold what nobody needs any more."""
    holder = Client(bench)
    await holder.register()
    await holder.pin(A)
    late = holder.heartbeat(register_new=True, pins=holder.pins())
    await holder.leave()
    await bench.registry.beat(late)
    assert set() == await holders_of(bench, A)


@case
async def who_has_no_lease_can_leave(bench: Bench) -> None:
    """And takes nothing from an older process whose lease is good."""
    await Client(bench).leave()
    await Client(bench).register(A)
    await Client(bench, incarnation=2).leave()
    assert {"h1"} == await holders_of(bench, A)


# --- incarnations ------------------------------------------------------------------------------------------


@case
async def a_newer_process_takes_the_place_of_an_older_one(bench: Bench) -> None:
    old, new = Client(bench), Client(bench, incarnation=2)
    await old.register(A)
    await new.register(B)
    assert set() == await holders_of(bench, A)
    assert {"h1"} == await holders_of(bench, B)
    for call in (old.beat(), old.beat(register_new=True), old.pin(A), old.release(B), old.leave()):
        with pytest.raises(Fenced) as fenced:
            await call
        assert 2 == fenced.value.fields["incarnation"]
    await old.withdraw(B, operation=new.operation)
    assert {"h1"} == await holders_of(bench, B)
    assert not (await new.beat()).announce


@case
async def only_a_registration_takes_over(bench: Bench) -> None:
    """Another request of a newer process is answered, and changes nothing."""
    old, new = Client(bench), Client(bench, incarnation=2)
    await old.register(A)
    for call in (new.beat(), new.pin(B), new.release(A)):
        with pytest.raises(LeaseLost):
            await call
    assert {"h1"} == await holders_of(bench, A)
    assert not (await old.beat()).announce


@case
async def large_incarnations_keep_their_digits(bench: Bench) -> None:
    """Holders number their processes by a clock; round ones, too."""
    for incarnation in (1_800_000_000_000, 1_800_000_000_000_000, 2**53 - 1):
        await Client(bench, incarnation=incarnation).register()
        [info] = await bench.registry.holders(bench.context_id)
        assert incarnation == info.incarnation


@case
async def a_fence_outlives_the_lease(bench: Bench) -> None:
    await Client(bench, incarnation=2, ttl_ms=1).register(A)
    await bench.elapse(5)
    await look(bench)
    with pytest.raises(Fenced):
        await Client(bench).register(A)


# --- pins --------------------------------------------------------------------------------------------------


@case
async def the_live_pins_of_two_holders_count_by_the_highest_cost(bench: Bench) -> None:
    one, two = Client(bench), Client(bench, "h2")
    await one.register()
    await two.register()
    await one.pin(A, cost=PinCost.CHEAP)
    await one.pin(B, cost=PinCost.IMMOVABLE)
    await two.pin(A, B, cost=PinCost.EXPENSIVE)
    live = await bench.registry.live(bench.context_id, [A, B, C])
    assert {A: PinCost.EXPENSIVE, B: PinCost.IMMOVABLE} == live.pins
    seen = await look(bench)
    assert {"h1": PinCost.CHEAP, "h2": PinCost.EXPENSIVE} == {p.holder_id: p.cost for p in seen.pins[A]}
    assert () == seen.pins[C]
    held = await bench.registry.held(bench.context_id)
    assert {("h1", A), ("h1", B), ("h2", A), ("h2", B)} == {
        (info.holder_id, (info.span_id, info.version)) for info in held
    }
    await one.release(B)
    assert {B: PinCost.EXPENSIVE} == (await bench.registry.live(bench.context_id, [B])).pins


@case
async def an_expired_pin_does_not_count_beside_a_good_one(bench: Bench) -> None:
    await Client(bench).register(A)
    await Client(bench, "h2", ttl_ms=1).register(A, cost=PinCost.IMMOVABLE)
    await bench.elapse(5)
    assert {A: PinCost.CHEAP} == (await bench.registry.live(bench.context_id, [A])).pins


@case
async def a_pin_again_changes_its_cost_and_keeps_its_age(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A)
    before = (await look(bench)).pins[A][0].since_ms
    await bench.elapse(5)
    await holder.pin(A, cost=PinCost.EXPENSIVE)
    await holder.announce()
    [live] = (await look(bench)).pins[A]
    assert (PinCost.EXPENSIVE, before) == (live.cost, live.since_ms)


@case
async def no_holder_pins_more_than_the_limit(bench: Bench) -> None:
    """What is held already, or named twice, does not count twice. A refusal changes nothing."""
    versions = [(f"l0:s{i}", 1) for i in range(MAX_PINS)]
    holder = Client(bench)
    await holder.register(*versions[1:])
    with pytest.raises(TooManyPins) as refusal:
        await holder.pin(A, B)
    assert MAX_PINS == refusal.value.fields["limit"]
    assert set() == await holders_of(bench, A)
    holder.claims = dict.fromkeys(versions[1:], PinCost.CHEAP)
    holder.operation -= 1
    request = holder.pin_request([versions[0], versions[0], *versions[2:]], operation=holder.operation + 1)
    assert (await bench.registry.pin(request)).taken
    [info] = await bench.registry.holders(bench.context_id)
    assert MAX_PINS == info.pins


@case
async def a_context_has_so_many_holders_and_no_more(bench: Bench) -> None:
    """Those that have a lease go on, and a newer process of one takes its place; one that ends makes room."""
    holders = [Client(bench, f"h{number}") for number in range(MAX_HOLDERS)]
    for holder in holders:
        await holder.register()
    one_more = Client(bench, "one-more")
    with pytest.raises(TooManyHolders):
        await one_more.register()
    await holders[0].beat()
    await Client(bench, "h0", incarnation=2).register()
    await holders[1].beat(leave=True)
    await one_more.register()


@case
async def an_announcement_replaces_the_set(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A, B)
    holder.claims = {B: PinCost.EXPENSIVE, C: PinCost.CHEAP}
    assert not (await holder.announce()).announce
    assert set() == await holders_of(bench, A)
    live = await bench.registry.live(bench.context_id, [A, B, C])
    assert {B: PinCost.EXPENSIVE, C: PinCost.CHEAP} == live.pins


@case
async def an_older_operation_changes_nothing(bench: Bench) -> None:
    """C93, I4: late messages about a pin, after the pin was let go of, or taken again."""
    holder = Client(bench)
    await holder.register()
    await holder.pin(A)
    late_pin, late_release = holder.pin_request([A]), holder.release_request([A])
    late_announcement = holder.heartbeat(pins=holder.pins())
    await holder.release(A)
    assert not (await bench.registry.pin(late_pin)).taken
    assert set() == await holders_of(bench, A)
    await holder.pin(A)
    assert not await bench.registry.release(late_release)
    assert {"h1"} == await holders_of(bench, A)
    await holder.release(A)
    beat = await bench.registry.beat(late_announcement)
    assert (holder.operation, True) == (beat.operation, beat.announce)
    assert set() == await holders_of(bench, A)
    assert not (await holder.beat()).announce


@case
async def an_older_operation_cannot_begin_the_next_lease(bench: Bench) -> None:
    """I4: a registration that was overtaken by a pin, and by the end of the lease that had that pin."""
    holder = Client(bench, ttl_ms=200)
    await holder.register()
    holder.operation += 1
    overtaken = holder.heartbeat(register_new=True, pins=())
    await holder.pin(A)
    await bench.elapse(205)
    await look(bench)
    beat = await bench.registry.beat(overtaken)
    assert (holder.operation, True) == (beat.operation, beat.announce)


@case
async def a_release_of_what_is_not_held_is_done_already(bench: Bench) -> None:
    """C108."""
    holder = Client(bench)
    await holder.register(A)
    assert await holder.release(B)
    assert await holder.release(A)
    assert await holder.release(A)
    assert not (await holder.beat()).announce


@case
async def a_refused_pin_is_taken_back_and_the_digest_forgotten(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A)
    await holder.pin(B)
    await holder.withdraw(B)
    assert set() == await holders_of(bench, B)
    assert {"h1"} == await holders_of(bench, A)
    assert (await holder.beat()).announce
    del holder.claims[B]
    assert (await holder.beat()).announce, "it is not known that the holder has heard of it"
    assert not (await holder.announce()).announce
    assert not (await holder.beat()).announce


@case
async def a_refused_operation_that_comes_again_leaves_the_digest_forgotten(bench: Bench) -> None:
    """A pin is sent twice, and refused between: the holder may have heard of the refusal or not."""
    holder = Client(bench)
    await holder.register(A)
    await holder.pin(B)
    again = holder.pin_request([B])
    await holder.withdraw(B)
    assert (await bench.registry.pin(again)).taken
    assert (await holder.beat()).announce
    assert not (await holder.announce()).announce


@case
async def a_pin_that_was_granted_before_is_not_taken_back(bench: Bench) -> None:
    """I4: the refusal may get lost on its way, and the holder counts on what it was granted."""
    holder = Client(bench)
    await holder.register(A)
    await holder.pin(A, B, cost=PinCost.EXPENSIVE)
    await holder.withdraw(A, B)
    assert {"h1"} == await holders_of(bench, A)
    assert set() == await holders_of(bench, B)
    assert (await holder.beat()).announce
    await holder.announce()
    await holder.withdraw(A)
    assert {"h1"} == await holders_of(bench, A)


@case
async def only_the_last_operation_takes_back(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register()
    await holder.pin(A)
    before = holder.operation
    await holder.pin(B)
    await holder.withdraw(A, operation=before)
    assert {"h1"} == await holders_of(bench, A)
    assert not (await holder.beat()).announce


@case
async def a_holder_that_does_not_agree_is_named(bench: Bench) -> None:
    """I5: collection waits for it, so an operator must see which one it is."""
    good, bad = Client(bench, "good"), Client(bench, "bad")
    for holder in (good, bad):
        await holder.register()
    await bench.elapse(50)
    await good.beat()
    bad.claims = {A: PinCost.CHEAP}
    assert (await bad.beat()).announce

    async def agreed_ms_ago() -> dict[str, int | None]:
        return {h.holder_id: h.agreed_ms_ago for h in await bench.registry.holders(bench.context_id)}

    found = await agreed_ms_ago()
    assert found["good"] is not None
    assert found["bad"] is not None
    assert found["good"] + 50 <= found["bad"]


@case
async def a_heartbeat_with_another_set_is_told_to_announce(bench: Bench) -> None:
    """Whichever side has more, and if only a cost differs."""
    holder = Client(bench)
    await holder.register(A)
    for claims in ({}, {A: PinCost.EXPENSIVE}, {A: PinCost.CHEAP, B: PinCost.CHEAP}, {B: PinCost.CHEAP}):
        holder.claims = claims
        assert (await holder.beat()).announce
    holder.claims = {A: PinCost.CHEAP}
    assert not (await holder.beat()).announce


@case
async def a_digest_is_not_believed_over_a_gap(bench: Bench) -> None:
    """I4: the digest of an operation covers those before it, which the registry may have lost."""
    holder = Client(bench)
    await holder.register()
    older = await bench.copy()
    await holder.pin(A)
    await bench.fall_back(older)
    await holder.pin(B)
    assert set() == await holders_of(bench, A)
    assert (await holder.beat()).announce
    assert not (await holder.announce()).announce
    assert {"h1"} == await holders_of(bench, A)


@case
async def a_digest_is_not_believed_over_a_gap_of_releases(bench: Bench) -> None:
    holder = Client(bench)
    await holder.register(A, B)
    holder.operation += 1
    await holder.release(A)
    assert (await holder.beat()).announce
    await holder.announce()
    assert not (await holder.beat()).announce
