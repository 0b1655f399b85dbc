"""A holder's copy of a context: every order in which bumps and answers can come."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.core.answer import sync_mode, sync_parts
from sexton.core.apply import apply
from sexton.core.buffer import ContextBuffer
from sexton.core.tree import ContextTree
from sexton.holder.replica import Heard, Replica
from sexton.schemas.codec import AnyRecord
from sexton.schemas.errors import LineageError, MalformedMessage, UnsupportedSchema
from sexton.schemas.rpc import Head, SyncPart, SyncRequest

CONTEXT = "local"


def history(*texts: str) -> ContextBuffer:
    """A context with an append of each text, a rewrite, a compaction and a prune."""
    buffer = ContextBuffer(CONTEXT)
    for i, text in enumerate(texts):
        buffer.add(f"l0:s{i}", text)
    buffer.rewrite("l0:s0", texts[0] + "!")
    buffer.compact(["l0:s0", "l0:s1"], "both", name="sum")
    buffer.prune("l0:s2")
    return buffer


BUFFER = history("first leaf", "second leaf", "third leaf", "fourth leaf")
OTHER = history("another first leaf", "another second", "another third", "another fourth", "and a fifth")
LOG = BUFFER.log
TREES = [ContextTree.empty(CONTEXT, with_events=False)]
for _record in LOG:
    TREES.append(apply(TREES[-1], _record))


def replica(early_records: int = 100, recent_spans: int = 1000) -> Replica:
    return Replica(CONTEXT, early_records=early_records, recent_spans=recent_spans)


def heard(copy: Replica, *records: AnyRecord) -> list[Heard]:
    return [copy.heard(record.wire()) for record in records]


def answer(log: Sequence[AnyRecord], request: SyncRequest, tail: int = 500) -> list[SyncPart]:
    """What a service with this log says."""
    tree = ContextTree.empty(CONTEXT)
    for record in log:
        tree = apply(tree, record)
    records = [(r.model_dump(mode="json", exclude_none=True), 100) for r in log[request.revision :]]
    return list(sync_parts(tree, sync_mode(tree, request, tail), records))


def sync(copy: Replica, log: Sequence[AnyRecord], tail: int = 500) -> None:
    """A sync that nothing interferes with; it starts over as a follower does."""
    for _ in range(2):
        request, waited = copy.request(), copy.waiting()
        try:
            copy.answered(request, answer(log, request, tail), waited)
        except (LineageError, UnsupportedSchema):
            continue
        return
    raise AssertionError("starting over did not help")


def same(tree: ContextTree, other: ContextTree) -> bool:
    return (tree.head, dict(tree.nodes), dict(tree.tombstones), dict(tree.groups)) == (
        other.head,
        dict(other.nodes),
        dict(other.tombstones),
        dict(other.groups),
    )


def test_bumps_in_order_are_applied() -> None:
    """Nothing needs to be asked for."""
    copy = replica()
    assert [Heard.APPLIED] * len(LOG) == heard(copy, *LOG)
    assert copy.tree == TREES[-1]
    assert copy.complete


def test_a_repeat_changes_nothing() -> None:
    """A bump that comes twice, or long after its turn, is known."""
    copy = replica()
    heard(copy, *LOG)
    assert [Heard.KNOWN] * len(LOG) == heard(copy, *LOG)
    assert copy.tree == TREES[-1]


def test_a_bump_before_its_turn_waits() -> None:
    """C87: bump 7 before bump 6: applied in order, without asking."""
    copy = replica()
    heard(copy, *LOG[:5])
    assert [Heard.EARLY] == heard(copy, LOG[6])
    assert (5, False) == (copy.tree.revision, copy.complete)
    assert [Heard.APPLIED] == heard(copy, LOG[5])
    assert copy.tree == TREES[7]
    assert copy.complete


def test_a_gap_is_filled_by_the_answer() -> None:
    """What waited is applied on top of what the answer brings."""
    copy = replica()
    heard(copy, LOG[0])
    request, waited = copy.request(), copy.waiting()
    parts = answer(LOG[:5], request)
    heard(copy, LOG[6], LOG[5])
    copy.answered(request, parts, waited)
    assert copy.tree == TREES[7]
    assert copy.complete


def test_bumps_may_be_faster_than_the_answer() -> None:
    """Records of the answer that are known by then are passed over; so is a snapshot that is behind."""
    for tail in (500, 0):
        copy = replica()
        heard(copy, LOG[0])
        request, waited = copy.request(), copy.waiting()
        parts = answer(LOG[:3], request, tail)
        heard(copy, *LOG[1:])
        copy.answered(request, parts, waited)
        assert copy.tree == TREES[-1]
        assert 0 == copy.lineage


def test_an_answer_that_lacks_a_record_is_refused() -> None:
    """The head says how far the records must lead."""
    copy = replica()
    request = copy.request()
    short = [
        part.model_copy(update={"head": TREES[-1].head})
        for part in answer(LOG[:3], request.model_copy(update={"revision": 1}))
    ]
    heard(copy, LOG[0])
    with pytest.raises(MalformedMessage, match="the log is at revision 7"):
        copy.answered(copy.request(), short, frozenset())


def test_parts_of_different_heads_are_refused() -> None:
    """All parts of an answer are made from one tree."""
    copy = replica()
    one, two = answer(LOG, copy.request())[0], answer(LOG[:6], copy.request())[0]
    with pytest.raises(MalformedMessage, match="different heads"):
        copy.answered(copy.request(), [one, two], frozenset())


def test_a_head_of_another_chain_means_another_history() -> None:
    """Whatever came with it: the head's chain is compared with what is known here at that revision."""
    copy = replica()
    heard(copy, *LOG[:4])
    request = copy.request()
    part = SyncPart(context_id=CONTEXT, head=OTHER.tree.head.model_copy(update={"revision": 4}))
    heard(copy, LOG[4])
    with pytest.raises(LineageError):
        copy.answered(request, [part], frozenset())
    assert copy.request().snapshot


