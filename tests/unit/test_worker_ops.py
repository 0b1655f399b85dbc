"""What operators are told: in parts that fit, and what verify looks at."""

from typing import Any

import pytest

from sexton.core.sweep import LivePin, Mark, Observation, Step
from sexton.core.tree import Tombstone
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.limits import MAX_PAYLOAD_BYTES
from sexton.schemas.ops import TombstonesPart, VerifyPart, VerifyRequest
from sexton.schemas.span import Identity, Labels, SpanState
from sexton.worker import verify
from sexton.worker.adapters.cold import _key
from sexton.worker.collect import StoneReport, SweepReport
from sexton.worker.ops import _told
from sexton.worker.verify import Verifier
from tests.core_kit.build import CONTEXT, append, leaf, prune, rewrite
from tests.worker_kit.stores import World


def stone(number: int, pins: int, *, mark: Mark | None = None) -> StoneReport:
    """A tombstone with the longest name there can be, held by so many with the longest names."""
    span_id = f"l0:{number:096d}"
    version = (span_id, 1)
    identity = Identity(
        span_id=span_id,
        version=1,
        level=Level.L0_VERBATIM,
        content_hash="sha256:" + "0" * 64,
        size_bytes=10**9,
    )
    held = tuple(LivePin(f"{i:064d}", PinCost.EXPENSIVE, 500) for i in range(pins))
    seen = Observation(
        generation="g",
        began_ms=0,
        now_ms=1000,
        oldest_beat_ms=None,
        pins={version: held},
        marks={version: mark} if mark is not None else {},
    )
    entry = Tombstone(identity=identity, labels=Labels(), state=SpanState.TOMBSTONE, strategy=None, epoch=1)
    return StoneReport(version, entry, Step.KEEP, seen)


def told(*stones: StoneReport, **done: Any) -> list[TombstonesPart]:
    parts = list(_told(SweepReport(CONTEXT, list(stones), **done)))
    assert [(i, i == len(parts) - 1) for i in range(len(parts))] == [(p.index, p.last) for p in parts]
    return [part for part in parts if isinstance(part, TombstonesPart)]


@pytest.mark.parametrize(
    ("stones", "pins"), [(0, 0), (1, 0), (5000, 0), (300, 30), (7, 999), (3, 10_000)], ids=str
)
def test_however_many_there_are_each_part_is_a_message(stones: int, pins: int) -> None:
    """Each tombstone is told once, in order, with its holders, and of very many how many."""
    parts = told(*(stone(number, pins) for number in range(stones)))

    found = [info for part in parts for info in part.tombstones]
    assert [f"l0:{number:096d}" for number in range(stones)] == [info.span_id for info in found]
    assert {(pins, min(pins, 999))} >= {(info.pin_count, len(info.pins)) for info in found}
    assert all(len(part.wire()) < MAX_PAYLOAD_BYTES for part in parts)


def test_what_a_sweep_came_to_is_in_the_last_part() -> None:
    """And in no other, so that it can be summed up."""
    parts = told(*(stone(number, 0) for number in range(2500)), collected=3, freed_bytes=40, called_off=1)

    assert [(0, 0, 0), (0, 0, 0), (3, 40, 1)] == [
        (part.collected, part.size_freed_bytes, part.called_off) for part in parts
    ]


def test_a_tombstone_says_since_when() -> None:
    """Of its pins and of its mark, on the registry's clock; a mark of another generation does not count."""
    (part,) = told(stone(1, 1), stone(2, 0, mark=Mark("g", 600)), stone(3, 0, mark=Mark("older", 600)))

    held, marked, unmarked = part.tombstones
    assert [500] == [pin.held_for_ms for pin in held.pins]
    assert [None, 400, None] == [held.marked_for_ms, marked.marked_for_ms, unmarked.marked_for_ms]


# --- verify ---


async def checked(world: World, **more: Any) -> list[VerifyPart]:
    """All pages of a check."""
    verifier = Verifier(world.contexts(), world.cold)
    parts = [await verifier.verify(VerifyRequest(context_id=CONTEXT, **more))]
    while parts[-1].next is not None:
        request = VerifyRequest(context_id=CONTEXT, after=parts[-1].next, **more)
        parts.append(await verifier.verify(request))
    return parts


@pytest.fixture
async def world() -> World:
    """Seven leaves of 4 bytes; one of them rewritten, one pruned."""
    world = World()
    await world.outcome(append("fill", *(leaf(name, "text") for name in "abcdefg")))
    await world.outcome(rewrite("b2", "l0:b", "more"))
    await world.outcome(prune("gone", "l0:c"))
    return world


@pytest.mark.parametrize("limit", [1, 3, 8, 9, 1000])
async def test_pages_of_any_size_hold_each_version_once(world: World, limit: int) -> None:
    """Current, tombstones, pruned; the total is the same on each page."""
    parts = await checked(world, limit=limit)

    assert (8, 32) == (sum(p.checked for p in parts), sum(p.size_checked_bytes for p in parts))
    assert {8} == {part.total for part in parts}
    assert all(1 <= part.checked <= limit for part in parts)
    assert -(-8 // limit) == len(parts)


async def test_a_page_ends_before_it_has_read_too_much(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it is answered in time; a version that is larger than that has a page of its own."""
    monkeypatch.setattr(verify, "_ANSWER_BYTES", 10)
    assert [2, 2, 2, 2] == [part.checked for part in await checked(world)]

    monkeypatch.setattr(verify, "_ANSWER_BYTES", 3)
    assert [1] * 8 == [part.checked for part in await checked(world)]


@pytest.mark.parametrize("piece_bytes", [3, 10, 1000])
async def test_damage_is_found_however_much_is_read_at_a_time(
    world: World, monkeypatch: pytest.MonkeyPatch, piece_bytes: int
) -> None:
    """I9: one lost, one of other bytes, in whichever piece they are."""
    monkeypatch.setattr(verify, "_PIECE_BYTES", piece_bytes)
    nodes = (await world.tree()).nodes
    store: Any = world.cold
    await store.delete(CONTEXT, nodes["l0:a"].identity)
    await store._store.put_async(_key(CONTEXT, nodes["l0:g"].identity), b"tex?")

    parts = await checked(world)

    assert [("l0:a", "lost"), ("l0:g", "corrupt")] == [
        (damage.span_id, damage.reason) for part in parts for damage in part.damaged
    ]


async def test_an_unknown_context_has_nothing_to_check() -> None:
    """One page, with nothing on it."""
    (part,) = await checked(World())

    assert (0, 0, 0, None) == (part.checked, part.total, part.head.revision, part.next)
