"""Pins on spans that change meanwhile, and pins under artifacts, which move with them."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sexton.core.pins import PinCost
from sexton.holder import CommandRejected, Unreachable, Unsettled
from sexton.schemas.codec import decode
from sexton.schemas.commands import CommandKind
from sexton.schemas.leases import PinRequest
from sexton.schemas.rpc import Verb
from sexton.schemas.span import Strategy
from tests.core_kit.build import rewrite
from tests.holder_kit import CONTEXT, Rig, rig
from tests.leases_kit import PATIENT, ListeningService, claimed, heard, held, pin, rewrite_elsewhere, settled

CHEAP, EXPENSIVE, IMMOVABLE = PinCost.CHEAP, PinCost.EXPENSIVE, PinCost.IMMOVABLE


async def meanwhile(r: Rig, work: Awaitable[object], *changes: Callable[[], Awaitable[object]]) -> None:
    """Does `work`; before each of its pins arrives at the service, one of `changes` is made."""
    task = asyncio.ensure_future(work)
    for change in changes:
        r.transport.requests.hold()
        await r.clock.rest()
        await change()
        r.transport.requests.release()
        await r.clock.rest()
    await r.run(task)


async def test_a_rewrite_between_the_look_and_the_pin() -> None:
    """The pin is on what is current when the block is entered, and no other is left."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        await r.another()
        scope = r.context.pin(span_id, cost=IMMOVABLE)
        await meanwhile(r, scope.__aenter__(), lambda: rewrite_elsewhere(r, span_id, "Ship on Monday."))
        assert {(span_id, 2): IMMOVABLE} == held(r) == claimed(r)


async def test_a_rewrite_while_a_second_pin_waits_for_its_turn() -> None:
    """The version is pinned already, so nobody is asked: the tree is looked at again."""
    async with rig(**PATIENT) as r:
        span_id, other = await r.leaves("a", "b")
        await r.another()
        async with pin(r, span_id):
            await r.clock.rest()
            r.transport.parts.hold()
            busy = asyncio.create_task(r.context.pin(other, version=1).__aenter__())
            await r.clock.rest()
            scope = r.context.pin(span_id)
            entering = asyncio.create_task(scope.__aenter__())
            await r.clock.rest()
            await rewrite_elsewhere(r, span_id)
            r.transport.parts.release()
            await r.run(busy)
            assert 2 == (await r.run(entering)).version
            assert {(span_id, 1), (span_id, 2), (other, 1)} == set(held(r))


async def test_a_rewrite_that_this_holder_has_not_heard_of() -> None:
    """Its bump is lost: the answer to the pin says that the version is not current any more."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        r.transport.bumps.lose()
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        async with pin(r, span_id, cost=IMMOVABLE) as pinned:
            assert 2 == pinned.version
            assert {(span_id, 2): IMMOVABLE} == held(r)


async def test_a_version_that_was_collected_before_this_holder_heard_of_a_newer_one() -> None:
    """The bumps are lost: a pin of the span is one of what it is now, and not refused."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        r.transport.bumps.lose()
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        r.service.collect(CONTEXT, (span_id, 1))
        async with pin(r, span_id) as pinned:
            assert 2 == pinned.version
        assert {} == claimed(r) == held(r)


