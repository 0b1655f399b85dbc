"""The two servers that Sexton needs, started and stopped together."""

import asyncio
from collections.abc import Awaitable, Iterable
from pathlib import Path
from typing import Final, Never, Self

from sexton.worker.embedded.nats_server import NatsServer
from sexton.worker.embedded.valkey_server import ValkeyServer

_WATCH_S: Final = 0.1


class EmbeddedServers:
    """NATS with JetStream and a Valkey, with their data under `data_dir/nats` and `data_dir/valkey`.

    Each can be stopped, killed or paused on its own through `nats` and `valkey`. Parameters: see `NatsServer`
    and `ValkeyServer`.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        nats_port: int | None = None,
        redis_port: int | None = None,
        max_payload_bytes: int = 1024 * 1024,
        sync_interval: str | None = None,
        appendonly: bool = False,
        ready_within_s: float = 10.0,
    ) -> None:
        self.nats = NatsServer(
            data_dir / "nats",
            port=nats_port,
            max_payload_bytes=max_payload_bytes,
            sync_interval=sync_interval,
            ready_within_s=ready_within_s,
        )
        self.valkey = ValkeyServer(
            data_dir / "valkey", port=redis_port, appendonly=appendonly, ready_within_s=ready_within_s
        )

    @property
    def nats_url(self) -> str:
        """URL for NATS clients."""
        return self.nats.url

    @property
    def redis_url(self) -> str:
        """URL for Redis clients."""
        return self.valkey.url

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start what does not run, both at once, and return when both answer.

        Raises what `EmbeddedServer.start` raises; then what this call has started is stopped again.
        """
        down = [server for server in (self.nats, self.valkey) if not server.running]
        try:
            await _all(server.start() for server in down)
        except BaseException:
            await _all(server.stop() for server in down)
            raise

    async def stop(self) -> None:
        """End both in order. Again is harmless."""
        await _all(server.stop() for server in (self.nats, self.valkey))

    async def watch(self) -> Never:
        """Run until cancelled; raise ServerExited once either has ended without having been told to."""
        while True:
            self.nats.check()
            self.valkey.check()
            await asyncio.sleep(_WATCH_S)


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """Run all to their end, also when one fails or this is cancelled; then raise the first error.

    Not a TaskGroup, which cancels the others and wraps the error in a group.
    """
    for result in await asyncio.gather(*steps, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result
