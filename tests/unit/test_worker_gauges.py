"""Gauges that are asked for, and the clock at the log."""

import asyncio
from collections.abc import Mapping
from math import isnan
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Gauge

from sexton.core.incidents import acknowledge
from sexton.schemas.errors import Unavailable
from sexton.schemas.failure import FailureReason, HardFailureRecord
from sexton.schemas.incidents import Incident, IncidentStatus
from sexton.worker import metrics
from sexton.worker.gauges import EVERY_S, Asked, incidents
from sexton.worker.ports import LostRaceError
from sexton.worker.timed_log import TimedLog

HASH = "sha256:" + "a" * 64


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def gauge() -> Gauge:
    return Gauge("waiting", "For a test.", registry=CollectorRegistry())


def value(gauge: Gauge) -> float:
    return float(gauge._value.get())


async def test_a_server_is_asked_at_most_every_few_seconds(gauge: Gauge) -> None:
    """However often it is scraped."""
    clock, asked = Clock(), 0

    async def ask() -> Mapping[str, float]:
        nonlocal asked
        asked += 1
        return {"a": asked}

    refresh = Asked(ask, {"a": gauge}, clock)
    await asyncio.gather(*(refresh() for _ in range(5)))
    assert (1, 1.0) == (asked, value(gauge))
    clock.now += EVERY_S
    await refresh()
    assert (2, 2.0) == (asked, value(gauge))


async def test_unknown_is_not_zero(gauge: Gauge) -> None:
    """A server that does not answer makes a hole, not a number."""
    clock = Clock()
    answers: list[Exception | dict[str, float]] = [Unavailable("away"), {}]

    async def ask() -> Mapping[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    refresh = Asked(ask, {"a": gauge}, clock)
    await refresh()
    assert isnan(value(gauge))
    clock.now += EVERY_S
    await refresh()
    assert 0 == value(gauge)


async def test_a_server_that_hangs_is_not_waited_for(gauge: Gauge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scrape comes to its end."""
    monkeypatch.setattr("sexton.worker.gauges.WITHIN_S", 0.01)
    await Asked(lambda: asyncio.sleep(3600, {}), {"a": gauge}, Clock())()
    assert isnan(value(gauge))


def incident(fingerprint: str, first_ms: int, **more: Any) -> Incident:
    failure = HardFailureRecord(
        fingerprint=HASH,
        reason=FailureReason.LOST,
        context_id="ctx",
        span_id="l0:a",
        version=1,
        content_hash=HASH,
        size_bytes=1,
        component="worker.fetch",
    )
    fields: dict[str, Any] = {
        "fingerprint": "sha256:" + fingerprint * 64,
        "status": IncidentStatus.OPEN,
        "failure": failure,
        "count": 1,
        "first_ms": first_ms,
        "last_ms": first_ms,
        "sequence": 1,
        "stored_ms": first_ms,
    }
    return Incident(**(fields | more))


async def test_what_a_pager_owes() -> None:
    """The oldest incident that nobody was told of counts, and one that somebody acknowledged does not."""
    known = [
        acknowledge(incident("a", 1_000), 2_000),
        incident("b", 5_000),
        incident("c", 7_000),
        incident("d", 500, status=IncidentStatus.RESOLVED, told="resolved", told_ms=600, settled_ms=550),
    ]
    refresh = incidents(lambda: known, lambda: 9_000)
    await refresh()
    assert 4.0 == value(metrics.OLDEST_UNPAGED_SECONDS)
    assert 2 == metrics.OPEN_INCIDENTS.labels("open")._value.get()
    assert 1 == metrics.OPEN_INCIDENTS.labels("acknowledged")._value.get()
    known.clear()
    await refresh()
    assert 0 == value(metrics.OLDEST_UNPAGED_SECONDS)


class Stored:
    """A log that takes a moment, or refuses."""

    def __init__(self, clock: Clock, error: Exception | None = None) -> None:
        self._clock = clock
        self._error = error

    async def append(self, *_: Any) -> int:
        self._clock.now += 0.02
        if self._error is not None:
            raise self._error
        return 9


def observed(histogram: Any) -> tuple[float, float]:
    """How many observations, and their sum."""
    samples = {
        s.name.rsplit("_", 1)[1]: s.value for s in histogram.collect()[0].samples if "bucket" not in s.name
    }
    return samples["count"], samples["sum"]


async def test_a_commit_and_its_broadcast_are_measured() -> None:
    """From the publish to each of them, also if the broadcast is heard first."""
    clock = Clock()
    log = TimedLog(Stored(clock), clock)  # type: ignore[arg-type]
    commits, bumps = observed(metrics.COMMIT_SECONDS), observed(metrics.BUMP_SECONDS)
    await log.append("ctx", b"record", 4)
    clock.now += 0.03
    log.heard("ctx", 4, b"record")
    log.heard("ctx", 4, b"record")
    assert pytest.approx((commits[0] + 1, commits[1] + 0.02)) == observed(metrics.COMMIT_SECONDS)
    assert pytest.approx((bumps[0] + 1, bumps[1] + 0.05)) == observed(metrics.BUMP_SECONDS)


async def test_another_workers_broadcast_is_not_taken_for_our_own() -> None:
    """Whoever won the race is measured by itself."""
    clock = Clock()
    log = TimedLog(Stored(clock, LostRaceError()), clock)  # type: ignore[arg-type]
    before = observed(metrics.COMMIT_SECONDS), observed(metrics.BUMP_SECONDS)
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"ours", 4)
    log.heard("ctx", 4, b"ours")
    log.heard("ctx", 4, b"theirs")
    assert before == (observed(metrics.COMMIT_SECONDS), observed(metrics.BUMP_SECONDS))


async def test_broadcasts_that_never_come_are_not_kept_without_end() -> None:
    """The oldest are forgotten."""
    log = TimedLog(Stored(Clock()))  # type: ignore[arg-type]
    for number in range(2000):
        await log.append("ctx", b"record", number)
    assert 1024 == len(log._sent)
