"""A receiver of pages on 127.0.0.1: what Apprise's `json://` sends to, answering as it is told."""

import asyncio
import contextlib
import json
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.waiting import eventually

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]

_page_re: Final = re.compile(r"^page: (\S+)$", re.MULTILINE)
_seen_re: Final = re.compile(r"^seen: (once|\d+)", re.MULTILINE)


@dataclass(slots=True)
class Received:
    """One request."""

    title: str
    message: str
    kind: str
    path: str
    accepted: bool = False
    """It was answered with 200, to the end."""

    @property
    def page_id(self) -> str:
        found = _page_re.search(self.message)
        assert found is not None, self.message
        return found[1]

    @property
    def count(self) -> int:
        found = _seen_re.search(self.message)
        assert found is not None, self.message
        return 1 if found[1] == "once" else int(found[1])


async def ok(writer: asyncio.StreamWriter) -> None:
    """Accepts it."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")


async def broken(writer: asyncio.StreamWriter) -> None:
    """Answers 500."""
    writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n")


async def cut_off(writer: asyncio.StreamWriter) -> None:
    """Answers 200, and ends in the middle of the answer."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nnot all of")


async def no_answer(writer: asyncio.StreamWriter) -> None:
    """Closes without a word."""


async def never(writer: asyncio.StreamWriter) -> None:
    """Takes the request, and says nothing until the other side gives up."""
    await asyncio.Event().wait()


async def drip(writer: asyncio.StreamWriter) -> None:
    """Answers 200, and then a byte at a time, always in time for whoever waits for the next one."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        writer.write(b".")
        await writer.drain()
        await asyncio.sleep(0.05)


def after(event: asyncio.Event) -> Answer:
    """Accepts it, slowly: once `event` is set."""

    async def answer(writer: asyncio.StreamWriter) -> None:
        await event.wait()
        await ok(writer)

    return answer


_WHOLE: Final = frozenset({"ok", "answer"})


class Receiver:
    """The receiver. `answers` are used up one by one; then `usual` holds."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        """Requests, those not answered yet among them."""
        self.answers: deque[Answer] = deque()
        self.usual: Answer = ok
        self._server: asyncio.Server | None = None
        self._port = 0
        self._open: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """For Apprise. The path stands for a secret."""
        return f"json://user:S3CRET-word@127.0.0.1:{self._port}/S3CRET-path"

    @property
    def accepted(self) -> list[Received]:
        """The pages that were answered with 200 to the end."""
        return [page for page in self.received if page.accepted]

    async def up(self) -> None:
        """Listens; always on the same port."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def down(self) -> None:
        """Refuses connections."""
        if self._server is not None:
            self._server.close()
            for task in list(self._open):
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def until(self, accepted: int, *, within_s: float = 20.0) -> list[Received]:
        """Waits until so many pages were accepted; gives all that were."""
        return await eventually(
            lambda: self.accepted,
            until=lambda pages: len(pages) >= accepted,
            within_s=within_s,
            what=f"{accepted} pages",
        )

    async def until_arrived(self, requests: int, *, within_s: float = 20.0) -> None:
        """Waits until so many requests have come, answered or not."""
        await eventually(
            lambda: len(self.received),
            until=lambda arrived: arrived >= requests,
            within_s=within_s,
            what=f"{requests} requests",
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        # A sender that is killed, or this receiver that goes down.
        with contextlib.suppress(asyncio.CancelledError, ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"(?i)content-length: (\d+)", head)
            assert length is not None
            body = json.loads(await reader.readexactly(int(length[1])))
            answer = self.answers.popleft() if self.answers else self.usual
            page = Received(body["title"], body["message"], body["type"], head.split()[1])
            self.received.append(page)
            await answer(writer)
            await writer.drain()
            page.accepted = answer.__name__ in _WHOLE
        self._open.discard(task)
        writer.close()


@contextlib.contextmanager
def receiving_aside() -> Iterator[Receiver]:
    """A receiver in a thread, for tests that run a command in this one. `answers` are set before."""
    receiver, loop = Receiver(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        asyncio.run_coroutine_threadsafe(receiver.up(), loop).result(10)
        yield receiver
    finally:
        asyncio.run_coroutine_threadsafe(receiver.down(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


@contextlib.asynccontextmanager
async def receiving() -> AsyncIterator[Receiver]:
    """A receiver that is up."""
    receiver = Receiver()
    await receiver.up()
    try:
        yield receiver
    finally:
        await receiver.down()
