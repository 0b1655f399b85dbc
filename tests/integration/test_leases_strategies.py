"""What live pins do to commands and to collection, on real servers: strategies, refusals, what is kept.

On Valkey, and on a redis-server if there is one.
"""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sexton.core.pins import PinCost
from sexton.holder import CommandRejected, Context, PinRefused, StaleSpanError, Unreachable
from sexton.schemas.commands import Rewrite
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinRefusal
from sexton.schemas.ops import Damage, HoldersPart, OpsRequest, OpsVerb, VerifyPart, VerifyRequest
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.schemas.records import Rewritten
from sexton.schemas.span import NewSpan, SpanState, Strategy, Text
from sexton.worker.embedded import EmbeddedServers
from tests.leases_kit.servers import (
    QUICK,
    history,
    holding,
    on_redis_server,
    ops,
    pins,
    stored,
    sweep,
    tombstones,
    until_collected,
)
from tests.support.waiting import eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import cold_folder, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

A, B, C, D = "l0:a", "l0:b", "l0:c", "l0:d"


@dataclass
class World:
    """A worker on its servers, and an operator."""

    servers: EmbeddedServers
    sender: Sender


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["valkey", "redis-server"])
async def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Servers of this module's own, and a worker that collects within a second or two."""
    servers = EmbeddedServers(tmp_path_factory.mktemp("strategies"))
    if request.param == "redis-server" and not on_redis_server(servers):
        pytest.skip("no redis-server on PATH")
    async with servers, serving(servers, **QUICK) as (_, sender):
        yield World(servers, sender)


@pytest_asyncio.fixture(loop_scope="module")
async def context(world: World, context_id: str) -> AsyncIterator[Context]:
    """A context of four leaves in one holder."""
    async with holding(world.servers, context_id) as context:
        await context.append([NewSpan(name=name, content=f"the bytes of {name}") for name in "abcd"])
        yield context


@pytest_asyncio.fixture(loop_scope="module")
async def other(world: World, context: Context) -> AsyncIterator[Context]:
    """The same context in another holder."""
    async with holding(world.servers, context.context_id) as other:
        yield other


# --- rewrites ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cost", "strategy"),
    [
        (None, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.CHEAP, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.EXPENSIVE, Strategy.COPY_ON_REWRITE),
    ],
)
async def test_live_pins_decide_what_a_rewrite_does(
    world: World,
    context: Context,
    other: Context,
    cost: PinCost | None,
    strategy: Strategy,
) -> None:
    """Visible in the outcome, in the record, to operators, and to who reads the old version; and in the end,
    once it is let go of, the bytes are free.
    """
    pointer, stack = await context.mint(A), AsyncExitStack()
    if cost is not None:
        await stack.enter_async_context(context.pin(A, cost=cost))
    outcome = await other.rewrite(A, "new")
    assert isinstance(outcome, Committed)
    assert strategy is outcome.strategy
    found = await history(world.sender, context.context_id)
    record = found.records[-1] if cost is not None else found.records[1]
    assert isinstance(record, Rewritten)
    assert strategy is record.strategy
    for reader in (context, other):
        await reader.sync()
        with pytest.raises(StaleSpanError) as caught:
            await reader.resolve(pointer)
        assert (2, strategy is Strategy.COPY_ON_REWRITE) == (
            caught.value.current.version,
            caught.value.fields["superseded_readable"],
        )
        if strategy is Strategy.COPY_ON_REWRITE:
            resolved = await reader.resolve(pointer, accept_superseded=True)
            assert ("the bytes of a", True) == (resolved.text, resolved.superseded)
            assert 1 == resolved.pointer.version
    if cost is not None:
        stone = (await tombstones(world.sender, context.context_id))[A, 1]
        assert ("keep", strategy, [cost]) == (stone.step, stone.strategy, [pin.cost for pin in stone.pins])
        await stack.aclose()
    await until_collected(world.sender, context.context_id, {(A, 1)})
    assert {"a/2", "b/1", "c/1", "d/1"} == stored(world.servers, context.context_id)
    for reader in (context, other):
        await reader.sync()
        with pytest.raises(StaleSpanError) as caught:
            await reader.resolve(pointer, accept_superseded=True)
        assert not caught.value.fields["superseded_readable"]
        with pytest.raises(PinRefused) as refused:
            await reader.pin(A, version=1).__aenter__()
        assert PinRefusal.COLLECTED == refused.value.fields["reason"]


