"""uvicorn beside a program: it takes no signals, logs nothing of its own, and ends when the program does."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Generator
from dataclasses import dataclass
from typing import Any, Final

import structlog
import uvicorn

from sexton.schemas.errors import InvalidInput

log: Final = structlog.get_logger("sexton.web")

_BACKLOG: Final = 128
_END_S: Final = 2
_MOST: Final = 100
"""Connections at once. Who comes beyond that is told 503."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where it is served."""

    host: str
    port: int

    @property
    def url(self) -> str:
        """For a person, or a probe."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Signals are for the program that this is a part of."""
        yield


@contextlib.asynccontextmanager
async def serving(app: Any, host: str, port: int) -> AsyncIterator[Endpoint]:
    """Serves an ASGI application for as long as the block runs. Port 0 takes any that is free.

    Raises:
        InvalidInput: the port is taken, or the address cannot be used.
    """
    listener = _listening(host, port)
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        ws="none",
        server_header=False,
        limit_concurrency=_MOST,
        timeout_graceful_shutdown=_END_S,
    )
    server = _Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="web.server")
    endpoint = Endpoint(host, listener.getsockname()[1])
    log.info("web.listening", host=host, port=endpoint.port)
    try:
        yield endpoint
    finally:
        server.should_exit = True
        await task


def _listening(host: str, port: int) -> socket.socket:
    """A socket that takes connections already: what is asked before the server turns is answered then."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise InvalidInput(
            f"SEXTON_HTTP_HOST: {host!a} is no address of this machine", field="http_host"
        ) from None
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except OSError as e:
        listener.close()
        raise InvalidInput(
            f"SEXTON_HTTP_PORT: cannot listen on {host}:{port}: {e.strerror}", field="http_port"
        ) from None
    return listener
