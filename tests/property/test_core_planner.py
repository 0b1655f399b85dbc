"""Following the planner, with any summariser that shrinks, ends; and nothing it proposes is refused."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sexton.core.apply import apply
from sexton.core.decide import Commit
from sexton.core.pins import Pins
from sexton.core.plan import Kept, Plan, PlanStatus, Policy, Run, plan
from sexton.core.tree import ContextTree
from sexton.schemas.leases import PinCost
from sexton.schemas.span import NewSpan
from tests.core_kit.audit import audit
from tests.core_kit.build import CONTEXT, append, compact, decided, grown, leaf, prune, view_ids

SPANS = st.builds(
    lambda size, group, waits: leaf(None, "x" * size, group=group, waits=waits),
    st.integers(1, 40),
    st.sampled_from([None, None, None, "g", "h", "i"]),
    st.sampled_from([False, False, False, True]),
)
POLICIES = st.builds(
    Policy,
    fan_in=st.integers(2, 6),
    keep_tail_bytes=st.sampled_from([0, 0, 30, 200]),
    keep_tail_spans=st.integers(0, 4),
    min_run_bytes=st.sampled_from([0, 0, 20, 60]),
    expected_ratio=st.sampled_from([0.1, 0.25, 0.9]),
)


@st.composite
def contexts(draw: st.DrawFn) -> tuple[ContextTree, Pins]:
    """Leaves in groups, some pinned, some gone, and some already under a summary that somebody made."""
    spans: list[NewSpan] = draw(st.lists(SPANS, min_size=1, max_size=40))
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *spans))
    for number, start in enumerate(draw(st.lists(st.integers(0, 39), max_size=6))):
        run = view_ids(tree)[start : start + draw(st.integers(1, 4))]
        command = compact(f"s{number}", *run, allow_larger=True) if run else prune(f"p{number}", "l0:fill-0")
        decision = decided(tree, command)
        if isinstance(decision, Commit):
            tree = apply(tree, decision.record)
    held = draw(st.lists(st.sampled_from(view_ids(tree)), max_size=4)) if tree.first else []
    costs = st.sampled_from(list(PinCost))
    return tree, {(span_id, tree.nodes[span_id].version): draw(costs) for span_id in held}


def check_plan(tree: ContextTree, planned: Plan, policy: Policy, pins: Pins, refused: set[str]) -> None:
    """What holds for any plan, by looking at the whole view."""
    view = view_ids(tree)
    sources = [node.span_id for run in planned.runs for node in run.sources]
    assert sources == sorted(sources, key=view.index), "disjoint, in the order of the view"
    assert len(set(sources)) == len(sources)
    assert not set(sources) & refused, "what was refused is not proposed again"
    assert len({run.level for run in planned.runs}) <= 1
    stays = view[max(0, len(view) - policy.keep_tail_spans) :] if policy.keep_tail_spans else []
    assert not set(sources) & set(stays), "the tail stays"
    if planned.status is PlanStatus.IRREDUCIBLE:
        assert len(view) == sum(planned.kept.values()), "every span that stays is counted once"
        assert planned.kept.get(Kept.REFUSED, 0) <= len(refused)


@given(contexts(), st.integers(0, 400), POLICIES, st.floats(0.05, 0.95))
def test_following_the_plan_ends_within_the_budget_or_says_why_not_c58_c59(
    context: tuple[ContextTree, Pins], budget_bytes: int, policy: Policy, ratio: float
) -> None:
    """C58, C59: a bounded number of passes; each run commits; refused ones are not tried again."""
    tree, pins = context
    refused: set[str] = set()
    bound = 2 * tree.view_count + 1
    for _ in range(bound):
        planned = plan(tree, budget_bytes, policy, pins=pins, refused=refused)
        check_plan(tree, planned, policy, pins, refused)
        if planned.status is not PlanStatus.PLANNED:
            break
        assert planned.runs, "a plan does something"
        for run in planned.runs:
            tree, shrunk = summarised(tree, run, planned.epoch, pins, ratio)
            if not shrunk:
                refused |= {node.span_id for node in run.sources}
        audit(tree)
    else:
        raise AssertionError(f"no end after {bound} passes")
    within = tree.view_bytes <= budget_bytes
    assert (PlanStatus.WITHIN_BUDGET if within else PlanStatus.IRREDUCIBLE) is planned.status


def summarised(tree: ContextTree, run: Run, epoch: int, pins: Pins, ratio: float) -> tuple[ContextTree, bool]:
    """The tree with the run under a summary that is smaller, if one byte can be less than it.

    It states the epoch of the plan: the runs of one plan do not make each other stale.
    """
    size = max(1, int(run.size_bytes * ratio))
    if size >= run.size_bytes:
        return tree, False
    sources = [node.span_id for node in run.sources]
    command = compact(f"c{tree.revision}", *sources, summary="s" * size, planned_epoch=epoch)
    decision = decided(tree, command, pins)
    assert isinstance(decision, Commit), decision
    after = apply(tree, decision.record)
    assert after.view_bytes < tree.view_bytes
    assert run.level == after.nodes[f"l{run.level}:c{tree.revision}"].level
    return after, True


@given(contexts(), st.integers(0, 400), POLICIES)
def test_a_plan_is_a_function_of_what_it_is_given(
    context: tuple[ContextTree, Pins], budget_bytes: int, policy: Policy
) -> None:
    """C59: the same tree, the same plan; so a caller that does nothing about it cannot be led in a circle."""
    tree, pins = context
    how: dict[str, Any] = {"pins": pins}

    assert plan(tree, budget_bytes, policy, **how) == plan(tree, budget_bytes, policy, **how)


@given(st.lists(st.integers(1, 40), min_size=30, max_size=60), st.integers(2, 5))
def test_levels_fan_in(sizes: list[int], fan_in: int) -> None:
    """Leaves to L1, those to L2, and on, until one summary of all is left that cannot shrink or is alone."""
    spans = [leaf(None, "x" * (20 + size)) for size in sizes]
    tree = grown(ContextTree.empty(CONTEXT), append("fill", *spans))
    policy = Policy(fan_in=fan_in, keep_tail_bytes=0, keep_tail_spans=0, min_run_bytes=0)
    levels = []
    while (planned := plan(tree, 0, policy)).status is PlanStatus.PLANNED:
        levels.append(planned.runs[0].level)
        for run in planned.runs:
            tree, shrunk = summarised(tree, run, planned.epoch, {}, 0.5)
            assert shrunk

    assert levels == sorted(levels), "leaves before summaries"
    assert list(range(1, len(levels) + 1)) == sorted(set(levels))
    assert PlanStatus.IRREDUCIBLE is planned.status
    below = [node.span_id for span_id in view_ids(tree) for node in tree.leaves(span_id)]
    assert [f"l0:fill-{i}" for i in range(len(sizes))] == below, "every leaf is under what is left, in order"
