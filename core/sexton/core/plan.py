"""Chooses what to compact so that the view fits a byte budget.

The view is cut into *units*, which go together or not at all: a lone span, or everything from the first to
the last member of a group (calls and results are paired by id; what stands between them goes along).
Units that may not go are walls: the fresh tail, open groups, immovable pins, the top level. Between walls,
neighbouring units of one level are gathered into runs of at most `fan_in` spans. Leaves go before
summaries, old before new. If nothing may go and the view is still too large, the plan says `irreducible`
and counts what stays and why; it never proposes the same thing again in hope.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sexton.core.pins import NO_PINS, Pins
from sexton.core.tree import ContextTree, Node
from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import TOP_LEVEL, Level
from sexton.schemas.leases import PinCost
from sexton.schemas.limits import MAX_SOURCES

_MIN_FAN_IN: Final = 2


class Kept(StrEnum):
    """Why a span stays as it is."""

    FRESH = "fresh"
    OPEN = "open"
    IMMOVABLE = "immovable"
    TOP_LEVEL = "top_level"
    ALONE = "alone"
    """A summary without a neighbour of its level, or a leaf too small to be worth one."""
    MIXED = "mixed"
    """In a group that reaches around a span of another level."""
    TOO_MANY = "too_many"
    """In a group with more members than one compaction may take."""
    REFUSED = "refused"
    """The caller said that compacting it did not work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How to compact.

    Raises:
        InvalidInput: a bound that no plan could keep.
    """

    fan_in: int = 16
    """Spans per summary, as far as groups allow."""
    keep_tail_bytes: int = 16 * 1024
    """The newest spans up to this size stay verbatim."""
    keep_tail_spans: int = 4
    """At least this many of the newest spans stay verbatim."""
    min_run_bytes: int = 512
    """Less than this is not worth a summary."""
    expected_ratio: float = 0.25
    """Size of a summary over that of its sources, for estimating how many runs a budget needs."""

    def __post_init__(self) -> None:
        if not _MIN_FAN_IN <= self.fan_in <= MAX_SOURCES:
            raise InvalidInput(
                f"fan_in is {self.fan_in}, must be {_MIN_FAN_IN} to {MAX_SOURCES}", field="fan_in"
            )
        if not 0 < self.expected_ratio < 1:
            raise InvalidInput("expected_ratio must lie between 0 and 1", field="expected_ratio")
        if min(self.keep_tail_bytes, self.keep_tail_spans, self.min_run_bytes) < 0:
            raise InvalidInput("sizes and counts must not be negative", field="policy")


@dataclass(frozen=True, slots=True)
class Run:
    """One proposed compaction."""

    sources: tuple[Node, ...]

    @property
    def level(self) -> Level:
        """Of the summary."""
        return Level(self.sources[0].level + 1)

    @property
    def size_bytes(self) -> int:
        """Of the sources together."""
        return sum(node.size_bytes for node in self.sources)


class PlanStatus(StrEnum):
    """What there is to do."""

    WITHIN_BUDGET = "within_budget"
    PLANNED = "planned"
    IRREDUCIBLE = "irreducible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Disjoint runs to compact, oldest first, all planned on one epoch."""

    status: PlanStatus
    runs: tuple[Run, ...] = ()
    view_bytes: int
    budget_bytes: int
    epoch: int
    kept: Mapping[Kept, int] = field(default_factory=dict)
    """Spans that stay, by reason."""


def plan(
    tree: ContextTree,
    budget_bytes: int,
    policy: Policy | None = None,
    *,
    pins: Pins = NO_PINS,
    refused: AbstractSet[str] = frozenset(),
) -> Plan:
    """Runs whose compaction should bring the view within `budget_bytes`. Costs one walk of the view.

    All runs of a plan are of one level, so that what comes of them can be rolled up by the next plan.

    Args:
        tree: the context.
        budget_bytes: what the view may have.
        policy: how to compact.
        pins: live pins; an immovable one keeps its span.
        refused: span ids whose compaction was tried and did not work.
    """
    if budget_bytes < 0:
        raise InvalidInput("budget_bytes must not be negative", field="budget_bytes")
    policy = policy if policy is not None else Policy()
    if tree.view_bytes <= budget_bytes:
        return _plan(tree, PlanStatus.WITHIN_BUDGET, budget_bytes)
    view = list(tree.view())
    reasons = _walls(tree, view, policy, pins, refused)
    kept = Counter(reasons.values())
    runs: list[Run] = []
    for segment in _segments(view, reasons):
        for nodes in _runs(tree, segment, policy):
            if _worth_it(nodes, policy):
                runs.append(Run(tuple(nodes)))
            else:
                kept[Kept.ALONE] += len(nodes)
    if not runs:
        return _plan(tree, PlanStatus.IRREDUCIBLE, budget_bytes, kept=kept)
    lowest = min(run.level for run in runs)
    chosen: list[Run] = []
    excess = tree.view_bytes - budget_bytes
    for run in runs:
        if run.level is lowest and excess > 0:
            chosen.append(run)
            excess -= int(run.size_bytes * (1 - policy.expected_ratio))
    return _plan(tree, PlanStatus.PLANNED, budget_bytes, runs=chosen, kept=kept)


