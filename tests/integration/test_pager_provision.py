"""The pager's streams and consumers: made if they are missing, compared if they are there."""

from typing import Any

import nats
import pytest
from nats.js.api import DiscardPolicy

from sexton.schemas import subjects
from sexton.worker.embedded import NatsServer
from sexton.worker.pager.app import consumers
from sexton.worker.provision import ProvisionError, ensure, failure_streams, provision
from sexton.worker.settings import Settings
from tests.pager_kit.receiver import receiving
from tests.pager_kit.scene import paging, record, scene, settings


async def test_a_pager_starts_before_any_worker_and_they_agree(own_nats: NatsServer) -> None:
    """It makes what it needs, as the worker would; it leaves the command stream to the worker."""
    async with receiving() as receiver, paging(own_nats.url, receiver.url):
        client = await nats.connect(own_nats.url)
        js = client.jetstream(timeout=5)
        made = {info.config.name for info in await js.streams_info()}
        assert {subjects.STREAM_FAILURES, subjects.STREAM_DEAD, subjects.STREAM_INCIDENTS} == made
        await provision(js, Settings(partitions=2))
        await client.close()
    async with receiving() as receiver, paging(own_nats.url, receiver.url):
        pass


DIFFERENT: list[tuple[str, str, dict[str, Any]]] = [
    (subjects.STREAM_FAILURES, "max_age", {"max_age": 3600.0}),
    (subjects.STREAM_FAILURES, "discard", {"discard": DiscardPolicy.OLD}),
    (subjects.STREAM_FAILURES, "max_msgs_per_subject", {"max_msgs_per_subject": 1}),
    (subjects.STREAM_INCIDENTS, "max_msgs_per_subject", {"max_msgs_per_subject": -1}),
    (subjects.STREAM_INCIDENTS, "max_age", {"max_age": 0.0}),
]


@pytest.mark.parametrize(("name", "difference", "change"), DIFFERENT)
async def test_a_stream_that_is_not_as_meant_is_an_error(
    own_nats: NatsServer, name: str, difference: str, change: dict[str, Any]
) -> None:
    """Each of these would lose a record, or an incident, silently."""
    meant = next(stream for stream in failure_streams(Settings()) if stream.name == name)
    client = await nats.connect(own_nats.url)
    js = client.jetstream(timeout=5)
    await js.add_stream(meant.evolve(**change))
    with pytest.raises(ProvisionError, match=difference):
        await ensure(js, failure_streams(Settings()), ())
    await client.close()


async def test_a_pager_that_is_told_otherwise_does_not_start(own_nats: NatsServer) -> None:
    """The consumer says how many records may wait, and for how long a pager may be silent."""
    async with scene(own_nats.url), receiving() as receiver:
        async with paging(own_nats.url, receiver.url):
            pass
        for change in ({"pager_lanes": 9}, {"pager_ack_wait_s": 9.0}):
            with pytest.raises(ProvisionError):
                async with paging(own_nats.url, receiver.url, **change):
                    pytest.fail("it started")
    (first, second) = consumers(settings(own_nats.url))
    assert (subjects.STREAM_FAILURES, subjects.STREAM_DEAD) == (first[0], second[0])
    assert [-1, -1] == [consumer.max_deliver for _, consumer in (first, second)]


async def test_only_the_latest_state_of_an_incident_is_kept(own_nats: NatsServer) -> None:
    """However often it changes."""
    async with scene(own_nats.url) as at, receiving() as receiver:
        async with paging(own_nats.url, receiver.url):
            for _ in range(20):
                await at.failed(record())
            await at.until_incident(record(), lambda i: i.count == 20, "all of them")
        state = (await at.js.stream_info(subjects.STREAM_INCIDENTS)).state
        assert (1, True) == (state.messages, state.last_seq > 1)
