"""Every code that `decide` can give, from a state that calls for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from sexton.core.decide import Settled, decide
from sexton.core.hash import content_hash
from sexton.core.pins import Pins
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Compact, SourceRef
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.limits import MAX_LABEL_BYTES, MAX_SOURCES, MAX_SPAN_BYTES, MAX_UNKNOWN_LABELS_BYTES
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.schemas.span import Labels, Text
from tests.core_kit.build import (
    CONTEXT,
    append,
    compact,
    decided,
    digest,
    grown,
    leaf,
    prune,
    rejected,
    rewrite,
    tower,
)

Named = tuple[str, int, str, str | None]
"""What a rejection says of a span: id, version, state, and what covers it."""


@dataclass(frozen=True)
class Case:
    """A state, a command on it, and how it is refused."""

    what: str
    before: Sequence[AnyCommand]
    command: AnyCommand
    code: RejectionCode
    says: str
    """A part of the message."""
    spans: Sequence[Named] = ()
    pins: Pins = field(default_factory=dict)


ABC = append("fill", "a", "b", "c")
CALL = append("fill", leaf("a"), leaf("call", group="g", waits=True), leaf("b"), leaf("result", group="g"))
OPEN = append("fill", leaf("a"), leaf("call", group="g", waits=True), leaf("b"))
HELD = {("l0:b", 1): PinCost.IMMOVABLE}
SAME = append("fill", leaf("a", "1234567890"), leaf("b", "1234567890"))
CASES = [
    Case(
        "the same event id with another body",
        [ABC],
        append("fill", "d"),
        RejectionCode.EVENT_ID_REUSED,
        "committed at revision 1",
    ),
    Case(
        "a compaction before anything was appended",
        [],
        compact("c", "l0:a"),
        RejectionCode.UNKNOWN_CONTEXT,
        "nothing was ever appended",
    ),
    Case(
        "a rewrite before anything was appended",
        [],
        rewrite("c", "l0:a", "text"),
        RejectionCode.UNKNOWN_CONTEXT,
        CONTEXT,
    ),
    Case(
        "a prune before anything was appended",
        [],
        prune("c", "l0:a"),
        RejectionCode.UNKNOWN_CONTEXT,
        CONTEXT,
    ),
    Case(
        "one unknown source among known ones",
        [ABC],
        compact("c", "l0:a", "l0:x"),
        RejectionCode.UNKNOWN_SPAN,
        "l0:x",
    ),
    Case(
        "a rewrite of an unknown span", [ABC], rewrite("c", "l1:a", "t"), RejectionCode.UNKNOWN_SPAN, "l1:a"
    ),
    Case("a prune of an unknown span", [ABC], prune("c", "l0:x"), RejectionCode.UNKNOWN_SPAN, "l0:x"),
    Case(
        "an append under a name in use",
        [ABC],
        append("c", "new", "b"),
        RejectionCode.SPAN_EXISTS,
        "l0:b exists or existed",
        [("l0:b", 1, "live", None)],
    ),
    Case(
        "an append under a name that was pruned",
        [ABC, prune("p", "l0:b")],
        append("c", "b"),
        RejectionCode.SPAN_EXISTS,
        "never reused",
        [("l0:b", 1, "tombstone", None)],
    ),
    Case(
        "an append under one name twice",
        [ABC],
        append("c", "d", "d"),
        RejectionCode.SPAN_EXISTS,
        "named twice",
    ),
    Case(
        "a summary under the name of another",
        [ABC, compact("one", "l0:a", name="s")],
        compact("c", "l0:b", name="s"),
        RejectionCode.SPAN_EXISTS,
        "l1:s",
        [("l1:s", 1, "live", None)],
    ),
    Case(
        "C02: a source was rewritten while its summary was made; known by the planned epoch",
        [ABC, rewrite("r", "l0:b", "another b")],
        compact("c", "l0:a", "l0:b", planned_epoch=0),
        RejectionCode.STALE_SOURCE,
        "l0:b is at version 2 since epoch 1",
        [("l0:b", 2, "live", None)],
    ),
    Case(
        "C02: the same, known by the version",
        [ABC, rewrite("r", "l0:b", "another b"), rewrite("r2", "l0:c", "another c")],
        compact("c", *(SourceRef(span_id=f"l0:{name}", version=1) for name in "abc")),
        RejectionCode.STALE_SOURCE,
        "l0:b",
        [("l0:b", 2, "live", None), ("l0:c", 2, "live", None)],
    ),
    Case(
        "C06: the second of two writers on one base version",
        [ABC, rewrite("first", "l0:b", "first")],
        rewrite("second", "l0:b", "second", base_version=1),
        RejectionCode.STALE_SOURCE,
        "version 2 by now",
        [("l0:b", 2, "live", None)],
    ),
    Case(
        "C06: the second of two writers on one base hash",
        [ABC, rewrite("first", "l0:b", "first")],
        rewrite("second", "l0:b", "second", base_hash=content_hash(Level(0), b"<b>".ljust(20, b"."))),
        RejectionCode.STALE_SOURCE,
        "version 2 by now",
        [("l0:b", 2, "live", None)],
    ),
    Case(
        "a base version that is right with a base hash that is not",
        [ABC],
        rewrite("c", "l0:b", "text", base_version=1, base_hash="sha256:" + 64 * "0"),
        RejectionCode.STALE_SOURCE,
        "l0:b",
        [("l0:b", 1, "live", None)],
    ),
    Case(
        "a base version that has not come yet",
        [ABC],
        rewrite("c", "l0:b", "text", base_version=2),
        RejectionCode.STALE_SOURCE,
        "version 1",
        [("l0:b", 1, "live", None)],
    ),
    Case(
        "a prune of what was rewritten",
        [ABC, rewrite("r", "l0:b", "another b")],
        prune("c", "l0:b", base_version=1),
        RejectionCode.STALE_SOURCE,
        "l0:b",
        [("l0:b", 2, "live", None)],
    ),
    Case(
        "a compaction over what was pruned",
        [ABC, prune("p", "l0:b")],
        compact("c", "l0:a", "l0:b", "l0:c"),
        RejectionCode.PRUNED,
        "l0:b has left the view",
        [("l0:b", 1, "tombstone", None)],
    ),
    Case(
        "C101: a late rewrite after its span was pruned",
        [ABC, prune("p", "l0:b")],
        rewrite("late", "l0:b", "alive again"),
        RejectionCode.PRUNED,
        "l0:b",
        [("l0:b", 1, "tombstone", None)],
    ),
    Case(
        "a second prune",
        [ABC, prune("p", "l0:b")],
        prune("c", "l0:b"),
        RejectionCode.PRUNED,
        "l0:b",
        [("l0:b", 1, "tombstone", None)],
    ),
    Case(
        "a rewrite of a covered leaf",
        [ABC, compact("s", "l0:a", "l0:b")],
        rewrite("c", "l0:b", "text"),
        RejectionCode.COVERED,
        "under l1:s",
        [("l0:b", 1, "covered", "l1:s")],
    ),
    Case(
        "a prune of a covered summary",
        [ABC, compact("s", "l0:a", "l0:b"), compact("t", "l1:s", summary="x")],
        prune("c", "l1:s"),
        RejectionCode.COVERED,
        "under l2:t",
        [("l1:s", 1, "covered", "l2:t")],
    ),
    Case(
        "C11: the same range under another event id",
        [ABC, compact("s", "l0:a", "l0:b")],
        compact("c", "l0:a", "l0:b"),
        RejectionCode.ALREADY_COVERED,
        "l0:a (by l1:s), l0:b (by l1:s)",
        [("l0:a", 1, "covered", "l1:s"), ("l0:b", 1, "covered", "l1:s")],
    ),
    Case(
        "C14: two earlier compactions overlap the range; both are named",
        [ABC, compact("s", "l0:a"), compact("t", "l0:c")],
        compact("c", "l0:a", "l0:b", "l0:c"),
        RejectionCode.ALREADY_COVERED,
        "l0:c (by l1:t)",
        [("l0:a", 1, "covered", "l1:s"), ("l0:c", 1, "covered", "l1:t")],
    ),
    Case(
        "a gap in the range",
        [ABC],
        compact("c", "l0:a", "l0:c"),
        RejectionCode.NOT_CONTIGUOUS,
        "l0:a is followed by l0:b, not l0:c",
        [("l0:a", 1, "live", None), ("l0:c", 1, "live", None)],
    ),
    Case(
        "the wrong order",
        [ABC],
        compact("c", "l0:b", "l0:a"),
        RejectionCode.NOT_CONTIGUOUS,
        "not l0:a",
        [("l0:b", 1, "live", None), ("l0:a", 1, "live", None)],
    ),
    Case(
        "the last span and one behind it",
        [ABC],
        compact("c", "l0:c", "l0:a"),
        RejectionCode.NOT_CONTIGUOUS,
        "followed by nothing",
        [("l0:c", 1, "live", None), ("l0:a", 1, "live", None)],
    ),
    Case(
        "one span twice",
        [ABC],
        compact("c", "l0:a", "l0:a"),
        RejectionCode.NOT_CONTIGUOUS,
        "l0:a",
        [("l0:a", 1, "live", None)] * 2,
    ),
    Case(
        "a summary and a leaf",
        [ABC, compact("s", "l0:a", name="s")],
        compact("c", "l1:s", "l0:b"),
        RejectionCode.MIXED_LEVEL,
        "l1:s is L1_SUMMARY, l0:b is L0_VERBATIM",
        [("l1:s", 1, "live", None), ("l0:b", 1, "live", None)],
    ),
    Case(
        "C38: a call without its result",
        [CALL],
        compact("c", "l0:a", "l0:call"),
        RejectionCode.SPLITS_GROUP,
        "group g has 2 spans in the view, 1 of them among the sources",
        [("l0:call", 1, "live", None)],
    ),
    Case(
        "C40: a call, a text between and no result",
        [CALL],
        compact("c", "l0:call", "l0:b"),
        RejectionCode.SPLITS_GROUP,
        "group g",
        [("l0:call", 1, "live", None)],
    ),
    Case(
        "C41: a call that is not answered yet",
        [OPEN],
        compact("c", "l0:a", "l0:call", "l0:b"),
        RejectionCode.OPEN_GROUP,
        "group g still waits for a result",
        [("l0:call", 1, "live", None)],
    ),
    Case(
        "C37: a compaction over what a holder needs as it is",
        [ABC],
        compact("c", "l0:a", "l0:b"),
        RejectionCode.IMMOVABLE,
        "needs l0:b as it is",
        [("l0:b", 1, "live", None)],
        HELD,
    ),
    Case(
        "C37: a rewrite of it",
        [ABC],
        rewrite("c", "l0:b", "text"),
        RejectionCode.IMMOVABLE,
        "l0:b",
        [("l0:b", 1, "live", None)],
        HELD,
    ),
    Case(
        "C37: a prune of it",
        [ABC],
        prune("c", "l0:b"),
        RejectionCode.IMMOVABLE,
        "l0:b",
        [("l0:b", 1, "live", None)],
        HELD,
    ),
    *(
        Case(f"C47: {what}", [ABC], compact("c", "l0:a", summary=text), RejectionCode.EMPTY_SUMMARY, "blank")
        for what, text in {
            "an empty summary": "",
            "blanks of ASCII": " \t\r\n",
            "blanks of Unicode": "\u00a0\u2003\u3000",
            "nothing but marks without width": "\ufeff\u200b",
        }.items()
    ),
    Case(
        "C47: blank, and larger at that",
        [SAME],
        compact("c", "l0:a", summary=" " * 40),
        RejectionCode.EMPTY_SUMMARY,
        "blank",
    ),
    Case(
        "C50: a summary that is its source",
        [SAME],
        compact("c", "l0:a", summary="1234567890"),
        RejectionCode.NOT_SMALLER,
        "10 bytes, its sources 10",
    ),
    Case(
        "C51: a summary that is larger, in bytes if not in characters",
        [SAME],
        compact("c", "l0:a", "l0:b", summary="é" * 11),
        RejectionCode.NOT_SMALLER,
        "22 bytes, its sources 20",
    ),
    Case(
        "C53: a summary over the highest level",
        tower(),
        compact("c", "l7:s", summary="y"),
        RejectionCode.TOP_LEVEL,
        "L7_ROLLUP",
        [("l7:s", 1, "live", None)],
    ),
    Case(
        "more sources than one summary may have",
        [ABC],
        Compact.model_construct(
            context_id=CONTEXT,
            event_id="c",
            sources=(SourceRef(span_id="l0:a"),) * (MAX_SOURCES + 1),
            summary=Text(content="s"),
        ),
        RejectionCode.TOO_MANY_SOURCES,
        f"{MAX_SOURCES + 1} sources, at most {MAX_SOURCES}",
    ),
    Case(
        "an empty leaf",
        [ABC],
        append("c", "d", leaf("e", "")),
        RejectionCode.INVALID,
        "spans.1: an empty span",
    ),
    Case(
        "a rewrite to nothing", [ABC], rewrite("c", "l0:a", ""), RejectionCode.INVALID, "text: an empty span"
    ),
    Case(
        "C80: a command for another context",
        [ABC],
        append("c", "d", context_id="other"),
        RejectionCode.INVALID,
        "a command for other",
    ),
]

NOT_DECIDES = {
    RejectionCode.MALFORMED,
    RejectionCode.UNSUPPORTED_SCHEMA,
    RejectionCode.CLAIM_MISSING,
    RejectionCode.SUMMARY_FAILED,
    RejectionCode.REGISTRY_UNAVAILABLE,
    RejectionCode.DEAD_LETTER,
}
"""Codes of what happens before or beside the core."""


def refused(tree: ContextTree, command: AnyCommand, pins: Pins) -> Rejected:
    decision = decided(tree, command, pins)
    assert isinstance(decision, Settled), decision
    return rejected(decision.outcome)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.what)
def test_a_rejection_says_what_is_in_the_way(case: Case) -> None:
    """The code, what it is about in words, the spans' identity as they are now, and where the context is."""
    tree = grown(ContextTree.empty(CONTEXT), *case.before)
    outcome = refused(tree, case.command, case.pins)

    assert case.code is outcome.code
    assert case.says in outcome.message
    assert list(case.spans) == [(s.span_id, s.version, s.state.value, s.covered_by) for s in outcome.spans]
    assert [tree.nodes[s.span_id].current for s in outcome.spans] == list(outcome.spans)
    assert (tree.context_id, case.command.event_id) == (outcome.context_id, outcome.event_id)
    assert (tree.revision, tree.epoch) == (outcome.revision, outcome.epoch)


