"""What the tests of the holder share: one holder over the service in memory, on a clock that stands still."""

from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from sexton.holder import Context, Holder, HolderSettings
from sexton.holder.testing import ManualClock, MemoryService, MemoryTransport

T = TypeVar("T")

CONTEXT = "notes"
LEAVES = ("Ship on Friday.", "Tell Ada. ", "Größe: 12 €.", "The end.")


@dataclass
class Rig:
    """One holder with one context open, and everything around it."""

    clock: ManualClock
    service: MemoryService
    transport: MemoryTransport
    holder: Holder
    context: Context
    others: list[Holder] = field(default_factory=list)

    async def run(self, work: Awaitable[T]) -> T:
        """Does `work`, letting time pass as needed."""
        return await self.clock.run(work)

    async def another(self, **settings: Any) -> tuple[MemoryTransport, Context]:
        """A second holder on the same service, with the same context open."""
        transport = MemoryTransport(self.service, clock=self.clock)
        holder = Holder(transport, clock=self.clock, settings=make_settings(**settings))
        await holder.__aenter__()
        self.others.append(holder)
        return transport, await self.run(holder.open(CONTEXT))

    async def leaf(self, text: str = "Ship on Friday.") -> str:
        """Appends a leaf through this holder. Gives its id."""
        return (await self.run(self.context.append(text))).spans[0].span_id

    async def leaves(self, *texts: str) -> list[str]:
        """Appends several."""
        return [await self.leaf(text) for text in texts or LEAVES]


def make_settings(**changes: Any) -> HolderSettings:
    """Settings without jitter, so that times can be named."""
    return HolderSettings(**{"sync_jitter": 0.0, **changes})


@asynccontextmanager
async def rig(
    *, service: MemoryService | None = None, context_id: str = CONTEXT, **settings: Any
) -> AsyncIterator[Rig]:
    """A holder that follows one context."""
    clock = ManualClock()
    service = service if service is not None else MemoryService()
    service.monotonic = clock.monotonic
    transport = MemoryTransport(service, clock=clock)
    holder = Holder(transport, clock=clock, settings=make_settings(**settings))
    await holder.__aenter__()
    made = Rig(clock, service, transport, holder, await clock.run(holder.open(context_id)))
    try:
        yield made
    finally:
        for one in (holder, *made.others):
            await clock.run(one.close())
