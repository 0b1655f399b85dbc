"""The end of a holder's lease: run out while the process stood still, given up, or taken by another one."""

import asyncio

import pytest

from sexton.core.pins import PinCost
from sexton.holder import (
    Context,
    Fenced,
    Holder,
    HolderClosed,
    HolderSettings,
    StaleSpanError,
    Unconfirmed,
)
from sexton.holder.testing import MemoryTransport
from sexton.schemas.rpc import Verb
from sexton.schemas.span import Strategy
from tests.holder_kit import CONTEXT, Rig, make_settings, rig
from tests.leases_kit import (
    PATIENT,
    ListeningService,
    claimed,
    heard,
    held,
    known,
    pin,
    rewrite_elsewhere,
)

TTL_S = HolderSettings().lease_ttl_s
INTERVAL_S = TTL_S / 3


# --- run out -----------------------------------------------------------------------------------------


async def test_a_stopped_holder_registers_before_it_serves() -> None:
    """C98: the process stood still for longer than its lease: it has to be confirmed before anything is
    served, from memory or not.
    """
    async with rig(service=ListeningService(), **PATIENT) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        await r.run(r.context.resolve(pointer))
        async with pin(r, pointer.span_id) as pinned:
            r.clock.jump(TTL_S)
            assert not pinned.proven
            r.transport.requests.hold()
            serving: list[asyncio.Task[object]] = [
                asyncio.create_task(r.context.resolve(pointer)),
                asyncio.create_task(r.context.mint(pointer.span_id)),
                asyncio.create_task(r.context.revalidate(pointer)),
                asyncio.create_task(r.context.expand(pointer.span_id)),
                asyncio.create_task(r.context.render()),
            ]
            await r.clock.rest()
            assert [False] * 5 == [task.done() for task in serving]
            r.transport.requests.release()
            await r.clock.rest()
            assert [True] * 5 == [task.done() for task in serving]
            assert pinned.proven
            again = heard(r).last
            assert (True, (pointer.span_id,)) == (
                again.register_new,
                tuple(p.span_id for p in again.pins or ()),
            )
            await asyncio.gather(*serving)


async def test_a_stopped_holder_that_cannot_be_confirmed_serves_nothing() -> None:
    """C98: past its lease and without an answer: `Unconfirmed`, although the head is fresh enough."""
    async with rig(**PATIENT) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        derived = r.context.derived(pointer.span_id, str.upper, cost=PinCost.CHEAP)
        await r.run(derived.use())
        r.clock.jump(TTL_S)
        r.transport.cut()
        for work in (r.context.resolve(pointer), r.context.mint(pointer.span_id), derived.use()):
            with pytest.raises(Unconfirmed):
                await r.run(work)
        r.transport.mend()
        assert "SHIP ON FRIDAY." == await r.run(derived.use())


async def test_without_pins_no_lease_is_needed_to_serve() -> None:
    """Whoever holds nothing serves on from memory, within the staleness bound."""
    async with rig(**PATIENT) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        await r.run(r.context.resolve(pointer))
        r.clock.jump(2 * TTL_S)
        r.transport.cut()
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer))).text
        r.transport.mend()


async def test_what_was_collected_while_stopped_is_not_served() -> None:
    """C98, I4: the lease ran out, the version was collected, and the holder still has the bytes in memory and
    a head that is fresh enough: it hears of it before it serves, and says so.
    """
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        async with pin(r, span_id, cost=PinCost.EXPENSIVE) as pinned:
            strategy = await rewrite_elsewhere(r, span_id, "Ship on Monday.")
            assert Strategy.COPY_ON_REWRITE is strategy
            resolved = await r.run(r.context.resolve(pointer, accept_superseded=True))
            assert (True, "Ship on Friday.") == (resolved.superseded, resolved.text)
            r.transport.bumps.lose()
            r.clock.jump(TTL_S)
            r.service.collect(CONTEXT, (span_id, 1))
            with pytest.raises(StaleSpanError) as caught:
                await r.run(r.context.resolve(pointer, accept_superseded=True))
            assert 2 == caught.value.current.version
            assert not pinned.proven
            assert {} == claimed(r)
            # The rest is served as ever.
            assert (
                "Ship on Monday."
                == (await r.run(r.context.resolve(await r.run(r.context.mint(span_id))))).text
            )
            r.transport.bumps.work()


