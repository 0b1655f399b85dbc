"""What `decide` makes of a command that is in order, and of one that has nothing to do."""

from collections.abc import Sequence

import pytest

from sexton.core.apply import apply
from sexton.core.decide import Blob, Commit, NeedsSummary, Settled, decide, repeated, texts, touched
from sexton.core.hash import chain, content_hash
from sexton.core.pins import Pins
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import CommandKind
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.records import Appended, Compacted, Pruned, Rewritten
from sexton.schemas.span import Labels, Strategy
from tests.core_kit.build import (
    CONTEXT,
    append,
    committed,
    compact,
    contents,
    decided,
    digest,
    done,
    filled,
    grown,
    leaf,
    prune,
    rejected,
    rewrite,
    view_ids,
)

ABC = append("fill", "a", "b", "c")
SAME = append("fill", leaf("a", "1234567890"), leaf("b", "1234567890"))


def refused(tree: ContextTree, command: AnyCommand, pins: Pins) -> Rejected:
    decision = decided(tree, command, pins)
    assert isinstance(decision, Settled), decision
    return rejected(decision.outcome)


# --- what is committed -------------------------------------------------------------------------------


def test_an_append_names_its_spans_and_their_bytes() -> None:
    """Ids from names, or from event and position; one blob for each; the epoch stays."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    command = append("e2", leaf("named", "x"), leaf(None, "é", group="g", waits=True))
    commit = committed(tree, command)

    assert isinstance(commit.record, Appended)
    assert ["l0:named", "l0:e2-1"] == [span.span_id for span in commit.record.spans]
    assert [(1, 0, 1), (1, 0, 2)] == [(s.version, s.level, s.size_bytes) for s in commit.record.spans]
    assert Labels(group="g", open=True) == commit.record.spans[1].labels
    assert (2, 0) == (commit.record.revision, commit.record.epoch)
    hashes = [content_hash(Level.L0_VERBATIM, data) for data in (b"x", "é".encode())]
    assert (
        Blob("l0:named", 1, hashes[0], b"x"),
        Blob("l0:e2-1", 1, hashes[1], "é".encode()),
    ) == commit.blobs


def test_a_compaction_names_sources_versions_and_sizes_c53() -> None:
    """C53: sizes before and after are in the record and in the outcome; the epoch grows."""
    tree = grown(ContextTree.empty(CONTEXT), ABC, rewrite("r", "l0:b", "another b"))
    command = compact("e", "l0:a", "l0:b", summary="a, b", labels=Labels(role="summary"))
    commit = committed(tree, command)

    assert isinstance(commit.record, Compacted)
    assert [("l0:a", 1), ("l0:b", 2)] == [(s.span_id, s.version) for s in commit.record.sources]
    assert ("l1:e", 1, Level.L1_SUMMARY) == (
        commit.record.summary.span_id,
        commit.record.summary.version,
        commit.record.summary.level,
    )
    assert Labels(role="summary") == commit.record.summary.labels
    assert (29, 4) == (commit.record.size_before_bytes, commit.record.size_after_bytes)
    assert (3, 2) == (commit.record.revision, commit.record.epoch)
    assert [b"a, b"] == [blob.data for blob in commit.blobs]
    after = apply(tree, commit.record)
    outcome = repeated(after, command, digest(command))
    assert isinstance(outcome, Committed)
    assert (CommandKind.COMPACT, 29, 4) == (outcome.kind, outcome.size_before_bytes, outcome.size_after_bytes)


def test_a_rewrite_names_before_and_after() -> None:
    """The version grows by one; the labels stay; one blob, of the new version."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", leaf("a", "one", group="g")))
    before = tree.nodes["l0:a"]
    commit = committed(tree, rewrite("r", "l0:a", "two", base_hash=before.content_hash))

    assert isinstance(commit.record, Rewritten)
    assert before.identity == commit.record.before
    assert ("l0:a", 2, Level.L0_VERBATIM, 3) == (
        commit.record.after.span_id,
        commit.record.after.version,
        commit.record.after.level,
        commit.record.after.size_bytes,
    )
    assert [("l0:a", 2, b"two")] == [(b.span_id, b.version, b.data) for b in commit.blobs]
    assert before.labels == apply(tree, commit.record).nodes["l0:a"].labels


