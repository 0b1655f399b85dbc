"""A holder's lease: begun, kept, counted from the send, and begun anew when the registry has lost it."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from sexton.core.pins import PinCost
from sexton.holder import (
    HolderSettings,
    Unavailable,
    Unconfirmed,
)
from sexton.holder.testing import MemoryService
from sexton.schemas.errors import InvalidInput
from sexton.schemas.leases import MAX_TTL_MS, MIN_TTL_MS, HeartbeatRequest, LeaseReply
from sexton.schemas.rpc import Verb
from tests.holder_kit import CONTEXT, Rig, rig
from tests.leases_kit import (
    PATIENT,
    ListeningService,
    claimed,
    heard,
    held,
    known,
    listening,
    pin,
    rewrite_elsewhere,
)

TTL_S = HolderSettings().lease_ttl_s
INTERVAL_S = TTL_S / 3
LONGEST_MS = 6_000


# --- kept --------------------------------------------------------------------------------------------


async def test_a_lease_begins_when_a_context_is_opened() -> None:
    """Whoever follows a context is known to the registry, with nothing pinned."""
    async with rig(service=ListeningService()) as r:
        await r.clock.rest()
        assert {} == held(r)
        assert known(r).is_good(int(r.clock.monotonic() * 1000))
        first = heard(r).last
        assert (True, (), int(TTL_S * 1000)) == (first.register_new, first.pins, first.ttl_ms)


async def test_a_heartbeat_is_sent_three_times_in_a_lease() -> None:
    """Every third of the TTL, whether anything is pinned or not; none announces what is known."""
    async with rig(service=ListeningService()) as r:
        await r.clock.rest()
        began = r.clock.monotonic()
        await r.clock.advance(4 * TTL_S)
        assert [i * INTERVAL_S for i in range(13)] == [at - began for at in heard(r).beat_times]
        assert [None] * 12 == [beat.pins for _, beat in heard(r).beats[1:]]
        assert [False] * 12 == [beat.register_new for _, beat in heard(r).beats[1:]]


async def test_a_lease_is_counted_from_the_send() -> None:
    """The request is slow: the holder counts from when it sent it, the registry from when it heard of it."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        async with pin(r, span_id) as pinned:
            r.transport.requests.hold()
            await r.clock.advance(INTERVAL_S)
            sent_at = r.clock.monotonic()
            await r.clock.advance(1.5)
            r.transport.requests.release()
            await r.clock.rest()
            ends_at = (known(r).ends_ms or 0) / 1000
            assert sent_at + 1.5 + TTL_S == ends_at
            r.transport.cut()
            r.clock.jump(sent_at + TTL_S - 0.001 - r.clock.monotonic())
            assert pinned.proven
            r.clock.jump(0.001)
            assert not pinned.proven
            assert r.clock.monotonic() < ends_at
            r.transport.mend()


async def test_a_lost_answer_does_not_lose_the_lease() -> None:
    """One heartbeat in a lease may go unanswered, and the next one too."""
    async with rig(service=ListeningService(), **PATIENT) as r:
        span_id = await r.leaf()
        async with pin(r, span_id) as pinned:
            r.transport.parts.lose(1)
            await r.clock.advance(2 * TTL_S)
            assert 1 == r.transport.parts.lost
            assert pinned.proven
            assert 1 == sum(beat.register_new for _, beat in heard(r).beats)


async def test_heartbeats_confirm_the_head_for_free() -> None:
    """Anti-entropy: the head in the answer is a confirmation, and no sync is asked for."""
    async with rig(**PATIENT) as r:
        await r.leaf()
        asked = r.service.asked[Verb.SYNC]
        await r.clock.advance(50)
        assert asked == r.service.asked[Verb.SYNC]
        assert r.context.confirmed_age_s <= INTERVAL_S


async def test_a_heartbeat_finds_a_lost_bump() -> None:
    """I6: the head in the answer is another one: asked for at once, long before the timer."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        r.transport.bumps.lose(1)
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        await r.clock.rest()
        assert 1 == r.context.tree.nodes[span_id].version
        await r.clock.advance(INTERVAL_S)
        assert 2 == r.context.tree.nodes[span_id].version


async def test_heartbeats_keep_a_holder_serving_in_an_outage_of_bumps_only() -> None:
    """The staleness bound is met by heartbeats alone."""
    async with rig(sync_interval_s=14.0, staleness_bound_s=15.0) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        await r.run(r.context.resolve(pointer))
        r.transport.bumps.lose()
        await r.clock.advance(13.9)
        asked = r.service.asked[Verb.SYNC]
        await r.run(r.context.resolve(pointer))
        assert asked == r.service.asked[Verb.SYNC]
        assert r.context.confirmed_age_s <= INTERVAL_S


async def test_the_lease_is_kept_through_an_outage_shorter_than_it() -> None:
    """Nothing passes for half a lease: never unproven, and the next heartbeat goes on."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        async with pin(r, span_id) as pinned:
            r.transport.cut()
            await r.clock.advance(TTL_S / 2)
            r.transport.mend()
            for _ in range(int(TTL_S)):
                await r.clock.advance(1)
                assert pinned.proven
            assert 1 == sum(beat.register_new for _, beat in heard(r).beats)


