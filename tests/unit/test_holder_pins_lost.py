"""Pins whose messages are lost, late, doubled or reordered, and whose askers are cancelled."""

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from sexton.core.pins import PinCost
from sexton.holder import Unavailable, Unconfirmed
from sexton.holder.pins import Pinned, PinScope
from sexton.holder.testing import Channel
from sexton.schemas.rpc import Verb
from tests.holder_kit import CONTEXT, Rig, rig
from tests.leases_kit import ListeningService, claimed, heard, held, pin, settled

CHEAP, EXPENSIVE, IMMOVABLE = PinCost.CHEAP, PinCost.EXPENSIVE, PinCost.IMMOVABLE


async def test_a_pin_whose_answer_is_lost_is_asked_for_again_under_its_number() -> None:
    """C93: the same operation; done twice it counts once."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        await r.clock.rest()
        r.transport.parts.lose(1)
        async with pin(r, span_id) as pinned:
            assert pinned.proven
            assert 2 == len(heard(r).pins)
            assert 1 == len({request.operation for request in heard(r).pins})
            assert {(span_id, 1): CHEAP} == held(r)
        assert {} == held(r)


async def test_a_pin_without_an_answer_is_not_held() -> None:
    """It was registered, and the holder does not know: said with the next heartbeat, long before the lease
    ends.
    """
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        r.transport.parts.lose()
        with pytest.raises(Unavailable):
            await r.run(r.context.pin(span_id, cost=IMMOVABLE, version=1).__aenter__())
        assert {(span_id, 1): IMMOVABLE} == held(r)
        r.transport.parts.work()
        await settled(r)
        assert {} == held(r)


async def test_a_release_without_an_answer_is_made_good() -> None:
    """Lost on its way, all tries of it: leaving the block does not raise, and the next heartbeat tells."""
    async with rig() as r:
        span_id = await r.leaf()
        async with pin(r, span_id):
            await r.clock.rest()
            r.transport.requests.lose()
        assert {(span_id, 1)} == set(held(r))
        assert {} == claimed(r)
        r.transport.requests.work()
        await settled(r)
        assert {} == held(r)


async def test_a_pin_that_is_cancelled_in_flight_leaves_nothing() -> None:
    """C108: it had been registered: announced away at once, and not kept by the lease for ever."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        r.transport.parts.hold()
        entering = asyncio.create_task(r.context.pin(span_id).__aenter__())
        await r.clock.rest()
        assert {(span_id, 1)} == set(held(r))
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        r.transport.parts.release()
        await settled(r)
        assert {} == held(r)


