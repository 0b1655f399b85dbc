"""Single flight: one call at a time, whose result all share who were waiting for it.

A lock rather than a task of its own: whoever is first makes the call in their own task. If they are
cancelled, the next in line makes it. So nothing runs that nobody waits for, and no error is lost.
"""

import asyncio
from collections.abc import Awaitable, Callable


class SingleFlight:
    """Runs one call at a time. The call returns nothing: it leaves its result where its owner looks."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._begun = 0
        self._ended = 0
        self._failure: Exception | None = None

    async def run(self, call: Callable[[], Awaitable[None]], *, fresh: bool) -> None:
        """Makes the call, or shares in another's.

        Args:
            call: what to do; the same for all, in effect.
            fresh: only a call that begins from now on will do, not one that is in flight already.

        Raises:
            Exception: what the call raised, to each of those who shared in it.
        """
        in_flight = self._lock.locked() and not fresh
        wanted = self._begun if in_flight else self._begun + 1
        async with self._lock:
            if self._ended >= wanted:
                if self._failure is not None:
                    raise self._failure
                return
            self._begun += 1
            this = self._begun
            try:
                await call()
            except Exception as e:
                self._ended, self._failure = this, e
                raise
            self._ended, self._failure = this, None
