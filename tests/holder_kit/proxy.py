"""A wire that can be cut: a TCP proxy in front of a server."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress


class Proxy:
    """Passes bytes between a client and a server until it is told not to."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        assert self._server is not None
        return f"nats://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stall(self) -> None:
        """Nothing passes any more, in either direction, and nobody is told."""
        self._open.clear()

    def mend(self) -> None:
        """Everything passes again, also what was held up."""
        self._open.set()

    def cut(self) -> None:
        """Ends all connections. New ones are taken, and wait if it is stalled."""
        for writer in list(self._writers):
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._open.wait()
        upstream, server = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers |= {writer, server}
        for source, sink in ((reader, server), (upstream, writer)):
            task = asyncio.create_task(self._pump(source, sink))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await source.read(65536):
                await self._open.wait()
                sink.write(data)
                await sink.drain()
        sink.close()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        assert self._server is not None
        self._server.close()


@asynccontextmanager
async def proxy(port: int) -> AsyncIterator[Proxy]:
    """A proxy in front of a local port."""
    made = Proxy(port)
    made._server = await asyncio.start_server(made._serve, "127.0.0.1", 0)
    try:
        yield made
    finally:
        await made.close()
