"""A log and a cold store that do not belong together: nothing is read, written or swept (I7, I9)."""

import asyncio
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from nats.js.api import StreamConfig
from redis.asyncio import Redis

from sexton.schemas import subjects
from sexton.schemas.errors import Unavailable
from sexton.schemas.rpc import FetchRequest
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.orphans import OrphanSweep
from sexton.worker.pairing import provision_pair
from sexton.worker.provision import ProvisionError, streams
from tests.core_kit.build import append, leaf
from tests.support.waiting import eventually
from tests.worker_kit.sender import pointer_to, sending
from tests.worker_kit.service import cold_folder, serving, settings
from tests.worker_kit.stores import World

TEXT = "the only words"


def blobs(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file() and path.name != "name"]


async def used(servers: EmbeddedServers) -> None:
    """A service that has committed something, and was stopped."""
    async with serving(servers) as (_, sender):
        await sender.commit(append("e", leaf("a", TEXT)))


async def test_a_log_that_is_not_there_is_not_begun_anew(own_servers: EmbeddedServers) -> None:
    """The wrong server, or a volume that was not mounted: its bytes would all be orphans."""
    await used(own_servers)
    before = blobs(cold_folder(own_servers))
    data = own_servers.nats.data_dir / "jetstream"
    await own_servers.nats.stop()
    data.rename(data.with_name("elsewhere"))
    await own_servers.nats.start()
    with pytest.raises(ProvisionError, match="belongs to a log that is not here"):
        async with Worker(settings(own_servers)):
            pytest.fail("it started")
    await own_servers.nats.stop()
    shutil.rmtree(data)
    data.with_name("elsewhere").rename(data)
    await own_servers.nats.start()
    async with serving(own_servers) as (_, sender):
        assert ["l0:a"] == list((await sender.tree("ctx")).nodes)
    assert before == blobs(cold_folder(own_servers))


async def test_a_cold_store_that_is_not_there_is_no_loss(own_servers: EmbeddedServers) -> None:
    """At a start: the log has records, and their bytes are elsewhere."""
    await used(own_servers)
    cold_folder(own_servers).rename(cold_folder(own_servers).with_name("elsewhere"))
    with pytest.raises(ProvisionError, match="is not the one that has their bytes"):
        async with Worker(settings(own_servers)):
            pytest.fail("it started")
    assert [] == blobs(cold_folder(own_servers))


async def test_the_cold_store_of_another_log_is_refused(own_servers: EmbeddedServers, tmp_path: Path) -> None:
    """Two services on one bucket would sweep each other's bytes."""
    await used(own_servers)
    async with EmbeddedServers(tmp_path / "others") as others:
        await used(others)
        with pytest.raises(ProvisionError, match="belongs to another log"):
            async with Worker(settings(others, cold_url=cold_folder(own_servers).as_uri())):
                pytest.fail("it started")


async def test_a_log_made_by_hand_is_named(own_servers: EmbeddedServers) -> None:
    """With the cold store that it is first used with; its other metadata stays."""
    [meant] = [s for s in streams(settings(own_servers)) if s.name == subjects.STREAM_LOG]
    async with serving(own_servers) as (_, sender):
        await sender.js.delete_stream(subjects.STREAM_LOG)
        await sender.js.add_stream(StreamConfig(**{**meant.__dict__, "metadata": {"team": "a"}}))
    shutil.rmtree(cold_folder(own_servers))
    async with serving(own_servers) as (_, sender):
        await sender.commit(append("e", "a"))
        metadata = (await sender.js.stream_info(subjects.STREAM_LOG)).config.metadata or {}
    assert "a" == metadata["team"]
    assert (cold_folder(own_servers) / "name").read_text() == metadata["sexton.store"]


async def test_workers_that_start_at_once_agree_on_the_name(own_servers: EmbeddedServers) -> None:
    """Whoever makes the log names it."""
    config = settings(own_servers)
    async with sending(own_servers.nats_url) as sender:
        stores = [ObjectColdStore(open_store(config.cold_url), 5.0) for _ in range(8)]
        names = await asyncio.gather(
            *(
                provision_pair(sender.js, config, store, new_name=f"name-{i}")
                for i, store in enumerate(stores)
            )
        )
    assert 1 == len(set(names))


async def test_a_first_start_that_was_cut_short_is_made_up_for(own_servers: EmbeddedServers) -> None:
    """The log has its name, the cold store not yet, and nothing was committed."""
    async with serving(own_servers) as (_, _):
        pass
    (cold_folder(own_servers) / "name").unlink()
    await used(own_servers)
    assert (cold_folder(own_servers) / "name").is_file()


async def test_a_cold_store_that_goes_away_is_an_outage(own_servers: EmbeddedServers) -> None:
    """I9: while workers run. No loss is told, nothing is written beside it, and it all goes on."""
    folder = cold_folder(own_servers)
    async with serving(own_servers, retry_delay_max_s=0.1) as (worker, sender):
        await sender.commit(append("e", leaf("a", TEXT)))
        async with Redis.from_url(own_servers.redis_url) as redis:
            await redis.flushall()
        folder.rename(folder.with_name("elsewhere"))
        worker._cold._clock = lambda: 1e9  # the time until it is asked again has passed
        request = FetchRequest(context_id="ctx", pointer=pointer_to(TEXT, "l0:a", context_id="ctx"))
        with pytest.raises(Unavailable, match="is it mounted"):
            await worker._rpc._fetcher.fetch(request)
        await sender.publish(append("waits", "w"))
        await eventually(sender.waiting, until=lambda left: left == 1)
        assert [] == blobs(folder)
        assert 0 == (await sender.js.stream_info(subjects.STREAM_FAILURES)).state.messages
        if folder.exists():
            shutil.rmtree(folder)
        folder.with_name("elsewhere").rename(folder)
        assert 2 == (await sender.outcome_of("ctx", "waits")).revision
        _, data = await worker._rpc._fetcher.fetch(request)
        assert TEXT.encode() == data


async def test_bytes_of_a_context_that_the_log_never_heard_of_are_spared() -> None:
    """Whether they are from before a commit that never was, or their log is gone, cannot be told."""
    known, empty = World(), World()
    await known.outcome(append("fill", leaf("a", TEXT)))
    sweep = OrphanSweep(known.cold, empty.contexts(), min_age=timedelta(0), new_token=lambda: "t")
    report = await sweep.run()
    assert (1, 1, 0) == (report.looked_at, report.spared, report.deleted)


async def test_no_sweep_for_orphans_in_a_store_that_is_not_the_one() -> None:
    """A name that is missing is enough."""
    world = World()
    world.cold.expect("a-name")
    sweep = OrphanSweep(world.cold, world.contexts(), min_age=timedelta(0), new_token=lambda: "t")
    with pytest.raises(Unavailable, match="is it mounted"):
        await sweep.run()
