"""The steps of collecting, as the log shows them: which may follow which, and whose they are."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from sexton.core import collection, life
from sexton.core.apply import apply
from sexton.core.collection import Version
from sexton.core.hash import linked
from sexton.core.snapshot import dump, restore
from sexton.core.tree import ContextTree, Tombstone
from sexton.schemas.codec import AnyRecord, decode, decode_record
from sexton.schemas.errors import LineageError
from sexton.schemas.records import (
    CollectAborted,
    Collected,
    Collecting,
    CollectionBase,
    Condemned,
    RecordKind,
)
from sexton.schemas.rpc import Snapshot
from sexton.schemas.span import SpanState, SpanVersion, Strategy
from tests.core_kit.build import CONTEXT, append, compact, grown, prune, rewrite

OLD, GONE, CURRENT, COVERED = ("l0:a", 1), ("l0:b", 1), ("l0:a", 2), ("l0:c", 1)
BOTH = [OLD, GONE]

START = grown(
    ContextTree.empty(CONTEXT),
    append("fill", *"abcd"),
    rewrite("r", "l0:a", "another a"),
    prune("p", "l0:b"),
    compact("s", "l0:c"),
)
"""`a` has an old version, `b` was pruned, `c` is under a summary, `d` is as it was."""

Plan = Callable[..., CollectionBase | None]
PLANS: dict[RecordKind, Plan] = {
    RecordKind.COLLECTING: collection.announce,
    RecordKind.COLLECT_ABORTED: collection.call_off,
    RecordKind.CONDEMNED: collection.condemn,
    RecordKind.COLLECTED: collection.finish,
}
RECORDS: dict[RecordKind, type[CollectionBase]] = {
    RecordKind.COLLECTING: Collecting,
    RecordKind.COLLECT_ABORTED: CollectAborted,
    RecordKind.CONDEMNED: Condemned,
    RecordKind.COLLECTED: Collected,
}
WAYS: dict[SpanState, tuple[RecordKind, ...]] = {
    SpanState.TOMBSTONE: (),
    SpanState.COLLECTING: (RecordKind.COLLECTING,),
    SpanState.CONDEMNED: (RecordKind.COLLECTING, RecordKind.CONDEMNED),
    SpanState.COLLECTED: (RecordKind.COLLECTING, RecordKind.CONDEMNED, RecordKind.COLLECTED),
}
"""How a tombstone comes to each state."""
EACH_STATE = pytest.mark.parametrize("state", WAYS)
EACH_KIND = pytest.mark.parametrize("kind", PLANS)
EACH_STONE = pytest.mark.parametrize("version", BOTH, ids=["rewritten", "pruned"])


def taken(tree: ContextTree, record: CollectionBase | None) -> ContextTree:
    """The tree after a record, by way of the wire; fails if there is none."""
    assert record is not None
    return apply(tree, decode_record(record.wire()))


def brought(tree: ContextTree, state: SpanState, *versions: Version, attempt: str = "one") -> ContextTree:
    """The tree with these tombstones in a state."""
    for kind in WAYS[state]:
        tree = taken(tree, PLANS[kind](tree, versions, attempt))
    return tree


def forged(tree: ContextTree, kind: RecordKind, *versions: Version, attempt: str = "one") -> AnyRecord:
    """The next record of this history, whether it makes sense or not."""
    more = {"size_freed_bytes": 1} if kind is RecordKind.COLLECTED else {}
    record = RECORDS[kind](
        context_id=CONTEXT,
        revision=tree.revision + 1,
        epoch=tree.epoch,
        event_id="forged",
        digest="sha256:" + 64 * "0",
        chain="sha256:" + 64 * "0",
        attempt=attempt,
        versions=tuple(SpanVersion(span_id=span_id, version=version) for span_id, version in versions),
        **more,
    )
    return decode_record(linked(tree.chain, record).wire())


def state_of(tree: ContextTree, version: Version) -> SpanState:
    stone = tree.tombstones.get(version)
    return stone.state if stone is not None else SpanState.COLLECTED


@EACH_STONE
def test_a_tombstone_goes_its_way_and_is_gone(version: Version) -> None:
    """Announced, condemned, collected; the epoch stays, for no pointer becomes wrong by it."""
    tree = START
    for state in WAYS:
        tree = brought(START, state, version)
        assert state is state_of(tree, version)
        assert START.epoch == tree.epoch
        stone = tree.tombstones.get(version)
        attempt = stone.attempt if stone is not None else None
        assert (attempt == "one") == (state in (SpanState.COLLECTING, SpanState.CONDEMNED))
    assert version not in tree.tombstones
    assert [other for other in BOTH if other != version] == list(tree.tombstones)


def test_a_pruned_span_has_the_state_of_its_tombstone_and_a_rewritten_one_lives_on() -> None:
    for state in WAYS:
        tree = brought(START, state, OLD, GONE)
        assert state is tree.nodes["l0:b"].state
        assert SpanState.LIVE is tree.nodes["l0:a"].state
        assert 2 == tree.nodes["l0:a"].version


def test_a_span_rewritten_and_then_pruned_has_two_tombstones() -> None:
    """The state of the one is not that of the other."""
    tree = grown(START, prune("q", "l0:a"))
    tree = brought(tree, SpanState.COLLECTED, OLD)
    assert SpanState.TOMBSTONE is tree.nodes["l0:a"].state
    tree = brought(tree, SpanState.COLLECTED, CURRENT)
    assert SpanState.COLLECTED is tree.nodes["l0:a"].state


@EACH_STONE
def test_what_is_called_off_is_a_plain_tombstone_again(version: Version) -> None:
    announced = brought(START, SpanState.COLLECTING, version)
    tree = taken(announced, collection.call_off(announced, [version], "one"))
    assert START.tombstones[version] == tree.tombstones[version]
    assert START.nodes == tree.nodes
    again = taken(tree, collection.announce(tree, [version], "two"))
    assert "two" == again.tombstones[version].attempt


@EACH_STATE
@EACH_KIND
@EACH_STONE
def test_every_pair_of_state_and_step(state: SpanState, kind: RecordKind, version: Version) -> None:
    """The table says what may follow; a plan gives nothing else, and a record of it is refused."""
    tree = brought(START, state, version)
    after = life.TRANSITIONS.get((state, kind))
    record = PLANS[kind](tree, [version], "one")
    assert (after is None) == (record is None)
    if after is not None:
        assert after is state_of(taken(tree, record), version)
        assert taken(tree, record).revision == tree.revision + 1
    else:
        with pytest.raises(LineageError):
            apply(tree, forged(tree, kind, version))


@EACH_KIND
@pytest.mark.parametrize(
    "version",
    [CURRENT, COVERED, ("l0:d", 1), ("l1:s", 1), ("l0:stranger", 1), ("l0:a", 3)],
    ids=["current", "covered", "live", "summary", "unknown", "future"],
)
def test_what_is_no_tombstone_is_not_collected(kind: RecordKind, version: Version) -> None:
    """I4, C103: what is current, and what is under a summary, is not garbage."""
    assert PLANS[kind](START, [version], "one") is None
    with pytest.raises(LineageError):
        apply(START, forged(START, kind, version))


@pytest.mark.parametrize("kind", [RecordKind.COLLECT_ABORTED, RecordKind.CONDEMNED])
def test_only_the_attempt_that_announced_goes_on(kind: RecordKind) -> None:
    """I4: another one's second check was of another moment."""
    announced = brought(START, SpanState.COLLECTING, OLD, attempt="one")
    assert PLANS[kind](announced, [OLD], "two") is None
    with pytest.raises(LineageError):
        apply(announced, forged(announced, kind, OLD, attempt="two"))