def test_every_code_that_decide_can_give_is_in_the_table() -> None:
    """A new code needs a case."""
    assert set(RejectionCode) - NOT_DECIDES - {RejectionCode.TOO_LARGE} == {case.code for case in CASES}


@pytest.mark.parametrize(
    "command",
    [append("c", "d"), compact("c", "l0:a", summary="s"), rewrite("c", "l0:a", "t")],
    ids=lambda command: command.kind.value,
)
def test_a_span_over_the_limit_is_too_large(command: AnyCommand) -> None:
    """The bytes count, however they came; a claim check may bring more than a message can."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    data = b"x" * (MAX_SPAN_BYTES + 1)
    decision = decide(tree, command, digest(command), [data])

    assert isinstance(decision, Settled)
    outcome = rejected(decision.outcome)
    assert RejectionCode.TOO_LARGE is outcome.code
    assert str(MAX_SPAN_BYTES) in outcome.message


@pytest.mark.parametrize("data", [b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x91"], ids=repr)
@pytest.mark.parametrize(
    "command",
    [append("c", "d"), compact("c", "l0:a", summary="s"), rewrite("c", "l0:a", "t")],
    ids=lambda command: command.kind.value,
)
def test_bytes_that_are_no_utf8_are_invalid_c85(command: AnyCommand, data: bytes) -> None:
    """C85: whatever door they came through, a lone surrogate and half a character among them."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    decision = decide(tree, command, digest(command), [data])

    assert isinstance(decision, Settled)
    outcome = rejected(decision.outcome)
    assert (RejectionCode.INVALID, True) == (outcome.code, "UTF-8" in outcome.message)


