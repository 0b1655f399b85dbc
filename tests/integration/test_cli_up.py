"""`sexton up` and `sexton worker` as processes: ready when they say so, and gone however they end."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from sexton.worker.embedded import EmbeddedServers, NatsServer
from tests.support.cli import UP_WITHIN_S, Cli, descendants, running_up
from tests.support.http import fetch
from tests.support.processes import Program, Programs, alive
from tests.support.waiting import eventually

URL = r"^nats://127\.0\.0\.1:\d+$"


@pytest.fixture
def up(programs: Programs, tmp_path: Path) -> Callable[..., Program]:
    """Starts `sexton up` on a data folder of the test's own."""

    def start(*options: str) -> Program:
        return programs.sexton("up", "--data", str(tmp_path / "data"), *options)

    return start


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capfdbinary, monkeypatch)


async def all_gone(pids: set[int]) -> None:
    await eventually(
        lambda: {pid for pid in pids if alive(pid)},
        until=lambda left: not left,
        what="the end of all children",
    )


async def ready(program: Program) -> str:
    """The URL, once it is there; it is the first line."""
    url = (await program.line(URL, within_s=UP_WITHIN_S)).string
    assert url == program.stdout.splitlines()[0]
    return url


async def test_up_serves_health_and_metrics_if_asked(up: Callable[..., Program]) -> None:
    """With `--http-port`; where that is stands on stderr, and in the JSON."""
    program = up("--http-port", "0")
    await ready(program)
    url = (await program.line(r"health and metrics on (http://127\.0\.0\.1:\d+)$", stream="stderr"))[1]
    await eventually(lambda: fetch(f"{url}/readyz"), until=lambda found: found.status == 200, within_s=15)
    assert b"sexton_ready 1.0" in (await fetch(f"{url}/metrics")).body
    program.send_signal(signal.SIGINT)
    assert 0 == await program.exit_code()


async def test_up_tells_where_it_serves_in_json(up: Callable[..., Program]) -> None:
    """One object, with the other addresses."""
    program = up("--http-port", "0", "--json")
    told = json.loads((await program.line(r"^\{", within_s=UP_WITHIN_S)).string)
    assert 200 == (await fetch(f"{told['http_url']}/livez")).status


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 0), (signal.SIGKILL, -signal.SIGKILL)])
async def test_up_leaves_no_child_behind(
    up: Callable[..., Program], number: signal.Signals, code: int
) -> None:
    """NATS and Valkey are gone, also if it could not clean up."""
    program = up()
    await ready(program)
    children = descendants(program.pid)
    assert 2 <= len(children)

    program.send_signal(number)

    assert code == await program.exit_code()
    await all_gone(children)
    assert "Traceback" not in program.stderr


async def test_up_says_as_json_where_things_are(up: Callable[..., Program], tmp_path: Path) -> None:
    """One object, in the first line; and SIGTERM is a proper end, too."""
    program = up("--json")
    line = (await program.line("^{", within_s=UP_WITHIN_S)).string
    children = descendants(program.pid)

    program.send_signal(signal.SIGTERM)

    told = json.loads(line)
    assert str(tmp_path / "data") == told["data"]
    assert told["nats_url"].startswith("nats://127.0.0.1:")
    assert told["redis_url"].startswith("redis://127.0.0.1:")
    assert 0 == await program.exit_code()
    await all_gone(children)


async def test_up_that_is_told_to_end_before_it_is_ready_leaves_no_child(up: Callable[..., Program]) -> None:
    """The servers run, the worker is still being imported."""
    program = up()
    children = await eventually(
        lambda: descendants(program.pid), until=lambda found: len(found) >= 2, within_s=UP_WITHIN_S
    )

    program.send_signal(signal.SIGTERM)

    assert 0 == await program.exit_code()
    await all_gone(children)


def test_up_on_the_same_folder_goes_on(cli: Cli, tmp_path: Path) -> None:
    """The context is there, and a pointer minted before the restart gives its bytes."""
    data = b'{"role":"user","content":"one"}\n{"role":"user","content":"two"}\n'
    with running_up(tmp_path) as (program, url):
        cli("ingest", "-", "--nats", url, stdin=data)
        span_id = cli("tree", "--json", "--nats", url).value["spans"][1]["span_id"]
        pointer = cli("pointer", span_id, "--nats", url).out.decode()
        program.send_signal(signal.SIGINT)
        assert 0 == asyncio.run(program.exit_code())

    with running_up(tmp_path) as (_, url):
        resolved = cli("resolve", pointer, "--nats", url)
        again = cli("ingest", "-", "--json", "--nats", url, stdin=data)

    assert b'{"role":"user","content":"two"}\n' == resolved.out
    assert (0, 2) == (again.value["added"], again.value["present"])


