"""NATS is killed, stopped, frozen, or answers too late: nothing is lost, and nothing counts twice."""

import asyncio
import signal
from typing import Any

import nats.errors
import pytest

from sexton.schemas.outcome import Committed
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.ports import LostRaceError
from tests.core_kit.build import append
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import publish_until_stored, sending
from tests.worker_kit.service import ready, serving, start_worker


@pytest.mark.parametrize("how", ["killed", "frozen"])
async def test_an_outage_in_the_middle_of_commits(own_servers: EmbeddedServers, how: str) -> None:
    """I7, I8: commands from before, during and after it are committed once each, and in order."""
    count = 60
    async with serving(own_servers, io_timeout_s=0.5, retry_delay_max_s=0.2) as (_, sender):
        async with deadline(60, "the commits"):
            stored: list[str] = []

            async def publish() -> None:
                for i in range(count):
                    await publish_until_stored(sender, append(f"e{i}", f"n{i}"), within_s=30)
                    stored.append(f"e{i}")

            publishing = asyncio.create_task(publish())
            for after in (10, 30):

                def enough(wanted: int = after) -> bool:
                    return len(stored) >= wanted

                await eventually(enough, within_s=20)
                if how == "killed":
                    await own_servers.nats.kill()
                    await own_servers.nats.start()
                else:
                    await own_servers.nats.pause()
                    # Longer than the worker waits for an answer: some publishes are given up on.
                    await asyncio.sleep(0.7)
                    await own_servers.nats.resume()
            await publishing
            await sender.until_idle(within_s=30)
        committed = [record.event_id for record in await sender.records("ctx")]
        assert [f"e{i}" for i in range(count)] == committed
        assert [] == await sender.dead_letters()


async def test_intake_is_back_within_seconds(own_servers: EmbeddedServers) -> None:
    """C91: after a server that was away for a while."""
    async with serving(own_servers) as (_, sender):
        await sender.commit(append("before", "a"))
        await own_servers.nats.stop()
        await asyncio.sleep(0.5)
        await own_servers.nats.start()
        async with deadline(8, "the intake"):
            await publish_until_stored(sender, append("after", "b"))
            assert isinstance(await sender.outcome_of("ctx", "after"), Committed)


async def test_the_connection_that_commits_keeps_nothing_to_send_later(own_servers: EmbeddedServers) -> None:
    """I8: no ghost write: what cannot be sent now is refused now."""
    async with serving(own_servers) as (worker, sender):
        await own_servers.nats.stop()
        await eventually(lambda: not worker._client.is_connected)
        with pytest.raises(nats.errors.OutboundBufferLimitError):
            await worker._client.publish("sexton.log.ghost", b"x")
        await own_servers.nats.start()
        await publish_until_stored(sender, append("after", "a"))
        await sender.outcome_of("ctx", "after")
        assert [] == await sender.records("ghost")


