"""The holder: what a process embeds to keep pointers into shared contexts, and artifacts made from them."""

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from sexton.holder.adapters.nats import NatsTransport
from sexton.holder.cache import ByteCache
from sexton.holder.calls import Calls
from sexton.holder.clock import Clock, SystemClock
from sexton.holder.commands import new_event_id
from sexton.holder.context import Context
from sexton.holder.errors import HolderClosed
from sexton.holder.follow import Follower
from sexton.holder.log import logger
from sexton.holder.ports import ConnectionEvent, Transport
from sexton.holder.runtime import Runtime
from sexton.holder.settings import HolderSettings
from sexton.schemas.errors import TooManyContexts
from sexton.schemas.ids import token


class Holder:
    """Follows contexts, over one transport. Use it as an async context manager.

    Not thread-safe: it belongs to the event loop that entered it.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        name: str | None = None,
        settings: HolderSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        """Takes over the transport: it is opened and closed with the holder.

        Args:
            transport: how messages travel.
            name: of this holder, in logs and to the registry; without one it gets a random one. Of several
                processes with the same name the latest one holds the pins.
            settings: its bounds.
            clock: for tests.
        """
        self.name = token(name if name is not None else _new_name(), "name")
        self.settings = settings if settings is not None else HolderSettings()
        self._runtime = Runtime(
            holder_id=self.name,
            # Only compared among processes of one id; if their clocks disagree, the registry's word counts.
            incarnation=time.time_ns() // 1000,
            transport=transport,
            clock=clock if clock is not None else SystemClock(),
            settings=self.settings,
            log=logger(holder=self.name),
        )
        self._calls = Calls(self._runtime)
        self._cache = ByteCache(self.settings.cache_bytes)
        self._contexts: dict[str, Context] = {}
        self._opening = asyncio.Lock()
        self._entered = False
        self._closed = False
        transport.on_event(self._on_event)

    @classmethod
    def connect(
        cls,
        servers: str | Sequence[str],
        *,
        name: str | None = None,
        settings: HolderSettings | None = None,
        **options: Any,
    ) -> Self:
        """A holder with a NATS connection of its own. It connects when it is entered.

        Args:
            servers: one URL or several of the same cluster, `nats://HOST:PORT`.
            name: of the holder, also seen by the server.
            settings: its bounds.
            options: passed to `nats.connect`, such as `user_credentials` or `tls`.
        """
        settings = settings if settings is not None else HolderSettings()
        name = name if name is not None else _new_name()
        transport = NatsTransport.to(
            servers, name=name, connect_timeout_s=settings.connect_timeout_s, **options
        )
        return cls(transport, name=name, settings=settings)

    def __repr__(self) -> str:
        return f"<Holder {self.name} of {len(self._contexts)} contexts>"

    async def __aenter__(self) -> Self:
        """Connects. Raises `Unavailable` if that cannot be done."""
        if self._entered:
            raise HolderClosed("a holder is entered once; make another one")
        self._entered = True
        await self._runtime.transport.open()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def open(self, context_id: str) -> Context:
        """Follows a context and returns when it is known up to its head. Opened again, it is the same one.

        A context that nothing was ever appended to is empty, and can be opened.

        Raises:
            InvalidInput: no context can have that id.
            TooManyContexts: as many as the settings allow are open.
            PermissionRefused: this user may not follow that context.
            Unavailable: no service answers.
            PeerError: it answers what this build cannot follow.
        """
        token(context_id, "context_id")
        async with self._opening:
            self._check_open()
            known = self._contexts.get(context_id)
            if known is not None and not known.closed:
                return known
            self._check_room()
            follower = Follower(context_id, self._runtime, self._calls)
            context = self._contexts[context_id] = Context(follower, self._runtime, self._calls, self._cache)
            try:
                await context.start()
            except BaseException:
                del self._contexts[context_id]
                raise
            return context

    async def close(self) -> None:
        """Ends all following and the connection. Does not hang in an outage; may be called again."""
        self._closed = True
        try:
            await asyncio.gather(*(context.close() for context in self._contexts.values()))
        finally:
            self._contexts.clear()
            await self._runtime.transport.close()

    def _check_room(self) -> None:
        limit = self.settings.max_contexts
        if sum(not context.closed for context in self._contexts.values()) >= limit:
            raise TooManyContexts(f"a holder has at most {limit} contexts open", limit=limit)

    def _check_open(self) -> None:
        if self._closed or not self._entered:
            raise HolderClosed("the holder is closed" if self._closed else "the holder was not entered")

    def _on_event(self, event: ConnectionEvent) -> None:
        self._runtime.log.info("holder.connection", change=event.value)
        for context in self._contexts.values():
            context.on_event(event)


def _new_name() -> str:
    return f"holder-{new_event_id()[:12]}"
