"""The clock of the tests, and what a holder makes of time."""

import asyncio

import pytest

from sexton.holder.clock import SystemClock, backoff, spread
from sexton.holder.testing import ManualClock, NothingToWaitFor


async def test_time_passes_only_as_told() -> None:
    """A sleeper wakes at its time and not before, in the order of the times."""
    clock, woke = ManualClock(), []

    async def sleeper(seconds: float) -> None:
        await clock.sleep(seconds)
        woke.append((seconds, clock.monotonic() - 1000))

    tasks = [asyncio.create_task(sleeper(s)) for s in (3, 1, 2)]
    await clock.advance(2.5)
    assert [(1, 1), (2, 2)] == woke
    await clock.advance(0.5)
    assert [(1, 1), (2, 2), (3, 3)] == woke
    await asyncio.gather(*tasks)


async def test_a_timeout_goes_by_the_clock() -> None:
    """The block is left with `TimeoutError` at its time; one that ends before leaves nothing behind."""
    clock = ManualClock()

    async def bounded() -> None:
        async with clock.timeout(5):
            await asyncio.Event().wait()

    async def quick() -> str:
        async with clock.timeout(5):
            return "done"

    assert "done" == await clock.run(quick())
    with pytest.raises(TimeoutError):
        await clock.run(bounded())
    assert 1005 == clock.monotonic()


async def test_waiting_for_nothing_is_an_error() -> None:
    """A test that would hang says so at once, and what it ran is cancelled."""
    cancelled = asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with pytest.raises(NothingToWaitFor):
        await ManualClock().run(forever())
    assert cancelled.is_set()


async def test_a_jump_wakes_nobody() -> None:
    """The time moves on while the loop stands still; timers find out when it goes on."""
    clock = ManualClock()
    sleeper = asyncio.create_task(clock.sleep(1))
    await clock.rest()
    clock.jump(10)
    await clock.rest()
    assert not sleeper.done()
    await clock.advance(0)
    assert sleeper.done()


async def test_the_systems_clock_is_one() -> None:
    """It goes forward, sleeps and times out."""
    clock = SystemClock()
    before = clock.monotonic()
    await clock.sleep(0)
    assert before <= clock.monotonic()
    with pytest.raises(TimeoutError):
        async with clock.timeout(0):
            await asyncio.Event().wait()


def test_waits_are_spread_and_bounded() -> None:
    """Jitter stays within its share, a backoff within its cap."""
    assert all(8 <= spread(10, 0.2) <= 12 for _ in range(100))
    assert 10 == spread(10, 0)
    assert all(0 <= backoff(attempt, 0.1, 2) <= 2 for attempt in range(100))
