"""Work on many items, a bounded number at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def in_lanes(items: Iterable[T], work: Callable[[T], Awaitable[None]], lanes: int) -> None:
    """Does `work` on each item, on at most `lanes` at a time, and returns when all is done.

    The first error ends the rest and is raised as it is.
    """
    left = iter(items)

    async def lane() -> None:
        for item in left:
            await work(item)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(lanes):
                group.create_task(lane())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
