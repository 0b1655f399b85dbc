"""How many leases, pins and tombstones there are, over all workers, without counting on anybody's way.

The workers share the counting as they share the sweeps: one of them at a time looks at a shard, and leaves
what it found in the registry. So each worker can tell the sum, and all tell the same. The counts are for
people to look at: nothing rests on them.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import structlog

from sexton.schemas.errors import Unavailable
from sexton.schemas.leases import LeaseInfo
from sexton.worker.cancelling import cancelled
from sexton.worker.ports import Registry, SweepIndex
from sexton.worker.shards import SHARDS

log: Final = structlog.get_logger("sexton.census")

LEASES: Final = "leases"
PINS: Final = "pins"
TOMBSTONES: Final = "tombstones"

PER_SHARD: Final = 2000
"""Contexts with leases that a turn looks at, at most."""

_AT_ONCE: Final = 16
_LOCK_S: Final = 30.0


class Tally(Protocol):
    """Where the counts are left. Every method raises `Unavailable`."""

    async def put(self, shard: int, counts: Mapping[str, int]) -> None:
        """What was counted of a shard, by name."""
        ...

    async def totals(self) -> Mapping[str, int]:
        """The sums over all shards. What was never counted is missing."""
        ...


class Census:
    """Counts leases and pins. `index` holds the contexts that may have any, and is not the sweeper's."""

    def __init__(
        self, index: SweepIndex, registry: Registry, tally: Tally, *, new_token: Callable[[], str]
    ) -> None:
        self._index = index
        self._registry = registry
        self._tally = tally
        self._token = new_token()

    async def note(self, context_id: str) -> None:
        """A lease has begun here. Never raises: a lease is worth more than a count."""
        try:
            await self._index.note([context_id])
        except Unavailable as e:
            log.warning("census.not_noted", reason=e.message)

    async def run(self, interval_s: float) -> None:
        """Counts again and again, until it is cancelled."""
        while not cancelled():
            await asyncio.sleep(interval_s)
            try:
                await self.turn()
            except Unavailable as e:
                log.warning("census.turn_failed", reason=e.message)
            except Exception:
                log.exception("census.turn_failed")

    async def turn(self) -> None:
        """Counts every shard that no other worker is counting. Raises `Unavailable`."""
        for shard in range(SHARDS):
            if not await self._index.lock(shard, self._token, _LOCK_S):
                continue
            try:
                await self._count(shard)
            finally:
                await self._index.unlock(shard, self._token)

    async def _count(self, shard: int) -> None:
        leases = pins = 0
        contexts = await self._index.contexts(shard, PER_SHARD)
        for start in range(0, len(contexts), _AT_ONCE):
            batch = contexts[start : start + _AT_ONCE]
            for context_id, good in zip(batch, await self._good(batch), strict=True):
                leases += len(good)
                pins += sum(lease.pins for lease in good)
                if not good:
                    await self._index.drop(context_id)
        await self._tally.put(shard, {LEASES: leases, PINS: pins})

    async def _good(self, context_ids: Sequence[str]) -> list[list[LeaseInfo]]:
        found = await asyncio.gather(*(self._registry.holders(context_id) for context_id in context_ids))
        return [[lease for lease in leases if lease.expires_in_ms > 0] for leases in found]
