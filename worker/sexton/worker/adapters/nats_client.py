"""The NATS connection of a process that reads what anybody may publish.

Three things that a sender can do would stop nats-py's client for good, or until its pings go unanswered:

- a subject that is no UTF-8 ends its read loop;
- a `Status` header on a stored message makes a pull take it for the server's own word: the message is
  thrown away, and comes again for ever;
- an error of the server that it does not know, such as a control line that is too long, closes it, and
  no reconnect follows.
"""

from typing import Any, Final

import nats.errors
from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.msg import Msg

_FROM_A_STREAM: Final = b"$JS.ACK."
_SERVERS_OWN: Final = ("Status", "Description")
_HARMLESS: Final = ("stale connection", "permissions violation")
"""Errors after which nats-py reconnects, or goes on, by itself."""


class HardenedClient(Client):
    """nats-py's client without the three faults."""

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


class HardenedBroker(NatsBroker):
    """FastStream's broker on that client. It stops in order during an outage as well."""

    async def _connect(self) -> Client:
        connection = HardenedClient()
        await connection.connect(**self._connection_kwargs)
        self.config.connect(connection)
        return connection

    async def stop(self, *args: Any) -> None:
        """Ends the subscriptions, waits for what is in flight, and closes the connection."""
        connection = self._connection
        try:
            await super().stop(*args)
        except nats.errors.Error:
            # Nothing can be drained while the server is away; what was not acknowledged comes again.
            self._connection = None
        finally:
            if connection is not None and not connection.is_closed:
                await connection.close()
