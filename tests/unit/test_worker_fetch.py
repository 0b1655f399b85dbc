"""Bytes for a pointer: which store, what is checked, and what is said when they cannot be had."""

import asyncio
from typing import Any

import pytest

from sexton.core.hash import content_hash
from sexton.core.pins import PinCost
from sexton.schemas.errors import (
    BoundaryError,
    EpochMismatch,
    HashMismatch,
    LeafCorrupt,
    LeafLost,
    LevelMismatch,
    StaleSpanError,
    Unavailable,
    Unreachable,
)
from sexton.schemas.ids import Level
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Answer, FetchRequest, Tier
from sexton.schemas.span import Identity
from sexton.worker.adapters.cold import _key
from sexton.worker.contexts import Contexts
from sexton.worker.fetch import Fetcher
from tests.core_kit.build import CONTEXT, append, compact, leaf, prune, rewrite
from tests.support.waiting import deadline
from tests.worker_kit.sender import pointer_to
from tests.worker_kit.stores import MemoryHot, World, carry_out

TEXT = "Grüße, 世界 🌍!"
"""Characters of one, two, three and four bytes."""


@pytest.fixture
async def world() -> World:
    """A context of two leaves, `a` with `TEXT`."""
    world = World()
    await world.outcome(append("fill", leaf("a", TEXT), "b"))
    return world


async def fetch(
    world: World, pointer: Pointer, *, contexts: Contexts | None = None, budget_s: float = 5.0, **more: Any
) -> tuple[Answer, bytes]:
    fetcher = Fetcher(contexts or world.contexts(), world.cold, world.hot, budget_s=budget_s)
    return await fetcher.fetch(FetchRequest(context_id=pointer.context_id, pointer=pointer, **more))


def hot(world: World) -> dict[tuple[str, str, int], bytes]:
    assert isinstance(world.hot, MemoryHot)
    return world.hot.blobs


async def identity(world: World, span_id: str = "l0:a") -> Identity:
    return (await world.tree()).nodes[span_id].identity


async def put_cold(world: World, what: Identity, data: bytes) -> None:
    """Puts other bytes under a version's key, as a fault of the store would."""
    store: Any = world.cold
    await store._store.put_async(_key(CONTEXT, what), data)


# --- tiers -------------------------------------------------------------------------------------------


async def test_new_bytes_come_from_the_hot_store(world: World) -> None:
    """The answer says where they came from, and what they are."""
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a"))
    assert TEXT.encode() == data
    assert (Tier.HOT, Level.L0_VERBATIM, True) == (answer.tier, answer.level, answer.verbatim)
    assert (len(data), answer.span_hash) == (answer.span_size_bytes, answer.pointer.content_hash)


async def test_without_hot_bytes_the_cold_store_serves(world: World) -> None:
    """I7: all that Redis holds may be lost."""
    hot(world).clear()
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a"))
    assert (Tier.COLD, TEXT.encode()) == (answer.tier, data)


@pytest.mark.parametrize("wrong", [b"", b"x" * len(TEXT.encode()), TEXT.encode()[:-1], TEXT.encode() + b"!"])
async def test_damaged_hot_bytes_are_passed_over(world: World, wrong: bytes) -> None:
    """I1: whatever lies in Redis, the bytes served have the pointer's hash."""
    hot(world)[CONTEXT, "l0:a", 1] = wrong
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a"))
    assert (Tier.COLD, TEXT.encode()) == (answer.tier, data)


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.COLD])
async def test_a_range_is_served_by_itself(world: World, tier: Tier) -> None:
    """Offsets are bytes; the hash is that of the range."""
    if tier is Tier.COLD:
        hot(world).clear()
    offset = len("Grüße, ".encode())
    pointer = pointer_to(TEXT, "l0:a", offset=offset, length=len("世界".encode()))
    answer, data = await fetch(world, pointer)
    assert (tier, "世界") == (answer.tier, data.decode())


async def test_a_covered_leaf_is_expanded_again(world: World) -> None:
    """C69, I1: after a compaction the leaf's own bytes, from the cold store, and re-stamped."""
    await world.outcome(compact("sum", "l0:a", "l0:b"))
    hot(world)[CONTEXT, "l0:a", 1] = b"the summary, say"
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a"))
    assert TEXT.encode() == data
    assert (Tier.COLD, True, True, 1) == (
        answer.tier,
        answer.verbatim,
        answer.restamped,
        answer.pointer.epoch,
    )


async def test_a_summary_goes_only_to_who_asked_for_one(world: World) -> None:
    """I1, C69: with `accept_summary` the covering summary, and the answer says that it is one."""
    await world.outcome(compact("sum", "l0:a", "l0:b"))
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a", accept_summary=True))
    assert (b"sum", Level.L1_SUMMARY, False) == (data, answer.level, answer.verbatim)
    assert "l1:sum" == answer.pointer.span_id


