"""nats-py's client, without the faults that would leave a holder deaf.

What anybody may publish on a subject that a holder hears can stop nats-py's client:

- a subject or a header that is no UTF-8 ends its read loop, and the rest of it waits for its pings;
- an error of the server that it does not know closes it for good: a user whose authentication has expired,
  too many connections.

Here both end in a reconnect. And what is left of a try that failed is closed, which it otherwise is not.

It also tells what the server refused for want of a permission. nats-py lets whoever waits for it wait on.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from sexton.schemas.errors import PermissionRefused
from sexton.schemas.refusal import Refusal, parse_refusal

OnRefusal = Callable[[Refusal], None]

_HARMLESS: Final = ("stale connection", "permissions violation")
"""Errors after which nats-py reconnects, or goes on, by itself."""

_ABANDON_S: Final = 1.0


class ReconnectingClient(Client):
    """A client that reconnects whatever happens, until it is closed."""

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
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

    def __init__(self, on_refusal: OnRefusal | None = None) -> None:
        super().__init__()
        self._on_refusal = on_refusal
        self._was_connected = False

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        scheme = None if self._current_server is None else self._current_server.uri.scheme
        wanted = scheme not in ("ws", "wss") and ("tls" in self.options or scheme == "tls")
        there = info.get("tls_required") or self.options["tls_handshake_first"]
        if initial_connection and wanted and not there:
            # nats-py would go on in the clear, and send its password.
            raise NatsError("the server does not speak TLS, and was to be asked for it")

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except NatsError as e:
            refusal = parse_refusal(str(e))
            if refusal is None:
                raise
            self._tell(refusal)
            if not self._was_connected:
                # At the first connection nothing is to be waited for: nats-py would try without end.
                raise refused(refusal) from None
            raise
        self._was_connected = True

    def _read_creds_user_jwt(self, creds: Any) -> Any:
        # It may have been changed since the start, and nats-py would look for the JWT for ever.
        if isinstance(creds, str | Path) and b"BEGIN NATS USER JWT" not in Path(creds).read_bytes():
            raise NatsError("the credentials file holds no JWT")
        return super()._read_creds_user_jwt(creds)

    def _tell(self, refusal: Refusal) -> None:
        if self._on_refusal is not None:
            self._on_refusal(refusal)

    def _verbatim(self, err_msg: str) -> str:
        """An error as the server wrote it: nats-py's parser makes small letters of it, and still has it."""
        line = bytes(self._ps.buf[: len(err_msg.encode()) + 16]).split(b"\r\n", 1)[0].decode(errors="replace")
        return line if err_msg in line.lower() else err_msg

    async def _process_err(self, err_msg: str) -> None:
        refusal = parse_refusal(self._verbatim(err_msg))
        if refusal is not None:
            self._tell(refusal)
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


async def flushed(client: Client, timeout_s: float) -> None:
    """Returns when the server has read all that was sent. nats-py's own `flush` may ask before it sends."""
    async with asyncio.timeout(timeout_s):
        await client._flush_pending(force_flush=True)  # noqa: SLF001 - it has no other way
    await client.flush(max(1, round(timeout_s)))


def refused(refusal: Refusal) -> PermissionRefused:
    """A refusal as an error, each time a new one."""
    return PermissionRefused(str(refusal), operation=refusal.operation, subject=refusal.subject)
