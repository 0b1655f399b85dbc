"""The rhythm of long work on the event loop: a step, and then as long for everybody else as the step took.

One turn of the loop after each step would not do: a commit takes some twenty turns, and would wait for as
many steps. So whoever works long takes half of the time at most, and the rest is done in between.
"""

import asyncio
import time
from typing import Final

_NOTICED_S: Final = 0.001
"""Shorter steps than this are followed by one turn of the loop."""
_LONGEST_S: Final = 0.02
"""What took longer was not the step alone: a garbage collection, or a wait for an answer."""


class Pace:
    """Of one piece of work, from when it is made."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    async def step_done(self) -> None:
        """To be awaited after each step."""
        worked_s = time.perf_counter() - self._began
        await asyncio.sleep(min(worked_s, _LONGEST_S) if worked_s > _NOTICED_S else 0)
        self._began = time.perf_counter()