async def test_what_was_collected_is_not_served_if_the_timer_renews_the_lease_first() -> None:
    """C98: the keeper wakes before the caller, and the lease is good again when it asks."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        async with pin(r, span_id, cost=PinCost.EXPENSIVE):
            await rewrite_elsewhere(r, span_id, "Ship on Monday.")
            await r.run(r.context.resolve(pointer, accept_superseded=True))
            r.transport.bumps.lose()
            r.clock.jump(TTL_S)
            r.service.collect(CONTEXT, (span_id, 1))
            synced = r.service.asked[Verb.SYNC]
            beats = r.service.asked[Verb.HEARTBEAT]
            serving = asyncio.create_task(r.context.resolve(pointer, accept_superseded=True))
            keeping = asyncio.create_task(r.context._keeper._beat())
            await r.run(keeping)
            assert r.service.asked[Verb.HEARTBEAT] > beats
            with pytest.raises(StaleSpanError):
                await r.run(serving)
            assert r.service.asked[Verb.SYNC] > synced
            r.transport.bumps.work()


async def test_a_lease_that_runs_out_during_a_sync_is_noticed() -> None:
    """C98: stopped in the middle of a question about the head: its answer is not all that counts."""
    async with rig(service=ListeningService(), sync_interval_s=1.0, staleness_bound_s=3.0) as r:
        span_id = await r.leaf()
        async with pin(r, span_id):
            await r.clock.rest()
            r.transport.requests.hold()
            r.clock.jump(4)
            serving = asyncio.create_task(r.context.mint(span_id))
            await r.clock.rest()
            r.clock.jump(TTL_S)
            r.transport.requests.release()
            r.transport.requests.hold()
            beats = len(heard(r).beats)
            await r.clock.rest()
            assert not serving.done()
            r.transport.requests.release()
            await r.run(serving)
            assert len(heard(r).beats) > beats


# --- given up ----------------------------------------------------------------------------------------


async def test_closing_leaves_at_once() -> None:
    """A clean exit gives up the lease and all pins: others need not wait for it to run out."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        await r.run(r.context.pin(span_id, cost=PinCost.IMMOVABLE).__aenter__())
        assert {(span_id, 1): PinCost.IMMOVABLE} == held(r)
        await r.run(r.context.close())
        assert {} == held(r)
        assert not known(r).is_good(int(r.clock.monotonic() * 1000))
        assert Strategy.INVALIDATE_AND_REKEY is await rewrite_elsewhere(r, span_id, "Ship on Monday.")


async def test_closing_before_the_first_answer_leaves_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a program of one command does: its first heartbeat was heard, and the answer is not there yet."""
    async with rig(service=ListeningService()) as r:
        await r.clock.rest()
        answer = r.service.answer

        def unanswered(context_id: str, verb: Verb, body: bytes) -> list[bytes]:
            parts = list(answer(context_id, verb, body))
            return [] if verb is Verb.HEARTBEAT and not heard(r).last.leave else parts

        monkeypatch.setattr(r.service, "answer", unanswered)
        _, context = await r.another()
        await r.clock.rest()
        name = r.others[0].name
        assert known(r, name).is_good(int(r.clock.monotonic() * 1000))
        await r.run(context.close())
        assert not known(r, name).is_good(int(r.clock.monotonic() * 1000))


async def test_closing_again_says_nothing_more() -> None:
    """Twice, and with the holder after its context."""
    async with rig(service=ListeningService()) as r:
        await r.clock.rest()
        await r.run(r.context.close())
        beats = len(heard(r).beats)
        await r.run(r.context.close())
        await r.run(r.holder.close())
        assert beats == len(heard(r).beats)


async def test_closing_in_an_outage_ends_in_time() -> None:
    """What cannot be said expires."""
    async with rig() as r:
        span_id = await r.leaf()
        async with pin(r, span_id):
            r.transport.cut()
            began = r.clock.monotonic()
            await r.run(r.context.close())
            assert r.clock.monotonic() - began <= 5
            assert {(span_id, 1)} == set(held(r))
            await r.clock.advance(TTL_S)
            assert {} == held(r)


async def test_a_holder_that_is_killed_falls_out_with_its_lease() -> None:
    """C95: no farewell: its pins count until the lease has run out, and not a moment longer."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.run(r.context.pin(span_id, cost=PinCost.EXPENSIVE).__aenter__())
        r.transport.cut()
        ends_at = (known(r).ends_ms or 0) / 1000
        await r.clock.advance(ends_at - 0.001 - r.clock.monotonic())
        assert Strategy.COPY_ON_REWRITE is await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        r.transport.mend()


