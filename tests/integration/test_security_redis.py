"""Valkey with exactly the users of deploy/valkey/users.acl: the worker does its work, and nothing else."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from sexton.holder import Holder, HolderSettings, PinCost
from sexton.schemas.errors import InvalidInput, PermissionRefused
from sexton.worker.adapters.redis_client import open_redis
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers, ServerExited, ValkeyServer
from sexton.worker.settings import Settings
from tests.leases_kit.servers import QUICK
from tests.secure_kit.guarded import DEPLOY, PASSWORD, guarded
from tests.support.waiting import deadline, eventually
from tests.worker_kit.service import settings


def as_worker(servers: EmbeddedServers, **more: Any) -> Settings:
    given = {"redis_username": "sexton", "redis_password": PASSWORD}
    return settings(servers, **{**given, **more})


@asynccontextmanager
async def admin(servers: EmbeddedServers) -> AsyncIterator[Any]:
    client = Redis(port=servers.valkey.port, username="probe", password="any")
    try:
        yield client
    finally:
        await client.aclose()


async def test_the_worker_does_all_its_work(tmp_path: Path) -> None:
    """Commits, hot bytes, snapshots, leases, pins, sweeps and collection; nothing of it is refused."""
    async with guarded(tmp_path) as servers, deadline(60, "the work"):
        config = as_worker(servers, **QUICK, snapshot_every=2)
        connecting = Holder.connect(servers.nats_url, settings=HolderSettings(lease_ttl_s=1.0))
        async with Worker(config) as worker, connecting as holder:
            context = await holder.open("ctx")
            spans = [(await context.append(f"Some words {i}.")).spans[0].span_id for i in range(4)]
            pointer = await context.mint(spans[0])
            async with context.pin(spans[0], cost=PinCost.EXPENSIVE):
                await context.rewrite(spans[0], "Others.")
                assert (await context.resolve(pointer, accept_superseded=True)).quote()
            await context.prune(spans[1])
            await context.compact(spans[2:], allow_larger=True)
            await eventually(
                lambda: context.tree.tombstones, until=lambda left: not left, within_s=30, what="a collection"
            )
            await eventually(worker.health.ready, until=lambda report: report.ok, within_s=10)
            for refresh in worker.refresh:
                await refresh()
        async with admin(servers) as seen:
            assert [] == await seen.acl_log()
            assert {key.split(b":")[0] for key in await seen.keys("*")} == {b"sexton"}


@pytest.mark.parametrize(
    "command",
    [
        ("FLUSHALL",),
        ("FLUSHDB",),
        ("CONFIG", "GET", "*"),
        ("KEYS", "*"),
        ("SCAN", "0"),
        ("ACL", "LIST"),
        ("SHUTDOWN",),
        ("MONITOR",),
        ("SAVE",),
        ("REPLICAOF", "NO", "ONE"),
        ("SCRIPT", "FLUSH"),
        ("FUNCTION", "FLUSH"),
        ("CLIENT", "KILL", "ID", "1"),
        ("PUBLISH", "x", "y"),
        ("RENAME", "sexton:{a}:gen", "sexton:{a}:x"),
        ("SET", "other", "x"),
        ("GET", "other"),
        ("UNLINK", "other"),
        ("EVAL", "return redis.call('FLUSHALL')", "0"),
        ("EVAL", "return redis.call('GET', KEYS[1])", "1", "other"),
    ],
)
async def test_the_worker_may_do_nothing_else(tmp_path: Path, command: tuple[str, ...]) -> None:
    """Each command and each key outside is refused."""
    async with guarded(tmp_path) as servers:
        client = open_redis(as_worker(servers), 2)
        try:
            with pytest.raises(
                (NoPermissionError, ResponseError), match=r"(?i)noperm|acl failure|no permissions"
            ):
                await client.execute_command(*command)
        finally:
            await client.aclose()


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"redis_password": "S3CRET"}, "WRONGPASS"),
        ({"redis_username": None, "redis_password": None}, "NOAUTH"),
    ],
)
async def test_who_is_not_let_in_ends_at_its_start(tmp_path: Path, given: dict[str, Any], why: str) -> None:
    """It is no outage to be waited out: the worker says so at once, without the password."""
    async with guarded(tmp_path) as servers:
        with pytest.raises(PermissionRefused, match=why) as caught:
            async with deadline(10, "the refusal"), Worker(as_worker(servers, **given)):
                pass
    assert "S3CRET" not in str(caught.value)


async def test_a_command_that_is_taken_away_is_noticed(tmp_path: Path) -> None:
    """The worker is not ready, and says why; and is again once it is permitted."""
    async with guarded(tmp_path) as servers, admin(servers) as operator:
        config = as_worker(servers, sweep_interval_s=0.1)
        async with Worker(config) as worker:
            await operator.execute_command("ACL", "SETUSER", "sexton", "-evalsha")

            async def registry() -> str:
                return str((await worker.health.ready()).checks["registry"])

            await eventually(registry, until=lambda said: "NOPERM" in said, within_s=20, what="unreadiness")
            await operator.execute_command("ACL", "SETUSER", "sexton", "+evalsha")
            await eventually(registry, until=lambda said: "NOPERM" not in said, within_s=20, what="readiness")


async def test_the_file_that_is_shipped_has_no_password(tmp_path: Path) -> None:
    """Valkey does not start with it until there is one."""
    server = ValkeyServer(tmp_path, extra_config=f'aclfile "{DEPLOY / "users.acl"}"')
    with pytest.raises(ServerExited, match=r"(?i)password"):
        await server.start()


def test_a_ca_without_tls(tmp_path: Path) -> None:
    """A file of authorities for an address without TLS is a mistake that is told."""
    chosen = Settings(redis_url="redis://127.0.0.1", redis_tls_ca_file=tmp_path / "none")
    with pytest.raises(InvalidInput, match="rediss"):
        open_redis(chosen, 1)
    chosen = Settings(redis_url="rediss://127.0.0.1", redis_tls_ca_file=tmp_path / "none")
    with pytest.raises(InvalidInput, match="cannot read"):
        open_redis(chosen, 1)
