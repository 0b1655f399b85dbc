"""nats-py's client, without the faults that would leave a holder deaf.

What anybody may publish on a subject that a holder hears can stop nats-py's client:

- a subject or a header that is no UTF-8 ends its read loop, and the rest of it waits for its pings;
- an error of the server that it does not know closes it for good: a user whose authentication has expired,
  too many connections.

Here both end in a reconnect. And what is left of a try that failed is closed, which it otherwise is not.
"""

import asyncio
from contextlib import suppress
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

_HARMLESS: Final = ("stale connection", "permissions violation")
"""Errors after which nats-py reconnects, or goes on, by itself."""

_ABANDON_S: Final = 1.0


class ReconnectingClient(Client):
    """A client that reconnects whatever happens, until it is closed."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(_readable(headers))
        except (ValueError, IndexError):
            return {}
        return found

    def _build_message(
        self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: dict[str, str] | None
    ) -> Msg:
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
            await self._error_cb(NatsError(err_msg))
            await self._process_op_err(NatsError(err_msg))

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # It has ended on an error that nats-py did not foresee: nobody would read any more.
            await self._process_op_err(NatsError("the read loop ended"))

    async def _connect_to_server(self, s: Any) -> None:
        await self._abandon_transport()
        await super()._connect_to_server(s)

    async def _close(self, status: int, do_cbs: bool = True) -> None:
        if not self.is_connected:
            # What was not sent cannot be sent any more; trying to would raise, and leave the rest open.
            self._pending = []
            self._pending_data_size = 0
        await super()._close(status, do_cbs)

    async def _abandon_transport(self) -> None:
        """Closes the connection of a try that failed."""
        transport: Any = self._transport
        if not transport:
            return
        transport.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_ABANDON_S):
                await transport.wait_closed()


def _readable(headers: bytes | None) -> bytes | None:
    """Headers in UTF-8. One that is not would take the others with it."""
    return headers if headers is None else headers.decode(errors="replace").encode()
