"""Sweeps, again and again: which contexts, one worker at a time per shard.

The index of contexts that may have tombstones lives in the registry and may be lost with it. It is a
superset: a context is noted before a record that makes a tombstone is committed, and dropped only when a
sweep has found none for a while. When the registry has lost it, all contexts of the log are noted again.
"""

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

from sexton.schemas.errors import SextonError, Unavailable
from sexton.worker import metrics
from sexton.worker.census import TOMBSTONES, Tally
from sexton.worker.collect import Collector
from sexton.worker.contexts import Contexts
from sexton.worker.orphans import OrphanSweep
from sexton.worker.ports import Log, SweepIndex
from sexton.worker.shards import ORPHAN_LANE, SHARDS
from sexton.worker.stuck import StuckWatch

log: Final = structlog.get_logger("sexton.sweeper")

_PER_TURN: Final = 500


class Sweeper:
    """Runs the collector over all contexts that may have tombstones."""

    def __init__(
        self,
        index: SweepIndex,
        log_store: Log,
        collector: Collector,
        *,
        interval_s: float,
        lock_s: float,
        new_token: Callable[[], str],
        contexts: Contexts | None = None,
        stuck: StuckWatch | None = None,
        tally: Tally | None = None,
    ) -> None:
        self._index = index
        self._log = log_store
        self._collector = collector
        self._interval_s = interval_s
        self._lock_s = lock_s
        self._token = new_token()
        self._contexts = contexts
        self._stuck = stuck
        self._tally = tally

    async def run(self) -> None:
        """Sweeps until it is cancelled. A fault is logged, and the next turn begins anew."""
        while not _cancelled():
            await asyncio.sleep(self._interval_s)
            try:
                await self.turn()
            except Unavailable as e:
                log.warning("sweeper.turn_failed", reason=e.message)
            except Exception:
                log.exception("sweeper.turn_failed")

    async def run_orphans(self, sweep: OrphanSweep, interval_s: float) -> None:
        """Sweeps for orphans, rarely, one worker at a time, until it is cancelled."""
        while not _cancelled():
            await asyncio.sleep(interval_s)
            try:
                if await self._index.lock(ORPHAN_LANE, self._token, interval_s / 2):
                    report = await sweep.run()
                    metrics.ORPHAN_BYTES.inc(report.freed_bytes)
                    log.info("sweeper.orphans", deleted=report.deleted, freed_bytes=report.freed_bytes)
            except Unavailable as e:
                log.warning("sweeper.orphans_failed", reason=e.message)
            except Exception:
                log.exception("sweeper.orphans_failed")

    async def turn(self) -> int:
        """Sweeps every shard that no other worker is sweeping; gives the number of contexts swept.

        Raises:
            Unavailable: the registry or the log did not answer.
        """
        if not await self._index.complete():
            await self._rebuild()
        swept = 0
        for shard in range(SHARDS):
            if not await self._index.lock(shard, self._token, self._lock_s):
                continue
            try:
                swept += await self._sweep_shard(shard)
            finally:
                await self._index.unlock(shard, self._token)
        return swept

    async def _sweep_shard(self, shard: int) -> int:
        swept = left = 0
        for context_id in await self._index.contexts(shard, _PER_TURN):
            left += await self._sweep(context_id)
            swept += 1
            if not await self._index.lock(shard, self._token, self._lock_s):
                return swept
        if self._tally is not None:
            await self._tally.put(shard, {TOMBSTONES: left})
        return swept

    async def _sweep(self, context_id: str) -> int:
        """Gives the number of tombstones that stay where they are, as far as that is known."""
        # One context that cannot be swept must not keep the others from it.
        waiting, left = True, 0
        held = self._contexts is None or self._contexts.holds(context_id)
        try:
            left = (await self._collector.sweep(context_id)).waiting
            waiting = left > 0
        except SextonError as e:
            log.warning("sweeper.context_failed", context_id=context_id, reason=e.message)
        except Exception:
            log.exception("sweeper.context_failed", context_id=context_id)
        if self._stuck is not None:
            await self._stuck.look(context_id)
        if waiting:
            # To the end of the line: contexts whose tombstones stay must not starve the others.
            await self._index.note([context_id])
        else:
            await self._index.drop(context_id)
            if self._contexts is not None and not held:
                # It was read for this alone. All contexts of a log must not push out those in use.
                self._contexts.cool(context_id)
        return left

    async def _rebuild(self) -> None:
        """The index is gone: note every context there is. Those without tombstones are dropped again."""
        count = 0
        async for batch in self._log.contexts():
            await self._index.note(batch)
            count += len(batch)
        await self._index.set_complete()
        log.info("sweeper.index_rebuilt", contexts=count)


def _cancelled() -> bool:
    """Whether this task was told to end: a library below may have swallowed that, as `asyncio.wait_for` of
    Python 3.11 does when what it waits for comes at the same moment.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
