"""Streams and consumers: made once, compared at every start, looked at again when something has changed."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DiscardPolicy, RetentionPolicy, StorageType, StreamConfig

from sexton.schemas import subjects
from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers, NatsServer
from sexton.worker.provision import (
    ProvisionError,
    check_payload,
    consumers,
    partition_durable,
    provision,
    streams,
)
from sexton.worker.settings import Settings
from tests.core_kit.build import append
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, publish_until_stored, sending
from tests.worker_kit.service import ready, serving, settings, start_worker

SETTINGS = Settings(partitions=2)


@asynccontextmanager
async def jetstream(server: NatsServer) -> AsyncIterator[JetStreamContext]:
    client = await nats.connect(server.url)
    try:
        yield client.jetstream(timeout=5)
    finally:
        await client.close()


async def configs(js: JetStreamContext) -> dict[str, Any]:
    """Everything there is, as the server says."""
    found: dict[str, Any] = {}
    for info in await js.streams_info():
        assert info.config.name is not None
        found[info.config.name] = info.config.as_dict()
        for consumer in await js.consumers_info(info.config.name):
            found[f"{info.config.name}/{consumer.name}"] = consumer.config.as_dict()
    return found


async def test_provisioning_is_idempotent(own_nats: NatsServer) -> None:
    """A second worker finds all as it is meant, and changes nothing."""
    async with jetstream(own_nats) as js:
        await provision(js, SETTINGS)
        before = await configs(js)
        await provision(js, SETTINGS)
        assert before == await configs(js)
    meant = {stream.name for stream in streams(SETTINGS)}
    meant |= {f"{stream}/{consumer.durable_name}" for stream, consumer in consumers(SETTINGS)}
    assert meant <= set(before)


async def test_workers_that_start_at_once_agree(own_nats: NatsServer) -> None:
    """Whoever is first makes it; nobody fails."""
    async with deadline(20, "eight provisionings"):
        clients = [await nats.connect(own_nats.url) for _ in range(8)]
        await asyncio.gather(*(provision(client.jetstream(timeout=5), SETTINGS) for client in clients))
        for client in clients:
            await client.close()


DIFFERENT: list[tuple[str, str, dict[str, Any]]] = [
    ("SEXTON_LOG", "max_age", {"max_age": 3600.0}),
    ("SEXTON_LOG", "discard", {"discard": DiscardPolicy.OLD}),
    ("SEXTON_LOG", "max_msgs_per_subject", {"max_msgs_per_subject": 10}),
    ("SEXTON_LOG", "republish", {"republish": None}),
    ("SEXTON_LOG", "allow_direct", {"allow_direct": False}),
    ("SEXTON_LOG", "deny_delete", {"deny_delete": False}),
    ("SEXTON_LOG", "storage", {"storage": StorageType.MEMORY}),
    ("SEXTON_LOG", "retention", {"retention": RetentionPolicy.WORK_QUEUE}),
    ("SEXTON_COMMANDS", "subject_transform", {"subject_transform": None}),
    ("SEXTON_COMMANDS", "max_msg_size", {"max_msg_size": 1000}),
    ("SEXTON_COMMANDS", "retention", {"retention": RetentionPolicy.LIMITS}),
    ("SEXTON_SUMMARISE", "subjects", {"subjects": ["sexton.summarise.>"]}),
    ("SEXTON_DEAD", "max_age", {"max_age": 3600.0}),
]


@pytest.mark.parametrize(("name", "difference", "change"), DIFFERENT)
async def test_a_stream_that_is_not_as_meant_is_an_error_that_names_the_difference(
    own_nats: NatsServer, name: str, difference: str, change: dict[str, Any]
) -> None:
    """I7: each of these could drop or misplace what was accepted. Nothing is changed to mend it."""
    meant = next(stream for stream in streams(SETTINGS) if stream.name == name)
    async with jetstream(own_nats) as js:
        await js.add_stream(meant.evolve(**change))
        before = await configs(js)
        with pytest.raises(ProvisionError, match=difference) as caught:
            await provision(js, SETTINGS)
        assert difference in caught.value.fields["differences"]
        assert name in caught.value.message
        after = await configs(js)
        assert before[name] == after[name]


@pytest.mark.parametrize(
    ("difference", "change"),
    [
        ("ack_wait", {"ack_wait": 99.0}),
        ("max_ack_pending", {"max_ack_pending": 2}),
        ("max_deliver", {"max_deliver": 3}),
        ("filter_subject", {"filter_subject": "sexton.part.1.*.*"}),
    ],
)
async def test_a_consumer_that_is_not_as_meant_is_an_error(
    own_nats: NatsServer, difference: str, change: dict[str, Any]
) -> None:
    """The order per context rests on how the consumer is."""
    fields = dict(consumers(SETTINGS))
    assert subjects.STREAM_COMMANDS in fields
    meant: ConsumerConfig = next(c for _, c in consumers(SETTINGS))
    async with jetstream(own_nats) as js:
        for stream in streams(SETTINGS):
            await js.add_stream(stream)
        await js.add_consumer(subjects.STREAM_COMMANDS, meant.evolve(**change))
        with pytest.raises(ProvisionError, match=difference):
            await provision(js, SETTINGS)
        found = await js.consumer_info(subjects.STREAM_COMMANDS, partition_durable(0))
        assert next(iter(change.values())) == getattr(found.config, difference)


async def test_other_partitions_than_the_stream_has_are_an_error(own_nats: NatsServer) -> None:
    """Two workers that disagree on the partitions would each take a part of the commands for theirs."""
    async with jetstream(own_nats) as js:
        await provision(js, SETTINGS)
        with pytest.raises(ProvisionError, match="subject_transform"):
            await provision(js, Settings(partitions=4))


async def test_another_stream_on_our_subjects_is_an_error(own_nats: NatsServer) -> None:
    """Typed, whatever words the server finds for it."""
    async with jetstream(own_nats) as js:
        await js.add_stream(StreamConfig(name="OTHER", subjects=["sexton.>"]))
        with pytest.raises(Unavailable, match="overlap"):
            await provision(js, SETTINGS)


async def test_a_log_made_anew_counts_on(own_nats: NatsServer) -> None:
    """Lineage: a compare-and-swap on the old log's sequence can never hit in the new one."""
    async with jetstream(own_nats) as js:
        await provision(js, SETTINGS)
        first = (await js.publish(subjects.log("ctx"), b"x")).seq
        await js.delete_stream(subjects.STREAM_LOG)
        await provision(js, SETTINGS)
        assert (await js.publish(subjects.log("ctx"), b"x")).seq > first + 1