def test_half_a_snapshot_is_refused() -> None:
    """A part without its piece, or a piece of another head."""
    copy = replica()
    whole = answer(LOG, copy.request().model_copy(update={"snapshot": True}))[0]
    assert whole.snapshot is not None
    with pytest.raises(MalformedMessage, match="half a snapshot"):
        copy.answered(copy.request(), [whole, whole.model_copy(update={"snapshot": None})], frozenset())
    wrong = whole.model_copy(update={"head": Head(revision=7, epoch=3, chain="other")})
    with pytest.raises(MalformedMessage, match="half a snapshot"):
        copy.answered(copy.request(), [wrong], frozenset())
    assert 0 == copy.tree.revision


def test_who_is_far_behind_takes_a_snapshot() -> None:
    """No change of lineage: the same log, only far ahead. What is heard afterwards goes on from there."""
    copy = replica()
    heard(copy, LOG[0])
    sync(copy, LOG[:5], tail=2)
    assert same(copy.tree, TREES[5])
    assert 0 == copy.lineage
    assert copy.recent.at(5) is None
    heard(copy, *LOG[5:])
    assert same(copy.tree, TREES[-1])
    assert LOG[6] == copy.recent.at(7)


@pytest.mark.parametrize("known", [1, 4, 7])
@pytest.mark.parametrize("there", [0, 2, 4, 8])
def test_another_log_takes_the_place_of_the_one_followed(known: int, there: int) -> None:
    """Recreated, with fewer, as many or more records: followed from its own snapshot, and counted once."""
    copy = replica()
    heard(copy, *LOG[:known])
    sync(copy, OTHER.log[:there])
    other = ContextTree.empty(CONTEXT, with_events=False)
    for record in OTHER.log[:there]:
        other = apply(other, record)
    assert same(copy.tree, other)
    assert 1 == copy.lineage
    sync(copy, OTHER.log[:there])
    assert 1 == copy.lineage


def test_an_older_copy_of_the_log_is_followed() -> None:
    """A log that was restored from a backup has a lower head. What was heard beyond it is forgotten."""
    copy = replica()
    heard(copy, *LOG)
    sync(copy, LOG[:3])
    assert same(copy.tree, TREES[3])
    assert 1 == copy.lineage


def test_a_foreign_bump_is_noticed_at_once() -> None:
    """The next number on another chain, or a number that is known with another chain."""
    for known in (2, 4):
        copy = replica()
        heard(copy, *LOG[:known])
        assert [Heard.FOREIGN] == heard(copy, OTHER.log[2])
        assert copy.request().snapshot
        sync(copy, OTHER.log)
        assert 1 == copy.lineage
        assert not copy.request().snapshot


def test_a_bump_too_old_to_judge_asks_for_the_head() -> None:
    """It may be a late repeat, or the beginning of another history."""
    copy = replica(recent_spans=1)
    heard(copy, *LOG)
    assert [Heard.UNSURE] == heard(copy, OTHER.log[0])
    sync(copy, OTHER.log[:1])
    assert (1, 1) == (copy.lineage, copy.tree.revision)