# --- refusals ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"context_id": "nobody"}, Unreachable),
        ({"span_id": "l0:nobody"}, Unreachable),
        ({"version": 2}, Unreachable),
        ({"level": Level.L1_SUMMARY}, LevelMismatch),
        ({"epoch": 7}, EpochMismatch),
        ({"content_hash": "sha256:" + 64 * "0"}, HashMismatch),
        ({"offset": 0, "length": 0}, BoundaryError),
        ({"offset": 1, "length": 10_000}, BoundaryError),
        ({"offset": 10_000, "length": 1}, BoundaryError),
        ({"offset": 2**53 - 1, "length": 2**53 - 1}, BoundaryError),
    ],
)
async def test_a_pointer_that_cannot_be_met_is_refused(
    world: World, change: dict[str, Any], error: type[Exception]
) -> None:
    """I1: never a fallback."""
    pointer = pointer_to(TEXT, "l0:a").model_copy(update=change)
    with pytest.raises(error):
        await fetch(world, pointer)


async def test_a_rewritten_span_is_stale_with_what_is_there_now(world: World) -> None:
    """The rolling rewrite: the old version's pointer gets the current identity, not the new bytes."""
    await world.outcome(rewrite("rw", "l0:a", "new bytes"))
    with pytest.raises(StaleSpanError) as caught:
        await fetch(world, pointer_to(TEXT, "l0:a"), accept_superseded=True)
    assert 2 == caught.value.current.version


async def test_a_version_that_a_pin_kept_is_served_to_who_asks_for_it(world: World) -> None:
    """Copy on rewrite: marked as superseded, and to nobody else."""
    world.pins = {("l0:a", 1): PinCost.EXPENSIVE}
    await world.outcome(rewrite("rw", "l0:a", "new bytes"))
    answer, data = await fetch(world, pointer_to(TEXT, "l0:a"), accept_superseded=True)
    assert (TEXT.encode(), True) == (data, answer.superseded)
    with pytest.raises(StaleSpanError):
        await fetch(world, pointer_to(TEXT, "l0:a"))


async def test_a_pruned_span_is_unreachable(world: World) -> None:
    """It is not a loss, and is not reported as one."""
    await world.outcome(prune("gone", "l0:a"))
    with pytest.raises(Unreachable, match="pruned"):
        await fetch(world, pointer_to(TEXT, "l0:a"))


async def test_strict_refuses_another_epoch(world: World) -> None:
    """Strict mode does not re-stamp."""
    await world.outcome(rewrite("rw", "l0:b", "new bytes"))
    answer, _ = await fetch(world, pointer_to(TEXT, "l0:a"))
    assert (1, True) == (answer.pointer.epoch, answer.restamped)
    await world.outcome(rewrite("rw2", "l0:b", "newer bytes", base_version=2))
    with pytest.raises(EpochMismatch):
        await fetch(world, answer.pointer, strict=True)


@pytest.mark.parametrize("tier", [Tier.HOT, Tier.COLD])
async def test_a_cut_inside_a_character_is_refused_with_the_nearest_ones(world: World, tier: Tier) -> None:
    """C81: also where the hash is that of exactly the bytes cut."""
    if tier is Tier.COLD:
        hot(world).clear()
    globe = TEXT.encode().index("🌍".encode())
    part = TEXT.encode()[globe + 1 : globe + 3]
    pointer = pointer_to(TEXT, "l0:a", offset=globe + 1, length=2).model_copy(
        update={"content_hash": content_hash(Level.L0_VERBATIM, part)}
    )
    with pytest.raises(BoundaryError) as caught:
        await fetch(world, pointer)
    assert (globe, globe + 4) == caught.value.nearest


# --- trees that lag ----------------------------------------------------------------------------------


async def test_latest_sees_what_another_worker_has_just_committed(world: World) -> None:
    """One round trip, and no bump is needed for it."""
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    await world.outcome(rewrite("rw", "l0:a", "new bytes"))
    await fetch(world, pointer_to(TEXT, "l0:a"), contexts=contexts)
    with pytest.raises(StaleSpanError):
        await fetch(world, pointer_to(TEXT, "l0:a"), contexts=contexts, latest=True)


@pytest.mark.parametrize("how", ["span", "version", "epoch"])
async def test_a_pointer_ahead_of_this_worker_s_tree_makes_it_catch_up(world: World, how: str) -> None:
    """C65: minted at another worker, used at this one."""
    contexts = world.contexts()
    await contexts.get(CONTEXT)
    pointer = pointer_to(TEXT, "l0:a")
    if how == "span":
        await world.outcome(append("new", leaf("n", TEXT)))
        pointer = pointer_to(TEXT, "l0:n")
    else:
        await world.outcome(rewrite("rw", "l0:a" if how == "version" else "l0:b", TEXT + "!"))
        if how == "version":
            pointer = pointer_to(TEXT + "!", "l0:a", version=2, epoch=1)
        else:
            pointer = pointer.model_copy(update={"epoch": 1})
    _, data = await fetch(world, pointer, contexts=contexts)
    assert pointer.length == len(data)


