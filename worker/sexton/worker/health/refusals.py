"""What NATS has refused this program. Such a program looks alive, and hears or says nothing.

A subscription is refused once, when it is made, and is dead from then on: that stands until the connection is
made anew, which makes all subscriptions again. A publish is refused each time: that stands for a while.
"""

from collections.abc import Callable
from typing import Final

from sexton.worker.health.checks import OK, Check

PUBLISH_FOR_S: Final = 60.0
"""How long a refused publish stands after it was last seen."""

_KEPT: Final = 64
_SHOWN: Final = 120


class Refusals:
    """The refusals that stand."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: dict[tuple[str, str], float] = {}

    def refused(self, operation: str, subject: str) -> None:
        """Takes note of one: `operation` is `publish`, `subscribe`, or another one."""
        what = (operation.lower(), subject)
        self._at.pop(what, None)
        self._at[what] = self._clock()
        while len(self._at) > _KEPT:
            del self._at[next(iter(self._at))]

    def reconnected(self) -> None:
        """The connection was made anew, and so were its subscriptions."""
        self._at = {what: at for what, at in self._at.items() if what[0] == "publish"}

    def check(self) -> Check:
        """Ok if none stands."""
        now = self._clock()
        self._at = {
            what: at for what, at in self._at.items() if what[0] != "publish" or now - at < PUBLISH_FOR_S
        }
        if not self._at:
            return OK
        operation, subject = next(reversed(self._at))
        more = f", and {len(self._at) - 1} more" if len(self._at) > 1 else ""
        return Check.failed(f"NATS refuses: {operation} {_shown(subject)}{more}")


def _shown(subject: str) -> str:
    """An inbox's name says nothing to anybody; and whatever a peer chose must not break a line."""
    if subject.startswith("_INBOX"):
        return subject.partition(".")[0] + ".>"
    return ascii(subject[:_SHOWN])[1:-1]
