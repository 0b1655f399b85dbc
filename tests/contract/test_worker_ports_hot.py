"""The contract of the hot store, on Valkey and, where there is one, on Redis: all of it may be lost."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sexton.core.decide import Blob
from sexton.core.hash import content_hash
from sexton.schemas.ids import Level
from sexton.schemas.span import Identity
from sexton.worker.adapters import hot as hot_module
from sexton.worker.adapters.hot import RedisHotStore
from sexton.worker.embedded import ValkeyServer
from tests.support.waiting import deadline, eventually

DATA = "bytes \x00\r\n 🌍".encode()


def client(url: str) -> Redis:
    return Redis.from_pool(
        BlockingConnectionPool.from_url(
            url,
            max_connections=4,
            timeout=0.2,
            socket_timeout=0.2,
            socket_connect_timeout=0.2,
            retry=Retry(NoBackoff(), 0),
        )
    )


def store(redis: Redis, max_bytes: int = 100) -> RedisHotStore:
    return RedisHotStore(redis, timedelta(minutes=5), max_bytes)


@pytest.fixture
async def redis(any_redis_url: str) -> AsyncIterator[Redis]:
    redis = client(any_redis_url)
    yield redis
    await redis.aclose()


def blob(name: str = "a", data: bytes = DATA, version: int = 1) -> Blob:
    return Blob(f"l0:{name}", version, content_hash(Level.L0_VERBATIM, data), data)


def identity(of: Blob) -> Identity:
    return Identity(
        span_id=of.span_id,
        version=of.version,
        level=Level.L0_VERBATIM,
        content_hash=of.content_hash,
        size_bytes=len(of.data),
    )


async def test_bytes_come_back_as_they_were_put(redis: Redis, context_id: str) -> None:
    """C77: of several blobs at once, each under its own name."""
    blobs = [blob("a"), blob("b", b"other"), blob("a", b"newer", version=2)]
    await store(redis).put(context_id, blobs)
    assert [b.data for b in blobs] == [await store(redis).get(context_id, identity(b)) for b in blobs]
    await store(redis).put(context_id, [])


async def test_contexts_do_not_share(redis: Redis, context_id: str) -> None:
    """C80."""
    await store(redis).put(context_id, [blob()])
    assert await store(redis).get(f"{context_id}x", identity(blob())) is None


async def test_bytes_expire(redis: Redis, context_id: str) -> None:
    """What nobody asks for does not fill the memory."""
    await store(redis).put(context_id, [blob()])
    [key] = [key async for key in redis.scan_iter(match=f"*{context_id}*")]
    assert 0 < await redis.ttl(key) <= 300
    assert f"{{{context_id}}}".encode() in key, "a cluster keeps a context in one slot"


async def test_large_spans_are_left_to_the_cold_store(redis: Redis, context_id: str) -> None:
    """Neither put nor asked for."""
    large = blob("big", b"x" * 101)
    await store(redis).put(context_id, [large, blob()])
    assert [DATA] == [await redis.get(key) async for key in redis.scan_iter(match=f"*{context_id}*")]
    assert await store(redis).get(context_id, identity(large)) is None


async def test_dropped_bytes_are_gone(redis: Redis, context_id: str) -> None:
    """And dropping what is not there is harmless."""
    await store(redis).put(context_id, [blob("a"), blob("b")])
    await store(redis).drop(context_id, [identity(blob("a")), identity(blob("c"))])
    await store(redis).drop(context_id, [])
    assert await store(redis).get(context_id, identity(blob("a"))) is None
    assert DATA == await store(redis).get(context_id, identity(blob("b")))


async def test_a_snapshot_comes_back(redis: Redis, context_id: str) -> None:
    """And it does not expire: it saves reading a log from its start."""
    data = b'{"a":1}' * 10_000
    assert await store(redis).get_snapshot(context_id) is None
    await store(redis).put_snapshot(context_id, b"older")
    await store(redis).put_snapshot(context_id, data)
    assert data == await store(redis).get_snapshot(context_id)
    [key] = [key async for key in redis.scan_iter(match=f"*{context_id}*")]
    assert -1 == await redis.ttl(key)
    assert await redis.strlen(key) < len(data) / 10


@pytest.mark.parametrize("damage", [b"", b"no zlib", b"\x78\x9c\x00"])
async def test_a_damaged_snapshot_is_none(redis: Redis, context_id: str, damage: bytes) -> None:
    """I7."""
    await store(redis).put_snapshot(context_id, b"good")
    [key] = [key async for key in redis.scan_iter(match=f"*{context_id}*")]
    await redis.set(key, damage)
    assert await store(redis).get_snapshot(context_id) is None


async def test_a_flipped_bit_of_a_snapshot_is_noticed(redis: Redis, context_id: str) -> None:
    """A tree must not be made from bytes that changed in Redis: the packing carries a checksum."""
    await store(redis).put_snapshot(context_id, bytes(range(256)) * 8)
    [key] = [key async for key in redis.scan_iter(match=f"*{context_id}*")]
    found = await redis.get(key)
    assert isinstance(found, bytes)
    packed = bytearray(found)
    for at in range(2, len(packed), 7):
        packed[at] ^= 4
        await redis.set(key, bytes(packed))
        assert await store(redis).get_snapshot(context_id) in (None, bytes(range(256)) * 8)
        packed[at] ^= 4


async def test_a_value_of_another_type_is_a_miss(redis: Redis, context_id: str) -> None:
    """No foreign exception crosses the port."""
    await store(redis).put(context_id, [blob()])
    [key] = [key async for key in redis.scan_iter(match=f"*{context_id}*")]
    await redis.delete(key)
    await redis.lpush(key, "x")
    assert await store(redis).get(context_id, identity(blob())) is None


# --- outages -----------------------------------------------------------------------------------------


@pytest.fixture
async def server(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ValkeyServer]:
    async with ValkeyServer(tmp_path_factory.mktemp("own-valkey")) as server:
        yield server


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_an_outage_reads_as_a_miss(
    server: ValkeyServer, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I7: nothing raises, and it comes back by itself."""
    monkeypatch.setattr(hot_module, "_PAUSE_S", 0.0)
    redis = client(server.url)
    hot = store(redis)
    await hot.put("ctx", [blob()])
    await (server.stop() if how == "stopped" else server.pause())
    async with deadline(10, "five calls"):
        await hot.put("ctx", [blob("b")])
        assert await hot.get("ctx", identity(blob())) is None
        await hot.drop("ctx", [identity(blob())])
        await hot.put_snapshot("ctx", b"x")
        assert await hot.get_snapshot("ctx") is None
    await (server.start() if how == "stopped" else server.resume())

    async def kept() -> bytes | None:
        await hot.put("ctx", [blob("c")])
        return await hot.get("ctx", identity(blob("c")))

    assert DATA == await eventually(kept)
    await redis.aclose()


async def test_a_frozen_redis_costs_its_time_out_once(server: ValkeyServer) -> None:
    """I7: not each commit and each fetch waits for it; after a fault it is left alone for a while."""
    redis = client(server.url)
    hot = store(redis)
    await server.pause()
    async with deadline(5, "two hundred reads of 0.2 s each"):
        for _ in range(200):
            assert await hot.get("ctx", identity(blob())) is None
    await server.resume()
    await redis.aclose()
