"""What the planner proposes, what it leaves alone and why, and when it says that there is nothing to do."""

from typing import Any

import pytest

from sexton.core.pins import Pins
from sexton.core.plan import Kept, Plan, PlanStatus, Policy, plan
from sexton.core.tree import ContextTree
from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.limits import MAX_SOURCES
from sexton.schemas.span import NewSpan
from tests.core_kit.build import CONTEXT, append, compact, grown, leaf, tower

EAGER = Policy(fan_in=4, keep_tail_bytes=0, keep_tail_spans=0, min_run_bytes=0)
"""Takes whatever may go. Leaves here have 20 bytes."""


def tree_of(*spans: NewSpan | str) -> ContextTree:
    return grown(ContextTree.empty(CONTEXT), append("fill", *spans))


def runs(planned: Plan) -> list[str]:
    """Each run as the joined names of its spans."""
    return ["".join(node.span_id[3:] for node in run.sources) for run in planned.runs]


def policy(**changes: Any) -> Policy:
    """`EAGER`, but for what it says."""
    fields = {"fan_in": 4, "keep_tail_bytes": 0, "keep_tail_spans": 0, "min_run_bytes": 0}
    return Policy(**{**fields, **changes})


def test_within_budget_there_is_nothing_to_do() -> None:
    """To the byte; and one byte less is a plan."""
    tree = tree_of(*"abc")

    assert (PlanStatus.WITHIN_BUDGET, ()) == (plan(tree, 60, EAGER).status, plan(tree, 60, EAGER).runs)
    assert PlanStatus.PLANNED is plan(tree, 59, EAGER).status
    assert PlanStatus.WITHIN_BUDGET is plan(ContextTree.empty(CONTEXT), 0).status


def test_runs_are_gathered_up_to_the_fan_in_oldest_first() -> None:
    """As many as the budget seems to need; a plan says what it was made on."""
    tree = tree_of(*"abcdefghij")
    whole = plan(tree, 0, EAGER)

    assert ["abcd", "efgh", "ij"] == runs(whole)
    assert (200, 0, tree.epoch) == (whole.view_bytes, whole.budget_bytes, whole.epoch)
    assert [(Level.L1_SUMMARY, 80)] * 2 == [(run.level, run.size_bytes) for run in whole.runs[:2]]
    assert ["abcd"] == runs(plan(tree, 199, EAGER))
    assert ["abcd", "efgh"] == runs(plan(tree, 100, EAGER)), "60 bytes are expected of each run"


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        ({"keep_tail_spans": 0}, ["abcd", "ef"]),
        ({"keep_tail_spans": 1}, ["abcd", "e"]),
        ({"keep_tail_spans": 3}, ["abc"]),
        ({"keep_tail_bytes": 19}, ["abcd", "ef"]),
        ({"keep_tail_bytes": 20}, ["abcd", "e"]),
        ({"keep_tail_bytes": 59}, ["abcd"]),
        ({"keep_tail_bytes": 20, "keep_tail_spans": 3}, ["abc"]),
        ({"keep_tail_bytes": 60, "keep_tail_spans": 1}, ["abc"]),
    ],
    ids=str,
)
def test_the_fresh_tail_stays(tail: dict[str, int], expected: list[str]) -> None:
    """The newest so many spans, and the newest so many bytes, whichever are more."""
    planned = plan(tree_of(*"abcdef"), 0, policy(**tail))

    assert expected == runs(planned)
    assert 6 - sum(len(run.sources) for run in planned.runs) == planned.kept.get(Kept.FRESH, 0)


def test_a_call_with_a_fresh_result_is_fresh_c38() -> None:
    """C38: the tail ends in front of a group, never inside."""
    tree = tree_of("a", leaf("call", group="g", waits=True), "b", leaf("result", group="g"))
    planned = plan(tree, 0, policy(keep_tail_spans=1))

    assert ["a"] == runs(planned)
    assert {Kept.FRESH: 3} == planned.kept


