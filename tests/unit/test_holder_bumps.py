"""The records as an iterator: in order, each once, and loud where one cannot be had."""

import asyncio

import pytest

from sexton.holder import Bumps, BumpsMissed, InvalidInput, PeerError, TransientError
from sexton.holder.holder import Holder
from sexton.holder.testing import MemoryService, MemoryTransport
from sexton.schemas.codec import AnyRecord
from sexton.schemas.rpc import Verb
from tests.holder_kit import CONTEXT, Rig, make_settings, rig


async def taken(r: Rig, bumps: Bumps, count: int) -> list[AnyRecord]:
    """The next records."""
    return [await r.run(anext(bumps)) for _ in range(count)]


def revisions(records: list[AnyRecord]) -> list[int]:
    return [record.revision for record in records]


async def test_every_record_comes_in_order() -> None:
    """From the call on, not from the first reading; own commands and others'."""
    async with rig() as r:
        await r.leaf("before")
        bumps = r.context.bumps()
        sources = await r.leaves("a", "b")
        await r.run(r.context.compact(sources, "s"))
        records = await taken(r, bumps, 3)
        assert list(r.service.log(CONTEXT)[1:]) == records
        assert 5 == bumps.next_revision


async def test_it_waits_for_what_comes() -> None:
    """An `async for` in a task of its own."""
    async with rig() as r:
        seen: list[int] = []

        async def watch() -> None:
            async for record in r.context.bumps():
                seen.append(record.revision)  # noqa: PERF401 - looked at while it runs

        watching = asyncio.create_task(watch())
        for text in "abc":
            await r.leaf(text)
        await r.clock.rest()
        assert [1, 2, 3] == seen
        await r.run(r.holder.close())
        await r.run(watching)  # the iteration ends with the context


async def test_what_was_lost_is_seen_too() -> None:
    """I6: records that came by a sync are records like the others."""
    async with rig() as r:
        bumps = r.context.bumps()
        await r.leaf("a")
        r.transport.bumps.lose(2)
        _, other = await r.another()
        for text in "bcd":
            await r.run(other.append(text))
        assert [1, 2, 3, 4] == revisions(await taken(r, bumps, 4))


async def test_two_readers_do_not_take_from_each_other() -> None:
    """Each has its own place."""
    async with rig() as r:
        one, two = r.context.bumps(), r.context.bumps()
        await r.leaves("a", "b")
        assert [1, 2] == revisions(await taken(r, one, 2))
        assert [1, 2] == revisions(await taken(r, two, 2))


async def test_a_reader_may_begin_earlier() -> None:
    """From a revision that is in memory, or that the service still has."""
    async with rig() as r:
        await r.leaves("a", "b", "c", "d")
        _, late = await r.another(recent_spans=1)
        for context in (r.context, late):
            bumps = context.bumps(from_revision=3)
            assert [3, 4] == revisions(await taken(r, bumps, 2))


async def test_a_reader_may_begin_later() -> None:
    """It waits for that revision."""
    async with rig() as r:
        bumps = r.context.bumps(from_revision=2)
        await r.leaves("a", "b")
        assert [2] == revisions(await taken(r, bumps, 1))


async def test_a_slow_reader_is_helped_by_the_service() -> None:
    """What has left memory by then is asked for: nothing is skipped, no queue grows."""
    async with rig(recent_spans=5) as r:
        bumps = r.context.bumps()
        await r.leaf("first")
        assert [1] == revisions(await taken(r, bumps, 1))
        for i in range(50):
            await r.leaf(f"{i}")
        assert list(range(2, 52)) == revisions(await taken(r, bumps, 50))


async def test_a_reader_too_slow_for_the_service_is_told() -> None:
    """The tail is gone there as well: a typed error that names the first record missed, and no hole."""
    async with rig(recent_spans=5, service=MemoryService(tail_records=10)) as r:
        bumps = r.context.bumps()
        await r.leaf("first")
        assert [1] == revisions(await taken(r, bumps, 1))
        for i in range(50):
            await r.leaf(f"{i}")
        with pytest.raises(BumpsMissed) as caught:
            await taken(r, bumps, 1)
        assert (2, "behind") == (caught.value.fields["next_revision"], caught.value.fields["reason"])
        assert [51] == revisions(await taken(r, r.context.bumps(from_revision=51), 1))


