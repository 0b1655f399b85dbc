"""The registry is emptied, or put back from an older copy, on real servers: what is held is not collected.

Each time a second tombstone, which nobody holds, shows that the sweeps have gone all the way since.
"""

import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sexton.core.pins import PinCost
from sexton.holder import Context, Unavailable
from sexton.schemas.outcome import Committed
from sexton.schemas.records import Collecting
from sexton.schemas.span import NewSpan, SpanState, Strategy
from sexton.worker.embedded import EmbeddedServers, ValkeyServer
from tests.leases_kit.servers import (
    BY_HAND,
    QUICK,
    WITHIN_S,
    History,
    history,
    holding,
    on_redis_server,
    pins,
    stored,
    sweep,
    tombstones,
    until_collected,
)
from tests.support.waiting import eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import serving

HELD, FREE = ("l0:held", 1), ("l0:free", 1)


@pytest_asyncio.fixture(params=["valkey", "redis-server"])
async def either_servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers of this test's own: with Valkey, and with a redis-server if one is on PATH."""
    servers = EmbeddedServers(tmp_path / "servers")
    if request.param == "redis-server" and not on_redis_server(servers):
        pytest.skip("no redis-server on PATH")
    async with servers:
        yield servers


@asynccontextmanager
async def client(servers: EmbeddedServers) -> AsyncIterator[Redis]:
    """The registry's server, as its operator sees it."""
    redis = Redis.from_url(servers.redis_url)
    try:
        yield redis
    finally:
        await redis.aclose()


async def fill(context: Context) -> None:
    """One leaf that will be held, and one that will not."""
    await context.append([NewSpan(name="held", content="kept bytes"), NewSpan(name="free", content="free")])


async def rewrite(context: Context, span_id: str) -> Strategy | None:
    """Rewrites a span; gives what becomes of the old version."""
    version = context.tree.nodes[span_id].version
    outcome = await context.rewrite(span_id, f"bytes that came after version {version}")
    assert isinstance(outcome, Committed)
    return outcome.strategy


def never_announced(found: History) -> bool:
    """Whether no collector has ever announced the version that is held."""
    return not any(
        HELD == (version.span_id, version.version)
        for record in found.records
        if isinstance(record, Collecting)
        for version in record.versions
    )


async def is_kept(servers: EmbeddedServers, sender: Sender, context: Context, found: History) -> None:
    """The version that is held is a plain tombstone, its bytes are in the store, and they can be read."""
    assert never_announced(found)
    assert SpanState.TOMBSTONE is found.tree.tombstones[HELD].state
    assert "held/1" in stored(servers, context.context_id)
    async with holding(servers, context.context_id) as reader:
        pointer = await reader.mint("l0:held")
        old = found.tree.tombstones[HELD].identity
        claim = {"version": 1, "content_hash": old.content_hash, "length": old.size_bytes}
        resolved = await reader.resolve(pointer.model_copy(update=claim), accept_superseded=True)
        assert ("kept bytes", True) == (resolved.text, resolved.superseded)


# --- emptied -------------------------------------------------------------------------------------------


async def test_nothing_held_is_collected_when_the_registry_is_emptied(
    either_servers: EmbeddedServers, context_id: str
) -> None:
    """C100, I4: FLUSHALL with live pins: known again after a heartbeat; meanwhile a rewrite keeps what it
    replaces, for unknown is not zero, and nothing is announced for one longest lease.
    """
    async with (
        serving(either_servers, **QUICK) as (_, sender),
        holding(either_servers, context_id) as context,
        client(either_servers) as redis,
    ):
        await fill(context)
        async with context.pin("l0:held", cost=PinCost.EXPENSIVE) as pinned:
            assert Strategy.COPY_ON_REWRITE is await rewrite(context, "l0:held")
            await redis.flushall()
            assert Strategy.COPY_ON_REWRITE is await rewrite(context, "l0:free")
            await eventually(
                lambda: tombstones(sender, context_id),
                until=lambda stones: stones[FREE].step == "wait_hold_back",
            )
            await eventually(lambda: pins(sender, context_id), until=lambda held: [HELD] == list(held))
            found = await until_collected(sender, context_id, {FREE})
            await is_kept(either_servers, sender, context, found)
            assert pinned.proven
            assert Strategy.INVALIDATE_AND_REKEY is await rewrite(context, "l0:free")
        await until_collected(sender, context_id, {HELD})


# --- put back from an older copy -------------------------------------------------------------------------


Copy = Callable[[EmbeddedServers, Path], Awaitable[None]]


async def snapshot(servers: EmbeddedServers, folder: Path) -> None:
    """A copy of what the server has on disk when told to save."""
    async with client(servers) as redis:
        await redis.save()
    shutil.copytree(servers.valkey.data_dir, folder)


async def append_only_files(servers: EmbeddedServers, folder: Path) -> None:
    """A copy of its append-only files, as they are."""
    shutil.copytree(servers.valkey.data_dir, folder)


