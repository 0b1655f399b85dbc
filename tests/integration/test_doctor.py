"""`sexton doctor` against real servers: it tells what is wrong, and changes nothing."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.js import JetStreamContext
from nats.js.api import StreamConfig
from pydantic import SecretStr

from sexton.schemas import subjects
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers, NatsServer
from sexton.worker.settings import Settings
from tests.support.cli import Cli, Ran
from tests.support.waiting import deadline
from tests.worker_kit.service import cold_folder, settings

CANARY = "canary-91ab"


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capfdbinary, monkeypatch)


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Client]:
    client = await nats.connect(url)
    try:
        yield client
    finally:
        await client.close()


def variables(config: Settings) -> dict[str, str]:
    return {
        "SEXTON_NATS_URL": config.nats_url,
        "SEXTON_REDIS_URL": config.redis_url.get_secret_value(),
        "SEXTON_COLD_URL": config.cold_url,
        "SEXTON_PARTITIONS": str(config.partitions),
        "SEXTON_IO_TIMEOUT_S": "2",
        "SEXTON_ACK_WAIT_S": str(config.ack_wait_s),
    }


async def examined(env: Mapping[str, str], *arguments: str) -> tuple[Ran, dict[str, Any]]:
    """Runs it as a program. Gives each check's worst finding."""
    async with deadline(30, "the doctor"):
        program = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "sexton.worker", "doctor", "--json", *arguments),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **env},
        )
        out, err = await program.communicate()
    assert program.returncode is not None
    ran = Ran(program.returncode, out, err.decode())
    order = ["ok", "unknown", "warning", "fault"]
    found: dict[str, Any] = {}
    for value in ran.values:
        before = found.get(value["check"])
        if before is None or order.index(value["level"]) > order.index(before["level"]):
            found[value["check"]] = value
    return ran, found


async def test_a_service_that_runs(own_servers: EmbeddedServers) -> None:
    """Nothing is at fault; what would be lost in earnest is told; nothing is left behind in the streams."""
    config = settings(own_servers)
    async with Worker(config), connection(own_servers.nats_url) as client:
        js = client.jetstream()
        before = await counts(js)
        ran, found = await examined(variables(config))
        assert before == await counts(js)
    levels = {check: value["level"] for check, value in found.items()}
    assert 0 == ran.code, ran.out
    assert {
        "settings.pager_urls": "warning",
        "work.pager": "warning",
        "nats.sync": "unknown",
        "redis.persistence": "warning",
    } == {check: level for check, level in levels.items() if level != "ok"}
    assert {
        "nats.connection", "nats.version", "nats.max_payload", "nats.streams", "nats.permissions",
        "cold.pairing", "work.workers", "clocks.nats", "clocks.redis", "clocks.cold",
        "redis.registry", "redis.hot", "redis.eviction", "redis.role", "cold.store",
    } <= set(levels)  # fmt: skip
    assert ["name"] == [path.name for path in files(cold_folder(own_servers))]


async def counts(js: JetStreamContext) -> dict[str | None, tuple[int, int]]:
    """Messages and last sequence of each stream."""
    infos = await js.streams_info()
    return {info.config.name: (info.state.messages, info.state.last_seq) for info in infos}


async def test_it_ends_as_it_says(own_servers: EmbeddedServers) -> None:
    """The cold store's library can abort a process that ends right after a write: one run in six did."""
    config = settings(own_servers)
    async with Worker(config):
        codes = [(await examined(variables(config)))[0].code for _ in range(12)]
    assert 12 * [0] == codes


async def test_warnings_count_if_asked_for(own_servers: EmbeddedServers) -> None:
    """With the code of a check that did not hold."""
    config = settings(own_servers)
    async with Worker(config):
        ran, _ = await examined(variables(config), "--strict")
    assert 9 == ran.code


async def test_nobody_works_and_nothing_is_there(own_servers: EmbeddedServers) -> None:
    """Servers that were just started: the streams are missing, and the doctor makes none."""
    ran, found = await examined(variables(settings(own_servers)))
    assert (9, "fault") == (ran.code, found["nats.streams"]["level"])
    assert "SEXTON_LOG" in found["nats.streams"]["found"]
    assert "ok" == found["redis.registry"]["level"]
    async with connection(own_servers.nats_url) as client:
        assert [] == await client.jetstream().streams_info()


async def test_a_stream_that_is_not_as_meant(own_servers: EmbeddedServers) -> None:
    """It names the stream, the field, what it is and what it must be."""
    config = settings(own_servers)
    async with Worker(config):
        pass
    async with connection(own_servers.nats_url) as client:
        js = client.jetstream()
        log = (await js.stream_info(subjects.STREAM_LOG)).config
        await js.update_stream(StreamConfig(**{**log.__dict__, "max_age": 600.0}))
    ran, found = await examined(variables(config))
    assert 9 == ran.code
    assert "SEXTON_LOG: max_age is 600.0, must be 0" == found["nats.streams"]["found"]
    assert "nobody pulls commands" in found["work.workers"]["found"]


