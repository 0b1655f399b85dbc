"""Pins from the holder's side: taken before anything is handed out, refused, and counted."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Any

import pytest

from sexton.core.pins import PinCost
from sexton.holder import CommandRejected, PinRefused, Unavailable, Unreachable
from sexton.schemas.errors import InvalidInput, TooManyPins
from sexton.schemas.leases import PinRefusal
from sexton.schemas.outcome import RejectionCode
from sexton.schemas.span import SpanState, Strategy
from tests.holder_kit import CONTEXT, Rig, rig
from tests.leases_kit import ListeningService, claimed, heard, held, pin, rewrite_elsewhere, settled

CHEAP, EXPENSIVE, IMMOVABLE = PinCost.CHEAP, PinCost.EXPENSIVE, PinCost.IMMOVABLE


async def test_a_block_is_entered_with_the_pin_in_place() -> None:
    """C94: registered before anything is handed out, and let go of at the end."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        r.transport.parts.hold()
        entering = asyncio.create_task(r.context.pin(span_id, cost=EXPENSIVE).__aenter__())
        await r.clock.rest()
        assert {(span_id, 1): EXPENSIVE} == held(r)
        assert not entering.done()
        r.transport.parts.release()
        pinned = await r.run(entering)
        assert (span_id, 1, True) == (pinned.span_id, pinned.version, pinned.proven)
    async with rig() as r:
        span_id = await r.leaf()
        async with pin(r, span_id) as pinned:
            assert {(span_id, 1): CHEAP} == held(r)
        assert {} == held(r) == claimed(r)
        assert not pinned.proven


async def test_the_pin_is_let_go_of_when_the_block_fails() -> None:
    """However the block ends."""
    async with rig() as r:
        span_id = await r.leaf()
        with pytest.raises(ZeroDivisionError):
            async with r.context.pin(span_id):
                _ = 1 // 0
        assert {} == held(r) == claimed(r)


