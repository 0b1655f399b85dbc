"""What a worker answers to `sync` and `fetch`."""

import pytest

from sexton.core.answer import SyncMode, error_part, fetch_parts, sync_mode, sync_parts
from sexton.core.check import Verdict, accept, check
from sexton.core.snapshot import restore
from sexton.core.tree import ContextTree
from sexton.schemas.codec import decode
from sexton.schemas.errors import BoundaryError, LevelMismatch, SextonError, StaleSpanError, Unreachable
from sexton.schemas.limits import CHUNK_BYTES, SYNC_TAIL_RECORDS
from sexton.schemas.rpc import FetchPart, RpcError, SyncPart, SyncRequest, Tier
from tests.core_kit.build import CONTEXT
from tests.core_kit.fates import BUFFER, TREE, pointer

HERE, CHAIN = TREE.revision, TREE.chain


@pytest.mark.parametrize(
    ("what", "request_", "mode"),
    [
        ("has it all", SyncRequest(context_id=CONTEXT, revision=HERE, chain=CHAIN), SyncMode.CURRENT),
        ("one behind", SyncRequest(context_id=CONTEXT, revision=HERE - 1, chain="x"), SyncMode.RECORDS),
        ("has nothing, little to have", SyncRequest(context_id=CONTEXT), SyncMode.RECORDS),
        ("another history", SyncRequest(context_id=CONTEXT, revision=HERE, chain="x"), SyncMode.SNAPSHOT),
        ("ahead", SyncRequest(context_id=CONTEXT, revision=HERE + 1, chain=CHAIN), SyncMode.SNAPSHOT),
        (
            "wants to start over",
            SyncRequest(context_id=CONTEXT, revision=HERE, chain=CHAIN, snapshot=True),
            SyncMode.SNAPSHOT,
        ),
        (
            "one behind, wants to start over",
            SyncRequest(context_id=CONTEXT, revision=HERE - 1, chain="x", snapshot=True),
            SyncMode.SNAPSHOT,
        ),
    ],
)
def test_a_sync_is_answered_by_what_the_asker_lacks(what: str, request_: SyncRequest, mode: SyncMode) -> None:
    """Nothing, the latest records, or all there is."""
    assert mode is sync_mode(TREE, request_)


@pytest.mark.parametrize(("limit", "mode"), [(1, SyncMode.SNAPSHOT), (2, SyncMode.RECORDS)])
def test_who_is_far_behind_gets_a_snapshot(limit: int, mode: SyncMode) -> None:
    """A bound on how many records one answer reads."""
    assert mode is sync_mode(TREE, SyncRequest(context_id=CONTEXT, revision=HERE - 2, chain="x"), limit)
    assert SYNC_TAIL_RECORDS > HERE


def test_an_empty_context_is_current_for_who_has_nothing() -> None:
    """Nothing is all there is."""
    assert SyncMode.CURRENT is sync_mode(ContextTree.empty(CONTEXT), SyncRequest(context_id=CONTEXT))


def test_parts_are_numbered_and_the_last_says_so() -> None:
    """A reader that misses one notices."""
    weights = [CHUNK_BYTES // 2, CHUNK_BYTES // 2, 1, CHUNK_BYTES * 2, 1]
    records = [({"revision": i}, weight) for i, weight in enumerate(weights)]
    parts = list(sync_parts(TREE, SyncMode.RECORDS, records))

    assert [[0, 1], [2], [3], [4]] == [[record["revision"] for record in part.records] for part in parts]
    assert [(0, False), (1, False), (2, False), (3, True)] == [(part.index, part.last) for part in parts]
    assert {TREE.head} == {part.head for part in parts} or all(TREE.head == part.head for part in parts)


@pytest.mark.parametrize("mode", [SyncMode.CURRENT, SyncMode.RECORDS])
def test_an_answer_has_at_least_one_part(mode: SyncMode) -> None:
    """The head, and nothing else."""
    (part,) = sync_parts(TREE, mode)

    assert (TREE.head, (), None, 0, True) == (part.head, part.records, part.snapshot, part.index, part.last)


def test_a_snapshot_comes_whole() -> None:
    """Over the wire, and put together again."""
    parts = [decode(SyncPart, part.wire()) for part in sync_parts(TREE, SyncMode.SNAPSHOT)]
    restored = restore([part.snapshot for part in parts if part.snapshot is not None])

    assert list(TREE.view()) == list(restored.view())


@pytest.mark.parametrize("chunk_bytes", [1, 7, 20, 21, 1_000])
def test_bytes_come_in_chunks_c68(chunk_bytes: int) -> None:
    """C68: what they are is said first, with the size of the whole; joined they are the bytes."""
    claim = pointer("l0:e")
    data = BUFFER.resolve(claim).data
    verdict: Verdict = check(claim, TREE)
    answer = accept(verdict, data, Tier.HOT)
    parts = [decode(FetchPart, part.wire()) for part in fetch_parts(answer, data, chunk_bytes)]

    assert data == b"".join(part.data for part in parts)
    assert [answer, *[None] * (len(parts) - 1)] == [part.answer for part in parts]
    assert list(range(len(parts))) == [part.index for part in parts]
    assert [False] * (len(parts) - 1) + [True] == [part.last for part in parts]
    assert 20 == answer.span_size_bytes


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (Unreachable("gone", span_id="l0:a", maybe_behind=True), {"span_id": "l0:a", "maybe_behind": True}),
        (BoundaryError("cut", nearest=(1, 3), offset=2), {"nearest": [1, 3], "offset": 2}),
        (
            StaleSpanError("old", current=TREE.nodes["l0:c"].current),
            {"current": TREE.nodes["l0:c"].current.model_dump(mode="json", exclude_none=True)},
        ),
        (LevelMismatch("wrong", thing=object(), nothing=None), {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_an_error_goes_over_the_wire_with_its_fields(error: SextonError, fields: dict[str, object]) -> None:
    """The code, the words, and what is JSON of the rest."""
    part = decode(RpcError, error_part(CONTEXT, error).wire())

    assert (error.code, error.message, fields) == (part.code, part.message, part.fields)
    assert (CONTEXT, True) == (part.context_id, part.last)
