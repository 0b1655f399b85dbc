"""Log and cold store are lost and put back from backups: as docs/operations.md says, and in two bad ways."""

import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis

from sexton.holder import Unreachable
from sexton.schemas import subjects
from sexton.schemas.ops import Damage, OpsVerb, VerifyPart, VerifyRequest
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import CONTEXT, append, leaf, rewrite
from tests.deploy_kit.streams import StreamBackup, backed_up, restored
from tests.leases_kit.servers import BY_HAND, QUICK, holding, ops, until_collected
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, pointer_to, sending
from tests.worker_kit.service import cold_folder, settings

LEAVES: Final = {"a": "first", "b": "second", "c": "third"}


@asynccontextmanager
async def working(servers: EmbeddedServers, **more: Any) -> AsyncIterator[None]:
    """A worker, by default one that deletes nothing by itself."""
    async with Worker(settings(servers, **{**BY_HAND, **more})):
        yield


def copy_cold(servers: EmbeddedServers) -> Path:
    """A backup of the cold store."""
    there = cold_folder(servers).with_name("cold-backup")
    shutil.copytree(cold_folder(servers), there)
    return there


async def lose_all(servers: EmbeddedServers, sender: Sender) -> None:
    """No log, no bytes, no registry. The workers are stopped."""
    await sender.js.delete_stream(subjects.STREAM_LOG)
    shutil.rmtree(cold_folder(servers))
    redis = Redis.from_url(servers.redis_url)
    await redis.flushall()
    await redis.aclose()


async def put_back(servers: EmbeddedServers, sender: Sender, log: StreamBackup, cold: Path) -> None:
    """Both backups, the bytes first. The registry needs none."""
    shutil.copytree(cold, cold_folder(servers))
    await restored(sender.client, log)


async def damaged(sender: Sender) -> set[tuple[str, int, str]]:
    """What `sexton verify` says of the context: span, version, reason."""
    [part] = await ops(sender, OpsVerb.VERIFY, VerifyRequest(context_id=CONTEXT), VerifyPart, CONTEXT)
    found: tuple[Damage, ...] = part.damaged
    return {(one.span_id, one.version, one.reason) for one in found}


async def fill(sender: Sender) -> None:
    """Three leaves."""
    await sender.commit(append("fill", *(leaf(name, text) for name, text in LEAVES.items())))


async def test_the_log_first_and_then_the_bytes(own_servers: EmbeddedServers) -> None:
    """All that the log names is there, and it goes on from there; a holder that had seen more comes along."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(deadline(90, "the drill"))
        sender = await stack.enter_async_context(sending(own_servers.nats_url))
        async with working(own_servers):
            await fill(sender)
            await sender.commit(rewrite("in-time", "l0:a", "first, changed"))
            log = await backed_up(sender.client, subjects.STREAM_LOG)
            at_backup = await sender.tree(CONTEXT)
            # Between the two backups, and after both: gone, and the holder has seen it.
            await sender.commit(rewrite("between", "l0:b", "second, too late"))
            cold = copy_cold(own_servers)
            await sender.commit(append("after", leaf("d", "fourth")))
            context = await stack.enter_async_context(holding(own_servers, CONTEXT, sync_interval_s=0.3))
            too_new = await context.mint("l0:b")
            assert "fourth" in await context.render()

        await lose_all(own_servers, sender)
        await put_back(own_servers, sender, log, cold)

        async with working(own_servers):
            assert at_backup == await sender.tree(CONTEXT)
            assert set() == await damaged(sender)
            for name, text in {"a": "first, changed", "b": "second", "c": "third"}.items():
                version = 2 if name == "a" else 1
                answer, data = await sender.fetch(pointer_to(text, f"l0:{name}", version=version))
                assert text.encode() == data, answer
            await eventually(
                lambda: context.head.revision,
                until=lambda revision: revision == at_backup.revision,
                within_s=20,
                what="the holder on the restored log",
            )
            with pytest.raises(Unreachable):
                await context.resolve(too_new)
            # An event that was lost may come again, and counts.
            again = await sender.commit(rewrite("between", "l0:b", "second, again"))
            assert at_backup.revision + 1 == again.revision
            await eventually(context.render, until=lambda text: "second, again" in text, within_s=20)


async def test_the_bytes_first_and_then_the_log(own_servers: EmbeddedServers) -> None:
    """Wrong: the log names bytes that were written after they were backed up. `verify` says which."""
    async with deadline(90, "the drill"), sending(own_servers.nats_url) as sender:
        async with working(own_servers):
            await fill(sender)
            cold = copy_cold(own_servers)
            await sender.commit(append("between", leaf("d", "fourth")))
            log = await backed_up(sender.client, subjects.STREAM_LOG)
        await lose_all(own_servers, sender)
        await put_back(own_servers, sender, log, cold)
        async with working(own_servers):
            assert {("l0:d", 1, "lost")} == await damaged(sender)


async def test_bytes_that_were_collected_between_the_two_backups(own_servers: EmbeddedServers) -> None:
    """Wrong, too: the right order, and nobody kept the workers from deleting."""
    async with deadline(90, "the drill"), sending(own_servers.nats_url) as sender:
        async with working(own_servers, **QUICK):
            await fill(sender)
            log = await backed_up(sender.client, subjects.STREAM_LOG)
            await sender.commit(rewrite("between", "l0:b", "second, changed"))
            await until_collected(sender, CONTEXT, [("l0:b", 1)])
            cold = copy_cold(own_servers)
        await lose_all(own_servers, sender)
        await put_back(own_servers, sender, log, cold)
        async with working(own_servers):
            assert {("l0:b", 1, "lost")} == await damaged(sender)


async def test_another_number_of_partitions(own_servers: EmbeddedServers) -> None:
    """The stream of commands is deleted when it is empty, and made anew; the log stays."""
    async with deadline(90, "the change"), sending(own_servers.nats_url) as sender:
        async with working(own_servers, partitions=2):
            await fill(sender)
            await sender.until_idle()
        await sender.js.delete_stream(subjects.STREAM_COMMANDS)
        async with working(own_servers, partitions=3):
            await sender.commit(append("more", leaf("d", "fourth")))
            assert 2 == (await sender.tree(CONTEXT)).revision
