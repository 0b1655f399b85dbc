"""Redis is flushed, stopped, frozen, or was never there: nothing is lost, and what needs no pins goes on."""

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from sexton.holder import Holder
from sexton.schemas.codec import AnyCommand
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf, prune, rewrite
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, pointer_to
from tests.worker_kit.service import cold_folder, serving

LONG: Final = "a leaf that is longer than its summary will be; "


async def in_redis(servers: EmbeddedServers, do: Callable[[Redis], Awaitable[Any]]) -> Any:
    redis = Redis.from_url(servers.redis_url)
    try:
        return await do(redis)
    finally:
        await redis.aclose()


async def keys(servers: EmbeddedServers, pattern: str) -> list[bytes]:
    found: list[bytes] = await in_redis(servers, lambda redis: redis.keys(pattern))
    return found


async def check_all(sender: Sender, contents: dict[str, str]) -> None:
    """Every leaf that was appended is in the log, once, and is served with its own bytes."""
    tree = await sender.tree("ctx")
    assert set(contents) == {span_id for span_id in tree.nodes if span_id.startswith("l0:")}
    for span_id, text in contents.items():
        answer, data = await sender.fetch(pointer_to(text, span_id))
        assert text.encode() == data, answer


async def test_flushed_again_and_again_in_the_middle_of_commits(own_servers: EmbeddedServers) -> None:
    """I7: appends, rewrites, compactions and fetches beside a Redis that is emptied all the time."""
    contents: dict[str, str] = {}
    async with serving(own_servers, snapshot_every=3) as (worker, sender), deadline(60, "the commits"):

        async def flush() -> None:
            while True:
                await in_redis(own_servers, lambda redis: redis.flushall())
                worker._contexts.forget_all()
                await asyncio.sleep(0.005)

        flushing = asyncio.create_task(flush())
        try:
            for i in range(30):
                text = f"{LONG}{i}"
                await sender.commit(append(f"e{i}", leaf(f"n{i}", text)))
                contents[f"l0:n{i}"] = text
                await sender.fetch(pointer_to(text, f"l0:n{i}"))
            await sender.commit(compact("sum", *(f"l0:n{i}" for i in range(10))))
            await sender.commit(rewrite("rw", "l1:sum", "in other words"))
        finally:
            flushing.cancel()
        await check_all(sender, contents)
        assert 32 == (await sender.tree("ctx")).revision
        assert [] == await sender.dead_letters()


@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_appends_and_fetches_go_on_without_it(own_servers: EmbeddedServers, how: str) -> None:
    """I7: they do not even wait for it, and for nothing in their lane that must know the pins."""
    contents = {f"l0:n{i}": f"{LONG}{i}" for i in range(5)}
    async with serving(own_servers, partitions=1, registry_timeout_s=0.5) as (_, sender):
        await sender.commit(append("e0", leaf("n0", contents["l0:n0"])))
        await sender.commit(append("e0", leaf("n0", LONG), context_id="other"))
        await (own_servers.valkey.stop() if how == "stopped" else own_servers.valkey.pause())
        changes: list[AnyCommand] = [
            change.model_copy(update={"context_id": "other"})
            for change in (
                rewrite("rw", "l0:n0", "new bytes"),
                compact("sum", "l0:n0"),
                prune("gone", "l0:n0"),
            )
        ]
        # Ahead of each append in its lane, which is the only one.
        for i in range(1, 5):
            for change in changes:
                await sender.publish(change)
            await sender.commit(append(f"e{i}", leaf(f"n{i}", contents[f"l0:n{i}"])))
        await check_all(sender, contents)
        for change in changes:
            refused = await sender.outcome_of("other", change.event_id)
            assert isinstance(refused, Rejected)
            assert RejectionCode.REGISTRY_UNAVAILABLE is refused.code
        assert ["e0"] == [r.event_id for r in await sender.records("other")], (
            "nothing was decided without pins"
        )

        await (own_servers.valkey.start() if how == "stopped" else own_servers.valkey.resume())
        await back(sender, changes[0])
        assert 2 == (await sender.tree("other")).revision
        assert [] == await sender.dead_letters()


async def back(sender: Sender, command: AnyCommand) -> None:
    """Sends a command until it is committed, as a holder does: a refusal is not remembered."""
    async with deadline(20, "the registry's return"):
        while not isinstance(outcome := await sender.ask(command), Committed):
            assert isinstance(outcome, Rejected)
            assert RejectionCode.REGISTRY_UNAVAILABLE is outcome.code


