"""Collection on real servers: pins that come at the wrong moment, sweeps side by side, and what is freed."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio
from redis.asyncio import Redis

from sexton.core.collection import Version
from sexton.core.pins import PinCost
from sexton.holder import Context, PinRefused, Unavailable
from sexton.schemas.commands import Rewrite
from sexton.schemas.leases import PinRefusal
from sexton.schemas.outcome import Committed
from sexton.schemas.records import (
    CollectAborted,
    Collected,
    Collecting,
    CollectionBase,
    Condemned,
    RecordKind,
)
from sexton.schemas.span import NewSpan, SpanState, Text
from sexton.worker import metrics
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.sweeper import Sweeper
from tests.core_kit.build import append, rewrite
from tests.leases_kit.servers import (
    BY_HAND,
    QUICK,
    History,
    history,
    holding,
    pins,
    stored,
    sweep,
    tombstones,
    until_collected,
)
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD = ("l0:a", 1)
REWRITES = 1000
AT_ONCE = 50


@dataclass
class World:
    """A worker that sweeps only when it is told to, on its servers."""

    servers: EmbeddedServers
    sender: Sender


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def world(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[World]:
    """Servers of this module's own."""
    async with (
        EmbeddedServers(tmp_path_factory.mktemp("collection")) as servers,
        serving(servers, **BY_HAND) as (_, sender),
    ):
        yield World(servers, sender)


@pytest_asyncio.fixture(loop_scope="module")
async def context(world: World, context_id: str) -> AsyncIterator[Context]:
    """A context with an old version that the next sweep will announce, in a holder that does not hold it."""
    async with holding(world.servers, context_id) as context:
        await context.append("the old bytes", name="a")
        async with context.pin("l0:a", cost=PinCost.EXPENSIVE):
            await context.rewrite("l0:a", "the new bytes")
        await sweep(world.sender, context_id)
        await eventually(
            lambda: tombstones(world.sender, context_id),
            until=lambda stones: "announce" == stones[OLD].step,
        )
        yield context


@dataclass
class Gate:
    """Holds a collector up at a record of one kind."""

    kind: RecordKind
    after: bool = False
    """Once it is committed, and not before."""
    dies: bool = False
    """The collector hears no more, once the record is committed."""
    reached: asyncio.Event = field(default_factory=asyncio.Event)
    opened: asyncio.Event = field(default_factory=asyncio.Event)

    async def _pass(self) -> None:
        self.reached.set()
        await self.opened.wait()

    def around(self, append: Callable[..., Any]) -> Callable[..., Any]:
        """`NatsLog.append` with the gate in it."""

        async def gated(log: NatsLog, context_id: str, data: bytes, expected: int) -> int:
            here = f'"kind":"{self.kind.value}"'.encode() in data
            if here and not self.after:
                await self._pass()
            sequence: int = await append(log, context_id, data, expected)
            if here and self.after:
                await self._pass()
            if here and self.dies:
                raise Unavailable("the collector has died")
            return sequence

        return gated


@asynccontextmanager
async def held_up(world: World, context: Context, gate: Gate) -> AsyncIterator[asyncio.Task[Any]]:
    """A sweep that has come to the gate. It goes on at the end of the block, or when the gate is opened."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NatsLog, "append", gate.around(NatsLog.append))
        sweeping = asyncio.create_task(sweep(world.sender, context.context_id))
        try:
            async with deadline(10, f"the collector at {gate.kind.value}"):
                await gate.reached.wait()
            yield sweeping
        finally:
            gate.opened.set()
            await asyncio.wait([sweeping])


def steps(found: History) -> list[type[CollectionBase]]:
    """The collector's records, in order."""
    return [type(record) for record in found.records if isinstance(record, CollectionBase)]


async def readable(context: Context) -> str:
    """The old version, as a holder without any bytes in memory reads it."""
    pointer = await context.mint("l0:a")
    stone = context.tree.tombstones[OLD].identity
    claim = {"version": 1, "content_hash": stone.content_hash, "length": stone.size_bytes}
    return (await context.resolve(pointer.model_copy(update=claim), accept_superseded=True)).text


# --- pins at the wrong moment ----------------------------------------------------------------------------