async def test_a_pin_taken_before_the_first_heartbeat() -> None:
    """The registry knows no lease yet: registered and pinned in one go."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        context = (await r.another())[1]
        async with pin(r, span_id, context=context, version=1) as pinned:
            assert pinned.proven


async def test_a_pin_under_a_lease_that_the_registry_has_just_lost() -> None:
    """Registered anew, with all pins, before the block is entered."""
    async with rig() as r:
        spans = await r.leaves("a", "b")
        async with pin(r, spans[0], cost=EXPENSIVE) as first:
            r.service.registries.clear()
            async with pin(r, spans[1], version=1) as second:
                assert {(spans[0], 1): EXPENSIVE, (spans[1], 1): CHEAP} == held(r)
                assert first.proven
                assert second.proven


async def test_an_older_version_can_be_pinned_while_it_is_kept() -> None:
    """A tombstone that nobody has announced: its bytes are there."""
    async with rig() as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        async with pin(r, span_id, cost=EXPENSIVE):
            assert Strategy.COPY_ON_REWRITE is await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        async with pin(r, span_id, version=1) as old, pin(r, span_id) as new:
            assert (1, 2) == (old.version, new.version)
            assert {(span_id, 1): CHEAP, (span_id, 2): CHEAP} == held(r)
            resolved = await r.run(r.context.resolve(pointer, accept_superseded=True))
            assert ("Ship on Friday.", True) == (resolved.text, resolved.superseded)


async def test_a_covered_leaf_and_its_summary_can_be_pinned() -> None:
    """Any level, in the view or covered."""
    async with rig() as r:
        sources = await r.leaves("a long text", "and another long text")
        await r.run(r.context.compact(sources, "sum", name="sum"))
        async with pin(r, sources[0]) as leaf, pin(r, "l1:sum") as summary:
            assert leaf.proven
            assert summary.proven


async def test_one_scope_holds_one_pin() -> None:
    """Entered again while it holds: said, for the first pin would never be let go of."""
    async with rig() as r:
        scope = r.context.pin(await r.leaf())
        await r.run(scope.__aenter__())
        with pytest.raises(InvalidInput):
            await r.run(scope.__aenter__())
        await r.run(scope.__aexit__(None, None, None))
        assert {} == held(r)
        # One after the other is fine.
        await r.run(scope.__aenter__())
        await r.run(scope.__aexit__(None, None, None))
        assert {} == held(r)


# --- refused -----------------------------------------------------------------------------------------


async def refused(r: Rig, span_id: str, version: int) -> PinRefused:
    """The refusal of a pin; nothing is left of it."""
    with pytest.raises(PinRefused) as caught:
        await r.run(r.context.pin(span_id, version=version).__aenter__())
    assert (span_id, version) == (caught.value.fields["span_id"], caught.value.fields["version"])
    assert {} == claimed(r) == held(r)
    await settled(r)
    return caught.value


async def test_an_unknown_span_cannot_be_pinned() -> None:
    """Named with or without a version."""
    async with rig() as r:
        with pytest.raises(Unreachable):
            await r.run(r.context.pin("l0:nowhere").__aenter__())
        refusal = await refused(r, "l0:nowhere", 1)
        assert (PinRefusal.UNKNOWN, None) == (refusal.fields["reason"], refusal.fields["current"])


async def test_a_future_version_cannot_be_pinned() -> None:
    """There is none yet; what there is comes with the refusal."""
    async with rig() as r:
        refusal = await refused(r, await r.leaf(), 2)
        assert PinRefusal.UNKNOWN == refusal.fields["reason"]
        assert 1 == refusal.fields["current"].version


async def test_a_version_being_collected_cannot_be_pinned() -> None:
    """Announced: refused, until it is called off."""
    async with rig() as r:
        span_id = await r.leaf()
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        r.service.announce(CONTEXT, (span_id, 1))
        assert PinRefusal.COLLECTING == (await refused(r, span_id, 1)).fields["reason"]
        r.service.call_off(CONTEXT, (span_id, 1))
        async with pin(r, span_id, version=1) as pinned:
            assert pinned.proven


async def test_a_collected_version_cannot_be_pinned() -> None:
    """Its bytes are gone."""
    async with rig() as r:
        span_id = await r.leaf()
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        r.service.collect(CONTEXT, (span_id, 1))
        refusal = await refused(r, span_id, 1)
        assert PinRefusal.COLLECTED == refusal.fields["reason"]
        assert (2, SpanState.LIVE) == (refusal.fields["current"].version, refusal.fields["current"].state)


async def test_a_refusal_leaves_other_pins_as_they_are() -> None:
    """Only what was asked for is refused."""
    async with rig() as r:
        spans = await r.leaves("a", "b")
        async with pin(r, spans[0], cost=EXPENSIVE) as pinned:
            with pytest.raises(PinRefused):
                await r.run(r.context.pin(spans[1], version=9).__aenter__())
            assert pinned.proven
            assert {(spans[0], 1): EXPENSIVE} == claimed(r) == held(r)
            await settled(r)
            assert pinned.proven


async def test_too_many_pins_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the limit: said before anything is asked for; further uses of what is pinned are no more pins."""
    monkeypatch.setattr("sexton.holder.lease.MAX_PINS", 8)
    async with rig(service=ListeningService()) as r, AsyncExitStack() as stack:
        spans = await r.leaves(*"abcdefghi")
        for span_id in spans[:8]:
            await stack.enter_async_context(pin(r, span_id))
        asked = len(heard(r).pins)
        with pytest.raises(TooManyPins) as caught:
            await r.run(r.context.pin(spans[8]).__aenter__())
        assert 8 == caught.value.fields["limit"]
        assert asked == len(heard(r).pins)
        async with pin(r, spans[0]):
            assert 8 == len(held(r))
        await stack.aclose()
        async with pin(r, spans[8]) as pinned:
            assert pinned.proven


async def test_the_service_refuses_too_many_pins_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its limit is its own: a typed error, and nothing is pinned by that."""
    monkeypatch.setattr("sexton.core.registry.RegistryState.pin.__defaults__", (2,))
    async with rig() as r:
        spans = await r.leaves("a", "b", "c")
        async with pin(r, spans[0]), pin(r, spans[1]) as pinned:
            with pytest.raises(TooManyPins):
                await r.run(r.context.pin(spans[2]).__aenter__())
            await settled(r)
            assert {(spans[0], 1), (spans[1], 1)} == set(held(r))
            assert pinned.proven


# --- counted -----------------------------------------------------------------------------------------


async def test_uses_of_one_version_share_a_pin() -> None:
    """Asked for once; the last use lets go."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        async with pin(r, span_id) as first:
            async with pin(r, span_id) as second:
                assert 1 == len(heard(r).pins)
            assert first.proven
            assert not second.proven
            assert {(span_id, 1): CHEAP} == held(r)
            assert [] == heard(r).releases
        assert 1 == len(heard(r).releases)
        assert {} == held(r)


