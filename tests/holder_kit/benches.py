"""Where the contract of a transport is tested: in memory, and over NATS with a worker behind it."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from sexton.holder import NatsTransport
from sexton.holder.ports import Transport
from sexton.holder.testing import MemoryService, MemoryTransport
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.worker_kit.service import settings


@dataclass(frozen=True)
class Bench:
    """A service, and as many transports to it as a test wants."""

    transport: Callable[[], Transport]
    """A new one, not opened."""
    stop_workers: Callable[[], Awaitable[None]]
    """From here on nobody answers; commands are stored all the same."""


@asynccontextmanager
async def memory_bench() -> AsyncIterator[Bench]:
    """A service in memory."""
    service = MemoryService(summarise=lambda texts, level: f"{level.value}:{len(texts)}")
    made: list[MemoryTransport] = []

    def transport() -> Transport:
        made.append(MemoryTransport(service))
        return made[-1]

    async def stop_workers() -> None:
        for one in made:
            one.stop_workers()

    yield Bench(transport, stop_workers)


@asynccontextmanager
async def nats_bench(servers: EmbeddedServers) -> AsyncIterator[Bench]:
    """Real servers, and a worker in this process."""
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(Worker(settings(servers)))

        def transport() -> Transport:
            return NatsTransport.to(servers.nats_url)

        yield Bench(transport, stack.aclose)
