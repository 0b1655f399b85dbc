"""What the gauges say of holders, pins, tombstones and queues, on real servers."""

import asyncio
from math import isnan

import pytest
from prometheus_client import Gauge

from sexton.holder import Holder, HolderSettings
from sexton.schemas import subjects
from sexton.schemas.leases import PinCost
from sexton.worker import metrics
from sexton.worker.adapters.tally import RedisTally
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, rewrite
from tests.support.waiting import eventually
from tests.worker_kit.service import serving

QUICK = {"sweep_interval_s": 0.05, "partitions": 2}


@pytest.fixture(autouse=True)
def asked_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sexton.worker.gauges.EVERY_S", 0.0)


async def shown(worker: Worker, *gauges: Gauge) -> tuple[float, ...]:
    """What a scrape shows."""
    for refresh in worker.refresh:
        await refresh()
    return tuple(float(gauge._value.get()) for gauge in gauges)


async def until_shown(worker: Worker, holders: int, pins: int, tombstones: int) -> None:
    await eventually(
        lambda: shown(worker, metrics.LIVE_HOLDERS, metrics.LIVE_PINS, metrics.TOMBSTONES),
        until=lambda found: found == (holders, pins, tombstones),
        within_s=15,
        what="the counts",
    )


async def test_holders_pins_and_tombstones_are_counted(own_servers: EmbeddedServers) -> None:
    """As they come and go; a holder that leaves is counted no more."""
    async with serving(own_servers, **QUICK) as (worker, sender):
        await sender.commit(append("one", "a", "b"))
        await until_shown(worker, 0, 0, 0)
        settings = HolderSettings(lease_ttl_s=3)
        async with Holder.connect(own_servers.nats_url, name="h", settings=settings) as holder:
            context = await holder.open("ctx")
            async with context.pin("l0:a", cost=PinCost.EXPENSIVE), context.pin("l0:b"):
                await until_shown(worker, 1, 2, 0)
                await sender.commit(rewrite("two", "l0:a", "new", base_version=1))
                await until_shown(worker, 1, 2, 1)
            await until_shown(worker, 1, 0, 1)
        await until_shown(worker, 0, 0, 1)


async def test_workers_share_the_counting_and_tell_the_same(own_servers: EmbeddedServers) -> None:
    """Each context is counted once, whoever does it."""
    async with (
        serving(own_servers, **QUICK) as (first, sender),
        serving(own_servers, **QUICK) as (second, _),
        Holder.connect(own_servers.nats_url, name="h") as holder,
    ):
        for number in range(20):
            await sender.commit(append("one", "content", context_id=f"c{number}"))
            await holder.open(f"c{number}")
        for worker in (first, second):
            await until_shown(worker, 20, 0, 0)


async def test_counts_are_unknown_while_the_registry_is_away(own_servers: EmbeddedServers) -> None:
    """And come again with it."""
    async with serving(own_servers, **QUICK) as (worker, _):
        await until_shown(worker, 0, 0, 0)
        await own_servers.valkey.kill()
        (holders,) = await shown(worker, metrics.LIVE_HOLDERS)
        assert isnan(holders)
        await own_servers.valkey.start()
        await until_shown(worker, 0, 0, 0)


async def test_what_waits_is_shown(own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that is being handled waits, too: a queue of a stuck worker is not empty."""
    async with serving(own_servers, partitions=1) as (worker, sender):
        go_on = asyncio.Event()
        original = worker._handler.on_command

        async def held(*args: object) -> None:
            await go_on.wait()
            await original(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(worker._handler, "on_command", held)
        for number in range(3):
            await sender.publish(append(f"e{number}", "content"))
        gauge = metrics.PENDING.labels(subjects.STREAM_COMMANDS)
        oldest = metrics.OLDEST_PENDING_SECONDS.labels(subjects.STREAM_COMMANDS)
        waiting, age_s = await shown(worker, gauge, oldest)
        assert 3.0 == waiting
        assert age_s > 0
        go_on.set()
        await sender.until_idle()
        assert (0.0, 0.0) == await shown(worker, gauge, oldest)


async def test_a_commit_and_its_bump_are_measured(own_servers: EmbeddedServers) -> None:
    """Each commit once."""

    def count(histogram: object) -> float:
        samples = histogram.collect()[0].samples  # type: ignore[attr-defined]
        return float(next(s.value for s in samples if s.name.endswith("_count")))

    commits, bumps = count(metrics.COMMIT_SECONDS), count(metrics.BUMP_SECONDS)
    async with serving(own_servers) as (_, sender):
        for number in range(3):
            await sender.commit(append(f"e{number}", f"n{number}"))
        await eventually(lambda: count(metrics.BUMP_SECONDS), until=lambda found: found == bumps + 3)
    assert commits + 3 == count(metrics.COMMIT_SECONDS)


async def test_a_tally_of_nothing_is_empty(own_servers: EmbeddedServers) -> None:
    """What was never counted is missing, and what was is summed over the shards."""
    async with serving(own_servers) as (worker, _):
        tally: RedisTally = worker._census._tally  # type: ignore[assignment]
        assert {} == dict(await tally.totals())
        await tally.put(0, {"pins": 2})
        await tally.put(1, {"pins": 3, "leases": 1})
        await tally.put(1, {"pins": 1, "leases": 1})
        assert {"pins": 3, "leases": 1} == dict(await tally.totals())
