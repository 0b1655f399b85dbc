"""Seed 1: which invariants prevent pointer resurrection across hierarchical compaction checkpoints.

`seed-1.N` is the Nth of its conditions of validity. The seed's own code is in `test_seed_resolve.py`.
"""

import pytest
from pydantic import ValidationError

from sexton.core.apply import apply
from sexton.core.buffer import ContextBuffer
from sexton.core.check import Action, check
from sexton.core.hash import content_hash, linked
from sexton.schemas.errors import (
    CommandRejected,
    EpochMismatch,
    HardFailure,
    HashMismatch,
    LeafCorrupt,
    LeafLost,
    LevelMismatch,
    LineageError,
    PointerResurrectionError,
)
from sexton.schemas.ids import Level
from sexton.schemas.outcome import RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import Compacted
from sexton.schemas.rpc import Tier
from sexton.schemas.span import SpanState
from tests.core_kit.build import append, committed, compact, filled, view_ids

SIGNATURE = "def patch(file: Path, *, dry_run: bool = False) -> Diff:\n"
PARAPHRASE = "patch(file, options) applies a diff"


def two_levels() -> ContextBuffer:
    """The observed pipeline: a leaf of 4096 bytes and one more, ready to be summarised and rolled up."""
    buffer = ContextBuffer("pipeline")
    buffer.add("l0:source", SIGNATURE.ljust(4096, "#"))
    buffer.add("l0:talk", "Please patch it. " * 20)
    return buffer


def summarise(buffer: ContextBuffer) -> None:
    """Per-span summaries, under the names of their leaves, as far as levels allow that."""
    buffer.compact(["l0:source"], PARAPHRASE, name="source")
    buffer.compact(["l0:talk"], "asks for a patch", name="talk")


# --- what was observed -------------------------------------------------------------------------------


def test_observed_failure_of_two_levels_is_gone() -> None:
    """A pointer to 0 to 4096 of a leaf, used after its summary and its roll-up: the literal signature."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source", offset=0, length=4096)
    summarise(buffer)
    after_summary = buffer.resolve(pointer)
    buffer.compact(["l1:source", "l1:talk"], "a patch", name="source")
    after_rollup = buffer.resolve(pointer)

    assert ["l2:source"] == view_ids(buffer.tree)
    for got in (after_summary, after_rollup):
        assert SIGNATURE.ljust(4096, "#") == got.text
        assert (Level.L0_VERBATIM, True) == (got.answer.level, got.answer.verbatim)
        assert PARAPHRASE not in got.text


def test_turn_order_does_not_matter() -> None:
    """The failure showed only when a compaction ran between mint and use; here every order gives the same."""
    served = set()
    for mint_at in range(3):
        buffer = two_levels()
        pointer = None
        for turn in range(3):
            if turn == mint_at:
                pointer = buffer.mint("l0:source")
            if pointer is not None:
                served.add(buffer.resolve(pointer).data)
            if turn == 0:
                summarise(buffer)
            if turn == 1:
                buffer.compact(["l1:source", "l1:talk"], "a patch")
        assert pointer is not None
        served.add(buffer.resolve(pointer).data)

    assert {SIGNATURE.ljust(4096, "#").encode()} == served


def test_a_level_is_immutable_and_is_checked_at_resolution() -> None:
    """The first violated invariant: frozen, and found at use if it lies about its level."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    with pytest.raises(ValidationError):
        pointer.level = Level.L1_SUMMARY  # type: ignore[misc]
    forged = pointer.model_copy(update={"level": Level.L1_SUMMARY})

    with pytest.raises(LevelMismatch):
        buffer.resolve(forged)
    summarise(buffer)
    with pytest.raises(LevelMismatch):
        buffer.resolve(forged)


def test_a_summary_never_reuses_the_namespace_of_its_leaf() -> None:
    """The second violated invariant: the level is in the id, so the same name is another id."""
    buffer = two_levels()
    summarise(buffer)

    assert ["l1:source", "l1:talk"] == view_ids(buffer.tree)
    assert {"l0:source", "l0:talk", "l1:source", "l1:talk"} == set(buffer.tree.nodes)
    assert Level.L0_VERBATIM is buffer.tree.nodes["l0:source"].level
    with pytest.raises(ValueError, match="only leaves are added"):
        buffer.add("l1:other", "a summary from nowhere")