async def slow(r: Rig, seconds: float) -> None:
    """Lets one answer of the service pass, as late as that."""
    r.transport.parts.hold()
    await r.clock.advance(seconds)
    r.transport.parts.release()
    r.transport.parts.hold()
    await r.clock.rest()


async def test_a_long_line_of_pins_does_not_keep_the_lease_from_being_renewed() -> None:
    """A hundred pins asked for at once, of a service that takes half a second for each: the lease goes on."""
    async with rig(service=ListeningService(), **PATIENT) as r, AsyncExitStack() as stack:
        spans = await r.leaves(*(f"span {i}" for i in range(100)))
        first = await stack.enter_async_context(pin(r, spans[0]))
        scopes = [r.context.pin(span_id) for span_id in spans[1:]]
        entering = asyncio.gather(*(scope.__aenter__() for scope in scopes))
        began = r.clock.monotonic()
        while not entering.done():
            await slow(r, 0.5)
            assert first.proven
        assert r.clock.monotonic() - began > 3 * TTL_S
        assert 1 == sum(beat.register_new for _, beat in heard(r).beats)
        assert len(heard(r).beats) < 4 * (r.clock.monotonic() - began) / INTERVAL_S
        leaving = asyncio.gather(*(scope.__aexit__(None, None, None) for scope in scopes))
        while not leaving.done():
            await slow(r, 0.5)
            assert first.proven
        r.transport.parts.release()
        assert {(spans[0], 1)} == set(held(r))


async def test_after_a_long_outage_the_lease_begins_anew_by_itself() -> None:
    """Ten leases long nothing passes; then all claims are announced under a new lease, with no bound on tries
    and no flood of them.
    """
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        async with pin(r, span_id, cost=PinCost.EXPENSIVE) as pinned:
            await r.clock.rest()
            r.transport.cut()
            sent = r.transport.requests.lost
            await r.clock.advance(10 * TTL_S)
            assert not pinned.proven
            assert r.transport.requests.lost - sent < 10 * TTL_S
            r.transport.mend()
            await r.clock.advance(INTERVAL_S)
            assert pinned.proven
            assert {(span_id, 1): PinCost.EXPENSIVE} == held(r)


# --- lost by the registry ----------------------------------------------------------------------------


async def test_a_registry_that_was_emptied_hears_all_claims() -> None:
    """C100: at the next heartbeat, without the holder ever having been unproven to itself for long."""
    async with rig(service=ListeningService()) as r:
        spans = await r.leaves("a", "b", "c")
        async with pin(r, spans[0]), pin(r, spans[1], cost=PinCost.IMMOVABLE) as pinned:
            wanted = held(r)
            assert {(spans[0], 1): PinCost.CHEAP, (spans[1], 1): PinCost.IMMOVABLE} == wanted
            r.service.registries.clear()
            await r.clock.advance(INTERVAL_S)
            assert wanted == held(r)
            assert pinned.proven


async def test_a_registry_that_went_back_hears_all_claims() -> None:
    """A fail-over to an older copy: the digest differs, and the whole set is announced. The heartbeat that
    found it out renews nothing.
    """
    async with rig() as r:
        spans = await r.leaves("a", "b", "c")
        async with pin(r, spans[0]):
            older = r.service.registries[CONTEXT].copy()
            async with pin(r, spans[1]) as pinned:
                wanted = held(r)
                book = r.context._keeper._book
                await r.clock.advance(INTERVAL_S / 2)
                before, beats = book.valid_until, r.service.asked[Verb.HEARTBEAT]
                r.service.registries[CONTEXT] = older
                await r.clock.advance(INTERVAL_S / 2)
                assert beats + 1 == r.service.asked[Verb.HEARTBEAT]
                assert (before, {(spans[0], 1)}) == (book.valid_until, set(held(r)))
                assert pinned.proven
                await r.clock.advance(INTERVAL_S / 2)
                assert beats + 2 == r.service.asked[Verb.HEARTBEAT]
                assert wanted == held(r)
                assert before < book.valid_until


