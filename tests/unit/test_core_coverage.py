"""Where every span is: in the view, under exactly one summary, or a tombstone. And what goes together."""

from itertools import combinations

import pytest

from sexton.core.buffer import ContextBuffer
from sexton.core.decide import Commit, Settled
from sexton.core.tree import ContextTree
from sexton.schemas.outcome import Committed, RejectionCode
from sexton.schemas.span import NewSpan, SpanState
from tests.core_kit.audit import audit
from tests.core_kit.build import (
    CONTEXT,
    append,
    compact,
    decided,
    done,
    filled,
    grown,
    leaf,
    prune,
    rejected,
    rewrite,
    view_ids,
)


def test_a_second_compaction_picks_up_where_the_first_stopped_c28() -> None:
    """C28: compact all but three, add two, compact again: nothing is in neither place, nothing in both."""
    buffer = filled("a", "b", "c", "d", "e")
    done(buffer, compact("one", "l0:a", "l0:b"))
    audit(buffer.tree)
    done(buffer, append("more", "f", "g"), compact("two", "l0:c", "l0:d"))
    audit(buffer.tree)

    assert ["l1:one", "l1:two", "l0:e", "l0:f", "l0:g"] == view_ids(buffer.tree)
    covered = {s: n.covered_by for s, n in buffer.tree.nodes.items() if n.state is SpanState.COVERED}
    assert {"l0:a": "l1:one", "l0:b": "l1:one", "l0:c": "l1:two", "l0:d": "l1:two"} == covered


def test_membership_is_by_id_c31() -> None:
    """C31: spans that are equal in everything but their id are told apart at the boundary."""
    twins = [leaf(name, "the same second, the same text") for name in "abcd"]
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *twins), compact("c", "l0:a", "l0:b"))

    assert ["l1:c", "l0:c", "l0:d"] == view_ids(tree)
    assert ("l0:a", "l0:b") == tree.nodes["l1:c"].sources


@pytest.mark.parametrize("first", ["left", "right"])
def test_two_disjoint_summaries_are_both_in_the_view_in_order_c32(first: str) -> None:
    """C32: whichever was committed first, each stands where its sources stood."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *"abcde"))
    commands = [compact("left", "l0:a", "l0:b"), compact("right", "l0:d", "l0:e")]
    tree = grown(tree, *(commands if first == "left" else reversed(commands)))

    assert ["l1:left", "l0:c", "l1:right"] == view_ids(tree)
    audit(tree)


@pytest.mark.parametrize(("start", "stop"), list(combinations(range(5), 2)))
def test_a_compaction_never_leaves_its_sources_in_the_view_c35(start: int, stop: int) -> None:
    """C35: every run there is: the summary is in, its sources are out, its neighbours are linked to it."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *"abcd"))
    sources = view_ids(tree)[start:stop]
    expected = [*view_ids(tree)[:start], "l1:c", *view_ids(tree)[stop:]]
    after = grown(tree, compact("c", *sources))

    assert expected == view_ids(after)
    assert {SpanState.COVERED} == {after.nodes[span_id].state for span_id in sources}
    audit(after)
    assert list("abcd") == [span_id[3:] for span_id in view_ids(tree)], "the tree before is as it was"


