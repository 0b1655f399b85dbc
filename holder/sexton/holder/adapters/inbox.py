"""One NATS subscription for all answers to a holder: `_INBOX.<id>.<token>`, a token for each exchange.

A subscription of its own for each exchange would cost two more messages and an entry at the server each time.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from sexton.holder.adapters.client import flushed, refused
from sexton.holder.ports import Letter
from sexton.schemas.errors import PermissionRefused, Unavailable
from sexton.schemas.refusal import Refusal

MAX_WAITING: Final = 4096
"""Messages of one exchange that wait to be read: at 256 KiB each, more than the largest span has parts."""

_NO_RESPONDERS: Final = "503"
_FLUSH_S: Final = 10


class NoServiceError(Unavailable):
    """Nobody listens: what was asked was not heard."""


class NatsMailbox:
    """One exchange's share of the inbox."""

    def __init__(self, new_address: Callable[["NatsMailbox"], str]) -> None:
        self._new_address = new_address
        self._letters: asyncio.Queue[Letter | Unavailable | PermissionRefused] = asyncio.Queue(MAX_WAITING)

    def address(self) -> str:
        """A new subject that leads here."""
        return self._new_address(self)

    async def receive(self) -> Letter:
        """The next message. Raises `Unavailable`, `PermissionRefused`."""
        letter = await self._letters.get()
        if isinstance(letter, Unavailable | PermissionRefused):
            raise letter
        return letter

    def deliver(self, letter: Letter | Unavailable | PermissionRefused) -> None:
        """Adds a message. One that does not fit shows as a missing part."""
        if not self._letters.full():
            self._letters.put_nowait(letter)


class Inbox:
    """The subscription on one connection, and who waits for what."""

    def __init__(self, connection: Client) -> None:
        self._connection = connection
        self._root = connection.new_inbox()
        self._tokens = itertools.count(1)
        self._mailboxes: dict[str, NatsMailbox] = {}
        """By subject."""
        self._asked: dict[str, str] = {}
        """Of an address: the subject on which something was sent that is to be answered there."""
        self._subscription: Subscription | None = None
        self._refusal: Refusal | None = None
        """Why it is deaf."""

    async def open(self) -> None:
        """Subscribes. Raises as the client does, and `PermissionRefused`."""
        self._refusal = None
        self._subscription = await self._connection.subscribe(f"{self._root}.*", cb=self._on_message)
        await flushed(self._connection, _FLUSH_S)
        self._check_heard()

    async def asking(self, address: str, subject: str) -> None:
        """Something is about to be sent on `subject`, and to be answered at `address`.

        Raises:
            PermissionRefused: no answer may be heard. Whether that still holds is tried first.
        """
        if self._refusal is not None:
            await self._unsubscribe()
            await self.open()
        if address in self._mailboxes:
            self._asked[address] = subject

    def refuse(self, refusal: Refusal) -> None:
        """Tells those whom a refusal concerns."""
        if refusal.operation == "subscribe":
            if self._is_own(refusal.subject):
                self._refusal = refusal
                for mailbox in set(self._mailboxes.values()):
                    mailbox.deliver(refused(refusal))
            return
        for address, subject in self._asked.items():
            # Where only nats-py's words are known, they are in small letters.
            if refusal.subject in (subject, subject.lower()):
                self._mailboxes[address].deliver(refused(refusal))

    def _is_own(self, subject: str) -> bool:
        return subject.lower().startswith(self._root.lower())

    def _check_heard(self) -> None:
        if self._refusal is not None:
            raise refused(self._refusal)

    async def close(self) -> None:
        """Unsubscribes, and tells all who wait."""
        self.interrupt("the connection was closed")
        await self._unsubscribe()

    async def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            with suppress(NatsError):  # the connection is gone, and the subscription with it
                await subscription.unsubscribe()

    def interrupt(self, why: str) -> None:
        """Tells all who wait that what they wait for will not come."""
        for mailbox in set(self._mailboxes.values()):
            mailbox.deliver(Unavailable(why))

    @asynccontextmanager
    async def mailbox(self) -> AsyncIterator[NatsMailbox]:
        """A new mailbox, for as long as the block lasts."""
        addresses: list[str] = []

        def new_address(mailbox: NatsMailbox) -> str:
            address = f"{self._root}.{next(self._tokens)}"
            self._mailboxes[address] = mailbox
            addresses.append(address)
            return address

        try:
            yield NatsMailbox(new_address)
        finally:
            for address in addresses:
                del self._mailboxes[address]
                self._asked.pop(address, None)

    async def _on_message(self, message: Msg) -> None:
        mailbox = self._mailboxes.get(message.subject)
        if mailbox is None:
            return  # its exchange is over
        status = (message.headers or {}).get("Status")
        if status == _NO_RESPONDERS and not message.data:
            mailbox.deliver(NoServiceError("no service listens on that subject"))
        else:
            mailbox.deliver(Letter(message.subject, message.data))
