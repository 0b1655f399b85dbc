"""The collector: takes tombstones through mark, quiet, announce, check again, condemn, delete, record.

When a step may be taken is `sexton.core.sweep`'s; what a step commits is `sexton.core.collection`'s. This
module does the I/O between them, in the order that makes it safe: **the log is written first, and the
registry read after**. It may die between any two steps, and may run beside another one: a step that the
log no longer allows is simply not taken.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from sexton.core import collection
from sexton.core.collection import Version
from sexton.core.sweep import Observation, Step, SweepRules, judge_stone, still_free
from sexton.core.tree import ContextTree, Tombstone
from sexton.schemas.errors import Unavailable
from sexton.schemas.records import CollectAborted, Collected, Collecting, Condemned
from sexton.schemas.span import SpanState
from sexton.worker import metrics
from sexton.worker.contexts import Contexts
from sexton.worker.ports import ColdStore, HotStore, Log, LostRaceError, Registry

log: Final = structlog.get_logger("sexton.collect")

BATCH: Final = 256
"""Tombstones that share a record, and one look at the registry."""

_PARALLEL_DELETES: Final = 16
_RACES: Final = 8

R = TypeVar("R", Collecting, CollectAborted, Condemned, Collected)
Plan = Callable[[ContextTree], R | None]


@dataclass(frozen=True, slots=True)
class StoneReport:
    """What a sweep makes of one tombstone."""

    version: Version
    stone: Tombstone
    step: Step
    seen: Observation


@dataclass(slots=True)
class SweepReport:
    """What a sweep of one context did."""

    context_id: str
    stones: list[StoneReport] = field(default_factory=list)
    collected: int = 0
    freed_bytes: int = 0
    called_off: int = 0
    failed: list[tuple[str, int, str]] = field(default_factory=list)
    """Condemned versions whose bytes could not be deleted, and why."""

    @property
    def waiting(self) -> int:
        """Tombstones that are still there."""
        return len(self.stones) - self.collected


class Collector:
    """Sweeps contexts."""

    def __init__(
        self,
        log_store: Log,
        cold: ColdStore,
        hot: HotStore,
        registry: Registry,
        contexts: Contexts,
        *,
        rules: SweepRules,
        new_attempt: Callable[[], str],
    ) -> None:
        self._log = log_store
        self._cold = cold
        self._hot = hot
        self._registry = registry
        self._contexts = contexts
        self._rules = rules
        self._new_attempt = new_attempt

    async def report(self, context_id: str) -> SweepReport:
        """What a sweep would do with each tombstone now. Changes nothing. Raises `Unavailable`."""
        known = await self._contexts.refresh(context_id)
        report = SweepReport(context_id)
        for versions in _batches(known.tree):
            report.stones += await self._judged(known.tree, versions, mark=False)
        return report

    async def sweep(self, context_id: str) -> SweepReport:
        """One sweep of one context. Costs in proportion to its tombstones.

        Raises:
            Unavailable: a store, the registry or the log did not answer. What was begun is picked up by the
                next sweep.
        """
        known = await self._contexts.refresh(context_id)
        report = SweepReport(context_id)
        try:
            for versions in _batches(known.tree):
                judged = await self._judged(known.tree, versions, mark=True)
                report.stones += judged
                await self._call_off_left_over(context_id, _stepping(judged, Step.CALL_OFF), report)
                await self._finish(context_id, _stepping(judged, Step.FINISH), report)
                await self._collect(context_id, judged, report)
        finally:
            # What was collected before a fault counts too: no later sweep comes upon it again.
            metrics.SWEEPS.inc()
            metrics.COLLECTED.inc(report.collected)
            metrics.FREED_BYTES.inc(report.freed_bytes)
            metrics.CALLED_OFF.inc(report.called_off)
        if report.collected or report.called_off:
            log.info(
                "collect.swept",
                context_id=context_id,
                collected=report.collected,
                freed_bytes=report.freed_bytes,
                called_off=report.called_off,
                waiting=report.waiting,
            )
        if report.failed:
            # After all that could be done was done: one blob that cannot be deleted must not stop the others.
            span_id, version, why = report.failed[0]
            raise Unavailable(
                f"{len(report.failed)} condemned versions could not be deleted, the first of them "
                f"{span_id} version {version}: {why}",
                operation="cold.delete",
            )
        return report

    async def _judged(
        self, tree: ContextTree, versions: Sequence[Version], *, mark: bool
    ) -> list[StoneReport]:
        seen = await self._registry.observe(tree.context_id, versions, mark=mark)
        return [
            StoneReport(v, stone, judge_stone(v, stone, seen, self._rules), seen)
            for v in versions
            if (stone := tree.tombstones.get(v)) is not None
        ]

    async def _collect(self, context_id: str, judged: list[StoneReport], report: SweepReport) -> None:
        ready = _stepping(judged, Step.ANNOUNCE)
        if not ready:
            return
        marked_in = judged[0].seen.generation
        attempt = self._new_attempt()
        announced = await self._commit(context_id, lambda tree: collection.announce(tree, ready, attempt))
        if announced is None:
            return
        # From here on no pin is granted. Whoever was granted one before is in the registry by now.
        seen = await self._registry.observe(context_id, ready, mark=False)
        free = [version for version in ready if still_free(version, marked_in, seen)]
        held = [version for version in ready if version not in set(free)]
        if held:
            done = await self._commit(context_id, _calling_off(held, attempt))
            report.called_off += len(done.versions) if done is not None else 0
        if not free:
            return
        condemned = await self._commit(context_id, lambda tree: collection.condemn(tree, free, attempt))
        if condemned is not None:
            await self._finish(context_id, free, report)

    async def _call_off_left_over(self, context_id: str, pinned: list[Version], report: SweepReport) -> None:
        """A collector that died had announced these, and a live holder needs them."""
        if not pinned:
            return
        known = await self._contexts.get(context_id)
        wanted = set(pinned)
        for attempt, versions in collection.left_over(known.tree).items():
            ours = [version for version in versions if version in wanted]
            done = await self._commit(context_id, _calling_off(ours, attempt)) if ours else None
            report.called_off += len(done.versions) if done is not None else 0

    async def _finish(self, context_id: str, versions: list[Version], report: SweepReport) -> None:
        """Deletes the bytes of condemned versions, then records that they are gone."""
        if not versions:
            return
        known = await self._contexts.get(context_id)
        stones = [
            stone
            for version in versions
            if (stone := known.tree.tombstones.get(version)) is not None
            and stone.state is SpanState.CONDEMNED
        ]
        gone: list[Tombstone] = []
        for start in range(0, len(stones), _PARALLEL_DELETES):
            batch = stones[start : start + _PARALLEL_DELETES]
            results = await asyncio.gather(
                *(self._cold.delete(context_id, stone.identity) for stone in batch), return_exceptions=True
            )
            gone += [stone for stone, error in zip(batch, results, strict=True) if error is None]
            for stone, error in zip(batch, results, strict=True):
                if error is None:
                    continue
                if not isinstance(error, Unavailable):
                    raise error
                report.failed.append((stone.identity.span_id, stone.identity.version, error.message))
            if all(results):
                # Not a blob but the store: the others would only wait for it one after the other.
                break
        if not gone:
            return
        await self._hot.drop(context_id, [stone.identity for stone in gone])
        # These and no others: what is recorded as collected must have been deleted.
        deleted = [(stone.identity.span_id, stone.identity.version) for stone in gone]
        attempt = self._new_attempt()
        done = await self._commit(context_id, lambda tree: collection.finish(tree, deleted, attempt))
        if done is not None:
            report.collected += len(done.versions)
            report.freed_bytes += done.size_freed_bytes
            await self._registry.unmark(context_id, deleted)

    async def _commit(self, context_id: str, plan: Plan[R]) -> R | None:
        """Commits what `plan` says on the head; None if it says that there is nothing to do any more."""
        known = await self._contexts.get(context_id)
        for _ in range(_RACES):
            record = plan(known.tree)
            if record is None:
                # A tree that lags may not show yet what this step builds on.
                fresh = await self._contexts.refresh(context_id)
                if fresh.sequence == known.sequence:
                    return None
                known = fresh
                continue
            data = record.wire()
            try:
                sequence = await self._log.append(context_id, data, known.sequence)
            except LostRaceError:
                fresh = await self._contexts.refresh(context_id)
                # No answer may have come to a record that was committed: then this step is taken.
                async for entry in self._log.read(context_id, known.sequence, fresh.sequence):
                    if entry.data == data:
                        return record
                known = fresh
                continue
            self._contexts.committed(known, record, data, sequence)
            return record
        raise Unavailable(f"lost {_RACES} races for a collector's record", context_id=context_id)


def _calling_off(versions: Sequence[Version], attempt: str) -> Plan[CollectAborted]:
    return lambda tree: collection.call_off(tree, versions, attempt)


def _stepping(judged: Sequence[StoneReport], step: Step) -> list[Version]:
    return [stone.version for stone in judged if stone.step is step]


def _batches(tree: ContextTree) -> list[list[Version]]:
    versions = sorted(tree.tombstones.keys())
    return [versions[start : start + BATCH] for start in range(0, len(versions), BATCH)]