def _plan(
    tree: ContextTree,
    status: PlanStatus,
    budget_bytes: int,
    *,
    runs: Sequence[Run] = (),
    kept: Mapping[Kept, int] | None = None,
) -> Plan:
    return Plan(
        status=status,
        runs=tuple(runs),
        view_bytes=tree.view_bytes,
        budget_bytes=budget_bytes,
        epoch=tree.epoch,
        kept=dict(kept or {}),
    )


_Unit = list[Node]


def _walls(
    tree: ContextTree, view: Sequence[Node], policy: Policy, pins: Pins, refused: AbstractSet[str]
) -> dict[str, Kept]:
    """Spans that may not go, with the reason. A wall inside a group makes a wall of all of it."""
    reasons = {
        node.span_id: reason for node in view if (reason := _own_wall(tree, node, pins, refused)) is not None
    }
    size = 0
    for count, node in enumerate(reversed(view)):
        size += node.size_bytes
        if count >= policy.keep_tail_spans and size > policy.keep_tail_bytes:
            break
        reasons.setdefault(node.span_id, Kept.FRESH)
    for unit in _units(tree, view):
        reason = next((reasons[node.span_id] for node in unit if node.span_id in reasons), None)
        if reason is None and any(node.level is not unit[0].level for node in unit):
            reason = Kept.MIXED
        if reason is None and len(unit) > MAX_SOURCES:
            reason = Kept.TOO_MANY
        if reason is not None:
            for node in unit:
                reasons.setdefault(node.span_id, reason)
    return reasons


def _own_wall(tree: ContextTree, node: Node, pins: Pins, refused: AbstractSet[str]) -> Kept | None:
    group = _group(tree, node)
    if group is not None and tree.groups[group].open:
        return Kept.OPEN
    if pins.get((node.span_id, node.version)) is PinCost.IMMOVABLE:
        return Kept.IMMOVABLE
    if node.level is TOP_LEVEL:
        return Kept.TOP_LEVEL
    return Kept.REFUSED if node.span_id in refused else None


def _units(tree: ContextTree, view: Sequence[Node]) -> Iterator[_Unit]:
    """The view cut where no group reaches across. Groups that interleave make one unit."""
    last_of = {group: i for i, node in enumerate(view) if (group := _group(tree, node)) is not None}
    unit: _Unit = []
    reach = -1
    for i, node in enumerate(view):
        unit.append(node)
        group = _group(tree, node)
        reach = max(reach, i if group is None else last_of[group])
        if i == reach:
            yield unit
            unit = []


def _segments(view: Sequence[Node], walls: Mapping[str, Kept]) -> Iterator[list[Node]]:
    """Neighbours of one level between walls."""
    segment: list[Node] = []
    for node in view:
        if node.span_id in walls or (segment and segment[-1].level is not node.level):
            if segment:
                yield segment
            segment = []
        if node.span_id not in walls:
            segment.append(node)
    if segment:
        yield segment


def _runs(tree: ContextTree, segment: Sequence[Node], policy: Policy) -> Iterator[list[Node]]:
    """Whole units gathered up to `fan_in` spans, and on while they are too small to be worth it."""
    run: list[Node] = []
    size = 0
    for unit in _units(tree, segment):
        full = len(run) + len(unit) > policy.fan_in and size >= policy.min_run_bytes
        if run and (full or len(run) + len(unit) > MAX_SOURCES):
            yield run
            run, size = [], 0
        run.extend(unit)
        size += sum(node.size_bytes for node in unit)
    if run:
        yield run


def _worth_it(run: Sequence[Node], policy: Policy) -> bool:
    enough = len(run) >= _MIN_FAN_IN or run[0].level.verbatim
    return enough and sum(node.size_bytes for node in run) >= policy.min_run_bytes


def _group(tree: ContextTree, node: Node) -> str | None:
    """The group that ties a span to others in the view, if any."""
    name = node.labels.group if node.level.verbatim else None
    return name if name is not None and name in tree.groups else None
