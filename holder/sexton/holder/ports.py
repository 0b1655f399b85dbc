"""The one port of a holder: how its messages travel. Bytes in, bytes out; what they mean is decided above.

`adapters.nats` carries them over NATS, `testing` within one process. An adapter translates its own
library's exceptions; none crosses this port but those named here. None of these waits is bounded: the
caller bounds them, by its own clock.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from enum import StrEnum
from typing import NamedTuple, Protocol

from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import PermissionRefused
from sexton.schemas.rpc import Verb

BumpHandler = Callable[[bytes], None]
"""Is given each bump's payload, in the order of arrival. Must not block, and does not raise."""


class ConnectionEvent(StrEnum):
    """What a transport notices about its own delivery."""

    DISCONNECTED = "disconnected"
    RECONNECTED = "reconnected"
    """Bumps may have been missed meanwhile."""
    DROPPED = "dropped"
    """Messages that had arrived were thrown away, for want of room."""
    REFUSED = "refused"
    """A server refused something for want of a permission. Whoever waits for it is told, too."""


EventHandler = Callable[[ConnectionEvent], None]


class Letter(NamedTuple):
    """A message that arrived in a mailbox."""

    address: str
    """Which of the mailbox's addresses it was sent to."""
    data: bytes


class Mailbox(Protocol):
    """Where the answers of one exchange arrive, in the order of arrival."""

    def address(self) -> str:
        """A new address of this mailbox. One for each try tells late answers to earlier ones apart.

        It means something to the transport that gave it, and to the service.
        """
        ...

    async def receive(self) -> Letter:
        """Waits for the next message.

        Raises:
            Unavailable: nobody serves what was asked for, or the connection went.
            PermissionRefused: what was asked may not be asked, or no answer may be heard.
        """
        ...


class Subscription(Protocol):
    """Interest in the bumps of one context."""

    @property
    def refused(self) -> PermissionRefused | None:
        """Why nothing is heard any more: the permission was taken away. A new error each time."""
        ...

    async def close(self) -> None:
        """Ends it. Does not raise, and may be called again."""
        ...


class Transport(Protocol):
    """Carries the messages of one holder."""

    async def open(self) -> None:
        """Connects. From then on the transport reconnects by itself.

        Raises:
            Unavailable: it cannot.
            PermissionRefused: who we say we are was refused.
            InvalidInput: an option that cannot be.
        """
        ...

    async def close(self) -> None:
        """Ends all. Does not raise, does not hang in an outage, and may be called again."""
        ...

    async def ready(self) -> None:
        """Waits until there is a connection.

        Raises:
            Unavailable: the transport was closed.
            PermissionRefused: who we say we are is refused by now.
        """
        ...

    def mailbox(self) -> AbstractAsyncContextManager[Mailbox]:
        """A new mailbox, for as long as the block lasts."""
        ...

    async def ask(self, context_id: str, verb: Verb, body: bytes, reply_to: str) -> None:
        """Sends a request. What comes of it arrives at the address.

        Raises:
            Unavailable: there is no connection; nothing was sent.
            PayloadTooLarge: over what the connection carries.
        """
        ...

    async def submit(self, context_id: str, kind: CommandKind, body: bytes, outcome_to: str) -> None:
        """Sends a command, and returns when it is stored durably, be it for the first time or again.

        The outcome arrives at the address.

        Raises:
            Unavailable: it was certainly not stored.
            OutcomeUnknown: it may have been stored.
            PermissionRefused: it was not stored, and will not be.
            PayloadTooLarge: over what the connection or the store carries.
        """
        ...

    async def follow(self, context_id: str, on_bump: BumpHandler) -> Subscription:
        """Subscribes to the bumps of a context; what is committed after it returns is announced.

        Raises:
            Unavailable: there is no connection.
            PermissionRefused: they may not be heard.
        """
        ...

    def on_event(self, handler: EventHandler) -> None:
        """Tells `handler` of everything that a `ConnectionEvent` names."""
        ...
