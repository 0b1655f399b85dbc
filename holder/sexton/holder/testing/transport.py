"""The transport in memory, and what can go wrong with one."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from sexton.holder.ports import BumpHandler, ConnectionEvent, EventHandler, Letter
from sexton.holder.testing.channel import Channel
from sexton.holder.testing.clock import ManualClock
from sexton.holder.testing.service import MemoryService
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import PayloadTooLarge, PermissionRefused, Unavailable
from sexton.schemas.limits import MAX_PAYLOAD_BYTES
from sexton.schemas.rpc import Verb


class MemoryMailbox:
    """Where the answers of one exchange arrive."""

    def __init__(self, new_address: Callable[["MemoryMailbox"], str]) -> None:
        self._new_address = new_address
        self._letters: asyncio.Queue[Letter | Unavailable] = asyncio.Queue()

    def address(self) -> str:
        """A new address that leads here."""
        return self._new_address(self)

    async def receive(self) -> Letter:
        """The next message. Raises `Unavailable`."""
        letter = await self._letters.get()
        if isinstance(letter, Unavailable):
            raise letter
        return letter

    def deliver(self, letter: Letter | Unavailable) -> None:
        """Adds a message."""
        self._letters.put_nowait(letter)


class MemorySubscription:
    """Interest in the bumps of one context."""

    def __init__(self, end: Callable[[], None]) -> None:
        self._end = end
        self.refused: PermissionRefused | None = None
        """For tests: the permission was taken away."""

    async def close(self) -> None:
        """Ends it."""
        self._end()


class MemoryTransport:
    """Carries one holder's messages to a `MemoryService`.

    Each kind of traffic is a `Channel` that can be told to lose, hold, reorder or repeat:
    `bumps`, `requests`, `parts` (of replies), `commands`, `acks` (of commands stored) and `outcomes`.
    """

    def __init__(self, service: MemoryService, *, clock: ManualClock | None = None) -> None:
        self.service = service
        moved = clock.touch if clock is not None else _nothing
        self.bumps = Channel(moved)
        self.requests = Channel(moved)
        self.parts = Channel(moved)
        self.commands = Channel(moved)
        self.acks = Channel(moved)
        self.outcomes = Channel(moved)
        self.follows = 0
        """How often a subscription was made."""
        self._handlers: list[EventHandler] = []
        self._numbers = itertools.count(1)
        self._mailboxes: dict[str, MemoryMailbox] = {}
        self._connected = asyncio.Event()
        self._opened = False
        self._closed = False
        self._workers = True
        self._waiting_commands: list[Callable[[], None]] = []

    # --- what a test does to it ---

    def disconnect(self) -> None:
        """The connection is lost, and that is noticed. Bumps from now on are missed."""
        self._connected.clear()
        for mailbox in set(self._mailboxes.values()):
            mailbox.deliver(Unavailable("the connection was lost"))
        self.tell(ConnectionEvent.DISCONNECTED)

    def reconnect(self) -> None:
        """The connection is back."""
        self._connected.set()
        self.tell(ConnectionEvent.RECONNECTED)

    def cut(self) -> None:
        """The connection dies without a word: nothing passes any more, and nobody is told."""
        for channel in self._channels():
            channel.lose()

    def mend(self) -> None:
        """Everything passes again."""
        for channel in self._channels():
            channel.work()

    def stop_workers(self) -> None:
        """There is no worker: requests find nobody, commands are stored and wait."""
        self._workers = False

    def start_workers(self) -> None:
        """There is a worker again, and it takes up what waits."""
        self._workers = True
        waiting, self._waiting_commands = self._waiting_commands, []
        for carry_out in waiting:
            carry_out()

    def tell(self, event: ConnectionEvent) -> None:
        """Has the transport notice something."""
        for handler in self._handlers:
            handler(event)

    # --- the port ---

    async def open(self) -> None:
        """Connects."""
        self._opened = True
        self._connected.set()

    async def close(self) -> None:
        """Ends all."""
        self._closed = True
        for mailbox in set(self._mailboxes.values()):
            mailbox.deliver(Unavailable("the connection was closed"))
        self._connected.set()

    async def ready(self) -> None:
        """Waits for a connection. Raises `Unavailable` if it was closed."""
        self._check_open()
        await self._connected.wait()
        self._check_open()

    def mailbox(self) -> AbstractAsyncContextManager[MemoryMailbox]:
        """A new mailbox, for as long as the block lasts. Raises `Unavailable` if this is not open."""
        self._check_open()
        return self._mailbox()

    async def ask(self, context_id: str, verb: Verb, body: bytes, reply_to: str) -> None:
        """Sends a request. Raises `Unavailable`, `PayloadTooLarge`."""
        self._check_sendable(body)

        def arrive() -> None:
            if not self._workers:
                self._deliver(reply_to, Unavailable("no service listens on that subject"))
                return
            for part in self.service.answer(context_id, verb, body):
                self.parts.send(partial(self._deliver, reply_to, Letter(reply_to, part)))

        self.requests.send(arrive)

    async def submit(self, context_id: str, kind: CommandKind, body: bytes, outcome_to: str) -> None:
        """Sends a command. Raises `Unavailable`, `PayloadTooLarge`."""
        self._check_sendable(body)
        stored = asyncio.Event()

        def carry_out() -> None:
            outcome = self.service.carry_out(context_id, kind, body)
            self.outcomes.send(partial(self._deliver, outcome_to, Letter(outcome_to, outcome)))

        def arrive() -> None:
            self.acks.send(stored.set)
            if self._workers:
                carry_out()
            else:
                self._waiting_commands.append(carry_out)

        self.commands.send(arrive)
        await stored.wait()

    async def follow(self, context_id: str, on_bump: BumpHandler) -> MemorySubscription:
        """Subscribes. Raises `Unavailable`."""
        self._check_connected()
        self.follows += 1

        def on_record(data: bytes) -> None:
            if self._connected.is_set():
                self.bumps.send(lambda: on_bump(data))

        return MemorySubscription(self.service.listen(context_id, on_record))

    def on_event(self, handler: EventHandler) -> None:
        """Tells `handler` of what the transport notices."""
        self._handlers.append(handler)

    # --- inside ---

    @asynccontextmanager
    async def _mailbox(self) -> AsyncIterator[MemoryMailbox]:
        addresses: list[str] = []

        def new_address(mailbox: MemoryMailbox) -> str:
            address = f"memory.{next(self._numbers)}"
            self._mailboxes[address] = mailbox
            addresses.append(address)
            return address

        try:
            yield MemoryMailbox(new_address)
        finally:
            for address in addresses:
                del self._mailboxes[address]

    def _deliver(self, address: str, letter: Letter | Unavailable) -> None:
        mailbox = self._mailboxes.get(address)
        if mailbox is not None:
            mailbox.deliver(letter)

    def _check_sendable(self, body: bytes) -> None:
        self._check_connected()
        if len(body) > MAX_PAYLOAD_BYTES:
            raise PayloadTooLarge(
                f"a message of {len(body)} bytes, at most {MAX_PAYLOAD_BYTES}",
                limit=MAX_PAYLOAD_BYTES,
                actual=len(body),
            )

    def _check_connected(self) -> None:
        self._check_open()
        if not self._connected.is_set():
            raise Unavailable("no connection")

    def _check_open(self) -> None:
        if self._closed or not self._opened:
            raise Unavailable("the transport was closed" if self._closed else "the transport is not open")

    def _channels(self) -> tuple[Channel, ...]:
        return (self.bumps, self.requests, self.parts, self.commands, self.acks, self.outcomes)


def _nothing() -> None:
    pass