async def test_the_highest_cost_class_over_all_holders_counts(context: Context, other: Context) -> None:
    """One holder could do without the old version, another one cannot."""
    async with context.pin(A, cost=PinCost.CHEAP), other.pin(A, cost=PinCost.EXPENSIVE):
        outcome = await context.rewrite(A, "new")
    assert isinstance(outcome, Committed)
    assert Strategy.COPY_ON_REWRITE is outcome.strategy


async def test_an_immovable_pin_refuses_by_name(context: Context, other: Context) -> None:
    """C37: rewrite, prune and compaction are refused, and say which span a holder needs; then they pass."""
    revision = context.tree.revision
    async with context.pin(B, cost=PinCost.IMMOVABLE):
        for work in (other.rewrite(B, "new"), other.prune(B), other.compact([A, B, C], "sum", name="s")):
            with pytest.raises(CommandRejected) as caught:
                await work
            refused = caught.value.outcome
            assert isinstance(refused, Rejected)
            assert (RejectionCode.IMMOVABLE, [B]) == (refused.code, [span.span_id for span in refused.spans])
            assert B in refused.message
        await other.sync()
        assert revision == other.tree.revision
        # Its own holder is refused too: it says that the bytes must stay.
        with pytest.raises(CommandRejected):
            await context.rewrite(B, "new")
    assert isinstance(await other.rewrite(B, "new"), Committed)
    assert isinstance(await other.compact([A, B, C], "sum", name="s"), Committed)


# --- what is never garbage -----------------------------------------------------------------------------


async def test_what_is_under_a_summary_is_kept(world: World, context: Context) -> None:
    """C103: leaves that are reachable only through a held roll-up are not collected; nor are they when the
    roll-up and its summaries are gone: verbatim is what the context is for.
    """
    pointers = [await context.mint(span_id) for span_id in (A, B, C, D)]
    await context.compact([A, B], "sum 1", name="s1")
    await context.compact([C, D], "sum 2", name="s2")
    await context.compact(["l1:s1", "l1:s2"], "roll-up", name="r")
    roll_up = context.pin("l2:r")
    await roll_up.__aenter__()
    await context.append("something else", name="else")
    await context.rewrite("l0:else", "collected, while the others are kept")
    await until_collected(world.sender, context.context_id, {("l0:else", 1)})
    kept = {"a/1", "b/1", "c/1", "d/1", "s1/1", "s2/1", "else/2"}
    assert kept | {"r/1"} == stored(world.servers, context.context_id)
    await context.prune("l2:r")
    assert "keep" == (await tombstones(world.sender, context.context_id))["l2:r", 1].step
    await roll_up.__aexit__(None, None, None)
    found = await until_collected(world.sender, context.context_id, {("l2:r", 1)})
    assert kept == stored(world.servers, context.context_id)
    assert SpanState.COVERED is found.tree.nodes[A].state
    assert len("roll-up") + len("something else") == found.freed_bytes
    async with holding(world.servers, context.context_id) as reader:
        for pointer, name in zip(pointers, "abcd", strict=True):
            assert f"the bytes of {name}" == (await reader.resolve(pointer)).quote()


async def test_a_late_rewrite_does_not_bring_a_collected_version_back(world: World, context: Context) -> None:
    """C101: it names a base that was collected meanwhile: refused, with what is there now. So is one of a
    span that was pruned and collected, whose name is not free again. A repeat of an old command is a repeat.
    """
    first = Rewrite(
        context_id=context.context_id,
        event_id="first",
        span_id=A,
        base_version=1,
        text=Text(content="second"),
    )
    assert isinstance(await context.submit(first), Committed)
    await context.prune(B)
    found = await until_collected(world.sender, context.context_id, {(A, 1), (B, 1)})
    for late in (
        first.model_copy(update={"event_id": "late"}),
        first.model_copy(
            update={"event_id": "late-2", "base_version": None, "base_hash": first_hash(found.records)}
        ),
    ):
        refused = await context.submit(late)
        assert isinstance(refused, Rejected)
        assert (RejectionCode.STALE_SOURCE, 2) == (refused.code, refused.spans[0].version)
    refused = await context.submit(first.model_copy(update={"event_id": "late-3", "span_id": B}))
    assert isinstance(refused, Rejected)
    assert RejectionCode.PRUNED is refused.code
    with pytest.raises(CommandRejected) as caught:
        await context.append("again", name="b")
    assert RejectionCode.SPAN_EXISTS is caught.value.outcome.code
    with pytest.raises(Unreachable):
        await context.mint(B)
    again = await context.submit(first)
    assert isinstance(again, Committed)
    assert Strategy.INVALIDATE_AND_REKEY is again.strategy
    later = await history(world.sender, context.context_id)
    assert found.records == later.records
    assert {"a/2", "c/1", "d/1"} == stored(world.servers, context.context_id)