def test_a_foreign_bump_alone_changes_nothing() -> None:
    """If the log itself has not changed, the snapshot is of the same history, and no change is counted."""
    copy = replica()
    heard(copy, *LOG)
    heard(copy, OTHER.log[2])
    sync(copy, LOG)
    assert same(copy.tree, TREES[-1])
    assert 0 == copy.lineage


def test_bumps_heard_while_starting_over_are_kept() -> None:
    """A snapshot asked for without need must not take back what bumps have brought meanwhile (I2)."""
    copy = replica()
    heard(copy, *LOG[:4])
    heard(copy, OTHER.log[2])
    request, waited = copy.request(), copy.waiting()
    parts = answer(LOG[:4], request)
    heard(copy, *LOG[4:])
    copy.answered(request, parts, waited)
    assert same(copy.tree, TREES[-1])
    assert copy.recent.at(5) == LOG[4]


@pytest.mark.parametrize("change", [{"kind": "transmuted"}, {"schema_version": 2}], ids=["kind", "version"])
def test_a_record_unknown_here_means_a_snapshot(change: dict[str, object]) -> None:
    """A newer writer's record cannot be applied; what came of it can be taken over."""
    copy = replica()
    heard(copy, *LOG[:2])
    raw = LOG[2].model_copy(update=change).model_dump_json(exclude_none=True, warnings=False).encode()
    assert Heard.FOREIGN is copy.heard(raw)
    assert copy.request().snapshot
    sync(copy, LOG)
    assert same(copy.tree, TREES[-1])
    assert 0 == copy.lineage


def test_an_unknown_record_in_an_answer_means_a_snapshot() -> None:
    """The same, where the record was missed and comes in the answer."""
    copy = replica()
    heard(copy, *LOG[:2])
    request = copy.request()
    (part,) = answer(LOG, request)
    newer = tuple({**raw, "kind": "transmuted"} for raw in part.records)
    with pytest.raises(UnsupportedSchema):
        copy.answered(request, [part.model_copy(update={"records": newer})], frozenset())
    assert copy.request().snapshot
    assert copy.tree == TREES[2]


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"\xff", b"[1]", LOG[0].model_copy(update={"context_id": "elsewhere"}).wire()]
)
def test_what_is_no_bump_changes_nothing(data: bytes) -> None:
    """It says nothing of the log, so it is no reason to ask for anything either."""
    copy = replica()
    heard(copy, LOG[0])
    with pytest.raises(MalformedMessage):
        copy.heard(data)
    assert copy.tree == TREES[1]
    assert copy.complete


def test_early_bumps_are_bounded() -> None:
    """A flood of far-off numbers takes no more room than the bound."""
    copy = replica(early_records=3)
    heard(copy, *reversed(LOG[1:]))
    assert 3 == len(copy.waiting())
    sync(copy, LOG)
    assert copy.tree.head == TREES[-1].head


def test_a_bump_that_is_not_in_the_log_does_not_wait_for_ever() -> None:
    """A number beyond the head of a log that is asked later was never committed there: it is dropped."""
    copy = replica()
    heard(copy, *LOG[:2], LOG[6])
    assert not copy.complete
    sync(copy, LOG[:4])
    assert copy.complete
    assert copy.tree == TREES[4]


@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["bump", "sync", "ask", "told"]), st.integers(0, len(LOG))), max_size=40
    ),
    recent=st.integers(1, 12),
    tail=st.integers(0, 8),
)
def test_whatever_the_order_it_converges(steps: list[tuple[str, int]], recent: int, tail: int) -> None:
    """I2, I6: bumps lost, late, doubled and reordered between answers that were asked for at any time.

    The revision never falls, every state is one of the log's, and one answer is enough in the end.
    """
    copy = replica(early_records=3, recent_spans=recent)
    head = 0
    asked: list[tuple[SyncRequest, list[SyncPart], frozenset[int]]] = []
    for what, index in steps:
        before = copy.tree.revision
        if what == "bump":
            if index < len(LOG):
                head = max(head, index + 1)
                copy.heard(LOG[index].wire())
        elif what == "ask":
            head = max(head, index)
            request = copy.request()
            asked.append((request, answer(LOG[:head], request, tail), copy.waiting()))
        elif what == "told" and asked:
            copy.answered(*asked.pop(0))
            asked.clear()  # one at a time: single flight
        elif what == "sync":
            head = max(head, index)
            sync(copy, LOG[:head], tail)
            assert head <= copy.tree.revision
        assert before <= copy.tree.revision
        assert same(copy.tree, TREES[copy.tree.revision])
    sync(copy, LOG, tail)
    assert same(copy.tree, TREES[-1])
    assert copy.complete
    assert 0 == copy.lineage