async def test_two_ups_at_once_get_ports_of_their_own(programs: Programs, tmp_path: Path) -> None:
    """The second finds 4222 taken, and says where it is instead; the folder of the first is refused."""
    first = programs.sexton("up", "--data", str(tmp_path / "a"))
    one = await ready(first)
    second = programs.sexton("up", "--data", str(tmp_path / "b"))
    same_folder = programs.sexton("up", "--data", str(tmp_path / "a"))

    other = await ready(second)

    assert one != other
    await second.line("port 4222 is taken, NATS is on", stream="stderr")
    assert 10 == await same_folder.exit_code(within_s=UP_WITHIN_S)
    assert "embedded_data_folder_in_use" in same_folder.stderr
    assert "Traceback" not in same_folder.stderr


async def test_a_port_that_was_asked_for_and_is_taken_is_an_error(
    up: Callable[..., Program], own_nats: NatsServer
) -> None:
    """Another port than the one asked for would be of no use."""
    program = up("--nats-port", str(own_nats.port))

    assert 10 == await program.exit_code(within_s=UP_WITHIN_S)
    assert "embedded_port_taken" in program.stderr
    assert "" == program.stdout


async def test_up_ends_with_an_error_if_a_server_does(up: Callable[..., Program], tmp_path: Path) -> None:
    """Code 10, with the server's name and the end of its log; nothing is left."""
    program = up()
    await ready(program)
    children = descendants(program.pid)
    nats_pid = _nats_pid(tmp_path / "data")
    assert nats_pid in children

    os.kill(nats_pid, signal.SIGKILL)

    assert 10 == await program.exit_code(within_s=UP_WITHIN_S)
    assert "embedded_server_exited: nats-server ended by itself" in program.stderr
    await all_gone(children)


async def test_a_folder_that_cannot_be_made_is_bad_input(programs: Programs, tmp_path: Path) -> None:
    """A file stands in its place."""
    (tmp_path / "file").write_bytes(b"")

    program = programs.sexton("up", "--data", str(tmp_path / "file" / "data"))

    assert 7 == await program.exit_code(within_s=UP_WITHIN_S)
    assert "bad_input" in program.stderr
    assert "Traceback" not in program.stderr


async def test_partitions_are_fixed_when_the_folder_is_first_used(up: Callable[..., Program]) -> None:
    """Another number later would send a context's commands elsewhere; it is refused, by name."""
    first = up("--partitions", "4")
    await ready(first)
    first.send_signal(signal.SIGTERM)
    assert 0 == await first.exit_code()

    second = up("--partitions", "8")

    assert 10 == await second.exit_code(within_s=UP_WITHIN_S)
    assert "provision" in second.stderr
    assert "Traceback" not in second.stderr


async def test_a_setting_that_cannot_be_is_a_matter_of_usage(programs: Programs, tmp_path: Path) -> None:
    """Its variable is named, in a line."""
    program = programs.sexton("up", "--data", str(tmp_path / "data"), env={"SEXTON_ACK_WAIT_S": "0"})

    assert 2 == await program.exit_code(within_s=UP_WITHIN_S)
    assert "SEXTON_ACK_WAIT_S" in program.stderr
    assert "Traceback" not in program.stderr


async def test_a_worker_runs_until_it_is_told_to_end(
    programs: Programs, own_servers: EmbeddedServers, tmp_path: Path
) -> None:
    """From its settings alone; on SIGTERM it ends with 0."""
    env = {
        "SEXTON_NATS_URL": own_servers.nats_url,
        "SEXTON_REDIS_URL": own_servers.redis_url,
        "SEXTON_COLD_URL": (tmp_path / "cold").as_uri(),
        "SEXTON_CONTEXT": "demo",
    }
    worker = programs.sexton("worker", env=env)
    await worker.line("worker.ready", stream="stderr", within_s=UP_WITHIN_S)
    assert 0 == await programs.sexton("tree", env=env).exit_code()

    worker.send_signal(signal.SIGTERM)

    assert 0 == await worker.exit_code()
    assert "" == worker.stdout


async def test_a_worker_without_servers_is_unavailable(programs: Programs) -> None:
    """In a line, after its first try."""
    worker = programs.sexton(
        "worker", env={"SEXTON_NATS_URL": "nats://127.0.0.1:9", "SEXTON_IO_TIMEOUT_S": "0.5"}
    )

    assert 6 == await worker.exit_code(within_s=UP_WITHIN_S)
    assert "sexton: unavailable: " in worker.stderr
    assert "Traceback" not in worker.stderr


def _nats_pid(data: Path) -> int:
    """From the ports file, which the server names by it."""
    (file,) = (data / "nats").glob("*.ports")
    return int(file.stem.rpartition("_")[2])