async def test_a_pin_between_the_look_and_the_announcement_calls_it_off(
    world: World, context: Context
) -> None:
    """C99, C104, I4: the collector has seen no pin; one is granted; then it announces, looks again, and calls
    it off. Once it is let go of, the next sweeps collect it.
    """
    context_id = context.context_id
    gate = Gate(RecordKind.COLLECTING)
    async with held_up(world, context, gate) as sweeping:
        scope = context.pin("l0:a", version=1)
        pinned = await scope.__aenter__()
        assert pinned.proven
    swept = await sweeping
    assert (0, 1) == (swept.collected, swept.called_off)
    found = await history(world.sender, context_id)
    assert [Collecting, CollectAborted] == steps(found)
    assert SpanState.TOMBSTONE is found.tree.tombstones[OLD].state
    assert pinned.proven
    assert "the old bytes" == await readable(context)
    await scope.__aexit__(None, None, None)
    found = await swept_away(world, context_id)
    assert [Collecting, CollectAborted, Collecting, Condemned, Collected] == steps(found)
    assert {"a/2"} == stored(world.servers, context_id)


async def swept(world: World, context_id: str) -> set[Version]:
    """What is left after a sweep."""
    await sweep(world.sender, context_id)
    return set(await tombstones(world.sender, context_id))


async def swept_away(world: World, context_id: str) -> History:
    """Sweeps until nothing is left."""
    await eventually(
        lambda: swept(world, context_id), until=lambda stones: not stones, within_s=30, what="the collection"
    )
    return await history(world.sender, context_id)


@pytest.mark.parametrize("kind", [RecordKind.COLLECTING, RecordKind.CONDEMNED])
async def test_a_pin_after_the_announcement_is_refused(
    world: World, context: Context, kind: RecordKind
) -> None:
    """I4: from `collecting` on, no pin is granted, and the collection goes its way."""
    context_id = context.context_id
    async with held_up(world, context, Gate(kind, after=True)) as sweeping:
        with pytest.raises(PinRefused) as caught:
            await context.pin("l0:a", version=1).__aenter__()
        assert PinRefusal.COLLECTING == caught.value.fields["reason"]
        assert {} == await pins(world.sender, context_id)
    assert 1 == (await sweeping).collected
    assert [Collecting, Condemned, Collected] == steps(await history(world.sender, context_id))


async def test_what_a_dead_collector_announced_is_called_off_for_a_pin(
    world: World, context: Context
) -> None:
    """C104: pinned before the announcement, and the collector dies before it looks again: the next sweep
    calls it off, on behalf of the dead one's attempt.
    """
    context_id = context.context_id
    async with held_up(world, context, Gate(RecordKind.COLLECTING, dies=True)) as sweeping:
        scope = context.pin("l0:a", version=1)
        await scope.__aenter__()
    with pytest.raises(Unavailable):
        await sweeping
    assert SpanState.COLLECTING is (await history(world.sender, context_id)).tree.tombstones[OLD].state
    assert "the old bytes" == await readable(context)
    swept = await sweep(world.sender, context_id)
    assert (0, 1) == (swept.collected, swept.called_off)
    found = await history(world.sender, context_id)
    assert [Collecting, CollectAborted] == steps(found)
    announced, aborted = (record for record in found.records if isinstance(record, CollectionBase))
    assert announced.attempt == aborted.attempt
    await scope.__aexit__(None, None, None)
    await swept_away(world, context_id)


async def test_a_registry_that_is_lost_after_the_announcement_calls_it_off(
    world: World, context: Context
) -> None:
    """I4: the second look sees another generation: unknown is not zero."""
    context_id = context.context_id
    async with held_up(world, context, Gate(RecordKind.COLLECTING, after=True)) as sweeping:
        redis = Redis.from_url(world.servers.redis_url)
        await redis.flushall()
        await redis.aclose()
    swept = await sweeping
    assert (0, 1) == (swept.collected, swept.called_off)
    found = await swept_away(world, context_id)
    assert [Collecting, CollectAborted, Collecting, Condemned, Collected] == steps(found)


async def test_a_collector_that_was_overtaken_stops(world: World, context: Context) -> None:
    """Another sweep announces anew while this one is held up after its announcement: this one's attempt is no
    more, and it neither condemns nor calls off what is the other one's.
    """
    context_id = context.context_id
    gate = Gate(RecordKind.COLLECTING, after=True)
    async with held_up(world, context, gate) as slow:
        gate.reached.clear()
        quick = asyncio.create_task(sweep(world.sender, context_id))
        async with deadline(10, "the other sweep's announcement"):
            await gate.reached.wait()
    assert {0, 1} == {(await slow).collected, (await quick).collected}
    found = await history(world.sender, context_id)
    assert [Collecting, Collecting, Condemned, Collected] == steps(found)
    _, announced, condemned, _ = (r for r in found.records if isinstance(r, CollectionBase))
    assert announced.attempt == condemned.attempt


# --- faults ------------------------------------------------------------------------------------------------


