"""Gauges that are asked for when somebody reads them: bounded in time, and not more often than is good."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from math import nan
from typing import Final

import structlog
from nats.aio.client import Client
from prometheus_client import Gauge

from sexton.core.incidents import settled
from sexton.schemas.errors import SextonError
from sexton.schemas.failure import FailureKind
from sexton.schemas.incidents import Incident, IncidentStatus
from sexton.worker import census, metrics
from sexton.worker.adapters.nats_stream import waiting_in
from sexton.worker.census import Tally

log: Final = structlog.get_logger("sexton.gauges")

EVERY_S: Final = 5.0
"""A server is asked at most so often."""
WITHIN_S: Final = 2.0

_COUNTED: Final[Mapping[str, Gauge]] = {
    census.LEASES: metrics.LIVE_HOLDERS,
    census.PINS: metrics.LIVE_PINS,
    census.TOMBSTONES: metrics.TOMBSTONES,
}


class Asked:
    """Asks a server for numbers. While it gives none, they are not a number: unknown is not zero."""

    def __init__(
        self,
        ask: Callable[[], Awaitable[Mapping[str, float]]],
        gauges: Mapping[str, Gauge],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: what gives numbers by name, and raises a `SextonError`; where they go; and a clock."""
        self._ask = ask
        self._gauges = gauges
        self._clock = clock
        self._next = clock()
        self._asking = asyncio.Lock()

    async def __call__(self) -> None:
        """Brings the gauges up to date, if it is time. Does not raise."""
        async with self._asking:
            if self._clock() < self._next:
                return
            found: Mapping[str, float] | None = None
            try:
                async with asyncio.timeout(WITHIN_S):
                    found = await self._ask()
            except (SextonError, TimeoutError) as e:
                log.warning("gauges.unknown", names=sorted(self._gauges), reason=type(e).__name__)
            for name, gauge in self._gauges.items():
                gauge.set(nan if found is None else found.get(name, 0))
            self._next = self._clock() + EVERY_S


def counted(tally: Tally) -> Asked:
    """Holders, pins and tombstones, as the workers have counted them."""
    return Asked(tally.totals, _COUNTED)


def pending(client: Client, streams: Sequence[str]) -> Asked:
    """What is left to do in work queues, and since when: what a work queue holds is not finished."""

    async def ask() -> Mapping[str, float]:
        found: dict[str, float] = {}
        for stream in streams:
            waiting = await waiting_in(client, stream, WITHIN_S)
            found |= {stream: float(waiting.messages), f"{stream} oldest": waiting.oldest_s}
        return found

    return Asked(
        ask,
        {stream: metrics.PENDING.labels(stream) for stream in streams}
        | {f"{stream} oldest": metrics.OLDEST_PENDING_SECONDS.labels(stream) for stream in streams},
    )


def incidents(
    known: Callable[[], Iterable[Incident]], clock_ms: Callable[[], int]
) -> Callable[[], Awaitable[None]]:
    """What a pager has to tell, from what it keeps in memory."""

    async def refresh() -> None:
        now_ms, oldest_ms = clock_ms(), 0
        counts = dict.fromkeys((IncidentStatus.OPEN, IncidentStatus.ACKNOWLEDGED), 0)
        for incident in known():
            if incident.status in counts:
                counts[incident.status] += 1
            if not settled(incident, FailureKind.OBSERVED):
                oldest_ms = max(oldest_ms, now_ms - incident.first_ms)
        for status, count in counts.items():
            metrics.OPEN_INCIDENTS.labels(status.value).set(count)
        metrics.OLDEST_UNPAGED_SECONDS.set(oldest_ms / 1000)

    return refresh