async def test_a_holder_outlasts_a_short_outage(own_servers: EmbeddedServers) -> None:
    """I7, I8: its rewrite is sent again until Redis is back, and counts once."""
    async with (
        serving(own_servers, registry_timeout_s=0.2) as (_, sender),
        Holder.connect(own_servers.nats_url) as holder,
    ):
        context = await holder.open("ctx")
        span_id = (await context.append("a leaf")).spans[0].span_id
        await own_servers.valkey.stop()
        rewriting = asyncio.create_task(context.rewrite(span_id, "other bytes"))
        await eventually(lambda: any(o[0].status == "rejected" for o in sender.outcomes.values()))
        await own_servers.valkey.start()
        async with deadline(20, "the rewrite"):
            assert isinstance(await rewriting, Committed)
        assert ["appended", "rewritten"] == [r.kind for r in await sender.records("ctx")]


async def test_it_was_never_there(own_servers: EmbeddedServers) -> None:
    """I7: a worker starts without it, and takes appends and fetches."""
    await own_servers.valkey.stop()
    async with serving(own_servers, io_timeout_s=1.0) as (_, sender):
        await sender.commit(append("e0", leaf("n0", LONG)), within_s=20)
        await check_all(sender, {"l0:n0": LONG})


async def test_a_snapshot_outlives_its_worker(own_servers: EmbeddedServers) -> None:
    """C18: the next one begins there, and knows every event that is in it."""
    async with serving(own_servers, snapshot_every=5) as (_, sender):
        for i in range(12):
            await sender.commit(append(f"e{i}", leaf(f"n{i}", f"{LONG}{i}")))
        await eventually(lambda: keys(own_servers, "*snapshot*"))
    async with serving(own_servers) as (worker, sender):
        read: list[int] = []
        log: Any = worker._log._log
        original = log._batch

        async def batch(context_id: str, after: int, most: int) -> Any:
            entries = await original(context_id, after, most)
            read.extend(entry.sequence for entry in entries)
            return entries

        log._batch = batch
        repeat = await sender.commit(append("e0", leaf("n0", f"{LONG}0")))
        assert 1 == repeat.revision
        assert 0 < len(read) <= 7, "not from the start"
        await check_all(sender, {f"l0:n{i}": f"{LONG}{i}" for i in range(12)})


@pytest.mark.parametrize("damage", [b"", b"garbage", b"\x78\x9c\x03\x00\x00\x00\x00\x01"])
async def test_a_damaged_snapshot_does_not_matter(own_servers: EmbeddedServers, damage: bytes) -> None:
    """I7: the log decides."""
    contents = {f"l0:n{i}": f"{LONG}{i}" for i in range(6)}
    async with serving(own_servers, snapshot_every=2) as (_, sender):
        for i, (span_id, text) in enumerate(contents.items()):
            await sender.commit(append(f"e{i}", leaf(span_id[3:], text)))
        [key] = await eventually(lambda: keys(own_servers, "*snapshot*"))
    await in_redis(own_servers, lambda redis: redis.set(key, damage))
    async with serving(own_servers) as (_, sender):
        assert 7 == (await sender.commit(append("e6", leaf("n6", LONG)))).revision
        await check_all(sender, contents | {"l0:n6": LONG})


async def test_damaged_hot_bytes_are_not_served(own_servers: EmbeddedServers) -> None:
    """I1: the cold store's are."""
    async with serving(own_servers) as (_, sender):
        await sender.commit(append("e0", leaf("n0", LONG)))
        [key] = await keys(own_servers, "*bytes:l0:n0:1")
        await in_redis(own_servers, lambda redis: redis.set(key, LONG.replace("summary", "SUMMARY")))
        answer, data = await sender.fetch(pointer_to(LONG, "l0:n0"))
        assert (LONG.encode(), "cold") == (data, answer["tier"])


async def test_a_snapshot_of_another_lineage_does_not_matter(own_servers: EmbeddedServers) -> None:
    """I2: Redis outlives the log that it knows of."""
    async with serving(own_servers, snapshot_every=2) as (_, sender):
        for i in range(4):
            await sender.commit(append(f"old{i}", leaf(f"old{i}", LONG)))
        await eventually(lambda: keys(own_servers, "*snapshot*"))
        await sender.js.delete_stream("SEXTON_LOG")
    shutil.rmtree(cold_folder(own_servers))  # or no worker would start beside the bytes of another log
    async with serving(own_servers) as (_, sender):
        for i in range(6):
            assert i + 1 == (await sender.commit(append(f"new{i}", leaf(f"new{i}", LONG)))).revision
    async with serving(own_servers) as (_, sender):
        assert 7 == (await sender.commit(append("new6", leaf("new6", LONG)))).revision
        await check_all(sender, {f"l0:new{i}": LONG for i in range(7)})