async def test_an_answer_that_is_lost_after_the_record_was_stored(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, C26: the publish timed out, and was stored: told as committed, once."""
    async with serving(own_servers) as (worker, sender):
        log: Any = worker._log._log
        publish = log._js.publish
        lost: list[str] = []

        async def unanswered(subject: str, *args: Any, **kwargs: Any) -> Any:
            ack = await publish(subject, *args, **kwargs)
            lost.append(subject)
            if len(lost) % 2:
                raise nats.errors.TimeoutError
            return ack

        monkeypatch.setattr(log._js, "publish", unanswered)
        for i in range(6):
            assert i + 1 == (await sender.commit(append(f"e{i}", f"n{i}"))).revision
        assert 6 == len(await sender.records("ctx"))
        assert len(lost) >= 6


async def test_a_record_that_was_stored_and_is_called_a_lost_race(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: 10071 to what was our own success, as a resend on the network would get."""
    async with serving(own_servers) as (worker, sender):
        log: Any = worker._handler._committer._log
        appending = log.append

        async def twice(context_id: str, data: bytes, expected: int) -> int:
            await appending(context_id, data, expected)
            with pytest.raises(LostRaceError):
                await appending(context_id, data, expected)
            raise LostRaceError(context_id)

        monkeypatch.setattr(log, "append", twice)
        for i in range(3):
            assert i + 1 == (await sender.commit(append(f"e{i}", f"n{i}"))).revision
        assert 3 == len(await sender.records("ctx"))


async def test_a_ghost_of_a_record_arrives_after_its_successor(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8: given up on, committed by the second try, and only then stored: the compare-and-swap refuses it."""
    async with serving(own_servers) as (worker, sender):
        log: Any = worker._handler._committer._log
        appending = log.append
        ghosts: list[tuple[str, bytes, int]] = []

        async def late(context_id: str, data: bytes, expected: int) -> int:
            if len(ghosts) < 3 and (context_id, data, expected) not in ghosts:
                ghosts.append((context_id, data, expected))
                raise LostRaceError(context_id)
            sequence: int = await appending(context_id, data, expected)
            return sequence

        monkeypatch.setattr(log, "append", late)
        for i in range(3):
            await sender.commit(append(f"e{i}", f"n{i}"))
        for ghost in ghosts:
            with pytest.raises(LostRaceError):
                await appending(*ghost)
        assert ["e0", "e1", "e2"] == [record.event_id for record in await sender.records("ctx")]


async def test_an_ack_that_is_lost_brings_the_command_again(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I8, C08: handled, not acknowledged, delivered again: one effect, told twice the same."""
    async with serving(own_servers, ack_wait_s=0.4) as (worker, sender):
        handler = worker._handler
        cold = handler._committer._cold
        original = handler.on_command
        deliveries: list[int] = []

        async def unacknowledged(subject: str, data: bytes, reply: str | None, delivery: int) -> None:
            deliveries.append(delivery)
            await original(subject, data, reply, delivery)
            if delivery == 1:
                node = (await sender.tree("ctx")).nodes["l0:n0"]
                await cold.delete("ctx", node.identity)
                # As a connection that goes between the commit and the ack: nobody says that it is done.
                raise asyncio.CancelledError

        monkeypatch.setattr(handler, "on_command", unacknowledged)
        await sender.publish(append("e0", "n0"))
        await eventually(lambda: deliveries, until=lambda found: found == [1, 2])
        await sender.until_idle()
        first, second = sender.outcomes["ctx", "e0"]
        assert first == second
        assert 1 == len(await sender.records("ctx"))
        node = (await sender.tree("ctx")).nodes["l0:n0"]
        assert node.size_bytes == await cold.size_bytes("ctx", node.identity), "put again by the second one"


async def test_a_worker_that_was_frozen_comes_back_to_what_others_have_done(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """I8: SIGSTOP in the middle of a commit, longer than its ack wait; what it does late changes nothing."""
    frozen = start_worker(programs, own_servers, stop_at={"ctx": "before the record"}, partitions=1)
    await ready(frozen)
    async with sending(own_servers.nats_url) as sender:
        await sender.publish(append("e0", "n0"))
        await frozen.line("^at before the record in ctx$", within_s=20)
        frozen.send_signal(signal.SIGSTOP)
        async with serving(own_servers, partitions=1):
            assert isinstance(await sender.outcome_of("ctx", "e0", within_s=10), Committed)
            await sender.commit(append("e1", "n1"))
            frozen.send_signal(signal.SIGCONT)
            for i in range(2, 12):
                await sender.commit(append(f"e{i}", f"n{i}"))
            assert [f"e{i}" for i in range(12)] == [r.event_id for r in await sender.records("ctx")]
        frozen.kill()


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_a_worker_ends_in_order_during_an_outage(own_servers: EmbeddedServers, how: str) -> None:
    """SIGTERM must work when it is most likely to be sent."""
    async with deadline(15, "the end"):
        async with serving(own_servers, io_timeout_s=0.5, grace_s=1.0) as (worker, sender):
            await sender.commit(append("e0", "n0"))
            await (own_servers.nats.stop() if how == "stopped" else own_servers.nats.pause())
            if how == "stopped":
                await eventually(lambda: not worker._client.is_connected)
        assert worker._client.is_closed
    if how == "frozen":
        await own_servers.nats.resume()
