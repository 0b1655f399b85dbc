"""What `check` says of a pointer, action by action."""

from typing import TypeVar

import pytest

from sexton.core import collection
from sexton.core.apply import apply
from sexton.core.check import Action, check, mint
from sexton.core.tree import ContextTree
from sexton.schemas.errors import (
    BoundaryError,
    EpochMismatch,
    HashMismatch,
    LevelMismatch,
    SextonError,
    StaleSpanError,
    Unreachable,
)
from sexton.schemas.ids import Level
from sexton.schemas.pointer import Pointer
from tests.core_kit.build import CONTEXT, compact, done, filled
from tests.core_kit.fates import FORGED, TREE, pointer

R = TypeVar("R")

SUPERSEDED = {"accept_superseded": True}
STRICT = {"strict": True}


@pytest.mark.parametrize(
    ("what", "claim", "how", "action", "target"),
    [
        ("in the view, this epoch", pointer("l0:e", epoch=8), {}, Action.SERVE, "l0:e@1"),
        ("in the view, another epoch", pointer("l0:e"), {}, Action.RE_STAMP, "l0:e@1"),
        ("a summary in the view", pointer("l2:t", epoch=8), {}, Action.SERVE, "l2:t@1"),
        ("a summary, another epoch", pointer("l2:t", epoch=5), {}, Action.RE_STAMP, "l2:t@1"),
        ("a part of a span", pointer("l0:e", length=3, content_hash=FORGED), {}, Action.RE_STAMP, "l0:e@1"),
        ("a leaf under two levels", pointer("l0:a"), {}, Action.RE_EXPAND, "l0:a@1"),
        ("a summary under another", pointer("l1:s", epoch=1), {}, Action.RE_EXPAND, "l1:s@1"),
        ("a leaf whose summary was pruned", pointer("l0:g"), {}, Action.RE_EXPAND, "l0:g@1"),
        ("the new version", pointer("l0:c", version=2, epoch=3), {}, Action.RE_STAMP, "l0:c@2"),
        ("a copied old version", pointer("l0:b"), SUPERSEDED, Action.RE_EXPAND, "l0:b@1"),
        ("a stand-in at L2", pointer("l0:a", accept_summary=True), {}, Action.SERVE, "l2:t@1"),
        ("no stand-in is needed", pointer("l0:e", accept_summary=True), {}, Action.RE_STAMP, "l0:e@1"),
        ("no stand-in is left", pointer("l0:g", accept_summary=True), {}, Action.RE_EXPAND, "l0:g@1"),
        ("no stand-in for an L1", pointer("l1:s", accept_summary=True), {}, Action.RE_EXPAND, "l1:s@1"),
        ("strict, this epoch", pointer("l0:e", epoch=8), STRICT, Action.SERVE, "l0:e@1"),
        (
            "strict, unchanged since its epoch",
            pointer("l0:f", version=2, epoch=8),
            STRICT,
            Action.SERVE,
            "l0:f@2",
        ),
        ("strict, unchanged since the mint", pointer("l0:e"), STRICT, Action.RE_STAMP, "l0:e@1"),
        ("strict, covered at its epoch", pointer("l1:s", epoch=5), STRICT, Action.RE_EXPAND, "l1:s@1"),
        (
            "strict, a stand-in of its epoch",
            pointer("l0:a", epoch=5, accept_summary=True),
            STRICT,
            Action.SERVE,
            "l2:t@1",
        ),
        (
            "strict, an old version since the rewrite",
            pointer("l0:b", epoch=2),
            STRICT | SUPERSEDED,
            Action.RE_EXPAND,
            "l0:b@1",
        ),
    ],
)
def test_what_may_be_served(
    what: str, claim: Pointer, how: dict[str, bool], action: Action, target: str
) -> None:
    """The action, whose bytes are to be fetched, and the pointer that goes back: of this epoch."""
    verdict = check(claim, TREE, **how)

    assert (action, None, False) == (verdict.action, verdict.error, verdict.maybe_behind)
    identity, stamped = verdict.granted()
    assert target == f"{identity.span_id}@{identity.version}"
    assert TREE.epoch == stamped.epoch
    assert (claim.epoch != TREE.epoch) == verdict.restamped
    assert (how.get("accept_superseded", False) and target == "l0:b@1") == verdict.superseded
    if identity.level is claim.level:
        assert claim.model_copy(update={"epoch": TREE.epoch}) == stamped
    else:
        assert mint(TREE, identity.span_id).model_copy(update={"accept_summary": True}) == stamped


