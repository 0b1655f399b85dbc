"""A lane: what it knows of its pulls, and what it gives back when it ends, on a real server."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
from nats.errors import TimeoutError as NatsTimeout
from nats.js.api import AckPolicy, ConsumerConfig, StreamConfig

from sexton.worker.adapters.lanes import Lane
from sexton.worker.adapters.nats_client import HardenedClient
from tests.support.waiting import deadline, eventually

ACK_WAIT_S = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Bench:
    """A lane on a consumer of its own, and a clock that is set by hand."""

    client: HardenedClient
    lane: Lane
    clock: Clock
    subject: str

    async def put(self, *bodies: bytes) -> None:
        for body in bodies:
            await self.client.jetstream().publish(self.subject, body)

    async def end(self) -> int:
        """As a program does."""
        self.lane.end()
        await self.client.end_interest([self.lane.subscription])
        return await self.lane.give_back()

    async def next_of_another(self) -> tuple[bytes, int]:
        """What another worker gets next, and which delivery it is."""
        other = await self.client.jetstream().pull_subscribe(self.subject, durable="d", stream=self.subject)
        (message,) = await other.fetch(1, timeout=10)
        await other.unsubscribe()
        return message.data, message.metadata.num_delivered


@pytest.fixture
async def bench(nats_url: str, context_id: str) -> AsyncIterator[Bench]:
    client = HardenedClient()
    await client.connect(nats_url)
    js = client.jetstream()
    await js.add_stream(StreamConfig(name=context_id, subjects=[context_id]))
    config = ConsumerConfig(durable_name="d", ack_policy=AckPolicy.EXPLICIT, ack_wait=ACK_WAIT_S)
    await js.add_consumer(context_id, config)
    lane = await js.pull_subscribe(context_id, durable="d", stream=context_id)
    assert isinstance(lane, Lane)
    clock = Clock()
    lane._clock = clock
    lane._moved_at = 0.0
    async with deadline(30, "the test"):
        yield Bench(client, lane, clock, context_id)
    await js.delete_stream(context_id)
    await client.close()


async def test_unanswered_until_the_first_answer(bench: Bench) -> None:
    """Nothing was heard yet, so nothing is known to work."""
    assert bench.lane.unanswered_s() is None


async def test_nothing_is_an_answer_too(bench: Bench) -> None:
    """The server says that there is no message, if it hears the question at all."""
    with pytest.raises(NatsTimeout):
        await bench.lane.fetch(1, timeout=0.1)
    await eventually(bench.lane.unanswered_s, until=lambda found: found is not None)
    bench.clock.now = 7.0
    assert 7.0 == bench.lane.unanswered_s()


async def test_a_message_is_an_answer_and_its_handling_no_silence(bench: Bench) -> None:
    """However long that takes; from the next pull on the time counts again."""
    await bench.put(b"one")
    await bench.lane.fetch(1, timeout=5)
    bench.clock.now = 1000.0
    assert 0.0 == bench.lane.unanswered_s()
    assert 0.0 == bench.lane.still_s()
    fetching = asyncio.create_task(bench.lane.fetch(1, timeout=60))
    await asyncio.sleep(0)
    bench.clock.now = 1003.0
    assert (3.0, 3.0) == (bench.lane.unanswered_s(), bench.lane.still_s())
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


async def test_a_consumer_that_is_gone_is_no_answer(bench: Bench) -> None:
    """The server says "no such service", and that is no health. The lane does not ask in a tight loop."""
    await bench.client.jetstream().delete_consumer(bench.subject, "d")
    for _ in range(2):
        with pytest.raises(Exception, match=r"ServiceUnavailable|503"):
            await bench.lane.fetch(1, timeout=1)
    assert bench.lane.unanswered_s() is None


async def test_what_comes_while_it_ends_is_given_back_at_once(bench: Bench) -> None:
    """A message that was fetched and not begun does not wait for the ack wait."""
    fetching = asyncio.create_task(bench.lane.fetch(1, timeout=30))
    await bench.client.flush()
    bench.lane.end()
    await bench.put(b"one")
    await eventually(lambda: bench.lane.delivered)
    assert 1 == await bench.end()
    assert not fetching.done()
    assert (b"one", 2) == await bench.next_of_another()
    fetching.cancel()


async def test_what_waits_in_its_inbox_is_given_back(bench: Bench) -> None:
    """A pull that was given up may have been answered meanwhile."""
    fetching = asyncio.create_task(bench.lane.fetch(1, timeout=30))
    await bench.client.flush()
    fetching.cancel()
    await asyncio.wait([fetching])
    await bench.put(b"one")
    await eventually(lambda: bench.lane.pending_msgs)
    assert 1 == await bench.end()
    assert (b"one", 2) == await bench.next_of_another()


async def test_what_is_being_handled_is_not_given_back(bench: Bench) -> None:
    """It is its handler's to settle."""
    await bench.put(b"one", b"two")
    await bench.lane.fetch(1, timeout=5)
    assert 0 == await bench.end()
    assert (b"two", 1) == await bench.next_of_another()


async def test_nothing_comes_to_a_lane_that_has_ended(bench: Bench) -> None:
    """A later fetch waits until it is cancelled, and asks for nothing."""
    assert 0 == await bench.end()
    await bench.put(b"one")
    fetching = asyncio.create_task(bench.lane.fetch(1, timeout=0.01))
    assert (b"one", 1) == await bench.next_of_another()
    assert not fetching.done()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching


async def test_an_idle_lane_ends_without_waiting_for_its_pull(bench: Bench) -> None:
    """A program that has nothing to do ends at once."""
    fetching = asyncio.create_task(bench.lane.fetch(1, timeout=3600))
    await bench.client.flush()
    assert 0 == await bench.end()
    fetching.cancel()


async def test_a_lane_that_is_let_go_is_watched_no_more(bench: Bench) -> None:
    """Also if it is let go twice."""
    await bench.lane.unsubscribe()
    await bench.lane.unsubscribe()
    assert [] == bench.client.lanes