# --- the server --------------------------------------------------------------------------------------


async def test_a_server_without_jetstream_is_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed, and it says what may be missing."""
    server = NatsServer(tmp_path / "plain")
    monkeypatch.setattr(server, "_configure", _without_jetstream(server))
    async with server:
        with pytest.raises(Unavailable, match="JetStream"):
            async with Worker(Settings(nats_url=server.url, io_timeout_s=1.0)):
                pytest.fail("it started")


def _without_jetstream(server: NatsServer) -> Any:
    original = server._configure

    def configure(binary: Path, port: int) -> list[str]:
        argv = original(binary, port)
        config = Path(argv[-1])
        kept = [line for line in config.read_text().splitlines() if not line.startswith("jetstream")]
        config.write_text("\n".join(kept) + "\n")
        return argv

    return configure


async def test_a_server_that_is_not_there_is_unavailable(own_servers: EmbeddedServers) -> None:
    """Within the time-out, and not a start that waits for ever and says nothing."""
    await own_servers.nats.stop()
    async with deadline(10, "the refusal"):
        with pytest.raises(Unavailable, match="cannot be reached"):
            async with Worker(settings(own_servers, io_timeout_s=0.3)):
                pytest.fail("it started")


async def test_a_server_with_too_small_a_payload_is_refused(tmp_path: Path) -> None:
    """I7: a dead letter is its command and some headers; where that does not fit, it would come for ever."""
    async with EmbeddedServers(tmp_path / "small", max_payload_bytes=512 * 1024) as servers:
        with pytest.raises(ProvisionError, match="max_payload"):
            async with Worker(settings(servers)):
                pytest.fail("it started")
        async with serving(servers, max_command_bytes=256 * 1024) as (_, sender):
            await sender.commit(append("e", "a"))


def test_the_usual_payload_is_enough() -> None:
    """nats-server's own default needs no change."""
    check_payload(1024 * 1024, Settings())


@pytest.mark.parametrize(
    ("setting", "value"), [("redis_url", "nonsense"), ("cold_url", "nonsense://x"), ("summariser", "magic")]
)
async def test_a_setting_that_names_nothing_is_refused_at_the_start(
    own_servers: EmbeddedServers, setting: str, value: str
) -> None:
    """Typed, naming the setting, before anything is taken."""
    with pytest.raises(InvalidInput, match=setting):
        async with Worker(settings(own_servers, **{setting: value})):
            pytest.fail("it started")


# --- while workers run -------------------------------------------------------------------------------


async def works(sender: Sender, event_id: str) -> None:
    await publish_until_stored(sender, append(event_id, event_id))
    await sender.outcome_of("ctx", event_id)


async def test_a_deleted_consumer_is_noticed_and_rebuilt(own_servers: EmbeddedServers) -> None:
    """C91: intake goes on within seconds, and nothing spins meanwhile."""
    async with serving(own_servers) as (_, sender):
        await works(sender, "before")
        for partition in range(2):
            await sender.js.delete_consumer(subjects.STREAM_COMMANDS, partition_durable(partition))
        await works(sender, "after")