def test_the_error_is_the_seeds() -> None:
    """Who catches the seed's error, or any `RuntimeError`, catches every refusal of a pointer."""
    assert issubclass(PointerResurrectionError, RuntimeError)
    for refusal in (LevelMismatch, EpochMismatch, HashMismatch):
        assert issubclass(refusal, PointerResurrectionError)
    assert not issubclass(HardFailure, PointerResurrectionError), "a loss is no refusal; it pages"


# --- the five conditions -----------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["level", "content_hash", "epoch", "version", "offset", "length"])
def test_condition_1_every_pointer_carries_its_claim(field: str) -> None:
    """seed-1.1: no pointer without a level and a hash, nor without the rest of its claim."""
    wire = two_levels().mint("l0:source").model_dump()
    del wire[field]

    with pytest.raises(ValidationError, match=field):
        Pointer.model_validate(wire)


@pytest.mark.parametrize(("offset", "length"), [(0, 4096), (0, 3), (4, 5), (4095, 1)])
def test_condition_1_the_hash_is_of_the_exact_bytes(offset: int, length: int) -> None:
    """seed-1.1: of the bytes addressed, not of the span they are cut from."""
    buffer = two_levels()
    data = SIGNATURE.ljust(4096, "#").encode()[offset : offset + length]
    pointer = buffer.mint("l0:source", offset=offset, length=length)

    assert content_hash(Level.L0_VERBATIM, data) == pointer.content_hash
    assert data == buffer.resolve(pointer).data


@pytest.mark.parametrize("level", set(Level) - {Level.L0_VERBATIM})
def test_condition_2_another_level_is_refused_though_there_are_bytes(level: Level) -> None:
    """seed-1.2: the level of the span in place is not the pointer's. Live, covered, strict or not."""
    buffer = two_levels()
    wrong = buffer.mint("l0:source").model_copy(update={"level": level})
    for covered in (False, True):
        if covered:
            summarise(buffer)
        for strict in (True, False):
            with pytest.raises(LevelMismatch) as refusal:
                buffer.resolve(wrong, strict=strict)
            assert buffer.tree.nodes["l0:source"].current == refusal.value.fields["current"]


def test_condition_2_a_leaf_pointer_at_a_summary_is_refused() -> None:
    """seed-1.2: the observed confusion, spelled out: an L0 claim on what holds a summary."""
    buffer = two_levels()
    summarise(buffer)
    confused = buffer.mint("l1:source").model_copy(update={"level": Level.L0_VERBATIM})

    with pytest.raises(LevelMismatch, match="L1_SUMMARY"):
        buffer.resolve(confused)


def test_condition_3_a_compaction_goes_one_level_up() -> None:
    """seed-1.3: L0 to L1 to L2; what is compacted keeps its own level and id for ever."""
    buffer = two_levels()
    summarise(buffer)
    buffer.compact(["l1:source", "l1:talk"], "a patch", name="all")

    levels = {span_id: (int(node.level), node.state) for span_id, node in buffer.tree.nodes.items()}
    assert {
        "l0:source": (0, SpanState.COVERED),
        "l0:talk": (0, SpanState.COVERED),
        "l1:source": (1, SpanState.COVERED),
        "l1:talk": (1, SpanState.COVERED),
        "l2:all": (2, SpanState.LIVE),
    } == levels


@pytest.mark.parametrize(
    ("span_id", "level"),
    [("l0:new", 0), ("l1:new", 1), ("l1:new", 2), ("l2:new", 1), ("l3:new", 3)],
    ids=["down", "sideways", "level against id", "id against level", "two up"],
)
def test_condition_3_no_record_moves_a_span_down_or_sideways(span_id: str, level: int) -> None:
    """seed-1.3: a record that says so is refused by whoever follows the log, whoever wrote it."""
    buffer = two_levels()
    summarise(buffer)
    record = committed(buffer.tree, compact("up", "l1:source", "l1:talk", context_id="pipeline")).record
    assert isinstance(record, Compacted)
    summary = record.summary.model_copy(update={"span_id": span_id, "level": Level(level)})
    forged = linked(buffer.tree.chain, record.model_copy(update={"summary": summary}))

    with pytest.raises(LineageError):
        apply(buffer.tree, forged)
    assert Level.L2_ROLLUP is apply(buffer.tree, record).nodes["l2:up"].level


