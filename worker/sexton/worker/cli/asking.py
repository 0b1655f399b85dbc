"""How the commands for operators ask the service: one request, a reply in parts."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self, TypeVar

import nats.errors
from nats.aio.client import Client

from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.errors import (
    MalformedMessage,
    PeerError,
    PermissionRefused,
    SextonError,
    TransientError,
    Unavailable,
)
from sexton.schemas.ops import OpsRequest, OpsVerb
from sexton.schemas.refusal import Refusal
from sexton.schemas.rpc import ReplyPart, RpcError
from sexton.schemas.wire_errors import error_from
from sexton.worker.adapters.nats_client import HardenedClient, connect_once
from sexton.worker.adapters.nats_options import identity, tls
from sexton.worker.settings.connections import ConnectionSettings

P = TypeVar("P", bound=ReplyPart)

SILENCE_S: Final = 30.0
"""The longest wait for the next part of a reply."""
SWEEP_SILENCE_S: Final = 300.0
"""The same for a sweep: it answers when it is done, and it may have many bytes to delete."""
_CONNECT_S: Final = 5
_CLOSE_S: Final = 2.0


class Operator:
    """Asks as an operator, over a connection of its own. Holders have no rights on these subjects."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self._settings = settings
        self._refusals: list[Refusal] = []
        self._client = HardenedClient(self._refusals.append)

    async def __aenter__(self) -> Self:
        """Connects. Raises `Unavailable`, `PermissionRefused`."""
        try:
            await connect_for_operator(self._client, self._settings, "sexton-operator")
        except BaseException:
            await self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._end()

    async def ask(
        self, verb: OpsVerb, request: OpsRequest, model: type[P], *, silence_s: float = SILENCE_S
    ) -> list[P]:
        """All parts of one reply. Asks again, a few times, if the reply is that a store did not answer.

        Raises:
            Unavailable: no worker serves this, a store does not answer it, or the reply stays away.
            PermissionRefused: this user is no operator.
            PeerError: a reply that breaks the contract.
            SextonError: whatever the service says is wrong.
        """
        for pause_s in _PAUSES_S:
            try:
                return await self._once(verb, request, model, silence_s)
            except _RepliedError as e:
                # A worker's connection to a store that was restarted fails once, whoever needs it first.
                if not isinstance(e.error, TransientError):
                    raise e.error from None
            await asyncio.sleep(pause_s)
        try:
            return await self._once(verb, request, model, silence_s)
        except _RepliedError as e:
            raise e.error from None

    async def _once(self, verb: OpsVerb, request: OpsRequest, model: type[P], silence_s: float) -> list[P]:
        parts: list[P] = []
        try:
            inbox = self._client.new_inbox()
            replies = await self._client.subscribe(inbox)
            try:
                await self._client.publish(
                    subjects.ops(request.context_id, verb), request.wire(), reply=inbox
                )
                # The answer to this comes after the refusal of anything before it.
                await self._client.flush(_CONNECT_S)
                check_permitted(self._refusals)
                while not parts or not parts[-1].last:
                    message = await replies.next_msg(silence_s)
                    if (message.headers or {}).get("Status") == _NO_RESPONDERS:
                        raise Unavailable(f"no worker is there to answer {verb.value}")
                    part = _part(model, message.data)
                    if part.index != len(parts):
                        raise PeerError(f"part {len(parts)} of the reply to {verb.value} is missing")
                    parts.append(part)
            finally:
                if self._client.is_connected:
                    await replies.unsubscribe()
        except nats.errors.TimeoutError as e:
            raise Unavailable(
                f"no answer to {verb.value} within {silence_s:g} s; it may still be under way"
            ) from e
        except nats.errors.Error as e:
            raise Unavailable(f"no answer to {verb.value}: {type(e).__name__}") from e
        return parts

    async def _end(self) -> None:
        """Closes, within a bound: a frozen server must not hold up the program's end."""
        with suppress(TimeoutError, OSError, nats.errors.Error):
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()


async def connect_for_operator(client: Client, settings: ConnectionSettings, name: str) -> None:
    """Connects as an operator, for one command. Raises `Unavailable`, `PermissionRefused`, `InvalidInput`."""
    await connect_once(
        client,
        settings.nats_servers,
        within_s=_CONNECT_S,
        name=name,
        inbox_prefix=settings.nats_inbox_prefix or subjects.OPERATOR_INBOX,
        **_OPTIONS,
        **identity(settings),
        **tls(settings),
    )


def check_permitted(refusals: Sequence[Refusal]) -> None:
    """Raises `PermissionRefused` if there is any."""
    for refusal in refusals:
        raise PermissionRefused(str(refusal), operation=refusal.operation, subject=refusal.subject)


_OPTIONS: Final[Mapping[str, Any]] = {
    "allow_reconnect": False,
    # A first connection is tried again and again all the same, without end if this is zero.
    "max_reconnect_attempts": 1,
    "reconnect_time_wait": 0.1,
}
_NO_RESPONDERS: Final = "503"
_PAUSES_S: Final = (0.05, 0.2, 0.5)
"""Before the next try."""


class _RepliedError(Exception):
    """The reply is an error."""

    def __init__(self, error: SextonError) -> None:
        super().__init__(error.message)
        self.error = error


def _part(model: type[P], data: bytes) -> P:
    try:
        return decode(model, data)
    except MalformedMessage:
        failed = decode(RpcError, data)
    raise _RepliedError(error_from(failed))
