"""How much time has gone by, for whoever must not act on something old."""

import time
from collections.abc import Callable

Moment = tuple[float, float]
"""In seconds, on two clocks: one stands still while the machine is suspended, the other may be set."""

Clock = Callable[[], Moment]


def clock() -> Moment:
    """This moment."""
    return time.monotonic(), time.time()


def elapsed_s(since: Moment, now: Moment) -> float:
    """The longer of the times that the two clocks say: rather too old than taken for fresh."""
    return max(late - early for late, early in zip(now, since, strict=True))