@pytest.mark.parametrize(
    ("what", "claim", "how", "error", "behind"),
    [
        ("another context", pointer("l0:e", context_id="other"), {}, Unreachable, False),
        ("an unknown span", pointer("l0:x"), {}, Unreachable, True),
        ("a pruned span", pointer("l0:d"), {}, Unreachable, False),
        ("a pruned summary", pointer("l1:u", epoch=6), {}, Unreachable, False),
        ("a pruned leaf, a summary would do", pointer("l0:d", accept_summary=True), {}, Unreachable, False),
        ("a version to come", pointer("l0:e", version=2), {}, Unreachable, True),
        ("another level", pointer("l0:e", level=Level.L1_SUMMARY), {}, LevelMismatch, False),
        ("another level of a covered leaf", pointer("l0:a", level=Level.L2_ROLLUP), {}, LevelMismatch, False),
        ("a summary as a leaf", pointer("l2:t", level=Level.L0_VERBATIM), {}, LevelMismatch, False),
        (
            "a summary as another level, though one would do",
            pointer("l2:t", level=Level.L1_SUMMARY, accept_summary=True),
            {},
            LevelMismatch,
            False,
        ),
        (
            "a pruned summary as a leaf, though one would do",
            pointer("l1:u", level=Level.L0_VERBATIM, accept_summary=True),
            {},
            LevelMismatch,
            False,
        ),
        ("rewritten", pointer("l0:c"), {}, StaleSpanError, False),
        ("rewritten, an old version would do", pointer("l0:c"), SUPERSEDED, StaleSpanError, False),
        ("rewritten and copied, not asked for", pointer("l0:b"), {}, StaleSpanError, False),
        ("rewritten, a summary would do", pointer("l0:c", accept_summary=True), {}, StaleSpanError, False),
        ("another hash", pointer("l0:e", content_hash=FORGED), {}, HashMismatch, False),
        ("another hash of a covered leaf", pointer("l0:a", content_hash=FORGED), {}, HashMismatch, False),
        ("another hash of a copy", pointer("l0:b", content_hash=FORGED), SUPERSEDED, HashMismatch, False),
        (
            "another hash of a covered leaf, a summary would do",
            pointer("l0:a", content_hash=FORGED, accept_summary=True),
            {},
            HashMismatch,
            False,
        ),
        (
            "the hash of the new version",
            pointer("l0:f", version=2, content_hash=FORGED),
            {},
            HashMismatch,
            False,
        ),
        ("past the end", pointer("l0:e", length=21), {}, BoundaryError, False),
        ("behind the end", pointer("l0:e", offset=20, length=1), {}, BoundaryError, False),
        ("nothing at all", pointer("l0:e", length=0), {}, BoundaryError, False),
        ("past the end of a copy", pointer("l0:b", length=21), SUPERSEDED, BoundaryError, False),
        ("an epoch to come", pointer("l0:e", epoch=9), {}, EpochMismatch, True),
        (
            "an epoch to come, of a stand-in",
            pointer("l0:a", epoch=9, accept_summary=True),
            {},
            EpochMismatch,
            True,
        ),
        ("an epoch to come, of a copy", pointer("l0:b", epoch=9), SUPERSEDED, EpochMismatch, True),
        (
            "an epoch to come, of a summary as a leaf",
            pointer("l2:t", level=Level.L0_VERBATIM, epoch=9, accept_summary=True),
            {},
            EpochMismatch,
            True,
        ),
        ("strict, another epoch", pointer("l0:e", epoch=3), STRICT, EpochMismatch, False),
        (
            "strict, minted before the rewrite",
            pointer("l0:f", version=2, epoch=7),
            STRICT,
            EpochMismatch,
            False,
        ),
        ("strict, minted before it was covered", pointer("l0:a"), STRICT, EpochMismatch, False),
        (
            "strict, a stand-in that was made since",
            pointer("l0:a", epoch=1, accept_summary=True),
            STRICT,
            EpochMismatch,
            False,
        ),
        ("strict, a copy of before the rewrite", pointer("l0:b"), STRICT | SUPERSEDED, EpochMismatch, False),
    ],
)
def test_what_is_refused(
    what: str, claim: Pointer, how: dict[str, bool], error: type[SextonError], behind: bool
) -> None:
    """The error, whether catching up could cure it, and nothing that could be fetched by mistake."""
    verdict = check(claim, TREE, **how)

    assert error is type(verdict.error)
    assert (Action.STALE if error is StaleSpanError else Action.REFUSE) is verdict.action
    assert behind == verdict.maybe_behind
    assert (None, None) == (verdict.target, verdict.pointer)
    with pytest.raises(error):
        verdict.granted()


