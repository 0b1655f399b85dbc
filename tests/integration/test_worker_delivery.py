"""Delivery at a real worker: given back and exhausted, slow handlers, SIGTERM, order behind what fails."""

import asyncio
import json
import signal
from collections import Counter
from typing import Any

import pytest

from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.worker.delivery import Delivery
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import sending
from tests.worker_kit.service import ready, serving, start_worker


class Interposed:
    """Stands before a worker's handler: counts deliveries, and does what the test says first."""

    def __init__(self, worker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.deliveries = Counter[str]()
        self.running = Counter[str]()
        self.most_at_once = 0
        self.first: dict[str, Any] = {}
        self._original = worker._handler.on_command
        monkeypatch.setattr(worker._handler, "on_command", self)

    async def __call__(self, subject: str, data: bytes, *more: Any) -> None:
        event_id = json.loads(data)["event_id"]
        self.deliveries[event_id] += 1
        self.running[event_id] += 1
        self.most_at_once = max(self.most_at_once, self.running[event_id])
        try:
            first = self.first.get(event_id)
            if isinstance(first, Exception):
                raise first
            if first is not None:
                await first()
            await self._original(subject, data, *more)
        finally:
            self.running[event_id] -= 1


async def test_a_command_that_fails_for_ever_is_a_dead_letter_in_the_end(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: after the number of tries that is set, with its bytes; what waited behind it goes on."""
    async with serving(own_servers, partitions=1, max_deliveries=4, retry_delay_max_s=0.1) as (
        worker,
        sender,
    ):
        before = Interposed(worker, monkeypatch)
        before.first["bad"] = Unavailable("never")
        bad = append("bad", "bad")
        await sender.publish(bad)
        await sender.publish(append("good", "good"))
        assert isinstance(await sender.outcome_of("ctx", "good"), Committed)
        [(letter, data)] = await sender.dead_letters()
        assert (bad.wire(), "exhausted", 4) == (data, letter.reason, letter.deliveries)
        assert 4 == before.deliveries["bad"]
        assert ["good"] == [record.event_id for record in await sender.records("ctx")]
        told = await sender.outcome_of("ctx", "bad")
        assert isinstance(told, Rejected)
        assert RejectionCode.DEAD_LETTER is told.code
        assert "never" in told.message


async def test_a_bug_is_logged_and_the_command_tried_again(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: no command is lost to one."""
    async with serving(own_servers) as (worker, sender):
        before = Interposed(worker, monkeypatch)
        raised: list[str] = []

        async def bug() -> None:
            if len(raised) < 2:
                raised.append("x")
                raise RuntimeError("a bug")

        before.first["e0"] = bug
        await sender.publish(append("e0", "n0"))
        assert isinstance(await sender.outcome_of("ctx", "e0"), Committed)
        assert 3 == before.deliveries["e0"]


async def test_a_handler_that_outlasts_its_ack_wait_is_not_run_twice(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23: it says `in_progress`; neither this worker nor the other one begins it again."""
    more: dict[str, Any] = {"partitions": 1, "ack_wait_s": 0.4}
    async with serving(own_servers, **more) as (one, sender), serving(own_servers, **more) as (two, _):
        both = [Interposed(worker, monkeypatch) for worker in (one, two)]
        for interposed in both:
            interposed.first["slow"] = lambda: asyncio.sleep(1.5)
        await sender.publish(append("slow", "slow"))
        await sender.publish(append("next", "next"))
        await sender.outcome_of("ctx", "next")
        assert 1 == sum(interposed.deliveries["slow"] for interposed in both)
        assert ["slow", "next"] == [record.event_id for record in await sender.records("ctx")]


async def test_without_the_beat_the_second_delivery_is_harmless(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C23, I8: a worker that is too busy to say anything has its command carried out by another, once."""
    more: dict[str, Any] = {"partitions": 1, "ack_wait_s": 0.4}
    async with serving(own_servers, **more) as (one, sender), serving(own_servers, **more) as (two, _):

        async def silent(*_: Any) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(Delivery, "_beat", silent)
        both = [Interposed(worker, monkeypatch) for worker in (one, two)]
        for interposed in both:
            interposed.first["slow"] = lambda: asyncio.sleep(0.7)
        await sender.publish(append("slow", "slow"))
        await sender.outcome_of("ctx", "slow")
        await sender.until_idle()
        assert sum(interposed.deliveries["slow"] for interposed in both) > 1
        assert ["slow"] == [record.event_id for record in await sender.records("ctx")]
        assert 1 == len({outcome.wire() for outcome in sender.outcomes["ctx", "slow"]})


async def test_sigterm_finishes_what_is_in_flight(own_servers: EmbeddedServers, programs: Programs) -> None:
    """I7: what was begun is committed and acknowledged; what was not is another's, without a long wait."""
    worker = start_worker(programs, own_servers, partitions=4)
    await ready(worker)
    async with sending(own_servers.nats_url) as sender, deadline(60, "the hand-over"):
        for i in range(200):
            await sender.publish(append(f"e{i}", f"n{i}", context_id=f"c{i % 8}"))
        await eventually(lambda: len(sender.outcomes), until=lambda n: n > 20)
        worker.send_signal(signal.SIGTERM)
        assert 0 == await worker.exit_code(within_s=20), worker.report()
        assert "worker.stopped" in worker.stderr
        assert "Traceback" not in worker.stderr
        committed = sum([len(await sender.records(f"c{i}")) for i in range(8)])
        told = len(sender.outcomes)
        assert committed == told, "nothing was committed that nobody was told of"
        async with serving(own_servers, partitions=4):
            await sender.until_idle(within_s=30)
        for i in range(8):
            expected = [f"e{n}" for n in range(200) if n % 8 == i]
            assert expected == [record.event_id for record in await sender.records(f"c{i}")]


async def test_a_task_that_misses_its_cancellation_does_not_keep_the_worker(
    own_servers: EmbeddedServers,
) -> None:
    """As Python 3.11's `wait_for` does when the answer comes at the same moment: it is told again."""
    missed: list[bool] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if missed:
                    raise
                missed.append(True)

    async with deadline(10, "the end"), serving(own_servers) as (worker, _):
        worker._spawn(stubborn())
        await asyncio.sleep(0)
    assert [True] == missed


async def test_sigterm_when_idle_ends_at_once(own_servers: EmbeddedServers, programs: Programs) -> None:
    """Without an error and without waiting for the grace period."""
    worker = start_worker(programs, own_servers)
    await ready(worker)
    worker.send_signal(signal.SIGTERM)
    async with deadline(10, "the end"):
        assert 0 == await worker.exit_code(within_s=10)
    assert "Traceback" not in worker.stderr
    assert '"level": "error"' not in worker.stderr
