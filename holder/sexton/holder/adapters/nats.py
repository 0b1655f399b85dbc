"""The transport over NATS: plain subjects, requests and replies. No JetStream API, no streams, no consumers.

What a holder may do on the server is thereby a matter of subject permissions: publish to
`sexton.cmd.<context>.*` and `sexton.rpc.<context>.*`, subscribe to `sexton.epoch.<context>` and its inbox.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Final, Self

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as ClientSubscription
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from sexton.holder.adapters.client import flushed, refused
from sexton.holder.adapters.connection import Connection
from sexton.holder.adapters.inbox import Inbox, NatsMailbox, NoServiceError
from sexton.holder.adapters.options import check_options
from sexton.holder.log import logger
from sexton.holder.ports import BumpHandler, ConnectionEvent, EventHandler
from sexton.holder.spans import TRACER
from sexton.schemas import subjects
from sexton.schemas.addresses import check_nats_urls
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import (
    MalformedMessage,
    OutcomeUnknown,
    PayloadTooLarge,
    PermissionRefused,
    Unavailable,
)
from sexton.schemas.outcome import REPLY_HEADER
from sexton.schemas.refusal import Refusal
from sexton.schemas.rpc import Verb
from sexton.tracing import headers as trace_headers

_HEADER_BYTES: Final = 1280
"""Room for headers, also those of a trace: the server counts them in, and drops a client that goes over."""

_EPOCH: Final = "sexton.epoch.{context_id}"

_FLUSH_S: Final = 10

_TOO_LARGE: Final = 10054
"""JetStream: the message is over the stream's limit."""


class NatsSubscription:
    """Interest in one context's bumps. The client takes it along over reconnects."""

    def __init__(
        self, subject: str, on_bump: BumpHandler, forget: Callable[["NatsSubscription"], None]
    ) -> None:
        self.subject = subject
        self._on_bump = on_bump
        self._forget = forget
        self._subscription: ClientSubscription | None = None
        self._refusal: Refusal | None = None

    @property
    def refused(self) -> PermissionRefused | None:
        """See the port."""
        return None if self._refusal is None else refused(self._refusal)

    def refuse(self, refusal: Refusal) -> None:
        """Nothing is heard any more."""
        self._refusal = refusal

    async def open(self, client: Client) -> None:
        """Subscribes. Returns when the server knows. Raises as the client does, and `PermissionRefused`."""
        self._subscription = await client.subscribe(self.subject, cb=self._on_message)
        await flushed(client, _FLUSH_S)
        if self._refusal is not None:
            raise refused(self._refusal)

    async def close(self) -> None:
        """Unsubscribes."""
        self._forget(self)
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(NatsError):  # the connection is gone, and the subscription with it
                await subscription.unsubscribe()

    async def _on_message(self, message: Msg) -> None:
        with TRACER.receive("sexton.bump", _EPOCH, message.headers):
            self._on_bump(message.data)


