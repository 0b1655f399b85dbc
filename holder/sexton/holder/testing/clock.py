"""A clock that stands still until it is told to go on."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import Final, TypeVar

T = TypeVar("T")

_QUIET_STEPS: Final = 200
"""Rounds of the event loop without traffic after which nothing more will happen by itself. What is done in
memory takes a handful between two messages."""


class NothingToWaitFor(AssertionError):
    """What a test waits for will never come: no traffic, and nobody waits for a time."""


class ManualClock:
    """Time for a holder under test. `run` lets it pass as needed, `advance` by as much as is said."""

    def __init__(self, start_s: float = 1000.0) -> None:
        self._now = start_s
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[float, Callable[[], None]]] = {}
        self._traffic = 0

    def monotonic(self) -> float:
        """Now."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Waits until the clock has been told to pass this time."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        number = self._wait(seconds, partial(_settle, done))
        try:
            await done
        finally:
            self._waiting.pop(number, None)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """A block that raises `TimeoutError` once the clock has passed this time."""
        return self._timeout(seconds)

    def touch(self) -> None:
        """Says that something has moved: what is in memory is not at rest yet."""
        self._traffic += 1

    def jump(self, seconds: float) -> None:
        """Moves the time and lets nobody act on it: the process was stopped, or its loop blocked."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Lets time pass; whatever falls due on the way happens at its time."""
        until = self._now + seconds
        await self.rest()
        while (due := self._next_due()) is not None and due <= until:
            self._fire(due)
            await self.rest()
        self._now = until

    async def run(self, work: Awaitable[T]) -> T:
        """Does `work`, letting time pass whenever everything waits for it.

        Raises:
            NothingToWaitFor: everything waits, and nobody for a time.
        """
        task = asyncio.ensure_future(work)
        try:
            while True:
                await self.rest(task)
                if task.done():
                    return await task
                due = self._next_due()
                if due is None:
                    raise NothingToWaitFor("no traffic, and nobody waits for a time")
                self._fire(due)
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait([task])

    async def rest(self, task: asyncio.Future[T] | None = None) -> None:
        """Returns when nothing moves any more, or `task` is done."""
        steps, seen = 0, self._traffic
        while steps < _QUIET_STEPS and not (task is not None and task.done()):
            await asyncio.sleep(0)
            steps = steps + 1 if self._traffic == seen else 0
            seen = self._traffic

    @asynccontextmanager
    async def _timeout(self, seconds: float) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as scope:
            number = self._wait(seconds, lambda: scope.reschedule(loop.time()))
            try:
                yield
            finally:
                self._waiting.pop(number, None)

    def _wait(self, seconds: float, then: Callable[[], None]) -> int:
        number = next(self._numbers)
        self._waiting[number] = (self._now + seconds, then)
        self.touch()
        return number

    def _next_due(self) -> float | None:
        return min((due for due, _ in self._waiting.values()), default=None)

    def _fire(self, due: float) -> None:
        self._now = max(self._now, due)
        for number in [n for n, (at, _) in self._waiting.items() if at <= due]:
            _, then = self._waiting.pop(number)
            then()
        self.touch()


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