async def test_a_pin_that_is_cancelled_before_it_arrives_leaves_nothing() -> None:
    """C108: its request arrives after the holder has announced that it holds nothing."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.clock.rest()
        r.transport.requests.hold()
        entering = asyncio.create_task(r.context.pin(span_id, version=1).__aenter__())
        await r.clock.rest()
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        await r.clock.rest()
        r.transport.requests.release(lambda waiting: waiting[::-1])
        await settled(r)
        assert {} == held(r)


async def test_a_release_that_is_cancelled_in_flight_leaves_nothing() -> None:
    """C108: lost, and cancelled before that is known."""
    async with rig() as r:
        span_id = await r.leaf()
        scope = r.context.pin(span_id)
        await r.run(scope.__aenter__())
        await r.clock.rest()
        r.transport.requests.lose()
        leaving = asyncio.create_task(scope.__aexit__(None, None, None))
        await r.clock.rest()
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        r.transport.requests.work()
        await settled(r)
        assert {} == held(r)


async def test_a_release_that_is_cancelled_while_it_waits_for_its_turn_leaves_nothing() -> None:
    """C108: another operation is under way in an outage; nobody else would ever let go of this one."""
    async with rig() as r:
        spans = await r.leaves("a", "b", "c")
        cheap, dear = r.context.pin(spans[0]), r.context.pin(spans[1], cost=IMMOVABLE)
        await r.run(cheap.__aenter__())
        async with pin(r, spans[1]):
            await r.run(dear.__aenter__())
            await r.clock.rest()
            r.transport.requests.lose()
            busy = asyncio.create_task(r.context.pin(spans[2], version=1).__aenter__())
            await r.clock.rest()
            leaving = [asyncio.create_task(scope.__aexit__(None, None, None)) for scope in (cheap, dear)]
            await r.clock.rest()
            for task in leaving:
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            with pytest.raises(Unavailable):
                await r.run(busy)
            r.transport.requests.work()
            await settled(r)
            assert {(spans[1], 1): CHEAP} == held(r)


async def test_an_old_message_about_a_pin_arrives_after_it_was_taken_again() -> None:
    """C93: a release, and then its copy, late: ignored by its number, and the pin stays."""
    async with rig(service=ListeningService()) as r:
        span_id = await r.leaf()
        async with pin(r, span_id):
            pass
        async with pin(r, span_id) as pinned:
            old = heard(r).releases[0]
            r.service.answer(CONTEXT, Verb.RELEASE, old.wire())
            assert {(span_id, 1)} == set(held(r))
            r.service.answer(CONTEXT, Verb.PIN, heard(r).pins[0].wire())
            await settled(r)
            assert pinned.proven
        r.service.answer(CONTEXT, Verb.PIN, heard(r).pins[1].wire())
        assert {} == held(r)


@dataclass
class Storm:
    """Everything that may happen to pins, one thing at a time, at random."""

    r: Rig
    spans: list[str]
    chance: random.Random
    held: list[tuple[PinScope, asyncio.Task[Pinned]]] = field(default_factory=list)

    async def step(self) -> None:
        """Does one thing, and lets what is in memory come to rest."""
        steps = [self.pin, self.pin, self.pin, self.leave, self.leave, self.lose, self.hold, self.stir]
        step = self.chance.choice([*steps, self.wait])
        await step()
        await self.r.clock.rest()
        keeper, there = self.r.context._keeper, held(self.r)
        for version, uses in keeper._uses.items():
            assert version in there or not any(keeper.is_proven(use) for use in uses)

    async def pin(self) -> None:
        span_id, cost = self.chance.choice(self.spans), self.chance.choice(list(PinCost))
        scope = self.r.context.pin(span_id, cost=cost, version=1)
        self.held.append((scope, asyncio.create_task(scope.__aenter__())))

    async def leave(self) -> None:
        """Ends a block, entered or not, and perhaps does not wait for the end."""
        if not self.held:
            return
        scope, entering = self.held.pop(self.chance.randrange(len(self.held)))
        entering.cancel()
        await asyncio.wait([entering])
        leaving = asyncio.create_task(scope.__aexit__(None, None, None))
        if self.chance.random() < 0.5:
            await asyncio.sleep(0)
            leaving.cancel()
        await self.r.run(asyncio.wait([leaving]))

    async def lose(self) -> None:
        self._channel().lose(1)

    async def hold(self) -> None:
        self._channel().hold()

    async def stir(self) -> None:
        """Releases what is held, in any order, and doubles what comes, or not."""
        for channel in (self.r.transport.parts, self.r.transport.requests):
            channel.release(lambda waiting: self.chance.sample(waiting, len(waiting)))
            channel.repeat(self.chance.randrange(1, 3))

    async def wait(self) -> None:
        await self.r.clock.advance(self.chance.random() * 2)

    def _channel(self) -> Channel:
        return self.r.transport.parts if self.chance.random() < 0.5 else self.r.transport.requests


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_to_the_messages_both_sides_agree_in_the_end(seed: int) -> None:
    """I4, C93, C108: lost, doubled, reordered, cancelled: what is proven is held, at every moment; and two
    heartbeats after all is quiet, what is in use is held, and nothing else.
    """
    async with rig(lease_ttl_s=6.0) as r:
        storm = Storm(r, await r.leaves(*"abcde"), random.Random(seed))
        for _ in range(60):
            await storm.step()
        r.transport.mend()
        entered = await r.run(asyncio.gather(*(task for _, task in storm.held), return_exceptions=True))
        assert all(isinstance(what, Pinned | Unavailable | Unconfirmed) for what in entered)
        await settled(r)
        assert set(r.context._keeper._uses) == set(held(r))
        for scope, _ in storm.held:
            await r.run(scope.__aexit__(None, None, None))
        await settled(r)
        assert {} == held(r)
