"""Questions to a server that may not answer: bounded in time, and not asked again for a moment."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sexton.schemas.errors import SextonError
from sexton.worker.health.checks import OK, Check

Probe = Callable[[], Awaitable[Check]]

WITHIN_S: Final = 2.0
"""What does not answer for so long counts as down."""
FOR_S: Final = 1.0
"""An answer is good for so long, however often it is asked for."""


class Probed:
    """A `Probe` that asks a server: at most one question at a time, at most one in `for_s`."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[object]],
        clock: Callable[[], float],
        *,
        within_s: float = WITHIN_S,
        for_s: float = FOR_S,
    ) -> None:
        """Args: what returns if the server answers and raises a `SextonError` if not; and a clock."""
        self._ask = ask
        self._clock = clock
        self._within_s = within_s
        self._for_s = for_s
        self._last: tuple[float, Check] | None = None
        self._asking: asyncio.Task[Check] | None = None

    async def __call__(self) -> Check:
        """The answer, which may be a moment old."""
        if self._last is not None and self._clock() - self._last[0] < self._for_s:
            return self._last[1]
        if self._asking is None:
            self._asking = asyncio.create_task(self._asked(), name="health.probe")
        # Whoever asked may give up; the others still want the answer.
        return await asyncio.shield(self._asking)

    async def _asked(self) -> Check:
        check = Check.failed(f"no answer within {self._within_s:g} s")
        try:
            async with asyncio.timeout(self._within_s):
                await self._ask()
            check = OK
        except TimeoutError:
            pass
        except SextonError as e:
            check = Check.failed(e.message)
        finally:
            self._last = (self._clock(), check)
            self._asking = None
        return check
