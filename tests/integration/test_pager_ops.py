"""A pager as an operator sees it: its health and metrics over HTTP, and its end."""

import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sexton.schemas import subjects
from sexton.worker.embedded import NatsServer
from sexton.worker.pager.app import Pager
from sexton.worker.pager.incidents import DURABLE
from sexton.worker.program import exposed
from tests.pager_kit.receiver import Receiver, broken, never, ok, receiving
from tests.pager_kit.scene import Scene, ready, record, scene, settings, start_pager
from tests.support.http import Response, fetch
from tests.support.processes import Program, Programs
from tests.support.waiting import eventually

END_S = 12


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


@pytest.fixture
async def streams(own_nats: NatsServer) -> AsyncIterator[Scene]:
    async with scene(own_nats.url) as found:
        yield found


@asynccontextmanager
async def served(nats: NatsServer, receiver: Receiver, **more: Any) -> AsyncIterator[str]:
    """The URL of a pager in this process."""
    pager = Pager(settings(nats.url, receiver.url, http_port=0, **more))
    async with exposed(pager) as endpoint, pager:
        assert endpoint is not None
        await until(endpoint.url, "readyz", 200)
        yield endpoint.url


async def until(url: str, route: str, status: int) -> Response:
    return await eventually(
        lambda: fetch(f"{url}/{route}"), until=lambda found: found.status == status, within_s=15
    )


async def values(url: str) -> dict[str, float]:
    """Samples by name, with the values of their labels."""
    text = (await fetch(f"{url}/metrics")).body.decode()
    return {
        ".".join([sample.name, *sample.labels.values()]): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_a_pager_is_ready_when_its_broker_answers(own_nats: NatsServer, receiver: Receiver) -> None:
    """It needs nothing else: Redis and the cold store may be what is on fire."""
    async with served(own_nats, receiver, ready_pull_s=2.0) as url:
        checks = (await fetch(f"{url}/readyz")).json["checks"]
        assert {"phase", "broker", "pulls", "permissions"} == set(checks)
        await own_nats.pause()
        found = await until(url, "readyz", 503)
        assert re.match(r"no pull of SEXTON_\w+/pager", found.json["checks"]["pulls"]["reason"])
        assert 200 == (await fetch(f"{url}/livez")).status
        await own_nats.resume()
        await until(url, "readyz", 200)


async def test_what_it_owes_and_what_it_sent_is_counted(
    own_nats: NatsServer, receiver: Receiver, streams: Scene
) -> None:
    """An incident is owed until a target has accepted it, and open until it is over."""
    receiver.usual = broken
    async with served(own_nats, receiver) as url:
        before = await values(url)
        await streams.failed(record())

        async def more() -> tuple[float, ...]:
            now = await values(url)
            names = ("sexton_page_attempts_total.failed", "sexton_pages_total.opened")
            grown = tuple(now.get(name, 0) - before.get(name, 0) for name in names)
            return (*grown, now["sexton_open_incidents.open"], now["sexton_oldest_unpaged_seconds"])

        owed = await eventually(more, until=lambda v: v[0] >= 2 and v[3] > 0, within_s=15)
        assert (0, 1) == owed[1:3]
        receiver.usual = ok
        told = await eventually(more, until=lambda v: v[1] == 1 and v[3] == 0, within_s=15)
        assert 1 == told[2]


async def ended(pager: Program) -> None:
    assert 0 == await pager.exit_code(within_s=END_S)
    assert "Traceback" not in pager.stderr


@pytest.mark.parametrize("http_port", [None, 0], ids=["no-http", "http"])
@pytest.mark.parametrize("how", ["answering", "paused", "killed"])
async def test_it_ends_in_order(
    own_nats: NatsServer, streams: Scene, programs: Programs, how: str, http_port: int | None
) -> None:
    """Whatever its broker does at that moment, and while a receiver takes a page and says nothing."""
    more = {} if http_port is None else {"http_port": http_port}
    async with receiving() as receiver:
        receiver.usual = never
        pager = start_pager(programs, own_nats.url, receiver.url, pager_attempt_s=600, grace_s=0.5, **more)
        await ready(pager)
        await streams.failed(record())
        await receiver.until_arrived(1)
        match how:
            case "paused":
                await own_nats.pause()
            case "killed":
                await own_nats.kill()
        pager.send_signal(signal.SIGTERM)
        await ended(pager)
        if how == "paused":
            await own_nats.resume()


async def test_a_page_that_was_not_accepted_goes_to_the_next_pager(
    own_nats: NatsServer, receiver: Receiver, streams: Scene, programs: Programs
) -> None:
    """At once, and not after the ack wait; a second signal ends the grace time of the first one."""
    receiver.usual = never
    long: dict[str, Any] = {"pager_ack_wait_s": 300, "pager_attempt_s": 600}
    pager = start_pager(programs, own_nats.url, receiver.url, grace_s=600, **long)
    await ready(pager)
    await streams.failed(record())
    await receiver.until_arrived(1)
    pager.send_signal(signal.SIGTERM)
    await pager.line("told_to_end", stream="stderr")
    assert pager.running
    pager.send_signal(signal.SIGTERM)
    await ended(pager)
    lane = await streams.js.pull_subscribe(
        subjects.FAILURES, durable=DURABLE, stream=subjects.STREAM_FAILURES
    )
    (message,) = await lane.fetch(1, timeout=10)
    assert message.metadata.num_delivered > 1