class NatsTransport:
    """Carries a holder's messages over NATS.

    Made with `NatsTransport(client)`, it uses a connection that stays the caller's. `NatsTransport.to(url)`
    makes one of its own.
    """

    def __init__(self, client: Client | None = None) -> None:
        self._given = client
        self._servers: str | Sequence[str] = ()
        self._timeout_s = 5.0
        self._options: dict[str, Any] = {}
        self._handlers: list[EventHandler] = []
        self._inbox: Inbox | None = None
        self._connection: Connection | None = None
        self._subscriptions: set[NatsSubscription] = set()

    @classmethod
    def to(
        cls,
        servers: str | Sequence[str],
        *,
        name: str | None = None,
        connect_timeout_s: float = 5.0,
        **options: Any,
    ) -> Self:
        """A transport with a connection of its own.

        Args:
            servers: one URL or several.
            name: seen by the server.
            connect_timeout_s: for the first connection.
            options: passed to nats-py's `connect`; its callbacks are taken. An `inbox_prefix` must begin with
                `_INBOX`: the service answers nowhere else.

        Raises:
            InvalidInput: a URL that is none, or an option that cannot be.
        """
        urls = [servers] if isinstance(servers, str) else list(servers)
        check_nats_urls(urls, "servers")
        check_options(options)
        transport = cls()
        transport._servers = urls
        transport._timeout_s = connect_timeout_s
        transport._options = {"name": name, **options}
        return transport

    async def open(self) -> None:
        """Connects. Raises `Unavailable`, `PermissionRefused`, `InvalidInput`."""
        if self._connection is not None:
            raise Unavailable("the transport was opened before")
        self._connection = Connection(self._tell, logger(component="nats"), self._refused)
        try:
            if self._given is not None:
                await self._connection.use(self._given, self._attach)
            else:
                await self._connection.open(self._servers, self._timeout_s, self._options, self._attach)
        except NatsError as e:
            raise Unavailable(f"NATS: {e}") from e

    async def close(self) -> None:
        """Ends the inbox, and a connection of its own. Subscriptions are their owners' to close."""
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.close()
        if self._connection is not None:
            await self._connection.close()

    async def ready(self) -> None:
        """Waits for a connection. Raises `Unavailable` if it was closed."""
        await self._open_connection().ready()

    def mailbox(self) -> AbstractAsyncContextManager[NatsMailbox]:
        """A new address on this holder's inbox. Raises `Unavailable` if the transport is not open."""
        if self._inbox is None:
            raise Unavailable("the transport is not open")
        return self._inbox.mailbox()

    async def ask(self, context_id: str, verb: Verb, body: bytes, reply_to: str) -> None:
        """Sends a request. Raises `Unavailable`, `PayloadTooLarge`, `PermissionRefused`."""
        client = self._client_for(body)
        subject = subjects.rpc(context_id, verb)
        try:
            await self._open_inbox().asking(reply_to, subject)
            await client.publish(subject, body, reply=reply_to, headers=trace_headers() or None)
        except MaxPayloadError:
            raise _too_large(body, client) from None
        except NatsError as e:
            raise Unavailable(f"NATS: {e}") from e

    async def submit(self, context_id: str, kind: CommandKind, body: bytes, outcome_to: str) -> None:
        """Sends a command. Raises `Unavailable`, `OutcomeUnknown`, `PayloadTooLarge`, `PermissionRefused`."""
        client = self._client_for(body)
        subject = subjects.command(context_id, kind)
        headers = {REPLY_HEADER: outcome_to, **trace_headers()}
        async with self.mailbox() as acknowledged:
            reply_to = acknowledged.address()
            try:
                await self._open_inbox().asking(reply_to, subject)
                await client.publish(subject, body, reply=reply_to, headers=headers)
            except MaxPayloadError:
                raise _too_large(body, client) from None
            except NatsError as e:
                raise Unavailable(f"NATS: {e}") from e
            try:
                letter = await acknowledged.receive()
            except NoServiceError:
                raise Unavailable("no service takes commands") from None
            except Unavailable as e:
                raise OutcomeUnknown(f"NATS: {e}") from e
        _check_stored(letter.data, body)

    async def follow(self, context_id: str, on_bump: BumpHandler) -> NatsSubscription:
        """Subscribes to a context's bumps. Raises `Unavailable`, `PermissionRefused`."""
        subscription = NatsSubscription(subjects.epoch(context_id), on_bump, self._subscriptions.discard)
        self._subscriptions.add(subscription)
        try:
            await subscription.open(self._open_connection().client)
        except BaseException as e:
            await subscription.close()
            if isinstance(e, NatsError):
                raise Unavailable(f"NATS: {e}") from e
            raise
        return subscription

    def on_event(self, handler: EventHandler) -> None:
        """Tells `handler` of disconnects, reconnects and dropped messages."""
        self._handlers.append(handler)

    async def _attach(self, client: Client) -> None:
        """Makes the inbox on a new connection. nats-py takes subscriptions along when it reconnects."""
        self._inbox = Inbox(client)
        await self._inbox.open()

    def _refused(self, refusal: Refusal) -> None:
        """Tells whoever waits for what the server refused."""
        if self._inbox is not None and refusal.operation != "connect":
            self._inbox.refuse(refusal)
        for subscription in list(self._subscriptions):
            of_it = refusal.subject in (subscription.subject, subscription.subject.lower())
            if refusal.operation == "connect" or (refusal.operation == "subscribe" and of_it):
                subscription.refuse(refusal)
        self._tell(ConnectionEvent.REFUSED)

    def _tell(self, event: ConnectionEvent) -> None:
        if event is ConnectionEvent.DISCONNECTED and self._inbox is not None:
            self._inbox.interrupt("the connection was lost")
        for handler in self._handlers:
            handler(event)

    def _open_inbox(self) -> Inbox:
        if self._inbox is None:
            raise Unavailable("the transport is not open")
        return self._inbox

    def _open_connection(self) -> Connection:
        if self._connection is None:
            raise Unavailable("the transport is not open")
        return self._connection

    def _client_for(self, body: bytes) -> Client:
        client = self._open_connection().client
        if len(body) + _HEADER_BYTES > client.max_payload:
            raise _too_large(body, client)
        return client


def _too_large(body: bytes, client: Client) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"a message of {len(body)} bytes; with its headers, the server takes at most {client.max_payload}",
        limit=client.max_payload,
        actual=len(body),
    )


def _check_stored(ack: bytes, body: bytes) -> None:
    """Reads JetStream's acknowledgement. A duplicate was stored before, which is as good."""
    try:
        said = json.loads(ack)
        error = said.get("error")
        stored = "stream" in said and "seq" in said
    except (ValueError, AttributeError):
        raise MalformedMessage("what acknowledges commands is no JetStream") from None
    if error is not None:
        code = error.get("err_code") if isinstance(error, dict) else None
        if code == _TOO_LARGE:
            raise PayloadTooLarge(
                f"a command of {len(body)} bytes is over the stream's limit", actual=len(body)
            )
        raise Unavailable(f"the command was not stored: JetStream error {code}", err_code=code)
    if not stored:
        raise MalformedMessage("what acknowledges commands is no JetStream")