async def test_what_was_freed_is_counted_although_the_sweep_failed(
    world: World, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is committed, and then the registry is away: no later sweep comes upon these bytes again."""

    async def away(*_: object) -> None:
        raise Unavailable("the registry is away")

    monkeypatch.setattr(RedisRegistry, "unmark", away)
    before = metrics.FREED_BYTES._value.get()
    with pytest.raises(Unavailable):
        await sweep(world.sender, context.context_id)
    found = await history(world.sender, context.context_id)
    assert [Collecting, Condemned, Collected] == steps(found)
    assert found.freed_bytes == metrics.FREED_BYTES._value.get() - before


async def test_a_sweeper_ends_when_it_is_told_to() -> None:
    """Although a library below has swallowed the cancellation, as `asyncio.wait_for` may."""

    class Swallowing:
        began = asyncio.Event()

        async def complete(self) -> bool:
            if self.began.is_set():
                await asyncio.Event().wait()
            self.began.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise Unavailable("no answer")

    index: Any = Swallowing()
    nothing: Any = None
    sweeper = Sweeper(index, nothing, nothing, interval_s=0.001, lock_s=1.0, new_token=lambda: "me")
    running = asyncio.create_task(sweeper.run())
    async with deadline(5, "the sweeper's end"):
        await index.began.wait()
        running.cancel()
        await asyncio.wait([running])


# --- many --------------------------------------------------------------------------------------------------


async def test_workers_that_sweep_at_once_do_no_harm(world: World, context_id: str) -> None:
    """I8: two workers with their own timers, and operators who ask for sweeps besides: every version is
    collected once, and what the records count is right.
    """
    names = [f"s{i}" for i in range(60)]
    async with holding(world.servers, context_id) as context, serving(world.servers, **QUICK) as (_, sender):
        await context.append([NewSpan(name=name, content=f"old {name}") for name in names])
        await asyncio.gather(*(context.rewrite(f"l0:{name}", f"new {name}") for name in names))
        async with serving(world.servers, **QUICK):
            for _ in range(15):
                done = await asyncio.gather(
                    *(sweep(sender, context_id) for _ in range(4)), return_exceptions=True
                )
                assert all(not isinstance(one, BaseException) or isinstance(one, Unavailable) for one in done)
            found = await until_collected(sender, context_id, {(f"l0:{name}", 1) for name in names})
    assert sum(len(f"old {name}") for name in names) == found.freed_bytes
    assert {f"{name}/2" for name in names} == stored(world.servers, context_id)


@pytest.mark.slow
async def test_a_thousand_rewrites_without_holders_all_come_free(world: World, context_id: str) -> None:
    """C109, I5: one span, rewritten a thousand times: every old version is freed, and the records and the
    metric say how many bytes.
    """
    texts = [f"the text of version {i} " * (i % 7 + 1) for i in range(1, REWRITES + 2)]
    before = metrics.FREED_BYTES._value.get()
    async with holding(world.servers, context_id) as context:
        await context.append(texts[0], name="a")
        for start in range(1, len(texts), AT_ONCE):
            outcomes = await asyncio.gather(
                *(
                    context.submit(
                        Rewrite(
                            context_id=context_id,
                            event_id=f"rewrite-{i}",
                            span_id="l0:a",
                            base_version=i,
                            text=Text(content=texts[i]),
                        )
                    )
                    for i in range(start, min(start + AT_ONCE, len(texts)))
                )
            )
            assert all(isinstance(outcome, Committed) for outcome in outcomes)
    found = await swept_away(world, context_id)
    assert REWRITES + 1 == found.tree.nodes["l0:a"].version
    assert {f"a/{REWRITES + 1}"} == stored(world.servers, context_id)
    freed = sum(len(text) for text in texts) - found.tree.nodes["l0:a"].size_bytes
    assert freed == found.freed_bytes
    assert freed == metrics.FREED_BYTES._value.get() - before


async def test_nothing_is_collected_while_it_is_switched_off(own_servers: EmbeddedServers) -> None:
    """For the time of a backup: not by itself and not by hand; afterwards what waited is collected."""
    async with serving(own_servers, **QUICK, collect=False) as (worker, sender):
        await sender.commit(append("e", "a"))
        await sender.commit(rewrite("r", "l0:a", "another text"))
        with pytest.raises(Unavailable, match="SEXTON_COLLECT"):
            await sweep(sender, "ctx")
        assert {OLD} == set(await tombstones(sender, "ctx"))
        assert "the sweeper" not in {task.get_name() for task in worker._background._tasks}
    async with serving(own_servers, **QUICK) as (_, sender):
        await until_collected(sender, "ctx", [OLD])
