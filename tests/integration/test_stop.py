"""SIGTERM on real processes with messages in flight: nothing lost, nothing twice, and soon at another worker.

The ack wait is a minute here: what came to an end within seconds was given back, and did not wait for that.
"""

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sexton.schemas.outcome import Committed
from sexton.schemas.rpc import SyncRequest, Verb
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf
from tests.support.http import fetch
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, sending
from tests.worker_kit.service import ready, serving, settings, start_worker

ACK_WAIT_S = 60.0
END_S = 12
"""However its servers are, a program without anything to wait for is gone by then."""

http_or_not = pytest.mark.parametrize("http_port", [None, 0], ids=["no-http", "http"])


@pytest.fixture
async def sender(own_servers: EmbeddedServers) -> AsyncIterator[Sender]:
    async with sending(own_servers.nats_url) as found:
        yield found


async def url_of(program: Program) -> str:
    """Where it serves."""
    found = await program.line("web.listening", stream="stderr")
    port = re.search(r'"port": (\d+)', found.string)
    assert port is not None
    return f"http://127.0.0.1:{port[1]}"


async def ended(program: Program, within_s: float = END_S) -> None:
    """It comes to its end by itself, in order."""
    assert 0 == await program.exit_code(within_s=within_s)
    assert "Traceback" not in program.stderr


@http_or_not
async def test_commands_under_way(
    own_servers: EmbeddedServers, programs: Programs, sender: Sender, http_port: int | None
) -> None:
    """I7, I8: workers are told to end amid a stream of commands; each counts once, and none waits."""
    more: dict[str, Any] = {"ack_wait_s": ACK_WAIT_S, "partitions": 4}
    more |= {} if http_port is None else {"http_port": http_port}
    first, second = (start_worker(programs, own_servers, **more) for _ in range(2))
    await ready(first, second)
    contexts, enough = 8, asyncio.Event()

    async def publish() -> int:
        number = 0
        while not enough.is_set():
            # Always some under way, and never more than can be done.
            if number - len(sender.order) > 60:
                await asyncio.sleep(0.005)
                continue
            await sender.publish(append(f"e{number}", f"n{number}", context_id=f"c{number % contexts}"))
            number += 1
        return number

    publishing = asyncio.create_task(publish())
    for old in (first, second):
        heard = len(sender.order) + 40
        await eventually(lambda heard=heard: len(sender.order) > heard, within_s=20)  # type: ignore[misc]
        new = start_worker(programs, own_servers, **more)
        old.send_signal(signal.SIGTERM)
        await ended(old)
        await ready(new)
    enough.set()
    async with deadline(30, "all commands"):
        count = await publishing
        await sender.until_idle(25)
    for context in range(contexts):
        wanted = [f"e{number}" for number in range(count) if number % contexts == context]
        assert wanted == [record.event_id for record in await sender.records(f"c{context}")]
    assert all(isinstance(outcome, Committed) for outcome in sender.order)
    assert [] == await sender.dead_letters()


def slow_summariser(folder: Path) -> str:
    """A summariser that takes for ever, and says in a file who it is."""
    program = folder / "slow.py"
    program.write_text(
        f"import os, pathlib, time\npathlib.Path({str(folder / 'pid')!r}).write_text(str(os.getpid()))\n"
        "time.sleep(3600)\n"
    )
    return f"command:{sys.executable} {program}"


async def summarising(
    own_servers: EmbeddedServers, programs: Programs, sender: Sender, folder: Path, **more: Any
) -> tuple[Program, int]:
    """A worker whose summariser is at it, and the summariser's process id."""
    worker = start_worker(
        programs, own_servers, summariser=slow_summariser(folder), ack_wait_s=ACK_WAIT_S, **more
    )
    await ready(worker)
    await sender.commit(append("fill", leaf("a", "one " * 99), leaf("b", "two " * 99), context_id="ctx"))
    await sender.publish(compact("sum", "l0:a", "l0:b", summary=None, context_id="ctx"))
    pid = await eventually(lambda: _read(folder / "pid"), within_s=15, what="the summariser")
    return worker, pid


def _read(path: Path) -> int:
    return int(path.read_text() or 0) if path.exists() else 0


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_a_summary_that_takes_longer_than_the_grace_time(
    own_servers: EmbeddedServers, programs: Programs, sender: Sender, tmp_path: Path
) -> None:
    """It is given back when that is over, its summariser is ended, and another worker makes it at once."""
    worker, pid = await summarising(own_servers, programs, sender, tmp_path, grace_s=0.5)
    worker.send_signal(signal.SIGTERM)
    await ended(worker)
    assert gone(pid)
    async with serving(own_servers, ack_wait_s=ACK_WAIT_S):
        assert isinstance(await sender.outcome_of("ctx", "sum"), Committed)


async def test_a_second_signal_ends_the_grace_time(
    own_servers: EmbeddedServers, programs: Programs, sender: Sender, tmp_path: Path
) -> None:
    """Until then it is alive, not ready, and waits; the third changes nothing."""
    worker, _ = await summarising(own_servers, programs, sender, tmp_path, grace_s=600, http_port=0)
    url = await url_of(worker)
    await eventually(lambda: fetch(f"{url}/readyz"), until=lambda found: found.status == 200)
    worker.send_signal(signal.SIGTERM)
    found = await eventually(lambda: fetch(f"{url}/readyz"), until=lambda found: found.status == 503)
    assert {"phase": {"ok": False, "reason": "stopping"}} == found.json["checks"]
    assert 200 == (await fetch(f"{url}/livez")).status
    assert worker.running
    worker.send_signal(signal.SIGINT)
    worker.send_signal(signal.SIGTERM)
    await ended(worker)
    async with serving(own_servers, ack_wait_s=ACK_WAIT_S):
        assert isinstance(await sender.outcome_of("ctx", "sum"), Committed)


