"""What a worker answers to `sync`: the records from memory or from the log, or a snapshot."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.errors import LineageError
from sexton.schemas.limits import CHUNK_BYTES, SYNC_TAIL_RECORDS
from sexton.schemas.rpc import RpcError, SyncPart, SyncRequest, Verb
from sexton.worker.history import History
from sexton.worker.ports import Entry
from sexton.worker.replies import reply
from sexton.worker.snapshots import Snapshots
from sexton.worker.sync import Sync
from tests.core_kit.build import CONTEXT, append
from tests.worker_kit.stores import MemoryHot, MemoryLog, World, carry_out


async def filled(world: World, count: int, spans: int = 1) -> None:
    """So many records, with others between them in the stream."""
    committer = world.committer(world.contexts(snapshot_every=10**6))
    for i in range(count):
        names = [f"n{i}-{j}" for j in range(spans)]
        await carry_out(committer, append(f"e{i}", *names))
        if i % 3 == 0:
            await carry_out(committer, append(f"o{i}", "other", context_id=f"other{i}"))


async def forgetful(world: World) -> Sync:
    """A worker that has the tree, and none of its records."""
    await world.contexts(snapshot_every=1).get(CONTEXT)
    for _ in range(100_000):
        if isinstance(world.hot, MemoryHot) and CONTEXT in world.hot.snapshots:
            break
        await asyncio.sleep(0)
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    return Sync(contexts, History(world.log), Snapshots(max_bytes=10**9, spawn=asyncio.ensure_future))


async def answered(sync: Sync, **request: Any) -> list[SyncPart]:
    """The parts, over the wire."""
    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    subject = subjects.rpc(CONTEXT, Verb.SYNC)
    await reply(subject, send, lambda c: sync.parts(SyncRequest(context_id=c, **request)))
    return [decode(SyncPart, data) for data in sent]


def revisions(parts: list[SyncPart]) -> list[int]:
    return [record["revision"] for part in parts for record in part.records]


@pytest.mark.parametrize("since", [0, 1, 5, 28, 29])
async def test_records_that_have_left_memory_are_read_from_the_log(since: int) -> None:
    """Whoever wants the records themselves gets them, from any revision on."""
    world = World(MemoryLog(first_sequence=7))
    await filled(world, 30)
    parts = await answered(await forgetful(world), revision=since, records_only=True)
    assert list(range(since + 1, 31)) == revisions(parts)
    assert (None, 30) == (parts[0].kept_from, parts[0].head.revision)


async def test_one_answer_is_bounded_and_the_asker_asks_on() -> None:
    """In records and in bytes; read on from the last one, none is left out."""
    world = World()
    await filled(world, SYNC_TAIL_RECORDS + 50)
    sync = await forgetful(world)
    first = revisions(await answered(sync, revision=1, records_only=True))
    assert SYNC_TAIL_RECORDS >= len(first)
    second = revisions(await answered(sync, revision=first[-1], records_only=True))
    assert list(range(2, SYNC_TAIL_RECORDS + 51)) == [*first, *second]

    large = World()
    await filled(large, 6, spans=600)
    sync, found = await forgetful(large), list[int]()
    while len(found) < 6:
        parts = await answered(sync, revision=len(found), records_only=True)
        assert sum(len(part.wire()) for part in parts) <= CHUNK_BYTES + 4096
        found += revisions(parts)
    assert [1, 2, 3, 4, 5, 6] == found


async def test_records_that_the_log_has_lost_are_said_to_be_gone() -> None:
    """And where the log begins; what is left can be had."""
    world = World()
    await filled(world, 10)
    sync = await forgetful(world)
    assert isinstance(world.log, MemoryLog)
    del world.log.entries[CONTEXT][:4]
    (part,) = await answered(sync, revision=2, records_only=True)
    assert (5, (), None) == (part.kept_from, part.records, part.snapshot)
    assert [5, 6, 7, 8, 9, 10] == revisions(await answered(sync, revision=4, records_only=True))


async def test_who_has_all_records_gets_none() -> None:
    """Nor a snapshot, if the asker is ahead: it asked for records only."""
    world = World()
    await filled(world, 3)
    sync = await forgetful(world)
    for since in (3, 9):
        (part,) = await answered(sync, revision=since, records_only=True)
        assert ((), None, None) == (part.records, part.snapshot, part.kept_from)


async def test_who_follows_gets_the_few_records_it_lacks_also_from_the_log() -> None:
    """A worker that has just started sends no whole context to those who lack its latest records."""
    world = World()
    await filled(world, 30)
    parts = await answered(await forgetful(world), revision=25, chain="x")
    assert [26, 27, 28, 29, 30] == revisions(parts)


@pytest.mark.parametrize("spans", [1, 600])
async def test_who_lacks_too_much_or_all_gets_a_snapshot(spans: int) -> None:
    """More than one answer holds, or everything there is."""
    world = World()
    await filled(world, 6, spans)
    sync = await forgetful(world)
    parts = await answered(sync, revision=0 if spans == 1 else 2, chain="" if spans == 1 else "x")
    assert 6 * spans == sum(len(part.snapshot.spans) for part in parts if part.snapshot is not None)
    assert [] == revisions(parts)


@pytest.mark.parametrize("data", [b"", b"[]", b'{"revision":"2"}', b'{"revision":1}', b'{"revision":99}'])
async def test_a_log_that_holds_something_else_is_not_passed_on(data: bytes) -> None:
    """A typed error, and no search without end."""
    world = World()
    await filled(world, 8)
    sync = await forgetful(world)
    assert isinstance(world.log, MemoryLog)
    entries = world.log.entries[CONTEXT]
    entries[:-1] = [Entry(entry.sequence, data) for entry in entries[:-1]]
    with pytest.raises(LineageError):
        await sync.parts(SyncRequest(context_id=CONTEXT, revision=1, records_only=True))


async def test_the_place_in_the_log_is_found_without_reading_it() -> None:
    """In a long log: a few single records, and then what was asked for."""
    world = World()
    await filled(world, 400)
    sync = await forgetful(world)
    whole, reads = world.log.read, list[int | None]()

    def counted(
        context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        reads.append(limit)
        return whole(context_id, after, upto, limit=limit)

    world.log.read = counted  # type: ignore[method-assign]
    assert 201 == revisions(await answered(sync, revision=200, records_only=True))[0]
    assert SYNC_TAIL_RECORDS == reads[-1]
    assert {1} == set(reads[:-1])
    assert 12 >= len(reads)


async def test_an_error_between_two_parts_ends_the_answer() -> None:
    """Whoever asked is told at once, and does not wait for the rest."""

    async def broken() -> AsyncGenerator[bytes, None]:
        yield b"{}"
        raise LineageError("gone")

    sent: list[bytes] = []

    async def send(data: bytes) -> None:
        sent.append(data)

    async def make(_: str) -> AsyncGenerator[bytes, None]:
        return broken()

    await reply(subjects.rpc(CONTEXT, Verb.SYNC), send, make)
    assert b"{}" == sent[0]
    assert "lineage" == decode(RpcError, sent[1]).code