@pytest.mark.parametrize("name", list("abcd"))
def test_a_prune_closes_the_gap(name: str) -> None:
    """The first, the last, and any between; and then all of them."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *"abcd"), prune("p", f"l0:{name}"))

    assert [f"l0:{n}" for n in "abcd" if n != name] == view_ids(tree)
    audit(tree)
    for other in set("abcd") - {name}:
        tree = grown(tree, prune(f"p{other}", f"l0:{other}"))
        audit(tree)
    assert (None, None, 0, 0) == (tree.first, tree.last, tree.view_count, tree.view_bytes)
    assert ["l0:e"] == view_ids(grown(tree, append("more", "e")))


def test_the_leaves_under_a_summary_come_in_their_order_c67() -> None:
    """C67: through any number of levels, and of different heights, never an empty list."""
    tree = grown(
        ContextTree.empty(CONTEXT),
        append("fill", *"abcdef"),
        compact("x", "l0:a", "l0:b"),
        compact("y", "l0:c", "l0:d"),
        compact("top", "l1:x", "l1:y"),
        compact("z", "l0:e", "l0:f"),
    )

    def below(span_id: str) -> str:
        return "".join(node.span_id[3:] for node in tree.leaves(span_id))

    assert ("abcd", "ab", "ef", "c") == (below("l2:top"), below("l1:x"), below("l1:z"), below("l0:c"))
    assert "abcdef" == "".join(below(span_id) for span_id in view_ids(tree))


def test_what_stands_for_a_covered_span_is_found_at_any_height() -> None:
    """Up to the span in the view; nothing once that was pruned; a live span stands for itself."""
    fill, first = append("fill", "a", "b"), compact("s1", "l0:a", summary="s" * 7)
    tree = grown(ContextTree.empty(CONTEXT), fill, first)
    for level in range(1, 5):
        below, above = f"l{level}:s{level}", f"l{level + 1}:s{level + 1}"
        tree = grown(tree, compact(f"s{level + 1}", below, summary="s" * (7 - level)))
        stands = tree.covering(tree.nodes["l0:a"])
        assert stands is not None
        assert above == stands.span_id
    assert tree.nodes["l0:b"] is tree.covering(tree.nodes["l0:b"])
    tree = grown(tree, prune("p", "l5:s5"))
    assert tree.covering(tree.nodes["l0:a"]) is None


def test_the_outcome_is_what_the_epoch_says_c57() -> None:
    """C57: committed if and only if the context moved, and then by what the outcome says."""
    buffer = filled("a", "b", "c")
    for command in (
        compact("c1", "l0:a", "l0:b"),
        compact("c2", "l0:a", "l0:b"),
        compact("c3"),
        rewrite("r", "l0:c", "c"),
        rewrite("r2", "l0:c", "c", base_version=2),
        prune("p", "l0:c"),
        prune("p2", "l0:c"),
    ):
        before = buffer.tree
        outcome = buffer.submit(command)
        moved = (buffer.tree.revision, buffer.epoch) != (before.revision, before.epoch)
        assert moved == isinstance(outcome, Committed)
        assert (buffer.tree.revision, buffer.epoch) == (outcome.revision, outcome.epoch)


def test_lookups_in_the_view_start_anywhere() -> None:
    """From the beginning, or from a span on."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *"abc"))

    assert ["l0:b", "l0:c"] == [node.span_id for node in tree.view("l0:b")]
    assert [] == list(ContextTree.empty(CONTEXT).view())


# --- pairs -------------------------------------------------------------------------------------------

CONVERSATIONS = {
    "a call and its result": [
        leaf("question"),
        leaf("call", group="g", waits=True),
        leaf("result", group="g"),
        leaf("answer"),
    ],
    "C40: a text between": [
        leaf("call", group="g", waits=True),
        leaf("text"),
        leaf("result", group="g"),
        leaf("end"),
    ],
    "C43: three calls in one message, results out of order": [
        leaf("calls", group="g", waits=True),
        leaf("result3", group="g", waits=True),
        leaf("result1", group="g", waits=True),
        leaf("text"),
        leaf("result2", group="g"),
    ],
    "two groups, one inside the other": [
        leaf("outer", group="o", waits=True),
        leaf("inner", group="i", waits=True),
        leaf("inner-result", group="i"),
        leaf("outer-result", group="o"),
        leaf("text"),
    ],
    "two groups that cross": [
        leaf("one", group="1", waits=True),
        leaf("two", group="2", waits=True),
        leaf("one-result", group="1"),
        leaf("two-result", group="2"),
    ],
    "C39: a result without its call": [leaf("text"), leaf("orphan", group="g"), leaf("more")],
    "C41: a call that is never answered": [
        leaf("text"),
        leaf("call", group="g", waits=True),
        leaf("more"),
        leaf("other", group="h", waits=True),
        leaf("other-result", group="h"),
    ],
}