def test_no_summary_is_asked_for_what_would_be_refused() -> None:
    """No model is called for a compaction that cannot commit."""
    for case in CASES:
        if isinstance(case.command, Compact) and case.code not in (
            RejectionCode.EMPTY_SUMMARY,
            RejectionCode.NOT_SMALLER,
        ):
            tree = grown(ContextTree.empty(CONTEXT), *case.before)
            bare = case.command.model_copy(update={"summary": None})
            assert case.code is refused(tree, bare, case.pins).code, case.what


@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("kind", ["append", "compact"])
def test_unknown_labels_are_bounded(kind: str, extra: int, *, bare: bool) -> None:
    """They are kept in every tree and snapshot: without a limit they would be content."""
    text = "é" * ((MAX_UNKNOWN_LABELS_BYTES - len('{"a":1,"x":""}')) // 2) + extra * "!"
    labels = Labels(role="r" * MAX_LABEL_BYTES, a=1, x=text)
    tree = grown(ContextTree.empty(CONTEXT), append("one", "a", "b"))
    command: AnyCommand = append("two", leaf("c").model_copy(update={"labels": labels}))
    if kind == "compact":
        command = compact("two", "l0:a", "l0:b", summary=None if bare else "sum", labels=labels)
    decision = decide(tree, command, digest(command), [] if bare and kind == "compact" else [b"sum"])
    if not extra:
        assert not isinstance(decision, Settled)
        return
    assert isinstance(decision, Settled)
    assert isinstance(decision.outcome, Rejected)
    assert RejectionCode.TOO_LARGE is decision.outcome.code
    assert str(MAX_UNKNOWN_LABELS_BYTES) in decision.outcome.message