async def test_nothing_can_be_pinned_after_closing() -> None:
    """A closed context says so, and begins no lease that nobody keeps."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        await r.run(r.context.close())
        beats = len(heard(r).beats)
        for version in (None, 1):
            with pytest.raises(HolderClosed):
                await r.run(r.context.pin(span_id, version=version).__aenter__())
        assert beats == len(heard(r).beats)
        assert {} == held(r)


async def test_a_pin_in_flight_does_not_outlive_closing() -> None:
    """Closed while a pin is being asked for: it raises, and no lease is left."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        r.transport.requests.hold()
        pinning = asyncio.create_task(r.context.pin(span_id, version=1).__aenter__())
        await r.clock.rest()
        closing = asyncio.create_task(r.context.close())
        await r.clock.rest()
        r.transport.requests.release(lambda waiting: waiting[::-1])
        await r.run(closing)
        with pytest.raises(HolderClosed):
            await r.run(pinning)
        await r.clock.advance(1)
        assert {} == held(r)
        assert not known(r).is_good(int(r.clock.monotonic() * 1000))


# --- taken by another process ------------------------------------------------------------------------


async def twin(r: Rig, *, incarnation: int) -> Context:
    """The context in another process of the rig's holder's name, as far as the registry can tell."""
    transport = MemoryTransport(r.service, clock=r.clock)
    holder = Holder(transport, name=r.holder.name, clock=r.clock, settings=make_settings())
    object.__setattr__(holder._runtime, "incarnation", incarnation)
    await holder.__aenter__()
    r.others.append(holder)
    return await r.run(holder.open(CONTEXT))


def incarnation(r: Rig) -> int:
    return r.context._keeper._book.incarnation


async def test_the_newer_process_of_a_name_holds_the_pins() -> None:
    """Two of one name: the newer one takes over; the older one finds out, serves nothing that it had pinned,
    and disturbs nobody.
    """
    async with rig(service=ListeningService()) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        async with pin(r, pointer.span_id) as old:
            newer = await twin(r, incarnation=incarnation(r) + 1)
            async with pin(r, pointer.span_id, cost=PinCost.EXPENSIVE, context=newer) as new:
                await r.clock.advance(INTERVAL_S)
                assert (False, True) == (old.proven, new.proven)
                for work in (r.context.resolve(pointer), r.context.pin(pointer.span_id).__aenter__()):
                    with pytest.raises(Fenced) as caught:
                        await r.run(work)
                    assert incarnation(r) + 1 == caught.value.fields["incarnation"]
                beats = len(heard(r).beats)
                await r.clock.advance(2 * TTL_S)
                assert {r.context._keeper._book.incarnation + 1} == {
                    beat.incarnation for _, beat in heard(r).beats[beats:]
                }
                assert new.proven
                assert {(pointer.span_id, 1): PinCost.EXPENSIVE} == held(r)
        # It holds nothing any more, and may serve what needs no pin.
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer))).text


async def test_a_fenced_process_leaves_nothing_behind_when_it_closes() -> None:
    """Its farewell would be the newer one's."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        await r.clock.rest()
        newer = await twin(r, incarnation=incarnation(r) + 1)
        async with pin(r, span_id, context=newer) as pinned:
            await r.clock.advance(INTERVAL_S)
            await r.run(r.context.close())
            assert not any(beat.leave for _, beat in heard(r).beats)
            assert pinned.proven


async def test_an_unfenced_farewell_of_an_older_process_is_refused() -> None:
    """It closes before it has heard of the newer one."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        await r.clock.rest()
        newer = await twin(r, incarnation=incarnation(r) + 1)
        async with pin(r, span_id, context=newer):
            await r.run(r.context.close())
            assert heard(r).last.leave
            assert {(span_id, 1)} == set(held(r))


async def test_a_newer_process_whose_clock_lags_takes_over() -> None:
    """Its number is lower than that of the one it follows: it takes the next higher, and is not fenced."""
    async with rig() as r:
        await r.clock.rest()
        newer = await twin(r, incarnation=incarnation(r) - 1000)
        await r.clock.rest()
        assert incarnation(r) + 1 == newer._keeper._book.incarnation
        with pytest.raises(Fenced):
            await r.run(r.context._keeper._beat())


async def test_a_newer_process_whose_clock_lags_may_pin_at_once() -> None:
    """The first that the registry hears of it may be a pin."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        transport = MemoryTransport(r.service, clock=r.clock)
        async with Holder(transport, name=r.holder.name, clock=r.clock, settings=make_settings()) as holder:
            object.__setattr__(holder._runtime, "incarnation", incarnation(r) - 1000)

            async def at_once() -> int:
                context = await holder.open(CONTEXT)
                async with context.pin(span_id, version=1) as pinned:
                    assert pinned.proven
                    return context._keeper._book.incarnation

            assert incarnation(r) + 1 == await r.run(at_once())
            await r.run(holder.close())