def test_condition_3_a_summary_cannot_take_a_siblings_place() -> None:
    """seed-1.3: "never sideways into a sibling's namespace": an id that was ever used is refused."""
    buffer = two_levels()
    buffer.compact(["l0:source"], PARAPHRASE, name="taken")

    with pytest.raises(CommandRejected) as refusal:
        buffer.compact(["l0:talk"], "asks for a patch", name="taken")
    assert RejectionCode.SPAN_EXISTS is refusal.value.outcome.code


def test_condition_4_a_summarys_hash_differs_from_its_leafs_by_construction() -> None:
    """seed-1.4: even if the summary says, byte for byte, what the leaf says."""
    buffer = filled("a")
    leaf = buffer.tree.nodes["l0:a"]
    buffer.compact(["l0:a"], buffer.render(), name="a", allow_larger=True)
    summary = buffer.tree.nodes["l1:a"]

    assert buffer._cold["l0:a", 1] == buffer._cold["l1:a", 1]
    assert leaf.content_hash != summary.content_hash
    with pytest.raises(PointerResurrectionError):
        buffer.resolve(buffer.mint("l1:a").model_copy(update={"content_hash": leaf.content_hash}))


def test_condition_4_the_hash_is_over_the_content_and_not_over_where_it_came_from() -> None:
    """seed-1.4, C73: the same summary of other sources has the same hash; so has one in cold storage."""
    buffer = filled("a", "b")
    buffer.compact(["l0:a"], "same", name="a")
    buffer.compact(["l0:b"], "same", name="b")
    before = [buffer.tree.nodes[span_id].content_hash for span_id in ("l1:a", "l1:b")]
    buffer.compact(["l1:a", "l1:b"], "both")

    assert 1 == len(set(before))
    assert before == [buffer.tree.nodes[span_id].content_hash for span_id in ("l1:a", "l1:b")]


def test_condition_4_bytes_that_hash_otherwise_are_never_served() -> None:
    """seed-1.4: the resolved bytes themselves are hashed, not what the store says of them."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source", offset=4, length=5)
    buffer._cold["l0:source", 1] = buffer._cold["l0:source", 1].replace(b"patch", b"match")

    with pytest.raises(LeafCorrupt):
        buffer.resolve(pointer)


def test_condition_5_mint_and_use_are_recorded_with_the_epoch() -> None:
    """seed-1.5: the pointer has the epoch of its mint, the answer's pointer that of its use."""
    buffer = filled("a", "b")
    pointer = buffer.mint("l0:a")
    buffer.rewrite("l0:b", "another b")
    answer = buffer.resolve(pointer).answer

    assert (0, 1) == (pointer.epoch, answer.pointer.epoch)
    assert answer.restamped
    assert pointer.model_copy(update={"epoch": 1}) == answer.pointer


def test_condition_5_a_pointer_of_another_epoch_is_invalid_unless_re_validated() -> None:
    """seed-1.5: strict mode refuses it in N+1; re-validation re-stamps it, and then strict mode takes it."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    assert pointer == buffer.resolve(pointer, strict=True).answer.pointer
    buffer.rewrite("l0:talk", "never mind")
    buffer.rewrite("l0:talk", "do patch it")
    buffer.compact(["l0:source"], PARAPHRASE)

    with pytest.raises(EpochMismatch):
        buffer.resolve(buffer.mint("l0:talk").model_copy(update={"epoch": 1}), strict=True)
    with pytest.raises(EpochMismatch):
        buffer.resolve(pointer, strict=True)
    restamped = buffer.resolve(pointer).answer.pointer
    assert SIGNATURE.ljust(4096, "#") == buffer.resolve(restamped, strict=True).text


def test_condition_5_an_append_makes_no_pointer_invalid() -> None:
    """seed-1.5: an append changes nothing that existed, so it is no epoch."""
    buffer = filled("a")
    pointer = buffer.mint("l0:a")
    buffer.add("l0:b", "more")

    assert (2, 0) == (buffer.tree.revision, buffer.epoch)
    assert pointer == buffer.resolve(pointer, strict=True).answer.pointer


def test_condition_5_an_epoch_that_has_not_come_is_refused() -> None:
    """seed-1.5: a pointer from ahead means that this tree is behind, and says so."""
    buffer = filled("a", "b")
    buffer.compact(["l0:b"], "b")
    ahead = buffer.mint("l0:a").model_copy(update={"epoch": 2})

    verdict = check(ahead, buffer.tree)
    assert (Action.REFUSE, True) == (verdict.action, verdict.maybe_behind)
    assert isinstance(verdict.error, EpochMismatch)


# --- the decision boundary ---------------------------------------------------------------------------


def test_boundary_a_retrievable_leaf_is_re_expanded() -> None:
    """Retrievable: from cold storage, hashed again, validated again, and only then served."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    summarise(buffer)

    assert Action.RE_EXPAND is check(pointer, buffer.tree).action
    answer = buffer.resolve(pointer).answer
    assert (Tier.COLD, True, True) == (answer.tier, answer.verbatim, answer.restamped)