def test_a_left_over_is_announced_anew_and_is_no_longer_the_first_ones() -> None:
    tree = brought(START, SpanState.COLLECTING, OLD, attempt="one")
    tree = taken(tree, collection.announce(tree, [OLD], "two"))
    assert "two" == tree.tombstones[OLD].attempt
    assert collection.condemn(tree, [OLD], "one") is None
    assert collection.call_off(tree, [OLD], "one") is None
    assert SpanState.CONDEMNED is state_of(taken(tree, collection.condemn(tree, [OLD], "two")), OLD)


def test_whoever_finds_what_is_condemned_may_finish_it() -> None:
    tree = brought(START, SpanState.CONDEMNED, OLD, attempt="one")
    tree = taken(tree, collection.finish(tree, [OLD], "two"))
    assert OLD not in tree.tombstones


def test_left_over_is_what_is_announced_and_not_condemned() -> None:
    tree = grown(START, rewrite("r2", "l0:a", "a third a", base_version=2))
    assert {} == collection.left_over(tree)
    tree = brought(tree, SpanState.COLLECTING, OLD, attempt="one")
    tree = taken(tree, collection.announce(tree, [GONE, CURRENT], "two"))
    found = {attempt: set(versions) for attempt, versions in collection.left_over(tree).items()}
    assert {"one": {OLD}, "two": {GONE, CURRENT}} == found
    tree = taken(tree, collection.condemn(tree, [OLD], "one"))
    assert {"two"} == collection.left_over(tree).keys()


