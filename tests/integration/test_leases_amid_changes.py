"""Pins that come while a command is under way, on real servers, in both orders (decision 0022).

On Valkey, and on a redis-server if there is one. The worker is stopped between its reading of the pins and
its record, or right before the reading, and goes on when the test says.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

import pytest
import pytest_asyncio

from sexton.core.pins import PinCost
from sexton.holder import CommandRejected, Context
from sexton.holder.pins import Pinned
from sexton.schemas.codec import AnyOutcome
from sexton.schemas.outcome import Committed, RejectionCode
from sexton.schemas.span import NewSpan, SpanState, Strategy
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.embedded import EmbeddedServers
from tests.leases_kit.servers import BY_HAND, history, holding, on_redis_server, pins
from tests.sim.registry_bench import connected
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B = "l0:a", "l0:b"
WITHIN_S: Final = 20.0

COMMANDS: Final[dict[str, Callable[[Context], Awaitable[AnyOutcome]]]] = {
    "rewritten": lambda context: context.rewrite(A, "new"),
    "compacted": lambda context: context.compact([A, B], "sum", name="s"),
    "pruned": lambda context: context.prune(A),
}
EACH: Final = pytest.mark.parametrize("kind", COMMANDS)


@dataclass
class World:
    """A worker on its servers, and an operator."""

    servers: EmbeddedServers
    sender: Sender


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["valkey", "redis-server"])
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Servers of this module's own, and a worker."""
    servers = EmbeddedServers(tmp_path_factory.mktemp("amid"))
    if request.param == "redis-server" and not on_redis_server(servers):
        pytest.skip("no redis-server on PATH")
    async with servers, serving(servers, **BY_HAND) as (_, sender):
        yield World(servers, sender)


@pytest_asyncio.fixture(loop_scope="module")
async def context(world: World, context_id: str) -> AsyncIterator[Context]:
    """A context of two leaves in one holder."""
    async with holding(world.servers, context_id) as context:
        await context.append([NewSpan(name=name, content=f"the bytes of {name}") for name in "ab"])
        yield context


@pytest_asyncio.fixture(loop_scope="module")
async def other(world: World, context: Context) -> AsyncIterator[Context]:
    """The same context in another holder, which gives the commands."""
    async with holding(world.servers, context.context_id) as other:
        yield other


@dataclass
class Gate:
    """Where a call of a port waits."""

    reached: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)

    async def pass_through(self) -> None:
        self.reached.set()
        async with deadline(WITHIN_S, "the opening of a gate"):
            await self.open.wait()


def gate_at(monkeypatch: pytest.MonkeyPatch, owner: type[Any], method: str, about: bytes = b"") -> Gate:
    """A gate before a method, for calls whose first argument after the context has `about` in it."""
    gate, original = Gate(), getattr(owner, method)

    async def gated(self: Any, context_id: str, first: Any, *more: Any) -> Any:
        if not about or about in first:
            await gate.pass_through()
        return await original(self, context_id, first, *more)

    monkeypatch.setattr(owner, method, gated)
    return gate


async def reached(gate: Gate) -> None:
    async with deadline(WITHIN_S, "the command's coming to its gate"):
        await gate.reached.wait()


async def registered(world: World, context: Context) -> None:
    """Waits until the registry has a pin on A."""
    await eventually(
        lambda: pins(world.sender, context.context_id), until=lambda held: (A, 1) in held, what="the pin"
    )


async def granted(pinning: "asyncio.Task[Pinned]") -> Pinned:
    async with deadline(WITHIN_S, "the answer to the pin"):
        return await pinning


@EACH
async def test_a_pin_that_comes_before_the_record_waits_for_it(
    world: World, context: Context, other: Context, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is registered and not granted. Then it is told what the version has become."""
    gate = gate_at(monkeypatch, NatsLog, "append", f'"kind":"{kind}"'.encode())
    command = asyncio.ensure_future(COMMANDS[kind](other))
    await reached(gate)
    scope = context.pin(A, version=1, cost=PinCost.IMMOVABLE)
    pinning = asyncio.create_task(scope.__aenter__())
    await registered(world, context)
    assert not pinning.done()
    gate.open.set()
    outcome = await command
    assert isinstance(outcome, Committed)
    pinned = await granted(pinning)
    assert pinned.proven
    found = await history(world.sender, context.context_id)
    stone = found.tree.tombstones.get((A, 1))
    state = stone.state if stone is not None else found.tree.nodes[A].state
    assert (SpanState.COVERED if kind == "compacted" else SpanState.TOMBSTONE) is state
    assert (state is SpanState.TOMBSTONE) is pinned._held.superseded
    await scope.__aexit__(None, None, None)


async def test_a_pin_on_what_is_current_gets_the_version_after_the_rewrite(
    world: World, context: Context, other: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the next rewrite is refused: it holds what it was granted."""
    gate = gate_at(monkeypatch, NatsLog, "append", b'"kind":"rewritten"')
    command = asyncio.ensure_future(other.rewrite(A, "new"))
    await reached(gate)
    scope = context.pin(A, cost=PinCost.IMMOVABLE)
    pinning = asyncio.create_task(scope.__aenter__())
    await registered(world, context)
    assert not pinning.done()
    gate.open.set()
    assert isinstance(await command, Committed)
    pinned = await granted(pinning)
    assert (2, True) == (pinned.version, pinned.proven)
    with pytest.raises(CommandRejected) as caught:
        await other.rewrite(A, "newer")
    assert RejectionCode.IMMOVABLE is caught.value.outcome.code
    await scope.__aexit__(None, None, None)


@EACH
async def test_a_pin_that_comes_before_the_reading_stops_the_command(
    world: World, context: Context, other: Context, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command is under way, and has not read the pins yet. The pin is granted at once."""
    gate = gate_at(monkeypatch, RedisRegistry, "change")
    command = asyncio.ensure_future(COMMANDS[kind](other))
    await reached(gate)
    async with context.pin(A, cost=PinCost.IMMOVABLE) as pinned:
        gate.open.set()
        with pytest.raises(CommandRejected) as caught:
            await command
        assert RejectionCode.IMMOVABLE is caught.value.outcome.code
        assert (1, True) == (pinned.version, pinned.proven)
        assert 1 == len((await history(world.sender, context.context_id)).records)


async def test_an_expensive_pin_before_the_reading_keeps_a_copy(
    context: Context, other: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old version stays readable for who asks for it."""
    pointer = await context.mint(A)
    gate = gate_at(monkeypatch, RedisRegistry, "change")
    command = asyncio.ensure_future(other.rewrite(A, "new"))
    await reached(gate)
    async with context.pin(A, cost=PinCost.EXPENSIVE):
        gate.open.set()
        outcome = await command
        assert isinstance(outcome, Committed)
        assert Strategy.COPY_ON_REWRITE is outcome.strategy
        await context.sync()
        assert "the bytes of a" == (await context.resolve(pointer, accept_superseded=True)).text


async def test_a_note_is_cleared_when_the_command_is_through(
    world: World, context: Context, other: Context
) -> None:
    """Committed, rejected, or no change: nobody has to wait for it to run out."""
    redis = connected(world.servers.redis_url)
    key = f"sexton:{{{context.context_id}}}:changing"
    async with context.pin(B, cost=PinCost.IMMOVABLE):
        await other.rewrite(A, "new")
        await other.rewrite(A, "new")
        with pytest.raises(CommandRejected):
            await other.prune(B)
        await eventually(lambda: redis.exists(key), until=lambda there: not there, within_s=5, what="no note")
    await redis.aclose()
