"""The NATS connection of a process that reads what anybody may publish.

Things that a sender can do would stop nats-py's client for good, or until its pings go unanswered:

- a subject or a header that is no UTF-8 ends its read loop;
- a `Status` header on a stored message makes a pull take it for the server's own word: the message is
  thrown away, and comes again for ever;
- an error of the server that it does not know, such as a control line that is too long, closes it, and
  no reconnect follows.
"""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property
from typing import Any, Final

import nats.errors
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from sexton.worker.adapters.lanes import END_S, Lane, LaneContext

_FROM_A_STREAM: Final = b"$JS.ACK."
_SERVERS_OWN: Final = ("Status", "Description")
_FLUSH_S: Final = 1
_HARMLESS: Final = ("stale connection", "permissions violation")
"""Errors after which nats-py reconnects, or goes on, by itself."""


class HardenedClient(Client):
    """nats-py's client without those faults."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(_readable(headers))
        except (ValueError, IndexError):
            return {}
        return found

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
        if headers is not None and reply.startswith(_FROM_A_STREAM):
            headers = {name: value for name, value in headers.items() if name not in _SERVERS_OWN}
        return self.msg_class(
            subject=subject.decode(errors="replace"),
            reply=reply.decode(errors="replace"),
            data=data,
            headers=headers,
            _client=self,
            _sid=sid,
        )

    async def _process_err(self, err_msg: str) -> None:
        if any(words in err_msg for words in _HARMLESS):
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(nats.errors.Error(err_msg))

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # It has ended on an error that nats-py did not foresee: nobody would read any more.
            await self._process_op_err(nats.errors.Error("the read loop ended"))

    async def drain(self) -> None:
        """Sends what is left to send, and closes: the broker has ended its subscriptions before.

        nats-py's own waits for half a minute for a server that does not answer, and raises if there is none.
        """
        with suppress(nats.errors.Error, TimeoutError):
            await self.flush(_FLUSH_S)
        await self.close()

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            # What was not sent cannot be sent any more; trying to would raise, and leave the rest open.
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)

    def jetstream(self, **options: Any) -> JetStreamContext:
        """See nats-py. Its pull subscriptions are lanes, and are noted in `lanes`."""
        return LaneContext(self, self.lanes, **options)

    @cached_property
    def lanes(self) -> list[Lane]:
        """The pull subscriptions of this connection."""
        return []

    async def end_interest(self, subscriptions: Iterable[Subscription]) -> None:
        """Has the server send nothing more on some subscriptions. What it has sent before is here by then.

        Does not raise: a server that is away sends nothing, and one that does not answer is not waited for.
        """
        with suppress(nats.errors.Error, TimeoutError, OSError):
            async with asyncio.timeout(END_S):
                for subscription in subscriptions:
                    # nats-py's own way would throw away what is on its way to here.
                    await self._send_unsubscribe(subscription._id)  # noqa: SLF001
                await self.flush()


class HardenedBroker(NatsBroker):
    """FastStream's broker on that client."""

    async def _connect(self) -> Client:
        connection = HardenedClient()
        await connection.connect(**self._connection_kwargs)
        self.config.connect(connection)
        return connection


def _readable(headers: bytes | None) -> bytes | None:
    """Headers in UTF-8. One that is not would take the others with it."""
    return headers if headers is None else headers.decode(errors="replace").encode()