def test_several_share_a_record_and_those_that_cannot_take_the_step_are_left_out() -> None:
    tree = brought(START, SpanState.CONDEMNED, OLD)
    record = collection.announce(tree, [OLD, GONE, CURRENT, ("l0:stranger", 1)], "two")
    assert record is not None
    assert [GONE] == [(named.span_id, named.version) for named in record.versions]
    tree = taken(tree, record)
    assert SpanState.CONDEMNED is state_of(tree, OLD)
    assert SpanState.COLLECTING is state_of(tree, GONE)


def test_the_bytes_freed_are_those_of_the_versions_that_are_gone() -> None:
    """C109: what the metric shows."""
    tree = brought(START, SpanState.CONDEMNED, OLD, GONE)
    record = collection.finish(tree, [OLD, GONE, CURRENT], "one")
    assert record is not None
    sizes = [START.tombstones[version].identity.size_bytes for version in BOTH]
    assert sum(sizes) == record.size_freed_bytes


def test_a_plan_does_not_ask_for_what_it_need_not_do() -> None:
    for plan in PLANS.values():
        assert plan(START, [], "one") is None


def test_records_of_two_attempts_differ() -> None:
    """A collector without an answer looks for its own record in the log, and must not find another's."""
    one, two = (collection.announce(START, BOTH, attempt) for attempt in ("one", "two"))
    assert one is not None
    assert two is not None
    assert one.wire() != two.wire()
    assert one.chain != two.chain
    assert one.digest != two.digest


def test_a_collectors_record_is_no_event_of_a_command() -> None:
    """I8: a command is not taken for a repeat of a collector's record."""
    tree = brought(START, SpanState.COLLECTED, OLD, GONE)
    assert START.events is not None
    assert tree.events is not None
    assert set(START.events) == set(tree.events)


@EACH_STATE
def test_a_snapshot_keeps_how_far_a_collection_is(state: SpanState) -> None:
    """A worker that starts from one goes on where the log is."""
    tree = brought(START, state, OLD, GONE)
    assert tree == restore([decode(Snapshot, dump(tree, with_events=True).wire())])


def test_a_record_that_names_one_version_twice_is_refused() -> None:
    with pytest.raises(LineageError):
        apply(
            brought(START, SpanState.COLLECTING, OLD),
            forged(brought(START, SpanState.COLLECTING, OLD), RecordKind.CONDEMNED, OLD, OLD),
        )


def test_a_refused_record_leaves_nothing_behind() -> None:
    tree = brought(START, SpanState.COLLECTING, GONE)
    before = replace(tree)
    with pytest.raises(LineageError):
        apply(tree, forged(tree, RecordKind.CONDEMNED, GONE, OLD))
    assert before == tree


def test_strategy_and_epoch_of_a_tombstone_stay_with_it() -> None:
    stone: Tombstone = brought(START, SpanState.CONDEMNED, OLD).tombstones[OLD]
    assert (Strategy.INVALIDATE_AND_REKEY, START.tombstones[OLD].epoch) == (stone.strategy, stone.epoch)
