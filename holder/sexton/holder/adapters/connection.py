"""The NATS connection of a holder: its own, which comes back whatever happens, or one that it was given.

nats-py reconnects by itself after an outage. It gives up for good on most errors that a server spells out
(a user whose authentication expired, too many connections), and then a connection of our own is made anew.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from sexton.holder.ports import ConnectionEvent, EventHandler
from sexton.holder.tasks import Tasks
from sexton.schemas.errors import Unavailable

CLOSE_S: Final = 2.0
"""For an orderly end; a frozen server must not hold up the program's."""

_POLL_S: Final = 0.25
"""How often a given connection is looked at: its callbacks belong to whoever made it."""

_RECONNECT_S: Final = 1

Attach = Callable[[Client], Awaitable[None]]
"""Is called with each new connection, and makes all subscriptions on it."""


class Connection:
    """A connection that is watched. `client` is the one in use; it changes if it had to be made anew."""

    def __init__(self, attach: Attach, tell: EventHandler, log: Any) -> None:
        self._attach = attach
        self._tell = tell
        self._log = log
        self._client: Client | None = None
        self._make: Callable[[], Awaitable[Client]] | None = None
        self._tasks = Tasks(log)
        self._changed = asyncio.Event()
        self._usable = asyncio.Event()
        self._closed = False
        self._last_error = "none"

    @property
    def client(self) -> Client:
        """The client, connected. Raises `Unavailable` if it is not."""
        if self._client is None or not self._client.is_connected:
            raise Unavailable(f"no connection to NATS; last error: {self._last_error}")
        return self._client

    @property
    def closed(self) -> bool:
        """Whether it was closed, or a given connection was."""
        return self._closed

    async def use(self, client: Client) -> None:
        """Uses a connection that belongs to the caller. Raises `Unavailable` if it is not connected."""
        if not client.is_connected:
            raise Unavailable("the given connection is not connected")
        await self._begin(client)

    async def open(self, servers: str | Sequence[str], timeout_s: float, options: dict[str, Any]) -> None:
        """Connects. Raises `Unavailable` if that does not succeed within the time."""

        async def make() -> Client:
            client = Client()
            try:
                await client.connect(
                    servers=servers if isinstance(servers, str) else list(servers),
                    **{**self._defaults(), **options, **self._callbacks()},
                )
            except BaseException:
                await _end(client)
                raise
            return client

        self._make = make
        try:
            async with asyncio.timeout(timeout_s):
                await self._begin(await make())
        except (TimeoutError, OSError, NatsError) as e:
            raise Unavailable(
                f"no connection to NATS within {timeout_s:g} s; last error: {self._last_error}"
            ) from e

    async def close(self) -> None:
        """Ends a connection of our own. Does not raise and does not hang."""
        self._end_waiting()
        await self._tasks.close()
        client, self._client = self._client, None
        if client is not None and self._make is not None:
            await _end(client)

    async def ready(self) -> None:
        """Waits until it is connected. Raises `Unavailable` if it was closed."""
        while not self._closed:
            if self._client is not None and self._client.is_connected:
                return
            self._usable.clear()
            self._changed.set()
            await self._usable.wait()
        raise Unavailable("the connection was closed")

    async def _begin(self, client: Client) -> None:
        self._client = client
        try:
            await self._attach(client)
        except BaseException:
            self._client = None
            if self._make is not None:
                await _end(client)
            raise
        self._usable.set()
        self._tasks.start(self._watch(client), "watch the NATS connection", lambda _: self._end_waiting())

    async def _watch(self, client: Client) -> None:
        """Tells of every change; makes a new connection of our own when nats-py has given up on it."""
        connected, reconnects = True, client.stats["reconnects"]
        while True:
            await self._wait_for_change()
            if connected and (not client.is_connected or client.stats["reconnects"] != reconnects):
                connected = False
                self._usable.clear()
                self._tell(ConnectionEvent.DISCONNECTED)
            if client.is_closed:
                if self._make is None:
                    self._log.error("holder.nats_closed_by_its_owner")
                    self._end_waiting()
                    return
                client = self._client = await self._made_anew(self._make)
            if client.is_connected and not connected:
                connected, reconnects = True, client.stats["reconnects"]
                self._tell(ConnectionEvent.RECONNECTED)
            if connected:
                self._usable.set()

    def _end_waiting(self) -> None:
        self._closed = True
        self._usable.set()

    async def _wait_for_change(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_POLL_S):
                await self._changed.wait()
        self._changed.clear()

    async def _made_anew(self, make: Callable[[], Awaitable[Client]]) -> Client:
        while True:
            self._log.warning("holder.nats_connecting_anew", reason=self._last_error)
            try:
                client = await make()
                try:
                    await self._attach(client)
                except BaseException:
                    await _end(client)
                    raise
            except (NatsError, OSError) as e:
                self._last_error = f"{type(e).__name__}: {e}"
                await asyncio.sleep(_RECONNECT_S)
            else:
                return client

    def _defaults(self) -> dict[str, Any]:
        return {
            "allow_reconnect": True,
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": _RECONNECT_S,
            "ping_interval": 10,
            "max_outstanding_pings": 2,
            # Nothing is buffered in an outage, to be sent when nobody expects it any more.
            "pending_size": 0,
        }

    def _callbacks(self) -> dict[str, Any]:
        async def changed() -> None:
            self._changed.set()

        async def failed(error: Exception) -> None:
            self._last_error = f"{type(error).__name__}: {error}"
            if isinstance(error, SlowConsumerError):
                self._tell(ConnectionEvent.DROPPED)
                self._log.warning("holder.nats_dropped", subject=error.subject)
            else:
                self._log.warning("holder.nats_error", error=type(error).__name__, reason=str(error))

        return {
            "disconnected_cb": changed,
            "reconnected_cb": changed,
            "closed_cb": changed,
            "error_cb": failed,
        }


async def _end(client: Client) -> None:
    """Closes, within a bound: what is left of a broken connection may wait for a server that is frozen."""
    with suppress(TimeoutError, OSError, NatsError):
        async with asyncio.timeout(CLOSE_S):
            await client.close()