async def test_a_command_in_flight_is_finished(own_servers: EmbeddedServers, sender: Sender) -> None:
    """In the grace time it comes to its outcome, while nothing new is begun."""
    worker: Any = Worker(settings(own_servers, partitions=1, ack_wait_s=ACK_WAIT_S))
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with worker:
        original = worker._handler.on_command

        async def slow(*args: Any) -> None:
            begun.set()
            await go_on.wait()
            await original(*args)

        worker._handler.on_command = slow
        await sender.publish(append("one", "one"))
        await begun.wait()
        await sender.publish(append("two", "two"))
        ending = asyncio.create_task(worker.end())
        await eventually(lambda: worker.health.phase.value, until=lambda phase: phase == "stopping")
        assert not ending.done()
        go_on.set()
        await ending
    assert isinstance(await sender.outcome_of("ctx", "one"), Committed)
    assert ("ctx", "two") not in sender.outcomes
    async with serving(own_servers, partitions=1, ack_wait_s=ACK_WAIT_S):
        assert isinstance(await sender.outcome_of("ctx", "two"), Committed)


async def test_a_request_in_flight_is_answered(own_servers: EmbeddedServers, sender: Sender) -> None:
    """And one that comes while the worker ends goes to another one."""
    worker: Any = Worker(settings(own_servers))
    begun, go_on = asyncio.Event(), asyncio.Event()
    async with worker:
        original = worker._rpc.parts

        async def slow(*args: Any) -> Any:
            begun.set()
            await go_on.wait()
            return await original(*args)

        worker._rpc.parts = slow
        request = SyncRequest(context_id="ctx")
        asked = asyncio.create_task(sender.rpc(Verb.SYNC, request, context_id="ctx"))
        async with deadline(10, "the request"):
            await begun.wait()
        async with serving(own_servers):
            ending = asyncio.create_task(worker.end())
            await eventually(lambda: worker.health.phase.value, until=lambda phase: phase == "stopping")
            await sender.client.flush()
            for _ in range(20):
                parts = await sender.rpc(Verb.SYNC, request, context_id="ctx", within_s=5)
                assert parts[0]["status"] != "error"
            assert not asked.done()
            go_on.set()
            await ending
            assert (await asked)[0]["status"] != "error"


@http_or_not
@pytest.mark.parametrize("how", ["paused", "killed"])
@pytest.mark.parametrize("which", ["nats", "valkey"])
async def test_a_server_that_is_away_does_not_hold_it_up(
    own_servers: EmbeddedServers, programs: Programs, which: str, how: str, http_port: int | None
) -> None:
    """Frozen or gone at that moment: it ends in order all the same."""
    more: dict[str, Any] = {} if http_port is None else {"http_port": http_port}
    worker = start_worker(programs, own_servers, sweep_interval_s=0.05, **more)
    await ready(worker)
    server = getattr(own_servers, which)
    await (server.pause() if how == "paused" else server.kill())
    try:
        worker.send_signal(signal.SIGTERM)
        await ended(worker)
    finally:
        if how == "paused":
            await server.resume()


async def test_a_frozen_broker_with_a_command_in_flight(
    own_servers: EmbeddedServers, programs: Programs, sender: Sender
) -> None:
    """The grace time is kept; nothing of it is lost, and it counts once."""
    worker = start_worker(
        programs, own_servers, stop_at={"ctx": "before the record"}, grace_s=1.0, ack_wait_s=3.0
    )
    await ready(worker)
    await sender.publish(append("one", "one"))
    await worker.line("at before the record in ctx")
    await own_servers.nats.pause()
    worker.send_signal(signal.SIGTERM)
    await ended(worker)
    await own_servers.nats.resume()
    async with serving(own_servers, ack_wait_s=3.0):
        assert isinstance(await sender.outcome_of("ctx", "one"), Committed)
    assert ["one"] == [record.event_id for record in await sender.records("ctx")]


@http_or_not
async def test_told_to_end_while_it_starts(
    own_servers: EmbeddedServers, programs: Programs, http_port: int | None
) -> None:
    """The start is called off; that is no failure."""
    await own_servers.nats.pause()
    more: dict[str, Any] = {} if http_port is None else {"http_port": http_port}
    worker = start_worker(programs, own_servers, io_timeout_s=60, **more)
    await eventually(lambda: signal_is_caught(worker.pid), within_s=20, what="its signal handler")
    worker.send_signal(signal.SIGTERM)
    await ended(worker)
    await own_servers.nats.resume()


def signal_is_caught(pid: int) -> bool:
    """Whether the process has a handler for SIGTERM by now."""
    status = Path(f"/proc/{pid}/status")
    if not status.exists():
        pytest.skip("needs /proc")
    mask = re.search(r"SigCgt:\s*([0-9a-f]+)", status.read_text())
    return mask is not None and bool(int(mask[1], 16) >> (signal.SIGTERM - 1) & 1)
