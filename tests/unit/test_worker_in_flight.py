"""Handlers in flight: finished within the grace time, or interrupted."""

import asyncio

import pytest

from sexton.worker.in_flight import InFlight, Interrupted
from tests.support.waiting import deadline


async def test_what_runs_is_waited_for() -> None:
    """It is not interrupted, and there is nothing left then."""
    work, go_on = InFlight(), asyncio.Event()

    async def handle() -> str:
        async with work.one():
            await go_on.wait()
        return "done"

    async with deadline(5):
        handling = asyncio.create_task(handle())
        await asyncio.sleep(0)
        finishing = asyncio.create_task(work.finish(3600))
        await asyncio.sleep(0)
        assert not finishing.done()
        go_on.set()
        assert 0 == await finishing
        assert "done" == await handling


async def test_what_takes_longer_is_interrupted() -> None:
    """When the grace time is over; and nothing begins any more."""
    work = InFlight()

    async def handle() -> None:
        async with work.one():
            await asyncio.Event().wait()

    async with deadline(5):
        handling = asyncio.create_task(handle())
        await asyncio.sleep(0)
        assert 1 == await work.finish(0.01)
        with pytest.raises(Interrupted):
            await handling
        with pytest.raises(Interrupted):
            await handle()


async def test_hurry_ends_the_grace_time() -> None:
    """Also if it comes before anything is waited for."""
    for early in (True, False):
        work = InFlight()

        async def handle(work: InFlight = work) -> None:
            async with work.one():
                await asyncio.Event().wait()

        async with deadline(5):
            handling = asyncio.create_task(handle())
            await asyncio.sleep(0)
            if early:
                work.hurry()
            finishing = asyncio.create_task(work.finish(3600))
            await asyncio.sleep(0)
            work.hurry()
            assert 1 == await finishing
            assert isinstance((await asyncio.gather(handling, return_exceptions=True))[0], Interrupted)


async def test_what_does_not_let_go_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler that swallows its interruption holds up nothing for long."""
    monkeypatch.setattr("sexton.worker.in_flight._LET_GO_S", 0.01)
    work, go_on = InFlight(), asyncio.Event()

    async def handle() -> None:
        async with work.one():
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await go_on.wait()

    async with deadline(5):
        handling = asyncio.create_task(handle())
        await asyncio.sleep(0)
        assert 1 == await work.finish(0.01)
        go_on.set()
        await handling


async def test_a_time_out_of_the_handler_is_its_own() -> None:
    """It is no interruption."""
    work = InFlight()
    with pytest.raises(TimeoutError):
        async with work.one():
            raise TimeoutError


async def test_who_cancels_a_handler_does_not_interrupt_it() -> None:
    """A cancellation from outside passes."""
    work = InFlight()

    async def handle() -> None:
        async with work.one():
            await asyncio.Event().wait()

    handling = asyncio.create_task(handle())
    await asyncio.sleep(0)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    async with deadline(5):
        assert 0 == await work.finish(3600)