async def test_a_snapshot_leaves_no_hole() -> None:
    """A holder that was far behind took a snapshot: the reader is told that it missed records."""
    async with rig(service=MemoryService(tail_records=3)) as r:
        bumps = r.context.bumps()
        _, other = await r.another()
        r.transport.bumps.lose()
        for text in "abcdef":
            await r.run(other.append(text))
        await r.run(r.context.sync())
        with pytest.raises(BumpsMissed, match="record 1 of notes"):
            await taken(r, bumps, 1)


async def test_another_lineage_ends_an_iteration() -> None:
    """Records of two histories are not one sequence."""
    async with rig() as r:
        await r.leaves("a", "b")
        bumps = r.context.bumps()
        waiting = asyncio.create_task(anext(bumps))
        r.service.restore(CONTEXT, 1)
        await r.clock.advance(5)
        with pytest.raises(BumpsMissed) as caught:
            await r.run(waiting)
        assert "lineage" == caught.value.fields["reason"]


async def test_records_of_another_history_are_not_passed_on() -> None:
    """The log was made anew, unknown here: what the service sends does not continue what was known."""
    async with rig(recent_spans=1) as r:
        await r.leaves("a", "b")
        bumps = r.context.bumps()
        await r.leaves("c", "d")
        r.transport.bumps.lose()
        r.service.restore(CONTEXT, 0)
        _, other = await r.another()
        for text in "wxyz":
            await r.run(other.append(text))
        with pytest.raises(BumpsMissed, match="lineage"):
            await taken(r, bumps, 1)


async def test_a_failed_question_can_be_repeated() -> None:
    """An outage while older records are asked for: the reader keeps its place."""
    async with rig() as r:
        await r.leaves("a", "b", "c")
        transport, late = await r.another(recent_spans=1)
        bumps = late.bumps(from_revision=2)
        transport.stop_workers()
        with pytest.raises(TransientError):
            await taken(r, bumps, 1)
        transport.start_workers()
        assert [2, 3] == revisions(await taken(r, bumps, 2))


async def test_an_answer_without_the_records_is_the_peers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not taken for the end."""
    async with rig() as r:
        await r.leaves("a", "b", "c")
        _, late = await r.another(recent_spans=1)
        bumps = late.bumps(from_revision=2)
        empty = (
            '{"context_id":"notes","head":{"revision":3,"epoch":0,"chain":"' + late.head.chain + '"}}'
        ).encode()
        answer = r.service.answer
        monkeypatch.setattr(
            r.service, "answer", lambda c, v, b: [empty] if v is Verb.SYNC else answer(c, v, b)
        )
        with pytest.raises(PeerError, match="without the records"):
            await taken(r, bumps, 1)


async def test_a_cancelled_reading_loses_nothing() -> None:
    """C15: the next reading goes on where the last record was taken."""
    async with rig() as r:
        bumps = r.context.bumps()
        reading = asyncio.create_task(anext(bumps))
        await r.clock.rest()
        reading.cancel()
        await r.leaves("a", "b")
        assert [1, 2] == revisions(await taken(r, bumps, 2))


@pytest.mark.parametrize("revision", [0, -1])
async def test_revisions_count_from_one(revision: int) -> None:
    """A typed error."""
    async with rig() as r:
        with pytest.raises(InvalidInput):
            r.context.bumps(from_revision=revision)


async def test_every_holder_sees_every_epoch() -> None:
    """I6: of three holders whose bumps are lost, late and doubled, each reads the whole log."""
    async with rig() as r:
        rigs = [(r.transport, r.context), await r.another(), await r.another()]
        readers = [context.bumps() for _, context in rigs]
        rigs[0][0].bumps.lose(5)
        rigs[1][0].bumps.repeat()
        rigs[2][0].bumps.hold()
        span_id = await r.leaf("version 1")
        for i in range(20):
            await r.run(r.context.rewrite(span_id, f"version {i + 2}"))
        rigs[2][0].bumps.release(lambda held: held[::-1])
        for reader in readers:
            assert list(r.service.log(CONTEXT)) == await taken(r, reader, 21)


async def test_a_holder_of_its_own_clock_ends_its_readers() -> None:
    """Closing the context ends the iteration without an error."""
    transport = MemoryTransport(MemoryService())
    async with Holder(transport, settings=make_settings()) as holder:
        context = await holder.open(CONTEXT)
        reading = asyncio.create_task(anext(context.bumps(), None))
        await asyncio.sleep(0)
        await context.close()
        assert await reading is None
