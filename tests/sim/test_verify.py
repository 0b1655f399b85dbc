"""Verify: reads what must be there, and says of each version that is not what was committed how it is not."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from sexton.core.decide import Blob
from sexton.core.tree import ContextTree
from sexton.schemas.errors import Unavailable
from sexton.schemas.ops import Damage, VerifyPart, VerifyRequest
from sexton.schemas.span import Identity, SpanState
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.contexts import Contexts, Known
from sexton.worker.ports import ColdStore
from sexton.worker.verify import Verifier, kept
from tests.core_kit.build import CONTEXT, append, compact, grown, prune, rewrite
from tests.unit.test_core_collection import brought

OLD, GONE = ("l0:a", 1), ("l0:b", 1)
TEXTS = {
    ("l0:a", 1): b"<a>".ljust(20, b"."),
    ("l0:a", 2): b"another a",
    ("l0:b", 1): b"<b>".ljust(20, b"."),
    ("l0:c", 1): b"<c>".ljust(20, b"."),
    ("l0:d", 1): b"<d>".ljust(20, b"."),
    ("l1:s", 1): b"sum",
}
TREE = grown(
    ContextTree.empty(CONTEXT),
    append("fill", *"abcd"),
    rewrite("r", "l0:a", "another a"),
    prune("p", "l0:b"),
    compact("s", "l0:c", summary="sum"),
)


class Trees:
    """The head of the log, first and later."""

    def __init__(self, *trees: ContextTree) -> None:
        self.trees = list(trees)

    async def refresh(self, context_id: str) -> Known:
        await asyncio.sleep(0)
        return Known(self.trees.pop(0) if len(self.trees) > 1 else self.trees[0])


@pytest.fixture
async def cold(tmp_path: Path) -> ObjectColdStore:
    store = ObjectColdStore(open_store((tmp_path / "cold").as_uri()), 5.0)
    for identity in [known.identity for known in (await kept(TREE)).values()]:
        version = (identity.span_id, identity.version)
        await store.write(CONTEXT, Blob(*version, identity.content_hash, TEXTS[version]))
    return store


async def verified(cold: object, *trees: ContextTree, after: str = "", limit: int = 200) -> VerifyPart:
    verifier = Verifier(cast("Contexts", Trees(*(trees or (TREE,)))), cast("ColdStore", cold))
    return await verifier.verify(VerifyRequest(context_id=CONTEXT, after=after, limit=limit))


def file_of(folder: Path, version: tuple[str, int]) -> Path:
    [found] = (folder / "blobs" / CONTEXT / version[0].replace(":", "/")).glob(f"{version[1]}-*")
    return found


def damaged(part: VerifyPart) -> dict[tuple[str, int], str]:
    return {(damage.span_id, damage.version): damage.reason for damage in part.damaged}


async def test_what_is_whole_is_whole(cold: ObjectColdStore) -> None:
    """Current, covered, summaries and tombstones: every version whose bytes must be there."""
    part = await verified(cold)
    assert {} == damaged(part)
    assert (6, 6, None) == (part.checked, part.total, part.next)
    assert sum(map(len, TEXTS.values())) == part.size_checked_bytes
    assert TREE.head == part.head


Harm = Callable[[Path], object]


@pytest.mark.parametrize("version", TEXTS, ids=lambda v: f"{v[0]}@{v[1]}")
@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (Path.unlink, "lost"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "corrupt"),
        (lambda path: path.write_bytes(b""), "corrupt"),
        (lambda path: path.write_bytes(path.read_bytes() + b"."), "corrupt"),
        (lambda path: path.write_bytes(b"!" + path.read_bytes()[1:]), "corrupt"),
    ],
    ids=["lost", "truncated", "empty", "longer", "flipped"],
)
async def test_what_is_damaged_is_found(
    cold: ObjectColdStore, tmp_path: Path, version: tuple[str, int], harm: Harm, reason: str
) -> None:
    """I9: and nothing else is."""
    harm(file_of(tmp_path / "cold", version))
    part = await verified(cold)
    assert {version: reason} == damaged(part)
    [damage] = part.damaged
    assert isinstance(damage, Damage)
    assert len(TEXTS[version]) == damage.size_bytes


async def test_what_is_collected_meanwhile_is_not_damaged(cold: ObjectColdStore, tmp_path: Path) -> None:
    """The tree at the beginning still had it; the bytes were deleted while it was read."""
    for version in (OLD, GONE):
        file_of(tmp_path / "cold", version).unlink()
    for state in (SpanState.CONDEMNED, SpanState.COLLECTED):
        assert {} == damaged(await verified(cold, TREE, brought(TREE, state, OLD, GONE)))
    file_of(tmp_path / "cold", ("l0:d", 1)).unlink()
    later = brought(TREE, SpanState.COLLECTED, OLD, GONE)
    assert {("l0:d", 1): "lost"} == damaged(await verified(cold, TREE, later))


@pytest.mark.parametrize(("state", "due"), [("collecting", 6), ("condemned", 4), ("collected", 4)], ids=str)
async def test_bytes_must_be_there_until_they_are_condemned(
    cold: ObjectColdStore, state: str, due: int
) -> None:
    part = await verified(cold, brought(TREE, SpanState(state), OLD, GONE))
    assert (due, due) == (part.checked, part.total)


async def test_what_becomes_old_meanwhile_is_still_due(cold: ObjectColdStore, tmp_path: Path) -> None:
    """A lost version that was rewritten while it was read is lost all the same: a holder may have it."""
    file_of(tmp_path / "cold", ("l0:d", 1)).unlink()
    later = grown(TREE, rewrite("again", "l0:d", "another d"))
    assert {("l0:d", 1): "lost"} == damaged(await verified(cold, TREE, later))


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7])
async def test_a_walk_in_pieces_sees_everything_once(cold: ObjectColdStore, limit: int) -> None:
    after, pieces, checked = "", 0, 0
    while True:
        part = await verified(cold, after=after, limit=limit)
        pieces, checked = pieces + 1, checked + part.checked
        assert part.checked <= limit
        if part.next is None:
            break
        after = part.next
    assert (6, -(-6 // limit)) == (checked, pieces)


async def test_a_walk_goes_on_over_what_comes_and_goes(cold: ObjectColdStore) -> None:
    first = await verified(cold, limit=3)
    assert first.next is not None
    later = brought(TREE, SpanState.COLLECTED, OLD, GONE)
    rest = await verified(cold, later, after=first.next, limit=10)
    assert rest.next is None
    assert rest.checked < 6


async def test_versions_are_walked_in_the_order_of_their_numbers(cold: ObjectColdStore) -> None:
    tree = grown(
        ContextTree.empty(CONTEXT),
        append("fill", "a"),
        *(rewrite(f"r{i}", "l0:a", f"text {i}", base_version=i) for i in range(1, 12)),
    )
    found = await kept(tree)
    assert list(range(1, 13)) == [found[name].identity.version for name in sorted(found)]


async def test_an_empty_context_has_nothing_to_verify(cold: ObjectColdStore) -> None:
    part = await verified(cold, ContextTree.empty(CONTEXT))
    assert (0, 0, None) == (part.checked, part.total, part.next)


async def test_an_outage_is_no_damage() -> None:
    """I9: it raises, and pages nobody."""

    class Down:
        async def read(self, context_id: str, identity: Identity) -> bytes:
            raise Unavailable("no answer")

    with pytest.raises(Unavailable):
        await verified(Down())