def test_a_prune_needs_no_bytes() -> None:
    """It names what it drops, and writes nothing."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    commit = committed(tree, prune("p", "l0:b", base_version=1))

    assert isinstance(commit.record, Pruned)
    assert (tree.nodes["l0:b"].identity, ()) == (commit.record.span, commit.blobs)


@pytest.mark.parametrize(
    "command",
    [
        append("c", "d"),
        compact("c", "l0:a", "l0:b"),
        rewrite("c", "l0:a", "text"),
        prune("c", "l0:a"),
    ],
    ids=lambda command: command.kind.value,
)
def test_a_record_is_the_next_of_its_tree_and_deciding_changes_nothing(command: AnyCommand) -> None:
    """Linked to the head, with the digest of the command; the same again is the same again."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    first, second = committed(tree, command), committed(tree, command)

    assert first == second
    assert chain(tree.chain, first.record) == first.record.chain
    assert (digest(command), "c") == (first.record.digest, first.record.event_id)
    assert tree.revision + 1 == apply(tree, first.record).revision
    assert 1 == tree.revision


@pytest.mark.parametrize(
    ("cost", "strategy"),
    [
        (None, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.CHEAP, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.EXPENSIVE, Strategy.COPY_ON_REWRITE),
        (PinCost.IMMOVABLE, None),
    ],
)
def test_pins_decide_the_strategy(cost: PinCost | None, strategy: Strategy | None) -> None:
    """None or cheap: invalidate. Expensive: copy. Immovable: no rewrite at all."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    pins: Pins = {} if cost is None else {("l0:a", 1): cost}
    decision = decided(tree, rewrite("r", "l0:a", "text"), pins)

    if strategy is None:
        assert isinstance(decision, Settled)
        assert RejectionCode.IMMOVABLE is rejected(decision.outcome).code
    else:
        assert isinstance(decision, Commit)
        assert isinstance(decision.record, Rewritten)
        assert strategy is decision.record.strategy


@pytest.mark.parametrize("cost", [PinCost.CHEAP, PinCost.EXPENSIVE])
@pytest.mark.parametrize(
    "command", [compact("c", "l0:a", "l0:b"), prune("c", "l0:b")], ids=["compact", "prune"]
)
def test_only_immovable_pins_keep_a_span_from_going(command: AnyCommand, cost: PinCost) -> None:
    """A covered span stays verbatim, and a pruned one is loud: neither needs more than a tombstone."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)

    assert isinstance(decided(tree, command, {("l0:b", 1): cost}), Commit)


def test_a_pin_on_an_old_version_holds_nothing() -> None:
    """Pins are on versions. What somebody holds of version 1 does not keep version 2."""
    tree = grown(ContextTree.empty(CONTEXT), ABC, rewrite("r", "l0:b", "another b"))
    pins = {("l0:b", 1): PinCost.IMMOVABLE}

    for command in (rewrite("c", "l0:b", "x", base_version=2), prune("c", "l0:b"), compact("c", "l0:b")):
        assert isinstance(decided(tree, command, pins), Commit)