@pytest.mark.parametrize("rolled_up", [False, True])
def test_boundary_a_leaf_that_is_gone_is_a_hard_failure(rolled_up: bool) -> None:
    """Not retrievable: raise, and page. Never the summary, though there is one, and it is right there."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    summarise(buffer)
    if rolled_up:
        buffer.compact(["l1:source", "l1:talk"], "a patch")
    del buffer._cold["l0:source", 1]

    with pytest.raises(LeafLost):
        buffer.resolve(pointer)


@pytest.mark.parametrize("damaged", [b"", b"x", PARAPHRASE.encode(), b"#" * 4096], ids=len)
def test_boundary_a_damaged_leaf_is_a_hard_failure(damaged: bytes) -> None:
    """C110: length and hash are checked, whatever the store says that it has."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    summarise(buffer)
    buffer._cold["l0:source", 1] = damaged

    with pytest.raises(LeafCorrupt) as failure:
        buffer.resolve(pointer)
    assert len(damaged) == failure.value.fields["found_size_bytes"]


def test_boundary_that_a_summary_will_do_is_the_callers_to_say() -> None:
    """With `accept_summary=True` the stand-in comes, and it cannot be mistaken for a quote (C69)."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source").model_copy(update={"accept_summary": True})
    assert buffer.resolve(pointer).answer.verbatim, "not while the leaf itself stands in the view"
    summarise(buffer)
    first = buffer.resolve(pointer)
    buffer.compact(["l1:source", "l1:talk"], "a patch")
    second = buffer.resolve(pointer)

    assert [PARAPHRASE, "a patch"] == [first.text, second.text]
    assert [(1, False), (2, False)] == [(got.answer.level, got.answer.verbatim) for got in (first, second)]
    assert "l1:source" == first.answer.pointer.span_id
    assert first.text == buffer.resolve(first.answer.pointer).text, "a summary's pointer is to that summary"


def test_boundary_nobody_else_says_it() -> None:
    """`accept_summary` is false unless it was asked for, at mint, at use and after a re-stamp."""
    buffer = two_levels()
    pointer = buffer.mint("l0:source")
    summarise(buffer)

    assert not pointer.accept_summary
    assert not buffer.resolve(pointer).answer.pointer.accept_summary


def test_a_pointer_to_a_summary_is_a_claim_on_that_summary() -> None:
    """The caller's way to ask for wording is an L1 pointer. Its roll-up does not pass for it either."""
    buffer = two_levels()
    summarise(buffer)
    pointer = buffer.mint("l1:source").model_copy(update={"accept_summary": True})
    buffer.compact(["l1:source", "l1:talk"], "a patch")

    got = buffer.resolve(pointer)
    assert (PARAPHRASE, Level.L1_SUMMARY, False) == (got.text, got.answer.level, got.answer.verbatim)


def test_a_leaf_outlives_the_summary_that_covers_it() -> None:
    """A pruned summary takes nothing down with it: its leaves are there for who points at them (C70)."""
    buffer = two_levels()
    plain = buffer.mint("l0:source")
    accepting = plain.model_copy(update={"accept_summary": True})
    summarise(buffer)
    buffer.prune("l1:source")

    for pointer in (plain, accepting):
        got = buffer.resolve(pointer)
        assert (SIGNATURE.ljust(4096, "#"), True) == (got.text, got.answer.verbatim)


def test_a_pointer_is_no_good_in_another_context_c80() -> None:
    """C80: the same text under the same name elsewhere is not what the pointer claims."""
    here, there = ContextBuffer("here"), ContextBuffer("there")
    for buffer in (here, there):
        buffer.submit(append("e1", "a", context_id=buffer.tree.context_id))

    with pytest.raises(PointerResurrectionError):
        there.resolve(here.mint("l0:a"))
