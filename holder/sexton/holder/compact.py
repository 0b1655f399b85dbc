"""Compacts a context down to a byte budget: the core plans, this carries out.

Each pass plans on the tree as it is by then. A run whose source has changed meanwhile is planned anew, a
bounded number of times. A run whose summary is no good is put aside, so that it is not tried for ever. If
nothing is left to do, that is an error with the reasons in it, and not a loop.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from sexton.core.check import check, mint
from sexton.core.plan import Plan, PlanStatus, Policy, Run, plan
from sexton.core.tree import ContextTree
from sexton.holder.commands import Commands
from sexton.holder.fetch import Fetcher
from sexton.holder.follow import Follower
from sexton.holder.lanes import in_lanes
from sexton.holder.results import CompactionReport
from sexton.schemas.codec import AnyCommand, AnyOutcome
from sexton.schemas.commands import SourceRef
from sexton.schemas.errors import CommandRejected, Irreducible, PointerResurrectionError, Unsettled
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed, Rejected, RejectionCode

Summarise = Callable[[Sequence[str], Level], Awaitable[str]]
"""Makes one summary of the texts, which come in the order of the view, at the level given."""

_MOVED: Final = frozenset(
    {
        RejectionCode.STALE_SOURCE,
        RejectionCode.ALREADY_COVERED,
        RejectionCode.COVERED,
        RejectionCode.PRUNED,
        RejectionCode.NOT_CONTIGUOUS,
        RejectionCode.MIXED_LEVEL,
        RejectionCode.SPLITS_GROUP,
        RejectionCode.OPEN_GROUP,
    }
)
"""The context changed between plan and commit: plan again."""

_NO_GOOD: Final = frozenset(
    {
        RejectionCode.NOT_SMALLER,
        RejectionCode.EMPTY_SUMMARY,
        RejectionCode.SUMMARY_FAILED,
        RejectionCode.TOO_LARGE,
        RejectionCode.IMMOVABLE,
    }
)
"""These sources cannot be compacted as things are: leave them."""


class Compaction:
    """One call of `compact_to`."""

    def __init__(
        self,
        follower: Follower,
        fetcher: Fetcher,
        commands: Commands,
        submit: Callable[[AnyCommand], Awaitable[AnyOutcome]],
        *,
        summarise: Summarise | None,
        lanes: int,
    ) -> None:
        self._follower = follower
        self._fetcher = fetcher
        self._commands = commands
        self._submit = submit
        self._summarise = summarise
        self._lanes = lanes
        self._refused: set[str] = set()
        self._committed: list[Committed] = []
        self._rejected: Counter[RejectionCode] = Counter()

    async def to(
        self, budget_bytes: int, policy: Policy | None, *, max_passes: int, moved_passes: int
    ) -> CompactionReport:
        """Compacts until the view fits. See `Context.compact_to`."""
        began = await self._follower.confirmed()
        idle = passes = 0
        while True:
            tree = await self._follower.confirmed()
            planned = plan(tree, budget_bytes, policy, refused=self._refused)
            if planned.status is not PlanStatus.PLANNED or passes == max_passes or idle > moved_passes:
                return self._ended(planned, self._report(began, tree, planned, passes))
            passes += 1
            done = len(self._committed), len(self._refused)
            await in_lanes(planned.runs, partial(self._run, tree), self._lanes)
            idle = idle + 1 if done == (len(self._committed), len(self._refused)) else 0

    def _ended(self, planned: Plan, report: CompactionReport) -> CompactionReport:
        if planned.status is PlanStatus.WITHIN_BUDGET:
            return report
        sizes = f"the view has {planned.view_bytes} bytes, the budget is {planned.budget_bytes}"
        about = {"view_bytes": planned.view_bytes, "budget_bytes": planned.budget_bytes, "report": report}
        if planned.status is PlanStatus.IRREDUCIBLE:
            kept = {reason.value: count for reason, count in planned.kept.items()}
            raise Irreducible(f"{sizes}, and nothing more can be compacted: {kept}", kept=kept, **about)
        met = {code.value: count for code, count in report.rejected.items()}
        raise Unsettled(f"{sizes}, after {report.passes} passes that met {met or 'no rejection'}", **about)

    def _report(self, began: ContextTree, tree: ContextTree, planned: Plan, passes: int) -> CompactionReport:
        return CompactionReport(
            budget_bytes=planned.budget_bytes,
            size_before_bytes=began.view_bytes,
            size_after_bytes=tree.view_bytes,
            epoch_before=began.epoch,
            epoch_after=tree.epoch,
            passes=passes,
            committed=tuple(self._committed),
            rejected=dict(self._rejected),
            kept=dict(planned.kept),
        )

    async def _run(self, tree: ContextTree, run: Run) -> None:
        try:
            summary = await self._summary(tree, run)
        except PointerResurrectionError:
            self._rejected[RejectionCode.STALE_SOURCE] += 1
            await self._follower.sync()
            return
        sources = [SourceRef(span_id=node.span_id, version=node.version) for node in run.sources]
        outcome = await self._submit(self._commands.compact(sources, summary))
        match outcome:
            case Committed():
                self._committed.append(outcome)
            case Rejected(code=code) if code in _MOVED:
                self._rejected[code] += 1
            case Rejected(code=code) if code in _NO_GOOD:
                self._rejected[code] += 1
                # A pin names the spans it holds; the others of the run are free to go.
                named = [span.span_id for span in outcome.spans] if code is RejectionCode.IMMOVABLE else []
                self._refused.update(named or [node.span_id for node in run.sources])
            case Rejected():
                raise CommandRejected(f"{outcome.code.value}: {outcome.message}", outcome=outcome)

    async def _summary(self, planned_on: ContextTree, run: Run) -> str | None:
        """The caller's summary of exactly the planned versions; None if the service is to make one."""
        if self._summarise is None:
            return None
        texts = []
        for node in run.sources:
            verdict = check(mint(planned_on, node.span_id), self._follower.tree)
            piece = await self._fetcher.part(verdict)
            texts.append(piece.data.decode())
        return await self._summarise(texts, run.level)