@pytest.mark.parametrize("span_id", ["l0:c", "l0:b", "l0:d"])
def test_an_error_names_what_is_there_now(span_id: str) -> None:
    """A caller re-keys from the error alone."""
    error = check(pointer(span_id), TREE).error

    assert error is not None
    assert TREE.nodes[span_id].current == error.fields["current"]


def test_a_stale_pointer_learns_whether_the_old_bytes_are_kept() -> None:
    """So that it need not ask in vain."""
    readable = {
        span_id: error.fields["superseded_readable"]
        for span_id in ("l0:b", "l0:c")
        if (error := check(pointer(span_id), TREE).error) is not None
    }
    assert {"l0:b": True, "l0:c": False} == readable


def test_a_copy_is_readable_until_its_bytes_may_be_gone() -> None:
    """A collector that has only announced itself may still call it off; one that has condemned may not."""
    claim, version = pointer("l0:b"), [("l0:b", 1)]
    announced = apply(TREE, collected(collection.announce(TREE, version, "try")))
    called_off = apply(announced, collected(collection.call_off(announced, version, "try")))
    condemned = apply(announced, collected(collection.condemn(announced, version, "try")))
    gone = apply(condemned, collected(collection.finish(condemned, version, "try")))

    for tree in (TREE, announced, called_off):
        assert Action.RE_EXPAND is check(claim, tree, accept_superseded=True).action
    for tree in (condemned, gone):
        verdict = check(claim, tree, accept_superseded=True)
        assert Action.STALE is verdict.action
        assert verdict.error is not None
        assert not verdict.error.fields["superseded_readable"]


def test_a_pruned_span_is_told_from_a_collected_one() -> None:
    """Both are unreachable; the error says how."""
    version = [("l0:d", 1)]
    announced = apply(TREE, collected(collection.announce(TREE, version, "try")))
    condemned = apply(announced, collected(collection.condemn(announced, version, "try")))
    gone = apply(condemned, collected(collection.finish(condemned, version, "try")))

    assert ["pruned"] * 3 + ["collected"] == [reason(tree) for tree in (TREE, announced, condemned, gone)]


def collected(record: R | None) -> R:
    assert record is not None
    return record


def reason(tree: ContextTree) -> object:
    error = check(pointer("l0:d"), tree).error
    assert isinstance(error, Unreachable)
    return error.fields["reason"]


def test_a_context_that_is_not_known_is_unreachable() -> None:
    """And may only be unknown to this tree."""
    verdict = check(pointer("l0:e"), ContextTree.empty(CONTEXT))

    assert (Action.REFUSE, True) == (verdict.action, verdict.maybe_behind)
    with pytest.raises(Unreachable, match="nothing was ever appended"):
        verdict.granted()


@pytest.mark.parametrize("height", range(1, 8))
def test_a_stand_in_is_found_at_any_height(height: int) -> None:
    """Whoever said that a summary will do gets the one in the view, and is told its level."""
    buffer = filled("a", "b")
    claim = buffer.mint("l0:a").model_copy(update={"accept_summary": True})
    done(buffer, compact("up0", "l0:a", name="s"))
    for level in range(1, height):
        done(buffer, compact(f"up{level}", f"l{level}:s", name="s", allow_larger=True))

    got = buffer.resolve(claim)
    assert (f"l{height}:s", height, False) == (
        got.answer.pointer.span_id,
        got.answer.level,
        got.answer.verbatim,
    )
    plain = buffer.resolve(claim.model_copy(update={"accept_summary": False}))
    assert ("<a>".ljust(20, "."), True) == (plain.text, plain.answer.verbatim)
