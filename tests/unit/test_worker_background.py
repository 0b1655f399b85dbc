"""Tasks beside the handlers: they end with the program, and their own end is noticed."""

import asyncio

from sexton.worker.background import Background
from sexton.worker.health import Check
from tests.support.waiting import deadline, eventually


async def test_what_must_last_and_has_ended_is_told() -> None:
    """Whether by a fault or by itself: nobody does its work any more."""
    for fault in (True, False):
        background = Background("worker")

        async def work(fault: bool = fault) -> None:
            if fault:
                raise RuntimeError("a bug")

        background.spawn(work(), lasting="the sweeper")
        assert background.check().ok
        await eventually(background.check, until=lambda check: check == Check.failed("the sweeper has ended"))


async def test_other_tasks_may_end() -> None:
    """Also with a fault, which is logged."""

    async def work() -> None:
        raise RuntimeError("a bug")

    background = Background("worker")
    background.spawn(work())
    await eventually(lambda: not background._tasks)
    assert background.check().ok


async def test_all_end_with_the_program() -> None:
    """Also one that loses its first cancellation; and that is no fault."""

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    background = Background("worker")
    background.spawn(work(), lasting="the sweeper")
    await asyncio.sleep(0)
    async with deadline(5):
        await background.close()
    assert background.check().ok