def test_a_group_is_not_split_by_the_fan_in_c38() -> None:
    """C38: a run ends before a group that does not fit; a group larger than the fan-in goes by itself."""
    many = [leaf(f"{n}", group="g", waits=n < 5) for n in range(6)]
    tree = tree_of(*"ab", leaf("c", group="h", waits=True), leaf("d"), leaf("e", group="h"), *many, "z")

    assert ["ab", "cde", "012345", "z"] == runs(plan(tree, 0, EAGER))


def test_groups_that_cross_go_together() -> None:
    """Neither can go without the other."""
    tree = tree_of(
        "a",
        leaf("1", group="1", waits=True),
        leaf("2", group="2", waits=True),
        leaf("3", group="1"),
        leaf("4", group="2"),
        "b",
    )

    assert ["a", "1234", "b"] == runs(plan(tree, 0, EAGER))


@pytest.mark.parametrize(
    ("pins", "refused", "kept"),
    [
        ({("l0:b", 1): PinCost.IMMOVABLE}, frozenset(), Kept.IMMOVABLE),
        ({}, frozenset({"l0:b"}), Kept.REFUSED),
    ],
)
def test_what_cannot_go_is_a_wall(pins: Pins, refused: frozenset[str], kept: Kept) -> None:
    """Runs lie on either side of it; it is counted by its reason."""
    planned = plan(tree_of(*"abcd"), 0, EAGER, pins=pins, refused=refused)

    assert ["a", "cd"] == runs(planned)
    assert {kept: 1} == planned.kept


def test_a_wall_inside_a_group_is_around_all_of_it() -> None:
    """A pinned result keeps its call, and what stands between them."""
    tree = tree_of("a", leaf("call", group="g", waits=True), "b", leaf("result", group="g"), "c")
    planned = plan(tree, 0, EAGER, pins={("l0:result", 1): PinCost.IMMOVABLE})

    assert ["a", "c"] == runs(planned)
    assert {Kept.IMMOVABLE: 3} == planned.kept


@pytest.mark.parametrize("cost", [PinCost.CHEAP, PinCost.EXPENSIVE])
def test_other_pins_are_no_walls(cost: PinCost) -> None:
    """A covered span stays verbatim for whoever holds it. Nor is a pin on an old version one."""
    pins = {("l0:b", 1): cost, ("l0:c", 7): PinCost.IMMOVABLE}

    assert ["abcd"] == runs(plan(tree_of(*"abcd"), 0, EAGER, pins=pins))


def test_open_groups_are_left_alone_c41() -> None:
    """C41: all of their members, and whatever a later member of the group reaches around."""
    tree = tree_of("a", leaf("call", group="g", waits=True), "b", leaf("more", group="g", waits=True), "c")
    planned = plan(tree, 0, EAGER)

    assert ["a", "c"] == runs(planned)
    assert {Kept.OPEN: 3} == planned.kept


def test_leaves_go_before_summaries_and_levels_do_not_mix() -> None:
    """One level a plan: the lowest there is something to do at."""
    tree = grown(
        tree_of(*"abcdefgh"),
        *(compact(name, f"l0:{name}", name=name) for name in "abcd"),
    )

    assert ["efgh"] == runs(plan(tree, 0, EAGER))
    assert Level.L1_SUMMARY is plan(tree, 0, EAGER).runs[0].level
    tail = plan(tree, 0, policy(keep_tail_spans=4))
    assert (["abcd"], Level.L2_ROLLUP) == (runs(tail), tail.runs[0].level)


def test_a_lone_summary_is_not_worth_another() -> None:
    """It would only be rewritten; a lone leaf is worth one."""
    tree = grown(tree_of(*"abc"), compact("s", "l0:a", name="s"))
    planned = plan(tree, 0, policy(keep_tail_spans=1))

    assert ["b"] == runs(planned)
    assert {Kept.ALONE: 1, Kept.FRESH: 1} == planned.kept


def test_small_runs_are_not_worth_it() -> None:
    """Units are gathered past the fan-in until they are; what is left over stays."""
    tree = tree_of(*"abcdefghi")
    planned = plan(tree, 0, policy(fan_in=2, min_run_bytes=80))

    assert ["abcd", "efgh"] == runs(planned)
    assert {Kept.ALONE: 1} == planned.kept