def splits(conversation: list[NewSpan], start: int, stop: int) -> bool:
    """Whether a run holds a part of a group, or of an open one."""
    for group in {span.labels.group for span in conversation} - {None}:
        places = [i for i, span in enumerate(conversation) if span.labels.group == group]
        inside = [i for i in places if start <= i < stop]
        waits = conversation[places[-1]].labels.open
        if inside and (waits or inside != places):
            return True
    return False


@pytest.mark.parametrize("conversation", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_no_cut_comes_between_a_call_and_its_results_c38(conversation: list[NewSpan]) -> None:
    """C38: every run of the conversation: refused if and only if it would part a group, or an open one."""
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *conversation))
    for start, stop in combinations(range(len(conversation) + 1), 2):
        decision = decided(tree, compact("c", *view_ids(tree)[start:stop]))
        if splits(conversation, start, stop):
            assert isinstance(decision, Settled), (start, stop)
            code = rejected(decision.outcome).code
            assert code in (RejectionCode.SPLITS_GROUP, RejectionCode.OPEN_GROUP)
        else:
            assert isinstance(decision, Commit), (start, stop)


def test_a_group_that_is_answered_can_go_c41() -> None:
    """C41: refused while the call waits; the answer closes the group, whenever it comes."""
    buffer = ContextBuffer(CONTEXT)
    done(buffer, append("fill", leaf("call", group="g", waits=True), "text"))
    assert RejectionCode.OPEN_GROUP is rejected(buffer.submit(compact("c", "l0:call"))).code
    assert isinstance(buffer.submit(compact("text", "l0:text")), Committed), "others may go meanwhile"
    done(buffer, append("answer", leaf("result", group="g")))
    assert RejectionCode.SPLITS_GROUP is rejected(buffer.submit(compact("c", "l0:call"))).code

    assert not buffer.tree.groups["g"].open
    assert 2 == buffer.tree.groups["g"].live


def test_the_latest_member_says_whether_a_group_is_open() -> None:
    """A second call in a group that was complete opens it again."""
    tree = grown(
        ContextTree.empty(CONTEXT),
        append("1", leaf("call", group="g", waits=True), leaf("result", group="g")),
        append("2", leaf("again", group="g", waits=True)),
    )

    assert tree.groups["g"].open
    assert not grown(tree, append("3", leaf("done", group="g"))).groups["g"].open


def test_a_late_result_of_a_covered_call_is_a_group_of_its_own_c39() -> None:
    """C39: its call has left the view; it can be compacted by itself."""
    tree = grown(
        ContextTree.empty(CONTEXT),
        append("1", leaf("call", group="g"), leaf("text")),
        compact("c", "l0:call"),
        append("2", leaf("late", group="g")),
    )

    assert 1 == tree.groups["g"].live
    assert isinstance(decided(tree, compact("d", "l0:text", "l0:late")), Commit)


def test_a_pruned_member_does_not_hold_its_group_back() -> None:
    """What is left of a group in the view is all of it; a group with nothing there is forgotten."""
    conversation = CONVERSATIONS["a call and its result"]
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *conversation), prune("p", "l0:call"))
    assert isinstance(decided(tree, compact("c", "l0:result")), Commit)

    assert {} == dict(grown(tree, prune("p2", "l0:result")).groups)


def test_a_rewrite_keeps_a_span_in_its_group() -> None:
    """Labels are the span's, not the version's."""
    conversation = CONVERSATIONS["a call and its result"]
    tree = grown(
        ContextTree.empty(CONTEXT), append("fill", *conversation), rewrite("r", "l0:result", "redacted")
    )

    assert isinstance(decided(tree, compact("c", "l0:result")), Settled)
    assert isinstance(decided(tree, compact("c", "l0:call", "l0:result")), Commit)


def test_a_label_of_a_summary_ties_it_to_nothing() -> None:
    """Groups are of leaves: a summary that carries the name of one neither joins nor blocks it."""
    tree = grown(
        ContextTree.empty(CONTEXT),
        append("fill", "a", leaf("call", group="g", waits=True)),
        compact("c", "l0:a", labels={"group": "g", "open": True}),
    )

    assert 1 == tree.groups["g"].live
    assert isinstance(decided(tree, compact("d", "l1:c", summary="x")), Commit)
    audit(tree)