@pytest.mark.parametrize(
    ("cost", "strategy"),
    [(None, Strategy.COPY_ON_REWRITE), (PinCost.CHEAP, Strategy.COPY_ON_REWRITE), (PinCost.IMMOVABLE, None)],
)
def test_unknown_pins_are_not_no_pins(cost: PinCost | None, strategy: Strategy | None) -> None:
    """If the registry has lost some lately, a rewrite keeps the old version readable."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    pins: Pins = {} if cost is None else {("l0:a", 1): cost}
    command = rewrite("r", "l0:a", "text")
    decision = decide(tree, command, digest(command), contents(command), pins, pins_whole=False)

    if isinstance(decision, Commit):
        assert isinstance(decision.record, Rewritten)
        assert strategy is decision.record.strategy
    else:
        assert strategy is None


def test_the_pins_that_matter_are_on_what_is_touched() -> None:
    """The current versions of sources, of a span rewritten, of one pruned; an append touches nothing."""
    tree = grown(ContextTree.empty(CONTEXT), ABC, rewrite("r", "l0:b", "another b"))

    assert (("l0:a", 1), ("l0:b", 2)) == touched(tree, compact("c", "l0:a", "l0:b", "l0:unknown"))
    assert (("l0:b", 2),) == touched(tree, rewrite("c", "l0:b", "x")) == touched(tree, prune("c", "l0:b"))
    assert () == touched(tree, append("c", "d")) == touched(tree, prune("c", "l0:unknown"))


# --- stale or not ------------------------------------------------------------------------------------


def test_an_append_does_not_make_a_compaction_stale_c01_c05() -> None:
    """C01, C05: planned at an epoch, an append came between: both are kept."""
    buffer = filled("a", "b", "c")
    planned = compact("c", "l0:a", "l0:b", planned_epoch=0)
    done(buffer, append("late", "d"), planned)

    assert ["l1:c", "l0:c", "l0:d"] == view_ids(buffer.tree)


def test_a_change_elsewhere_does_not_make_a_compaction_stale() -> None:
    """C01: only the sources count, not the context's epoch."""
    buffer = filled("a", "b", "c", "d")
    done(
        buffer,
        rewrite("r", "l0:d", "another d"),
        prune("p", "l0:c"),
        compact("c", "l0:a", "l0:b", planned_epoch=0),
    )

    assert ["l1:c", "l0:d"] == view_ids(buffer.tree)


def test_a_compaction_that_states_no_epoch_takes_what_is_there() -> None:
    """Neither version nor epoch given: whatever is current is covered, and the record names it."""
    tree = grown(ContextTree.empty(CONTEXT), ABC, rewrite("r", "l0:b", "another b"))
    record = committed(tree, compact("c", "l0:a", "l0:b")).record

    assert isinstance(record, Compacted)
    assert [1, 2] == [source.version for source in record.sources]


def test_a_summary_may_be_larger_if_asked() -> None:
    """`allow_larger` is the sender's own judgement; blank it still may not be."""
    tree = grown(ContextTree.empty(CONTEXT), SAME)

    assert isinstance(decided(tree, compact("c", "l0:a", summary="x" * 99, allow_larger=True)), Commit)
    blank = refused(tree, compact("c", "l0:a", summary=" " * 99, allow_larger=True), {})
    assert RejectionCode.EMPTY_SUMMARY is blank.code


# --- nothing to do -----------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [[], [ABC]], ids=["empty context", "leaves"])
def test_nothing_to_compact_is_no_change_c46(before: Sequence[AnyCommand]) -> None:
    """C46: no change, no bump, and said as such."""
    tree = grown(ContextTree.empty(CONTEXT), *before)
    decision = decided(tree, compact("c"))

    assert isinstance(decision, Settled)
    assert isinstance(decision.outcome, NoChange)
    assert (tree.revision, tree.epoch) == (decision.outcome.revision, decision.outcome.epoch)
    assert "nothing to compact" == decision.outcome.reason


@pytest.mark.parametrize("cost", [None, *PinCost])
def test_a_rewrite_to_the_same_bytes_is_no_change(cost: PinCost | None) -> None:
    """Whoever holds it: nothing moves."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", leaf("a", "same")))
    decision = decided(tree, rewrite("r", "l0:a", "same"), {} if cost is None else {("l0:a", 1): cost})

    assert isinstance(decision, Settled)
    assert isinstance(decision.outcome, NoChange)


def test_a_compaction_without_a_summary_needs_one() -> None:
    """If all else is in order: its sources, and the level that is to be made."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    decision = decided(tree, compact("c", "l0:a", "l0:b", summary=None))

    assert NeedsSummary((tree.nodes["l0:a"], tree.nodes["l0:b"]), Level.L1_SUMMARY) == decision


def test_texts_and_contents_go_together() -> None:
    """The texts of a command, in order; a list of another length is the caller's bug."""
    command = append("e", leaf("a", "x"), leaf("b", "y"))
    assert [b"x", b"y"] == contents(command)
    assert ["x", "y"] == [text.content for text in texts(command)]
    assert ((), ()) == (texts(prune("p", "l0:a")), texts(compact("c", "l0:a", summary=None)))
    with pytest.raises(ValueError, match="shorter"):
        decide(ContextTree.empty(CONTEXT), command, digest(command), [b"x"])