@pytest.mark.parametrize("part", ["nats", "redis", "cold"])
async def test_one_that_cannot_be_reached_does_not_hide_the_others(
    own_servers: EmbeddedServers, part: str, tmp_path: Path
) -> None:
    """Each part is looked at, whatever became of the ones before."""
    blocked = tmp_path / "a-file"
    blocked.write_text("in the way")
    wrong = {
        "nats": {"SEXTON_NATS_URL": "nats://127.0.0.1:1"},
        "redis": {"SEXTON_REDIS_URL": "redis://127.0.0.1:1"},
        "cold": {"SEXTON_COLD_URL": (blocked / "below").as_uri()},
    }[part]
    config = settings(own_servers)
    async with Worker(config):
        ran, found = await examined(variables(config) | wrong)
    expected = {"nats.connection": "ok", "redis.connection": "ok", "cold.store": "ok"}
    broken = {"nats": "nats.connection", "redis": "redis.connection", "cold": "cold.store"}[part]
    assert expected | {broken: "fault"} == {check: found[check]["level"] for check in expected}
    assert 9 == ran.code


@pytest.mark.parametrize("server", ["nats", "valkey"])
async def test_a_server_that_is_frozen(own_servers: EmbeddedServers, server: str) -> None:
    """It is told within the time-out; the doctor does not hang."""
    config = settings(own_servers)
    async with Worker(config):
        pass
    frozen = own_servers.nats if server == "nats" else own_servers.valkey
    await frozen.pause()
    try:
        ran, found = await examined(variables(config))
    finally:
        await frozen.resume()
    assert 9 == ran.code
    assert "fault" == found["nats.connection" if server == "nats" else "redis.connection"]["level"]


async def test_wrong_passwords_are_told_and_not_shown(tmp_path: Path) -> None:
    """Authorization is named as the reason, without what was given."""
    users = 'authorization { users: [ { user: "worker", password: "right" } ] }'
    async with NatsServer(tmp_path / "nats", extra_config=users) as server:
        address = server.url.replace("://", f"://worker:{CANARY}@")
        ran, found = await examined({"SEXTON_NATS_URL": address, "SEXTON_IO_TIMEOUT_S": "2"})
    assert "fault" == found["nats.connection"]["level"]
    assert "uthorization" in found["nats.connection"]["found"]
    assert CANARY not in ran.out.decode() + ran.err


async def test_what_is_not_permitted_is_named(tmp_path: Path, redis_url: str) -> None:
    """A user who may not commit, and may not hear requests."""
    users = """authorization { users: [
      { user: "all", password: "all" },
      { user: "some", password: "some", permissions: {
          publish: { deny: ["sexton.log.>"] }, subscribe: { deny: ["sexton.rpc.>"] } } } ] }"""
    async with NatsServer(tmp_path / "nats", extra_config=users) as server:
        env = {
            "SEXTON_REDIS_URL": redis_url,
            "SEXTON_COLD_URL": (tmp_path / "cold").as_uri(),
            "SEXTON_PARTITIONS": "2",
        }
        of = {name: server.url.replace("://", f"://{name}:{name}@") for name in ("all", "some")}
        async with Worker(
            Settings(
                nats_url=of["all"],
                redis_url=SecretStr(redis_url),
                cold_url=env["SEXTON_COLD_URL"],
                partitions=2,
            )
        ):
            _, well = await examined(env | {"SEXTON_NATS_URL": of["all"]})
            ran, found = await examined(env | {"SEXTON_NATS_URL": of["some"]})
    assert "ok" == well["nats.permissions"]["level"]
    assert (9, "fault") == (ran.code, found["nats.permissions"]["level"])
    assert "sexton.log." in found["nats.permissions"]["found"]
    assert "sexton.rpc." in found["nats.permissions"]["found"]


@pytest.mark.parametrize(("sync", "level"), [(None, "fault"), ("always", "ok"), ("30s", "fault")])
async def test_fsync_is_read_from_the_monitoring_port(
    tmp_path: Path, redis_url: str, sync: str | None, level: str
) -> None:
    """What no client can see over NATS itself."""
    async with NatsServer(
        tmp_path / "nats", sync_interval=sync, extra_config='http: "127.0.0.1:-1"'
    ) as server:
        [ports] = server.data_dir.glob("*.ports")
        [monitor] = json.loads(ports.read_bytes())["monitoring"]
        env = {
            "SEXTON_NATS_URL": server.url,
            "SEXTON_REDIS_URL": redis_url,
            "SEXTON_COLD_URL": (tmp_path / "cold").as_uri(),
        }
        _, found = await examined(env, "--nats-monitor", monitor)
        _, not_found = await examined(env, "--nats-monitor", "http://127.0.0.1:1")
        bad, _ = await examined(env, "--nats-monitor", "file:///etc/passwd")
    assert level == found["nats.sync"]["level"]
    assert "unknown" == not_found["nats.sync"]["level"]
    assert 9 == bad.code


def test_for_people(cli: Cli) -> None:
    """A line for each check, and below it what to do; the sum on stderr."""
    env = {"SEXTON_NATS_URL": "nats://127.0.0.1:1", "SEXTON_REDIS_URL": "redis://127.0.0.1:1",
           "SEXTON_COLD_URL": "memory:///", "SEXTON_TYPO": "1"}  # fmt: skip
    ran = cli("doctor", env=env)
    lines = ran.out.decode().splitlines()
    assert 9 == ran.code
    assert lines[0].startswith("warning  settings.unknown")
    assert "-> correct or remove it" in lines[1]
    assert "fault" in ran.err
