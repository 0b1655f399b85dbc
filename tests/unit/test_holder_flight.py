"""Single flight: who shares whose call."""

import asyncio

import pytest

from sexton.holder.flight import SingleFlight
from tests.support.waiting import deadline


class Call:
    """A call that ends when it is told to."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> None:
        self.begun += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_who_comes_while_a_call_is_made_shares_it() -> None:
    """Ten callers that take any answer make one call."""
    flight, call = SingleFlight(), Call()
    callers = [asyncio.create_task(flight.run(call, fresh=False)) for _ in range(10)]
    await settled()
    call.gate.set()
    async with deadline(5):
        await asyncio.gather(*callers)
    assert 1 == call.begun


async def test_who_needs_a_fresh_answer_shares_the_next_call() -> None:
    """A call in flight may have been answered before what the later caller must see: one more is made."""
    flight, call = SingleFlight(), Call()
    first = asyncio.create_task(flight.run(call, fresh=True))
    await settled()
    later = [asyncio.create_task(flight.run(call, fresh=True)) for _ in range(10)]
    await settled()
    call.gate.set()
    async with deadline(5):
        await asyncio.gather(first, *later)
    assert 2 == call.begun


async def test_one_after_another_makes_a_call_each() -> None:
    """Nothing is shared with a call that is over."""
    flight, call = SingleFlight(), Call()
    call.gate.set()
    for fresh in (True, False, True, False):
        await flight.run(call, fresh=fresh)
    assert 4 == call.begun


async def test_all_who_shared_get_the_error() -> None:
    """A failing model call is made once, not once for each who waits."""
    flight, call = SingleFlight(), Call()
    call.error = RuntimeError("no")
    callers = [asyncio.create_task(flight.run(call, fresh=False)) for _ in range(5)]
    await settled()
    call.gate.set()
    async with deadline(5):
        results = await asyncio.gather(*callers, return_exceptions=True)
    assert (1, [call.error] * 5) == (call.begun, results)
    call.error = None
    await flight.run(call, fresh=False)
    assert 2 == call.begun


async def test_a_cancelled_caller_hands_over() -> None:
    """If whoever makes the call is cancelled, the next in line makes it."""
    flight, call = SingleFlight(), Call()
    first = asyncio.create_task(flight.run(call, fresh=False))
    await settled()
    second = asyncio.create_task(flight.run(call, fresh=False))
    await settled()
    first.cancel()
    await settled()
    assert 2 == call.begun
    call.gate.set()
    async with deadline(5):
        await second
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_cancelled_waiter_disturbs_nobody() -> None:
    """Who only waited can go."""
    flight, call = SingleFlight(), Call()
    first = asyncio.create_task(flight.run(call, fresh=False))
    await settled()
    waiter = asyncio.create_task(flight.run(call, fresh=True))
    await settled()
    waiter.cancel()
    call.gate.set()
    async with deadline(5):
        await first
    assert 1 == call.begun
