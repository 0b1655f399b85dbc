"""The NATS connection of a process that reads what anybody may publish.

Things that a sender can do would stop nats-py's client for good, or until its pings go unanswered:

- a subject or a header that is no UTF-8 ends its read loop;
- a `Status` header on a stored message makes a pull take it for the server's own word: the message is
  thrown away, and comes again for ever;
- an error of the server that it does not know, such as a control line that is too long, closes it, and
  no reconnect follows.

It keeps two more things to itself, which are told here: that the server refused something for want of a
permission (nats-py lets whoever waits for it wait on), and that a server does not speak TLS though it should.
"""

import asyncio
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js import JetStreamContext

from sexton.schemas.errors import PermissionRefused, Unavailable
from sexton.schemas.refusal import Refusal, parse_refusal
from sexton.worker.adapters.lanes import END_S, Lane, LaneContext

_FROM_A_STREAM: Final = b"$JS.ACK."
_SERVERS_OWN: Final = ("Status", "Description")
_FLUSH_S: Final = 1
_HARMLESS: Final = ("stale connection", "permissions violation")
"""Errors after which nats-py reconnects, or goes on, by itself."""


OnRefusal = Callable[[Refusal], None]


class RefusedError(nats.errors.Error):
    """The server refused a request, or the inbox of its answer. Nothing was done."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal

    def as_ours(self) -> PermissionRefused:
        """The same as Sexton's error."""
        return _refused(self.refusal)


class HardenedClient(Client):
    """nats-py's client without those faults."""

    def __init__(self, on_refusal: OnRefusal | None = None) -> None:
        super().__init__()
        self._on_refusal = on_refusal
        self._was_connected = False
        self._asked: WeakKeyDictionary[asyncio.Future[Msg], str] = WeakKeyDictionary()
        """The subjects of requests that wait for an answer."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, Any] | None = None
    ) -> None:
        """As nats-py's. A request that is refused raises `RefusedError` where its answer is waited for."""
        prefix = self._resp_sub_prefix
        if prefix and reply.startswith(prefix.decode()):
            waiting = self._resp_map.get(reply[len(prefix) :])
            if waiting is not None:
                self._asked[waiting] = subject
        await super().publish(subject, payload, reply, headers)

    async def flush(self, timeout: float = 10) -> None:  # noqa: ASYNC109 - nats-py's
        """Returns when the server has read all that was sent. nats-py alone might ask before it sends."""
        async with asyncio.timeout(timeout):
            await self._flush_pending(force_flush=True)
        await super().flush(max(1, round(timeout)))

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        try:
            found: dict[str, str] | None = await super()._process_headers(headers)
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

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        await super()._process_info(info, initial_connection)
        if initial_connection:
            check_tls(self, info)

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except nats.errors.Error as e:
            refusal = parse_refusal(str(e))
            if refusal is None:
                raise
            self._tell(refusal)
            if not self._was_connected:
                # At the first connection nothing is to be waited for: nats-py would try without end.
                raise _refused(refusal) from None
            raise
        self._was_connected = True

    async def _process_err(self, err_msg: str) -> None:
        refusal = parse_refusal(self._verbatim(err_msg))
        if refusal is not None:
            self._tell(refusal)
            self._fail_what_waits(refusal)
        if any(words in err_msg for words in _HARMLESS):
            await super()._process_err(err_msg)
        else:
            await self._process_op_err(nats.errors.Error(err_msg))

    async def _read_loop(self) -> None:
        await super()._read_loop()
        if self.is_connected:
            # It has ended on an error that nats-py did not foresee: nobody would read any more.
            await self._process_op_err(nats.errors.Error("the read loop ended"))

    def _read_creds_user_jwt(self, creds: Any) -> Any:
        # It may have been changed since the start, and nats-py would look for the JWT for ever.
        if isinstance(creds, str) and b"BEGIN NATS USER JWT" not in Path(creds).read_bytes():
            raise nats.errors.Error("the credentials file holds no JWT")
        return super()._read_creds_user_jwt(creds)

    def _verbatim(self, err_msg: str) -> str:
        """An error as the server wrote it: nats-py's parser makes small letters of it, and still has it."""
        line = bytes(self._ps.buf[: len(err_msg.encode()) + 16]).split(b"\r\n", 1)[0].decode(errors="replace")
        return line if err_msg in line.lower() else err_msg

    def _tell(self, refusal: Refusal) -> None:
        if self._on_refusal is not None:
            self._on_refusal(refusal)

    def _fail_what_waits(self, refusal: Refusal) -> None:
        own = self._resp_sub_prefix
        deaf = refusal.operation == "subscribe" and own and refusal.subject.startswith(own.decode())
        if deaf:
            # The next request subscribes anew.
            self._resp_sub_prefix = None
        for waiting, subject in list(self._asked.items()):
            if not waiting.done() and (
                deaf or (refusal.operation == "publish" and subject == refusal.subject)
            ):
                waiting.set_exception(RefusedError(refusal))

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


async def connect_once(client: Client, servers: list[str] | str, *, within_s: float, **options: Any) -> None:
    """A first connection, within a bound: with endless reconnects it would be waited for without end.

    Raises:
        Unavailable: that did not succeed; the message says what came in the way last.
        PermissionRefused: the server refused the credentials.
    """
    last: list[Exception] = []
    told = options.pop("error_cb", None)

    async def heard(error: Exception) -> None:
        last.append(error)
        del last[:-1]
        if told is not None:
            await told(error)

    try:
        async with asyncio.timeout(within_s):
            await client.connect(servers, error_cb=heard, **options)
    except (nats.errors.Error, TimeoutError, OSError, ValueError) as e:
        why = last[-1] if last and isinstance(e, TimeoutError) else e
        refusal = parse_refusal(str(why))
        if refusal is not None:
            raise _refused(refusal) from None
        raise Unavailable(f"NATS cannot be reached: {_named(why)}", operation="connect") from None


def check_tls(client: Client, info: dict[str, Any]) -> None:
    """Refuses to go on in the clear where TLS was asked for: nats-py would, and send its password.

    Raises:
        NoTlsError: the server does not ask for TLS.
    """
    server = client._current_server  # noqa: SLF001 - nats-py has no other way
    wanted = "tls" in client.options or "tls_hostname" in client.options
    if server is not None and server.uri.scheme in ("ws", "wss"):
        return
    if server is not None and server.uri.scheme == "tls":
        wanted = True
    if wanted and not info.get("tls_required") and not client.options.get("tls_handshake_first"):
        raise NoTlsError


class NoTlsError(nats.errors.Error):
    """TLS was asked for, and the server does not speak it."""

    def __str__(self) -> str:
        return "the server does not speak TLS, and was to be asked for it"


def _refused(refusal: Refusal) -> PermissionRefused:
    return PermissionRefused(str(refusal), operation=refusal.operation, subject=refusal.subject)


def _named(error: Exception) -> str:
    """An error in words that hold no address, and so no password."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, NoTlsError):
        return str(error)
    return type(error).__name__