async def test_an_older_copy_that_holds_more_hears_what_was_let_go() -> None:
    """The copy still holds what was released since: dropped by the announcement."""
    async with rig() as r:
        spans = await r.leaves("a", "b")
        async with pin(r, spans[0]):
            async with pin(r, spans[1]):
                older = r.service.registries[CONTEXT].copy()
            r.service.registries[CONTEXT] = older
            assert {(spans[0], 1), (spans[1], 1)} == set(held(r))
            await r.clock.advance(2 * INTERVAL_S)
            assert {(spans[0], 1)} == set(held(r))


async def test_a_registry_that_never_agrees_is_no_busy_loop() -> None:
    """Every answer asks for an announcement: sent at a bounded rate, the lease runs out, and nothing pinned
    is served on it.
    """
    async with rig(service=ListeningService()) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        async with pin(r, pointer.span_id) as pinned:
            listening(r).insatiable = True
            beats = len(heard(r).beats)
            await r.clock.advance(4 * TTL_S)
            assert len(heard(r).beats) - beats <= 4 * TTL_S / (INTERVAL_S / 3) + 4
            assert not pinned.proven
            with pytest.raises(Unconfirmed):
                await r.run(r.context.resolve(pointer))
            assert len(heard(r).beats) - beats <= 4 * TTL_S / (INTERVAL_S / 3) + 10
            listening(r).insatiable = False
            await r.clock.advance(INTERVAL_S)
            assert pinned.proven


# --- times that cannot be ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ttl_s", [0, 0.0, -1.0, MIN_TTL_MS / 1000 - 0.001, MAX_TTL_MS / 1000 + 0.001, 365 * 86400.0, float("nan")]
)
def test_a_lease_of_an_impossible_length_is_no_setting(ttl_s: float) -> None:
    """Zero, negative, a year, not a number: said when the settings are made."""
    with pytest.raises(InvalidInput) as caught:
        HolderSettings(lease_ttl_s=ttl_s)
    assert "lease_ttl_s" == caught.value.fields["field"]


@pytest.mark.parametrize("ttl_s", [MIN_TTL_MS / 1000, MAX_TTL_MS / 1000])
async def test_the_shortest_and_the_longest_lease_are_kept(ttl_s: float) -> None:
    """Both ends of what is allowed."""
    async with rig(lease_ttl_s=ttl_s) as r:
        span_id = await r.leaf()
        async with pin(r, span_id) as pinned:
            for _ in range(10):
                await r.clock.advance(ttl_s / 2)
                assert pinned.proven


async def test_no_service_at_all_is_no_busy_loop() -> None:
    """Nobody listens, which is answered at once: tried at the heartbeats' rate."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.stop_workers()
        passed = r.transport.requests.passed
        with pytest.raises(Unavailable):
            await r.run(r.context.pin(span_id, version=1).__aenter__())
        await r.clock.advance(60)
        assert r.transport.requests.passed - passed < 200
        r.transport.start_workers()
        await r.clock.advance(INTERVAL_S)
        assert {} == held(r) == claimed(r)


async def test_a_lease_that_is_too_long_for_the_service_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says so once, asks for the longest there is from then on, and pins hold."""
    beat = MemoryService._heartbeat

    def limited(service: MemoryService, request: HeartbeatRequest) -> LeaseReply:
        if request.ttl_ms > LONGEST_MS:
            raise InvalidInput("too long", field="ttl_ms", limit=LONGEST_MS)
        return beat(service, request)

    monkeypatch.setattr(MemoryService, "_heartbeat", limited)
    with capture_logs() as logs:
        async with rig(service=ListeningService()) as r:
            span_id = await r.leaf()
            async with pin(r, span_id) as pinned:
                beats = len(heard(r).beats)
                await r.clock.advance(LONGEST_MS / 1000)
                assert 3 == len(heard(r).beats) - beats
                assert pinned.proven
                assert {LONGEST_MS} == {beat.ttl_ms for _, beat in heard(r).beats[beats:]}
    assert 1 == sum(line["event"] == "holder.lease_shortened" for line in logs)


@pytest.mark.parametrize(
    "fields",
    [{"field": "other", "limit": LONGEST_MS}, {"field": "ttl_ms", "limit": 1}, {"field": "ttl_ms"}],
    ids=["another field", "no length of a lease", "no limit"],
)
async def test_another_refusal_of_a_heartbeat_shortens_nothing(
    fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No busy loop, and no other length is asked for."""

    def refused(service: MemoryService, request: HeartbeatRequest) -> LeaseReply:
        raise InvalidInput("no", **fields)

    async with rig(service=ListeningService()) as r:
        await r.clock.rest()
        monkeypatch.setattr(MemoryService, "_heartbeat", refused)
        beats = len(heard(r).beats)
        await r.clock.advance(TTL_S)
        assert 0 < len(heard(r).beats) - beats < 12
        assert {int(TTL_S * 1000)} == {beat.ttl_ms for _, beat in heard(r).beats}
