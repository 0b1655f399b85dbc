"""The NATS connection of a holder: its own, or one that it was given. Watched, so that changes are told."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from sexton.holder.adapters.client import OnRefusal, ReconnectingClient, refused
from sexton.holder.ports import ConnectionEvent, EventHandler
from sexton.holder.tasks import Tasks
from sexton.schemas.errors import InvalidInput, SextonError, Unavailable
from sexton.schemas.refusal import Refusal, parse_refusal

CLOSE_S: Final = 2.0
"""For an orderly end; a frozen server must not hold up the program's."""

_POLL_S: Final = 0.25
"""How often a connection is looked at. The callbacks of a given one belong to whoever made it."""

_DEFAULTS: Final = {
    "allow_reconnect": True,
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 1,
    # A frozen server would go unnoticed for minutes.
    "ping_interval": 10,
    "max_outstanding_pings": 2,
    # Nothing is buffered in an outage, to be sent when nobody expects it any more.
    "pending_size": 0,
}


class Connection:
    """A client, and what happens to it."""

    def __init__(self, tell: EventHandler, log: Any, on_refusal: OnRefusal = lambda _: None) -> None:
        self._tell = tell
        self._on_refusal = on_refusal
        self._refusal: Refusal | None = None
        """Of the credentials, at the last try to reconnect."""
        self._log = log
        self._client: Client | None = None
        self._is_own = False
        self._tasks = Tasks(log)
        self._changed = asyncio.Event()
        self._usable = asyncio.Event()
        self._closed = False
        self._last_error = "none"
        self._seen_error: Exception | None = None

    @property
    def client(self) -> Client:
        """The client, connected. Raises `Unavailable` if it is not, or `PermissionRefused`."""
        self._check_permitted()
        if self._client is None or not self._client.is_connected:
            raise Unavailable(f"no connection to NATS; last error: {self._last_error}")
        return self._client

    async def use(self, client: Client, attach: Callable[[Client], Awaitable[None]]) -> None:
        """Uses a connection that belongs to the caller. Raises `Unavailable`."""
        if not client.is_connected:
            raise Unavailable("the given connection is not connected")
        self._seen_error = client.last_error
        await self._begin(client, attach)

    async def open(
        self,
        servers: str | Sequence[str],
        timeout_s: float,
        options: dict[str, Any],
        attach: Callable[[Client], Awaitable[None]],
    ) -> None:
        """Connects, and calls `attach` with the client, which makes the first subscriptions.

        Raises:
            Unavailable: that did not succeed within the time.
            PermissionRefused: the server refused the credentials, or the inbox.
            InvalidInput: an option that nats-py cannot use.
        """
        client = ReconnectingClient(self._refused)
        self._is_own = True
        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    servers=servers if isinstance(servers, str) else list(servers),
                    **{**_DEFAULTS, **options, **self._callbacks()},
                )
                await self._begin(client, attach)
        except BaseException as e:
            self._client = None
            await _end(client)
            if isinstance(e, TimeoutError | OSError | NatsError):
                raise Unavailable(
                    f"no connection to NATS within {timeout_s:g} s; last error: {self._last_error}"
                ) from e
            if isinstance(e, AssertionError | TypeError | ValueError) and not isinstance(e, SextonError):
                # Not its own words: they may hold an address, and that a password.
                raise InvalidInput(f"nats-py cannot use these options: {type(e).__name__}") from None
            raise

    async def close(self) -> None:
        """Ends a connection of our own. Does not raise and does not hang."""
        self._end_waiting()
        await self._tasks.close()
        client, self._client = self._client, None
        if client is not None and self._is_own:
            await _end(client)

    async def ready(self) -> None:
        """Waits until it is connected. Raises `Unavailable` if it was closed."""
        while not self._closed:
            self._check_permitted()
            if self._client is not None and self._client.is_connected:
                return
            self._usable.clear()
            self._changed.set()
            await self._usable.wait()
        raise Unavailable("the connection was closed")

    async def _begin(self, client: Client, attach: Callable[[Client], Awaitable[None]]) -> None:
        self._client = client
        await attach(client)
        self._usable.set()
        self._tasks.start(self._watch(client), "watch the NATS connection", lambda _: self._end_waiting())

    async def _watch(self, client: Client) -> None:
        """Tells of every change. Between two looks it may have been lost and be back: then of both."""
        connected, reconnects = True, client.stats["reconnects"]
        while not client.is_closed:
            if not self._is_own and client.last_error is not self._seen_error:
                self._seen_error = client.last_error
                self._heard_of(self._seen_error)
            if connected and (not client.is_connected or client.stats["reconnects"] != reconnects):
                connected = False
                self._tell(ConnectionEvent.DISCONNECTED)
            if client.is_connected:
                if not connected:
                    connected, reconnects = True, client.stats["reconnects"]
                    self._refusal = None
                    self._tell(ConnectionEvent.RECONNECTED)
                self._usable.set()
            with suppress(TimeoutError):
                async with asyncio.timeout(_POLL_S):
                    await self._changed.wait()
            self._changed.clear()
        self._log.error("holder.nats_closed", own=self._is_own, last_error=self._last_error)
        self._tell(ConnectionEvent.DISCONNECTED)
        self._end_waiting()

    def _heard_of(self, error: Exception | None) -> None:
        """The last error of a connection that is not ours: its callback is its owner's."""
        refusal = None if error is None else parse_refusal(str(error))
        if refusal is not None:
            self._refused(refusal)

    def _refused(self, refusal: Refusal) -> None:
        self._log.error("holder.nats_refused", operation=refusal.operation, subject=refusal.pattern)
        if refusal.operation == "connect":
            self._refusal = refusal
            self._usable.set()
        self._on_refusal(refusal)

    def _check_permitted(self) -> None:
        if self._refusal is not None and self._client is not None and not self._client.is_connected:
            raise refused(self._refusal)

    def _end_waiting(self) -> None:
        self._closed = True
        self._usable.set()

    def _callbacks(self) -> dict[str, Any]:
        async def changed() -> None:
            self._changed.set()

        async def failed(error: Exception) -> None:
            self._last_error = f"{type(error).__name__}: {error}"
            if isinstance(error, SlowConsumerError):
                self._log.warning("holder.nats_dropped", subject=error.subject)
                self._tell(ConnectionEvent.DROPPED)
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
