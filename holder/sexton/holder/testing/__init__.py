"""For tests of what embeds a holder: a service and a transport in memory, and a clock that is told the time.

The service keeps the whole contract, through the same core as the real one. The transport can lose, delay,
double and reorder whatever passes over it, and pass the contract tests that NATS passes::

    service = MemoryService()
    transport = MemoryTransport(service)
    async with Holder(transport) as holder:
        notes = await holder.open("notes")
        transport.bumps.lose()
        await notes.append("still seen: it is asked for")
"""

from sexton.holder.testing.channel import Channel
from sexton.holder.testing.clock import ManualClock, NothingToWaitFor
from sexton.holder.testing.service import MemoryService
from sexton.holder.testing.transport import MemoryTransport

__all__ = ["Channel", "ManualClock", "MemoryService", "MemoryTransport", "NothingToWaitFor"]
