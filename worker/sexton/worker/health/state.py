"""The health of one program: how far it has come, and what is asked before it is called alive or ready."""

import asyncio
import time
from collections.abc import Callable
from enum import Enum
from typing import Final

from sexton.worker.health.checks import OK, Check, Report
from sexton.worker.health.probes import Probe
from sexton.worker.health.refusals import Refusals


class Phase(Enum):
    """How far a program has come. It only ever goes on to a later one."""

    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"


_STARTING: Final = Check.failed("starting")
_STOPPING: Final = Check.failed("stopping")


class Health:
    """What `/livez`, `/readyz` and `/startupz` answer.

    A composition root adds its checks. `live` asks nobody else, so that an outage elsewhere never has this
    program restarted; `ready` may ask.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.phase = Phase.STARTING
        self._refusals = Refusals(clock)
        self._live: dict[str, Callable[[], Check]] = {}
        self._ready: dict[str, Probe] = {}

    def started(self) -> None:
        """The program is put together, and takes what comes."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.SERVING

    def stopping(self) -> None:
        """The program was told to end: not ready from here on, and alive until it is gone."""
        self.phase = Phase.STOPPING

    def refused(self, operation: str, subject: str) -> None:
        """NATS refused an operation: `publish`, `subscribe`, or another one. Not ready while that stands."""
        self._refusals.refused(operation, subject)

    def reconnected(self) -> None:
        """A connection to NATS was made anew: what it may subscribe to is asked again."""
        self._refusals.reconnected()

    def add_live(self, name: str, check: Callable[[], Check]) -> None:
        """Adds what must hold for the program to be alive. It waits for nobody."""
        self._live[name] = check

    def add_ready(self, name: str, probe: Probe) -> None:
        """Adds what must hold for the program to be ready. It answers within a bound."""
        self._ready[name] = probe

    async def live(self) -> Report:
        """Whether the program works at all. An answer alone says that its event loop turns."""
        return Report({"event_loop": OK, **{name: check() for name, check in self._live.items()}})

    async def ready(self) -> Report:
        """Whether the program can do its work now."""
        if self.phase is not Phase.SERVING:
            return Report({"phase": _STARTING if self.phase is Phase.STARTING else _STOPPING})
        answers = await asyncio.gather(*(probe() for probe in self._ready.values()))
        checks = dict(zip(self._ready, answers, strict=True))
        return Report({"phase": OK, **checks, "permissions": self._refusals.check()})

    async def startup(self) -> Report:
        """Whether the program has started. Once it has, that stays."""
        return Report({"phase": _STARTING if self.phase is Phase.STARTING else OK})