async def test_a_deleted_command_stream_is_made_again(own_servers: EmbeddedServers) -> None:
    """C91: with all its consumers."""
    async with serving(own_servers) as (_, sender):
        await works(sender, "before")
        await sender.js.delete_stream(subjects.STREAM_COMMANDS)
        await works(sender, "after")


async def test_a_deleted_log_stops_the_commits_until_an_operator_has_seen_to_it(
    own_servers: EmbeddedServers,
) -> None:
    """I7, I9: a log that is gone is not silently begun anew; what waits is committed once it is there."""
    async with serving(own_servers, retry_delay_max_s=0.1) as (worker, sender):
        await works(sender, "before")
        await sender.js.delete_stream(subjects.STREAM_LOG)
        await eventually(lambda: not worker._contexts._cached, what="the trees to be dropped")
        await sender.publish(append("waits", "w"))
        await eventually(sender.waiting, until=lambda left: left == 1)
        with pytest.raises(nats.js.errors.NotFoundError):
            await sender.js.stream_info(subjects.STREAM_LOG)
        await provision(sender.js, worker.settings)
        outcome = await sender.outcome_of("ctx", "waits")
        assert 1 == outcome.revision, "a new lineage begins at one"
        assert ["l0:w"] == list((await sender.tree("ctx")).nodes)


async def test_a_repeat_of_what_another_lineage_committed_is_committed_in_this_one(
    own_servers: EmbeddedServers,
) -> None:
    """I7: "committed" is said of the log that is there, not of one that was."""
    async with serving(own_servers, retry_delay_max_s=0.1) as (worker, sender):
        await works(sender, "first")
        await works(sender, "again")
        await sender.js.delete_stream(subjects.STREAM_LOG)
        await eventually(lambda: not worker._contexts._cached)
        await provision(sender.js, worker.settings)
        outcome = await sender.commit(append("again", "again"))
        assert 1 == outcome.revision
        assert ["again"] == [record.event_id for record in await sender.records("ctx")]


async def test_a_server_that_comes_back_without_its_data_is_not_begun_anew(
    programs: Programs, own_servers: EmbeddedServers
) -> None:
    """I7, I9: the log is gone, and with it the names of all bytes. Workers end and say so; no log is made."""
    program = start_worker(programs, own_servers)
    await ready(program)
    async with sending(own_servers.nats_url) as sender:
        await works(sender, "before")
        await own_servers.nats.kill()
        shutil.rmtree(own_servers.nats.data_dir / "jetstream")
        await own_servers.nats.start()
        assert 0 != await program.exit_code(within_s=20)
        assert "belongs to a log that is not here" in program.report()
        with pytest.raises(nats.js.errors.NotFoundError):
            await sender.js.stream_info(subjects.STREAM_LOG)


async def test_provisioning_goes_on_until_jetstream_answers(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has just started may answer before its JetStream does; no second reconnect will come."""
    async with serving(own_servers) as (worker, sender):
        tries = 0
        original = worker._provision

        async def not_yet() -> None:
            nonlocal tries
            tries += 1
            if tries < 3:
                raise Unavailable("JetStream is not ready")
            await original()

        monkeypatch.setattr(worker._provisioning, "_provision", not_yet)
        for partition in range(2):
            await sender.js.delete_consumer(subjects.STREAM_COMMANDS, partition_durable(partition))
        await works(sender, "after")
        assert tries >= 3


async def test_a_worker_gives_up_when_what_is_there_is_no_longer_as_meant(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """I9: found out while it runs: it ends, with the difference and with a status of its own."""
    worker = start_worker(programs, own_servers)
    await ready(worker)
    async with jetstream(own_servers.nats) as js:
        config = (await js.stream_info(subjects.STREAM_DEAD)).config
        await js.update_stream(config.evolve(max_age=3600.0))
        await js.delete_consumer(subjects.STREAM_COMMANDS, partition_durable(0))
        assert 0 != await worker.exit_code(within_s=20)
    assert "worker.gives_up" in worker.stderr
    assert "max_age" in worker.stderr


async def test_a_restart_that_keeps_the_data_loses_nothing(own_servers: EmbeddedServers) -> None:
    """C18, I7: commands from before and during the outage are committed once, in order."""
    async with serving(own_servers) as (_, sender):
        await works(sender, "e0")
        await own_servers.nats.kill()
        waiting = asyncio.ensure_future(works(sender, "e1"))
        await own_servers.nats.start()
        await waiting
        await works(sender, "e2")
        assert ["e0", "e1", "e2"] == [record.event_id for record in await sender.records("ctx")]