async def test_a_span_that_was_pruned_before_this_holder_heard_of_it() -> None:
    """There is nothing current to pin: `Unreachable`, and nothing is left."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        await r.another()
        r.transport.bumps.lose()
        other = await r.run(r.others[0].open(CONTEXT))
        await r.run(other.prune(span_id))
        with pytest.raises(Unreachable):
            await r.run(r.context.pin(span_id).__aenter__())
        assert {} == claimed(r) == held(r)


class RestlessService(ListeningService):
    """A span is rewritten whenever somebody is about to pin it."""

    def answer(self, context_id: str, verb: Verb, body: bytes) -> list[bytes]:
        if verb is Verb.PIN:
            span_id = decode(PinRequest, body).pins[0].span_id
            version = self.tree(context_id).nodes[span_id].version
            change = rewrite(f"restless-{version}", span_id, f"version {version + 1}", base_version=version)
            change = change.model_copy(update={"context_id": context_id})
            self.carry_out(context_id, CommandKind.REWRITE, change.wire())
        return super().answer(context_id, verb, body)


@pytest.mark.parametrize("bumps_come", [True, False])
async def test_a_span_that_changes_every_time_is_unsettled(bumps_come: bool) -> None:
    """As often as the bound allows; nothing stays pinned."""
    async with rig(service=RestlessService(), **PATIENT) as r:
        span_id = await r.leaf()
        if not bumps_come:
            r.transport.bumps.lose()
        with pytest.raises(Unsettled):
            await r.run(r.context.pin(span_id, cost=IMMOVABLE).__aenter__())
        assert {} == claimed(r) == held(r)
        with pytest.raises(Unsettled):
            await r.run(r.context.derived(span_id, str.upper, cost=CHEAP).use())
        assert {} == claimed(r) == held(r)
        # An older version named by number is pinned as it is.
        async with pin(r, span_id, version=1) as pinned:
            assert pinned.proven


# --- artifacts ---------------------------------------------------------------------------------------


async def test_an_artifact_is_pinned_before_it_is_made() -> None:
    """C94: while it is being built, its version is held already; an expensive one keeps it over a rewrite."""
    async with rig() as r:
        span_id = await r.leaf()
        seen: list[dict[tuple[str, int], PinCost]] = []

        def build(text: str) -> str:
            seen.append(held(r))
            return text.upper()

        derived = r.context.derived(span_id, build, cost=EXPENSIVE)
        assert {} == held(r)
        assert "SHIP ON FRIDAY." == await r.run(derived.use())
        assert [{(span_id, 1): EXPENSIVE}] == seen
        assert {(span_id, 1): EXPENSIVE} == held(r)


async def test_an_artifact_without_a_cost_pins_nothing() -> None:
    """No cost, no pin."""
    async with rig(service=ListeningService()) as r:
        derived = r.context.derived(await r.leaf(), len)
        await r.run(derived.use())
        assert [] == heard(r).pins


async def test_the_pin_moves_when_the_artifact_is_made_anew() -> None:
    """The old version is held until the new artifact is there, and let go of then."""
    async with rig() as r:
        span_id = await r.leaf()
        derived = r.context.derived(span_id, str.upper, cost=EXPENSIVE)
        await r.run(derived.use())
        assert Strategy.COPY_ON_REWRITE is await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        await r.clock.rest()
        assert {(span_id, 1): EXPENSIVE} == held(r)
        assert "SHIP ON MONDAY." == await r.run(derived.use())
        assert {(span_id, 2): EXPENSIVE} == held(r) == claimed(r)


async def test_both_versions_are_held_while_the_artifact_is_made_anew() -> None:
    """At no time is what is at hand made from bytes that nobody holds."""
    async with rig() as r:
        span_id = await r.leaf()
        seen: list[set[tuple[str, int]]] = []

        def build(text: str) -> str:
            seen.append(set(held(r)))
            return text

        derived = r.context.derived(span_id, build, cost=CHEAP)
        await r.run(derived.use())
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        await r.run(derived.use())
        assert [{(span_id, 1)}, {(span_id, 1), (span_id, 2)}] == seen


async def test_a_build_that_fails_holds_nothing_more() -> None:
    """The first: nothing is held. A later one: what the artifact at hand was made from."""
    async with rig() as r:
        span_id = await r.leaf()
        fails = True

        def build(text: str) -> str:
            if fails:
                raise ValueError(text)
            return text

        derived = r.context.derived(span_id, build, cost=IMMOVABLE)
        with pytest.raises(ValueError, match="Ship on Friday"):
            await r.run(derived.use())
        assert {} == held(r) == claimed(r)
        fails = False
        await r.run(derived.use())
        fails = True
        with pytest.raises(CommandRejected):
            await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        assert {(span_id, 1): IMMOVABLE} == held(r)


async def test_a_use_that_is_cancelled_while_it_builds_holds_nothing() -> None:
    """C108: the pin for the artifact that never came is let go of."""
    async with rig() as r:
        span_id = await r.leaf()
        never = asyncio.Event()

        async def build(_: str) -> None:
            await never.wait()

        using = asyncio.create_task(r.context.derived(span_id, build, cost=CHEAP).use())
        await r.clock.rest()
        assert {(span_id, 1)} == set(held(r))
        using.cancel()
        with pytest.raises(asyncio.CancelledError):
            await using
        assert {} == claimed(r)
        await settled(r)


async def test_concurrent_uses_share_one_build_and_one_pin() -> None:
    """Single flight, with its pin."""
    async with rig(service=ListeningService()) as r:
        derived = r.context.derived(await r.leaf(), str.upper, cost=CHEAP)
        values = await r.run(asyncio.gather(*(derived.use() for _ in range(10))))
        assert (["SHIP ON FRIDAY."] * 10, 1) == (values, derived.builds)
        assert 1 == len(heard(r).pins)


async def test_an_artifact_that_is_closed_lets_go() -> None:
    """And is made anew, with its pin, at the next use."""
    async with rig() as r:
        span_id = await r.leaf()
        derived = r.context.derived(span_id, str.upper, cost=EXPENSIVE)
        await r.run(derived.use())
        await r.run(derived.close())
        assert {} == held(r)
        assert Strategy.INVALIDATE_AND_REKEY is await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        assert "SHIP ON MONDAY." == await r.run(derived.use())
        assert {(span_id, 2): EXPENSIVE} == held(r)


async def test_an_artifact_of_a_version_that_is_gone_is_made_from_the_new_one() -> None:
    """Rewritten and collected before this holder heard of it: neither refused, nor made from old bytes."""
    async with rig(**PATIENT) as r:
        span_id = await r.leaf()
        await r.run(r.context.resolve(await r.run(r.context.mint(span_id))))  # in memory
        r.transport.bumps.lose()
        await rewrite_elsewhere(r, span_id, "Ship on Monday.")
        derived = r.context.derived(span_id, str.upper, cost=CHEAP)
        assert "SHIP ON MONDAY." == await r.run(derived.use())
        assert {(span_id, 2)} == set(held(r))
        await r.run(derived.close())
        await rewrite_elsewhere(r, span_id, "Ship on Tuesday.")
        r.service.collect(CONTEXT, (span_id, 2))
        assert "SHIP ON TUESDAY." == await r.run(derived.use())
        assert {(span_id, 3)} == set(held(r))


async def test_artifacts_of_one_version_share_its_pin() -> None:
    """Two artifacts and a block, with costs of their own: the highest counts."""
    async with rig() as r:
        span_id = await r.leaf()
        cheap = r.context.derived(span_id, len, cost=CHEAP)
        dear = r.context.derived(span_id, str.upper, cost=EXPENSIVE)
        await r.run(cheap.use())
        await r.run(dear.use())
        assert {(span_id, 1): EXPENSIVE} == held(r)
        await r.run(dear.close())
        assert {(span_id, 1): CHEAP} == held(r)