async def test_the_highest_cost_class_of_all_uses_counts() -> None:
    """Raised when a dearer use begins, lowered when the last of them ends, whatever the order."""
    async with rig() as r:
        span_id = await r.leaf()
        async with AsyncExitStack() as cheap, AsyncExitStack() as dear, AsyncExitStack() as dearest:
            await cheap.enter_async_context(pin(r, span_id, cost=CHEAP))
            assert {(span_id, 1): CHEAP} == held(r)
            await dearest.enter_async_context(pin(r, span_id, cost=IMMOVABLE))
            assert {(span_id, 1): IMMOVABLE} == held(r)
            await dear.enter_async_context(pin(r, span_id, cost=EXPENSIVE))
            assert {(span_id, 1): IMMOVABLE} == held(r)
            await cheap.aclose()
            assert {(span_id, 1): IMMOVABLE} == held(r)
            await dearest.aclose()
            assert {(span_id, 1): EXPENSIVE} == held(r) == claimed(r)
            await cheap.enter_async_context(pin(r, span_id, cost=CHEAP))
            await dear.aclose()
            assert {(span_id, 1): CHEAP} == held(r) == claimed(r)
        assert {} == held(r)
        await settled(r)


@pytest.mark.parametrize("how", ["refused", "no answer", "cancelled"])
async def test_a_raise_that_fails_leaves_the_cost_class_as_it_was(how: str) -> None:
    """A cheap pin is to become immovable, and does not: it does not stay immovable for the registry."""
    async with rig() as r:
        span_id = await r.leaf()
        async with pin(r, span_id, cost=CHEAP) as pinned:
            raising = r.context.pin(span_id, version=1, cost=IMMOVABLE)
            if how == "cancelled":
                r.transport.parts.hold()
                task = asyncio.create_task(raising.__aenter__())
                await r.clock.rest()
                assert {(span_id, 1): IMMOVABLE} == held(r)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                r.transport.parts.release()
            elif how == "no answer":
                r.transport.parts.lose()
                with pytest.raises(Unavailable):
                    await r.run(raising.__aenter__())
                r.transport.parts.work()
            else:
                await rewrite_elsewhere(r, span_id, "Ship on Monday.")
                r.service.announce(CONTEXT, (span_id, 1))
                with pytest.raises(PinRefused):
                    await r.run(raising.__aenter__())
                await settled(r)
                assert {} == held(r)
                assert not pinned.proven
                return
            assert {(span_id, 1): CHEAP} == claimed(r)
            await settled(r)
            assert {(span_id, 1): CHEAP} == held(r)
            assert pinned.proven
            assert Strategy.INVALIDATE_AND_REKEY is await rewrite_elsewhere(r, span_id, "Ship on Monday.")


# --- what pins do to commands ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "strategy"),
    [
        (None, Strategy.INVALIDATE_AND_REKEY),
        (CHEAP, Strategy.INVALIDATE_AND_REKEY),
        (EXPENSIVE, Strategy.COPY_ON_REWRITE),
    ],
)
async def test_live_pins_decide_what_a_rewrite_does(cost: PinCost | None, strategy: Strategy) -> None:
    """In the outcome, in the record, and at who reads the old version."""
    async with rig() as r, AsyncExitStack() as stack:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        if cost is not None:
            await stack.enter_async_context(pin(r, span_id, cost=cost))
        assert strategy is await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        assert strategy == r.service.log(CONTEXT)[-1].strategy  # type: ignore[union-attr]
        await r.clock.rest()
        if strategy is Strategy.COPY_ON_REWRITE:
            resolved = await r.run(r.context.resolve(pointer, accept_superseded=True))
            assert ("Ship on Friday.", True) == (resolved.text, resolved.superseded)


async def test_an_immovable_pin_refuses_by_name() -> None:
    """C37: rewrite, prune and compaction, naming the span; and all three once it is let go of."""
    async with rig() as r:
        spans = await r.leaves("a long text", "another long text")
        other = (await r.another())[1]
        async with pin(r, spans[1], cost=IMMOVABLE):
            works: list[Coroutine[Any, Any, object]] = [
                other.rewrite(spans[1], "new"),
                other.prune(spans[1]),
                other.compact(spans, "sum"),
            ]
            for work in works:
                with pytest.raises(CommandRejected) as caught:
                    await r.run(work)
                outcome = caught.value.outcome
                assert RejectionCode.IMMOVABLE is outcome.code
                assert [spans[1]] == [span.span_id for span in outcome.spans]
        await r.run(other.rewrite(spans[1], "rewritten, and long"))
        await r.run(other.compact(spans, "sum"))