# --- lost, damaged, away -----------------------------------------------------------------------------


async def test_bytes_that_are_gone_are_lost(world: World) -> None:
    """I9, C70: never a summary, never another version."""
    hot(world).clear()
    await world.cold.delete(CONTEXT, await identity(world))
    with pytest.raises(LeafLost) as caught:
        await fetch(world, pointer_to(TEXT, "l0:a"))
    assert {"span_id": "l0:a", "version": 1} == dict(caught.value.fields)


@pytest.mark.parametrize("wrong", [b"", TEXT.encode()[:-1], TEXT.encode() + b"!", b"x" * len(TEXT.encode())])
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "range"])
async def test_bytes_that_are_damaged_are_corrupt(world: World, wrong: bytes, whole: bool) -> None:
    """I9, C110: nothing at all, too few, too many, others; for the whole span and for a part of it."""
    hot(world).clear()
    await put_cold(world, await identity(world), wrong)
    end = len(TEXT.encode())
    pointer = pointer_to(TEXT, "l0:a") if whole else pointer_to(TEXT, "l0:a", offset=end - 1)
    longer = wrong[:end] == TEXT.encode()
    if longer and not whole:
        _, data = await fetch(world, pointer)
        assert b"!" == data, "the range itself is as claimed"
        return
    with pytest.raises(LeafCorrupt):
        await fetch(world, pointer)


async def test_damage_outside_the_range_does_not_keep_a_range_from_its_caller(world: World) -> None:
    """The hash that is checked is that of the bytes served."""
    hot(world).clear()
    await put_cold(world, await identity(world), TEXT.encode()[:-1] + b"?")
    _, data = await fetch(world, pointer_to(TEXT, "l0:a", length=4))
    assert "Grü" == data.decode()


async def test_one_bad_read_is_no_loss(world: World) -> None:
    """I9, C111: a store that says two things is unavailable; only a loss seen twice is one."""
    hot(world).clear()
    reads, cold = 0, world.cold
    original = cold.read

    async def flaky(*args: Any, **kwargs: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise LeafLost("not yet here", span_id="l0:a", version=1)
        return await original(*args, **kwargs)

    cold.read = flaky  # type: ignore[method-assign]
    with pytest.raises(Unavailable):
        await fetch(world, pointer_to(TEXT, "l0:a"))
    await fetch(world, pointer_to(TEXT, "l0:a"))


async def test_a_false_claim_is_not_taken_for_damage(world: World) -> None:
    """I9: nobody is woken for a caller's mistake."""
    hot(world).clear()
    pointer = pointer_to(TEXT, "l0:a", length=2).model_copy(update={"content_hash": "sha256:" + 64 * "0"})
    with pytest.raises(HashMismatch):
        await fetch(world, pointer)


@pytest.mark.parametrize("gone", ["cold", "log", "hot"])
async def test_a_store_that_does_not_answer_is_unavailable_within_the_budget(
    world: World, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    """I9, C111: an outage is not a loss, and takes no longer than the caller allowed."""
    contexts = world.contexts()
    await contexts.get(CONTEXT)

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    more: dict[str, Any] = {}
    if gone == "cold":
        hot(world).clear()
        monkeypatch.setattr(world.cold, "read", never)
    elif gone == "hot":
        monkeypatch.setattr(world.hot, "get", never)
    else:
        monkeypatch.setattr(world.log, "head", never)
        more = {"latest": True}
    async with deadline(5, "the fetch"):
        with pytest.raises(Unavailable, match=r"budget of 0\.01 s"):
            await fetch(world, pointer_to(TEXT, "l0:a"), contexts=contexts, budget_ms=10, **more)


async def test_the_worker_s_own_budget_holds_where_the_request_names_none(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request without a budget does not wait for ever."""

    async def never(*_: Any) -> Any:
        await asyncio.Event().wait()

    hot(world).clear()
    monkeypatch.setattr(world.cold, "read", never)
    with pytest.raises(Unavailable):
        await fetch(world, pointer_to(TEXT, "l0:a"), budget_s=0.01)


async def test_a_long_log_is_read_over_several_budgets() -> None:
    """A context that one budget is too short to read is served after some tries, and not never."""
    world = World()
    contexts = world.contexts()
    committer = world.committer(contexts)
    for i in range(60):
        await carry_out(committer, append(f"e{i}", leaf(f"n{i}", TEXT)))
    whole = world.log.read

    async def slow(context_id: str, after: int, upto: int) -> Any:
        async for entry in whole(context_id, after, upto):
            await asyncio.sleep(0.001)
            yield entry

    world.log.read = slow  # type: ignore[method-assign, assignment]
    fresh, tries = world.contexts(), 0
    async with deadline(10):
        while True:
            tries += 1
            try:
                await fetch(world, pointer_to(TEXT, "l0:n59"), contexts=fresh, budget_ms=30)
            except Unavailable:
                continue
            break
    assert tries > 1