def first_hash(records: object) -> str:
    """The hash of the version that the first rewrite has replaced."""
    assert isinstance(records, list)
    return next(record.before.content_hash for record in records if isinstance(record, Rewritten))


# --- what operators ask ----------------------------------------------------------------------------------


async def test_operators_see_who_holds_what_and_what_waits_for_what(
    world: World, context: Context, other: Context
) -> None:
    """`holders`, `pins`, `tombstones`, `sweep`; and in the end nothing is left."""
    context_id = context.context_id
    async with (
        context.pin(A, cost=PinCost.EXPENSIVE),
        other.pin(A, cost=PinCost.CHEAP),
        other.pin(B, cost=PinCost.IMMOVABLE),
    ):
        held = await pins(world.sender, context_id)
        assert {(A, 1), (B, 1)} == set(held)
        assert {PinCost.EXPENSIVE, PinCost.CHEAP} == {info.cost for info in held[A, 1]}
        assert 2 == len({info.holder_id for info in held[A, 1]})
        holders = await ops(
            world.sender, OpsVerb.HOLDERS, OpsRequest(context_id=context_id), HoldersPart, context_id
        )
        assert [1, 2] == sorted(info.pins for part in holders for info in part.holders)
        await context.rewrite(A, "new")
        swept = await sweep(world.sender, context_id)
        assert [("keep", 2)] == [(info.step, len(info.pins)) for info in swept.tombstones]
        assert (0, 0, 0) == (swept.collected, swept.size_freed_bytes, swept.called_off)
    await eventually(lambda: tombstones(world.sender, context_id), until=lambda stones: not stones)
    assert {} == await pins(world.sender, context_id)


async def test_a_context_that_nobody_knows_has_nothing_to_show(world: World, context_id: str) -> None:
    """An empty answer is an answer."""
    assert {} == await pins(world.sender, context_id)
    assert {} == await tombstones(world.sender, context_id)
    assert (0, 0) == ((swept := await sweep(world.sender, context_id)).collected, swept.called_off)


async def verified(world: World, context_id: str, limit: int) -> tuple[int, list[Damage]]:
    """All pieces of the answers to `verify`: how many versions were checked, and what is damaged."""
    checked, damaged, after = 0, list[Damage](), ""
    while True:
        request = VerifyRequest(context_id=context_id, after=after, limit=limit)
        (part,) = await ops(world.sender, OpsVerb.VERIFY, request, VerifyPart, context_id)
        checked += part.checked
        damaged += part.damaged
        if part.next is None:
            assert checked == part.total
            return checked, damaged
        after = part.next


async def test_verify_finds_what_is_lost_and_what_is_damaged(world: World, context: Context) -> None:
    """C110: presence, length and hash of everything that must be there: current, covered, superseded; and not
    of what was collected. Hot bytes do not hide it.
    """
    context_id = context.context_id
    held = context.pin(D, cost=PinCost.EXPENSIVE)
    await held.__aenter__()
    await context.rewrite(D, "a later version")
    await context.rewrite(C, "a later version")
    await context.compact([A, B], "sum", name="s")
    await until_collected(world.sender, context_id, {(C, 1)})
    assert (6, []) == await verified(world, context_id, 2)
    root = cold_folder(world.servers) / "blobs" / context_id
    files = {path.parent.name: path for path in root.rglob("1-*")}
    files["a"].unlink()
    files["b"].write_bytes(b"")
    files["d"].write_bytes(b"of another length")
    files["s"].write_bytes(b"SUM")
    checked, damaged = await verified(world, context_id, 2)
    assert 6 == checked
    assert {
        (A, "lost", Level.L0_VERBATIM),
        (B, "corrupt", Level.L0_VERBATIM),
        (D, "corrupt", Level.L0_VERBATIM),
        ("l1:s", "corrupt", Level.L1_SUMMARY),
    } == {(damage.span_id, damage.reason, damage.level) for damage in damaged}
    assert {1} == {damage.version for damage in damaged}
    await held.__aexit__(None, None, None)


async def test_a_holder_that_asks_for_too_long_a_lease_pins_all_the_same(
    world: World, context: Context, other: Context
) -> None:
    """The worker names the longest there is, and the holder takes that."""
    async with (
        holding(world.servers, context.context_id, lease_ttl_s=60.0) as patient,
        patient.pin(A, cost=PinCost.IMMOVABLE) as pinned,
    ):
        assert pinned.proven
        with pytest.raises(CommandRejected):
            await other.rewrite(A, "new")
