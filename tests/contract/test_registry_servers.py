"""What changes the registry's generation, done to real servers of the test's own: Valkey and Redis."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from sexton.schemas.errors import LeaseLost, Unavailable
from sexton.worker.embedded import ValkeyServer
from sexton.worker.shards import shard_of
from tests.sim.registry_bench import A, Client, ServerBench, holders_of, look
from tests.support.waiting import deadline, eventually

Make = Callable[..., ValkeyServer]


@pytest.fixture(params=["valkey", "redis-server"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Makes servers of one kind."""
    binary = None
    if request.param == "redis-server":
        found = shutil.which("redis-server")
        if found is None:
            pytest.skip("no redis-server on PATH")
        binary = Path(found)

    def made(name: str = "one", **more: Any) -> ValkeyServer:
        config = "repl-diskless-sync-delay 0\nappendfsync always\n"
        return ValkeyServer(tmp_path / name, binary=binary, extra_config=config, **more)

    return made


@asynccontextmanager
async def on(server: ValkeyServer) -> AsyncIterator[ServerBench]:
    redis = Redis.from_url(server.url)
    try:
        async with deadline(30, "what is done to the server"):
            yield ServerBench(redis, "ctx")
    finally:
        await redis.aclose()


async def settled(bench: ServerBench) -> tuple[str, Client]:
    """A registry with a holder, two pins and marks."""
    holder = Client(bench)
    await holder.register(A)
    await look(bench, mark=True)
    await bench.index.note(["ctx"])
    assert not await bench.index.complete()
    await bench.index.set_complete()
    assert await bench.index.complete()
    return await bench.registry.generation("ctx"), holder


async def test_flushall_begins_a_generation(make: Make) -> None:
    """C100, I4: an empty registry knows nothing, which is not the same as nobody holding anything."""
    async with make() as server, on(server) as bench:
        before, holder = await settled(bench)
        await bench.redis.flushall()
        with pytest.raises(LeaseLost):
            await holder.beat()
        seen = await look(bench)
        assert before != seen.generation
        assert 0 < seen.began_ms <= seen.now_ms
        assert not await bench.index.complete()
        assert [] == await _noted(bench)


async def test_what_was_noted_before_a_flush_is_not_called_complete(make: Make) -> None:
    """I5: the index was being rebuilt when all was lost; whoever finished the rebuild must not say so."""
    async with make() as server, on(server) as bench, on(server) as other:
        assert not await bench.index.complete()
        await bench.index.note(["ctx"])
        await bench.redis.flushall()
        await bench.index.set_complete()
        assert not await bench.index.complete()
        assert not await other.index.complete()
        await bench.index.note(["ctx"])
        await bench.index.set_complete()
        assert await bench.index.complete()
        assert await other.index.complete()


async def test_two_that_rebuild_at_once_do_not_keep_each_other_from_it(make: Make) -> None:
    async with make() as server, on(server) as bench, on(server) as other:
        for index in (bench.index, other.index):
            assert not await index.complete()
        await bench.index.set_complete()
        await other.index.set_complete()
        assert await other.index.complete()


@pytest.mark.parametrize("kept", ["AOF", "snapshot", "nothing"])
async def test_a_restart_begins_a_generation(make: Make, kept: str) -> None:
    """Whatever was kept: nobody can say whether it is all there was."""
    async with make(appendonly=kept == "AOF") as server, on(server) as bench:
        before, holder = await settled(bench)
        if kept == "snapshot":
            await bench.redis.save()
            await holder.release(A)
        await server.kill()
        with pytest.raises(Unavailable):
            await look(bench)
        await server.start()
        seen = await eventually(lambda: _answer(bench))
        assert before != seen.generation
        assert {"AOF": {"h1"}, "snapshot": {"h1"}, "nothing": set()}[kept] == await holders_of(bench, A)
        assert not await bench.index.complete()
        if kept == "snapshot":
            # Digest and set are of one moment, so the older copy is noticed.
            assert (await holder.beat()).announce
        elif kept == "AOF":
            assert not (await holder.beat()).announce


async def test_a_replica_that_takes_over_begins_a_generation(make: Make) -> None:
    """And again when the first one comes back: the older copy of a copy is one, too."""
    async with make("one") as first, make("two") as second, on(first) as one, on(second) as two:
        before, holder = await settled(one)
        await two.redis.replicaof("127.0.0.1", str(first.port))
        await eventually(lambda: _link(two.redis), until=lambda state: state == "up", within_s=15)
        await _caught_up(one.redis, two.redis)
        with pytest.raises(Unavailable):
            await look(two, mark=True)  # a replica takes no writes
        await two.redis.replicaof("NO", "ONE")
        taken = await two.registry.generation("ctx")
        assert before != taken
        assert {"h1"} == await holders_of(two, A)
        assert not await two.index.complete()
        holder.bench = two
        assert not (await holder.beat()).announce

        await one.redis.replicaof("127.0.0.1", str(second.port))
        await eventually(lambda: _link(one.redis), until=lambda state: state == "up", within_s=15)
        await _caught_up(two.redis, one.redis)
        await one.redis.replicaof("NO", "ONE")
        assert await one.registry.generation("ctx") not in {before, taken}


async def _answer(bench: ServerBench) -> Any:
    try:
        return await look(bench)
    except Unavailable:
        return None


async def _link(redis: Redis) -> str:
    return str((await redis.info("replication")).get("master_link_status", "none"))


async def _caught_up(master: Redis, replica: Redis) -> None:
    async def lag() -> int:
        ahead = int((await master.info("replication"))["master_repl_offset"])
        return ahead - int((await replica.info("replication"))["slave_repl_offset"])

    await eventually(lag, until=lambda behind: behind <= 0, within_s=15)


async def _noted(bench: ServerBench) -> list[str]:
    return await bench.index.contexts(shard_of("ctx"), 10)