async def put_back(servers: EmbeddedServers, folder: Path) -> None:
    """Kills the server, and starts it with the copy in the place of its data."""
    await servers.valkey.kill()
    for name in ("dump.rdb", "appendonlydir"):
        kept, lost = folder / name, servers.valkey.data_dir / name
        if lost.is_dir():
            shutil.rmtree(lost)
        lost.unlink(missing_ok=True)
        if kept.is_dir():
            shutil.copytree(kept, lost)
        elif kept.exists():
            shutil.copy(kept, lost)
    await servers.valkey.start()


async def held_before_and_after(
    servers: EmbeddedServers,
    context_id: str,
    copy: Callable[[], Awaitable[None]],
    restore: Callable[[], Awaitable[None]],
) -> None:
    """The worst copy there can be: it knows a mark on the version that is held, of before it was, and it does
    not know the holder. Sweeps are made by hand, so that the first one comes before any heartbeat.
    """
    async with (
        serving(servers, **BY_HAND) as (_, sender),
        holding(servers, context_id) as other,
    ):
        await fill(other)
        async with other.pin("l0:held", cost=PinCost.EXPENSIVE):
            assert Strategy.COPY_ON_REWRITE is await rewrite(other, "l0:held")
        await rewrite(other, "l0:free")
        assert {HELD, FREE} == set(await swept(sender, context_id))
        # The mark has stood for the quiet time: the next sweep would announce both.
        await eventually(
            lambda: tombstones(sender, context_id),
            until=lambda stones: {"announce"} == {stone.step for stone in stones.values()},
        )
        await copy()
        async with holding(servers, context_id) as late, late.pin("l0:held", version=1) as pinned:
            await restore()
            await eventually(
                lambda: swept(sender, context_id),
                until=lambda stones: FREE not in stones,
                within_s=WITHIN_S,
                what="the collection of what is not held",
            )
            await is_kept(servers, sender, late, await history(sender, context_id))
            assert pinned.proven
        await eventually(lambda: swept(sender, context_id), until=lambda stones: not stones)


async def swept(sender: Sender, context_id: str) -> set[tuple[str, int]]:
    """The tombstones after a sweep; all that there can be while the registry is away."""
    try:
        await sweep(sender, context_id)
        return set(await tombstones(sender, context_id))
    except Unavailable:
        return {HELD, FREE}


async def test_nothing_held_is_collected_when_an_older_snapshot_is_put_back(
    either_servers: EmbeddedServers, tmp_path: Path, context_id: str
) -> None:
    """I4: the data of seconds ago under a new server: another generation, and its marks count no more."""
    folder = tmp_path / "copy"
    await held_before_and_after(
        either_servers,
        context_id,
        lambda: snapshot(either_servers, folder),
        lambda: put_back(either_servers, folder),
    )


async def test_nothing_held_is_collected_when_older_append_only_files_are_put_back(
    tmp_path: Path, context_id: str
) -> None:
    """I4: the same with a server that keeps every write."""
    folder = tmp_path / "copy"
    async with EmbeddedServers(tmp_path / "servers", appendonly=True) as servers:
        await held_before_and_after(
            servers,
            context_id,
            lambda: append_only_files(servers, folder),
            lambda: put_back(servers, folder),
        )


async def test_nothing_held_is_collected_when_a_copy_that_lags_takes_over(
    tmp_path: Path, own_servers: EmbeddedServers, context_id: str
) -> None:
    """I4: a replica that has missed the last seconds is promoted, and takes the place of its primary."""
    replica = ValkeyServer(tmp_path / "replica")
    async with replica:

        async def copy() -> None:
            async with client(own_servers) as redis, Redis.from_url(replica.url) as follower:
                await redis.config_set("repl-diskless-sync-delay", 0)
                await follower.replicaof("127.0.0.1", own_servers.valkey.port)
                await eventually(follower.info, until=lambda info: info["master_link_status"] == "up")
                assert 1 == await redis.wait(1, 5000)
                await follower.replicaof("127.0.0.1", 1)  # nobody is there: it lags from here on

        async def promote() -> None:
            port = own_servers.valkey.port
            await own_servers.valkey.kill()
            async with Redis.from_url(replica.url) as follower:
                await follower.replicaof("NO", "ONE")
                await follower.config_set("port", port)

        await held_before_and_after(own_servers, context_id, copy, promote)


@pytest.mark.xfail(
    strict=False, reason="the generation is among the keys that are put back, and its server is the same one"
)
async def test_nothing_held_is_collected_when_older_keys_are_put_into_the_running_server(
    own_servers: EmbeddedServers, context_id: str
) -> None:
    """I4: by hand, key by key: the server is the same, and so is the generation that it says."""
    kept: dict[Any, tuple[int, Any]] = {}

    async def copy() -> None:
        async with client(own_servers) as redis:
            for key in await redis.keys("*"):
                kept[key] = (max(0, await redis.pttl(key)), await redis.dump(key))

    async def restore() -> None:
        async with client(own_servers) as redis:
            await redis.flushall()
            for key, (ttl_ms, value) in kept.items():
                await redis.restore(key, ttl_ms, value, replace=True)

    await held_before_and_after(own_servers, context_id, copy, restore)
