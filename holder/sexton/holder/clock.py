"""Time, as far as a holder knows it. Injected, so that a test of staleness needs no sleeping."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import SystemRandom
from typing import Final, Protocol

_random: Final = SystemRandom()


class Clock(Protocol):
    """A monotonic clock, with the waiting that goes by it. All in seconds."""

    def monotonic(self) -> float:
        """Now. Only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        ...

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """A block that raises `TimeoutError` if it takes longer."""
        ...


class SystemClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        """Now. Goes on while the event loop is blocked."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Waits."""
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[object]:
        """A block that raises `TimeoutError` if it takes longer."""
        return asyncio.timeout(seconds)


def spread(seconds: float, jitter: float) -> float:
    """`seconds`, more or less by up to the share `jitter`: many holders must not act in step."""
    return seconds * (1 + jitter * (2 * _random.random() - 1))


def backoff(attempt: int, base_s: float, cap_s: float) -> float:
    """How long to wait after the failed try number `attempt`, from 0: exponential, with full jitter."""
    return float(min(cap_s, base_s * 2**attempt) * _random.random())


async def until(changed: Callable[[], asyncio.Event], holds: Callable[[], bool]) -> None:
    """Waits until `holds`, looking again whenever the event that `changed` gives is set."""
    while not holds():
        await changed().wait()
