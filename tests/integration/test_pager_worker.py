"""A worker notices, a pager pages, and the bytes come back: the whole way, on real servers (I9)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sexton.schemas import subjects
from sexton.schemas.errors import Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.ops import OpsVerb, VerifyPart, VerifyRequest
from sexton.schemas.span import Identity
from sexton.worker.adapters.cold import _key
from sexton.worker.app import Worker
from sexton.worker.cli.asking import Operator
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.failures import FailureStream
from sexton.worker.settings.connections import ConnectionSettings
from tests.core_kit.build import append, leaf, prune
from tests.pager_kit.receiver import Receiver, receiving
from tests.pager_kit.scene import Scene, paging, record, scene
from tests.support.waiting import eventually
from tests.worker_kit.sender import Sender, pointer_to
from tests.worker_kit.service import cold_folder, serving

TEXT = "C0NTENT that nobody may read on a phone"


@dataclass
class Whole:
    """Everything, running."""

    worker: Worker
    sender: Sender
    receiver: Receiver
    at: Scene
    blob: Path
    """Where the bytes of `l0:a` are."""
    stack: AsyncExitStack

    async def fetch(self) -> str:
        """The text, or the code of the error."""
        answer, data = await self.sender.fetch(pointer_to(TEXT, "l0:a"))
        return data.decode() or str(answer["code"])

    async def page(self) -> None:
        """Starts the pager."""
        await self.stack.enter_async_context(paging(self.at.nats_url, self.receiver.url))

    async def titles(self, pages: int) -> list[str]:
        return [page.title for page in await self.receiver.until(pages)]


@asynccontextmanager
async def running(servers: EmbeddedServers, **more: Any) -> AsyncIterator[Whole]:
    async with AsyncExitStack() as stack:
        worker, sender = await stack.enter_async_context(serving(servers, hot_max_bytes=0, **more))
        receiver = await stack.enter_async_context(receiving())
        await sender.commit(append("fill", leaf("a", TEXT), "b"))
        identity = (await sender.tree("ctx")).nodes["l0:a"].identity
        at = await stack.enter_async_context(scene(servers.nats_url))
        yield Whole(worker, sender, receiver, at, cold_folder(servers) / _key("ctx", identity), stack)


async def test_a_loss_pages_and_its_end_is_told(own_servers: EmbeddedServers) -> None:
    """C70: the caller is told at once; the operator by the pager; the fetch that finds the bytes ends it."""
    async with running(own_servers) as whole:
        await whole.page()
        data = whole.blob.read_bytes()
        whole.blob.unlink()
        assert ["lost", "lost"] == [await whole.fetch(), await whole.fetch()]
        assert ["Sexton: lost bytes: ctx l0:a version 1"] == await whole.titles(1)
        whole.blob.write_bytes(data)
        assert TEXT == await whole.fetch()
        assert "Sexton: resolved: lost bytes: ctx l0:a version 1" == (await whole.titles(2))[1]
        await whole.at.until_done()
        assert 2 == len(whole.receiver.received)
        assert all("C0NTENT" not in page.message for page in whole.receiver.received)


async def test_another_worker_verifies_that_it_is_over(own_servers: EmbeddedServers) -> None:
    """It was recorded before that one started, and while no pager ran."""
    async with running(own_servers) as whole:
        data = whole.blob.read_bytes()
        whole.blob.write_bytes(b"?" * len(data))
        assert "corrupt" == await whole.fetch()
    whole.blob.write_bytes(data)
    async with (
        running(own_servers) as whole,
        Operator(ConnectionSettings(nats_url=own_servers.nats_url)) as operator,
    ):
        await eventually(lambda: whole.worker._failures.open("ctx"), what="what is open")
        request = VerifyRequest(context_id="ctx")
        (part,) = await operator.ask(OpsVerb.VERIFY, request, VerifyPart)
        assert () == part.damaged
        await whole.page()
        assert [
            "Sexton: damaged bytes: ctx l0:a version 1",
            "Sexton: resolved: damaged bytes: ctx l0:a version 1",
        ] == await whole.titles(2)


async def test_an_outage_of_the_cold_store_pages_nobody(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C111: it is told as what it is."""
    async with running(own_servers) as whole:

        async def away(*_: Any) -> bytes:
            raise Unavailable("the store is away")

        await whole.page()
        with monkeypatch.context() as patch:
            patch.setattr(whole.worker._rpc._fetcher._cold, "read", away)
            assert "unavailable" == await whole.fetch()
        whole.blob.unlink()
        assert "lost" == await whole.fetch()
        await whole.titles(1)
        await whole.at.until_done()
        assert 1 == (await whole.at.js.stream_info(subjects.STREAM_FAILURES)).state.messages


async def test_a_command_that_nobody_can_read_pages(own_servers: EmbeddedServers) -> None:
    """I7: as a dead letter."""
    async with running(own_servers) as whole:
        await whole.page()
        await whole.sender.publish(b"C0NTENT", subject="sexton.cmd.ctx.append")
        assert ["Sexton: dead letters: SEXTON_COMMANDS, malformed"] == await whole.titles(1)


async def test_a_collection_that_is_stuck_pages_and_its_end_is_told(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I5: the cold store refuses to delete for a while."""
    quick = {"sweep_interval_s": 0.1, "quiet_s": 0.1, "lease_ttl_max_s": 1.0, "stuck_after_s": 0.3}
    async with running(own_servers, **quick) as whole:
        refusing = asyncio.Event()
        cold = whole.worker._rpc._cold
        original = cold.delete

        async def delete(context_id: str, identity: Identity) -> None:
            if not refusing.is_set() and identity.level is Level.L0_VERBATIM:
                raise Unavailable("not now")
            await original(context_id, identity)

        monkeypatch.setattr(cold, "delete", delete)
        await whole.page()
        await whole.sender.commit(prune("gone", "l0:a"))
        assert ["Sexton: stuck collection: ctx l0:a version 1"] == await whole.titles(1)
        refusing.set()
        assert "Sexton: resolved: stuck collection: ctx l0:a version 1" == (await whole.titles(2))[1]


async def test_a_try_that_was_stored_after_all_is_stored_once(own_servers: EmbeddedServers) -> None:
    """C26: a duplicate means delivered."""
    async with scene(own_servers.nats_url) as at:
        stream = FailureStream(at.client, 5.0)
        for _ in range(2):
            await stream.add(record(), "the same")
        await stream.add(record(), "another")
        assert 2 == (await at.js.stream_info(subjects.STREAM_FAILURES)).state.messages