def test_the_highest_level_stays() -> None:
    """There is none above it."""
    tree = grown(ContextTree.empty(CONTEXT), *tower())
    planned = plan(tree, 0, EAGER)

    assert (PlanStatus.IRREDUCIBLE, {Kept.TOP_LEVEL: 1}) == (planned.status, planned.kept)


def test_a_group_around_a_summary_stays() -> None:
    """Somebody compacted the text between a call and its result: no run of one level holds all of it now."""
    call, result = leaf("call", group="g", waits=True), leaf("result", group="g")
    tree = grown(tree_of("a", call, "b", result, "c"), compact("s", "l0:b", name="s"))
    planned = plan(tree, 0, EAGER)

    assert ["a", "c"] == runs(planned)
    assert {Kept.MIXED: 3} == planned.kept


def test_a_group_of_more_members_than_a_summary_may_have_stays() -> None:
    """The planner proposes nothing that would be refused; one member fewer can go."""
    large = [leaf(f"n{n}", group="g", waits=n < MAX_SOURCES) for n in range(MAX_SOURCES + 1)]
    planned = plan(tree_of("a", *large, "b"), 0, EAGER)
    assert ["a", "b"] == runs(planned)
    assert {Kept.TOO_MANY: MAX_SOURCES + 1} == planned.kept

    fits = plan(tree_of(*large[1:]), 0, EAGER)
    assert [MAX_SOURCES] == [len(run.sources) for run in fits.runs]


def test_small_runs_grow_no_longer_than_a_summary_may() -> None:
    """Even if all of them together would be worth it: the planner proposes nothing that would be refused."""
    names = [f"n{number}" for number in range(MAX_SOURCES + 88)]
    worth = policy(min_run_bytes=20 * MAX_SOURCES)
    assert [MAX_SOURCES] == [len(run.sources) for run in plan(tree_of(*names), 0, worth).runs]

    never = policy(min_run_bytes=20 * MAX_SOURCES + 1)
    assert PlanStatus.IRREDUCIBLE is plan(tree_of(*names), 0, never).status


def test_what_cannot_be_met_is_irreducible_c58() -> None:
    """C58: typed, with what stays and why, and no run; the same again is the same again."""
    tree = tree_of("a", "b", leaf("call", group="g", waits=True), "c")
    pins = {("l0:a", 1): PinCost.IMMOVABLE}
    how: dict[str, Any] = {"pins": pins, "refused": {"l0:b"}}
    planned = plan(tree, 10, policy(keep_tail_spans=1), **how)

    assert (PlanStatus.IRREDUCIBLE, ()) == (planned.status, planned.runs)
    assert {Kept.IMMOVABLE: 1, Kept.REFUSED: 1, Kept.OPEN: 1, Kept.FRESH: 1} == planned.kept
    assert (80, 10) == (planned.view_bytes, planned.budget_bytes)
    assert planned == plan(tree, 10, policy(keep_tail_spans=1), **how)


@pytest.mark.parametrize(
    "wrong",
    [
        {"fan_in": 1},
        {"fan_in": MAX_SOURCES + 1},
        {"keep_tail_bytes": -1},
        {"keep_tail_spans": -1},
        {"min_run_bytes": -1},
        {"expected_ratio": 0.0},
        {"expected_ratio": 1.0},
        {"expected_ratio": float("nan")},
    ],
    ids=str,
)
def test_a_policy_that_cannot_be_kept_is_refused(wrong: dict[str, Any]) -> None:
    """At once, by name."""
    with pytest.raises(InvalidInput):
        Policy(**wrong)


def test_a_negative_budget_is_refused() -> None:
    """There is no such view."""
    with pytest.raises(InvalidInput, match="budget_bytes"):
        plan(tree_of("a"), -1)


def test_the_default_policy_keeps_a_tail_and_compacts_the_rest() -> None:
    """Sensible without a word: the last 16 KiB stay."""
    texts = [leaf(f"n{n}", "x" * 4096) for n in range(20)]
    planned = plan(tree_of(*texts), 0)

    assert [16] == [len(run.sources) for run in planned.runs]
    assert {Kept.FRESH: 4} == planned.kept
