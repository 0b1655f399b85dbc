"""Asking the service: one request, a reply in parts, and what to do when some are missing.

A reply counts only whole: its parts have the indices 0, 1, 2 … and the last says so. A part that is missing
or late ends the try; the next one asks anew in a mailbox of its own, so that late parts of an earlier try
cannot be mixed in. Errors of the service come back as what they were.
"""

import asyncio
from typing import Final, TypeVar

from sexton import tracing
from sexton.core.lease_parts import whole_reply
from sexton.holder.clock import backoff
from sexton.holder.ports import Mailbox
from sexton.holder.runtime import Runtime
from sexton.holder.spans import TRACER
from sexton.schemas.base import Message
from sexton.schemas.codec import decode
from sexton.schemas.errors import MalformedMessage, PeerError, Unavailable
from sexton.schemas.leases import HeartbeatRequest, LeaseReply, PinRequest, ReleaseRequest
from sexton.schemas.rpc import (
    Answer,
    FetchPart,
    FetchRequest,
    PutReply,
    PutRequest,
    ReplyPart,
    RpcError,
    SyncPart,
    SyncRequest,
    Verb,
)
from sexton.schemas.wire_errors import error_from

P = TypeVar("P", bound=ReplyPart)

MAX_PARTS: Final = 65_536
"""Parts of one reply. At a quarter of a MiB each, far above any context; a peer past it is broken."""


class Calls:
    """The requests of one holder."""

    def __init__(self, runtime: Runtime) -> None:
        self._transport = runtime.transport
        self._clock = runtime.clock
        self._settings = runtime.settings
        self._log = runtime.log

    async def sync(self, request: SyncRequest) -> list[SyncPart]:
        """The parts of the answer to `sync`. Raises as `_parts`."""
        return await self._parts(request.context_id, Verb.SYNC, request, SyncPart)

    async def fetch(self, request: FetchRequest) -> tuple[Answer, bytes]:
        """What the service answers to `fetch`, and the bytes. Neither is checked here against the pointer.

        Raises as `_parts`.
        """
        # The service may use up the caller's budget before its first part.
        patience_s = (request.budget_ms or 0) / 1000
        parts = await self._parts(request.context_id, Verb.FETCH, request, FetchPart, patience_s=patience_s)
        answer = parts[0].answer
        if answer is None:
            raise MalformedMessage("a reply to fetch whose first part does not say what it is")
        return answer, b"".join(part.data for part in parts)

    async def put(self, request: PutRequest) -> None:
        """Leaves a chunk with the service. Raises as `_parts`."""
        await self._parts(request.context_id, Verb.PUT, request, PutReply)

    async def heartbeat(self, request: HeartbeatRequest, *, tries: int = 1) -> LeaseReply:
        """What the service answers to a heartbeat. Raises as `_parts`, and `Fenced` or `LeaseLost`.

        Tried once by default: a lease is counted from when its heartbeat was sent.
        """
        parts = await self._parts(request.context_id, Verb.HEARTBEAT, request, LeaseReply, tries=tries)
        return whole_reply(parts)

    async def pin(self, request: PinRequest) -> LeaseReply:
        """What the service answers to `pin`. Raises as `heartbeat`, and `TooManyPins`.

        Asked again, under the same number, also if the service says that a version is being changed at the
        moment: it has waited for a second already, and a change may take some.
        """
        parts = await self._parts(request.context_id, Verb.PIN, request, LeaseReply, insist=True)
        return whole_reply(parts)

    async def release(self, request: ReleaseRequest) -> LeaseReply:
        """What the service answers to `release`. Raises as `heartbeat`."""
        return (await self._parts(request.context_id, Verb.RELEASE, request, LeaseReply))[0]

    async def _parts(
        self,
        context_id: str,
        verb: Verb,
        request: Message,
        model: type[P],
        *,
        patience_s: float = 0.0,
        tries: int | None = None,
        insist: bool = False,
    ) -> list[P]:
        """One whole reply. With `insist`, the service's word that something is being changed is as silence.

        Raises:
            Unavailable: no whole reply in as many tries as the settings say.
            PermissionRefused: this may not be asked.
            PeerError: a reply that breaks the contract.
            SextonError: whatever the service says is wrong with the request.
        """
        with TRACER.ask(verb, context_id=context_id):
            return await self._retried(
                context_id, verb, request, model, patience_s=patience_s, tries=tries, insist=insist
            )

    async def _retried(
        self,
        context_id: str,
        verb: Verb,
        request: Message,
        model: type[P],
        *,
        patience_s: float,
        tries: int | None,
        insist: bool,
    ) -> list[P]:
        body = request.wire()
        tries = tries if tries is not None else self._settings.rpc_tries
        silence_s = self._settings.rpc_timeout_s + patience_s
        why: Exception | None = None
        for attempt in range(tries):
            if attempt:
                await self._clock.sleep(
                    backoff(attempt - 1, self._settings.backoff_s, self._settings.backoff_cap_s)
                )
            try:
                return await self._try(context_id, verb, body, model, silence_s)
            except _Refused as refused:
                if not (insist and _is_changing(refused.error)):
                    raise refused.error from None
                why = refused.error
            except (Unavailable, TimeoutError) as e:
                why = e
            tracing.current().event("retry", attempt=attempt + 1)
            self._log.info(
                "holder.rpc_retry",
                context_id=context_id,
                verb=verb.value,
                attempt=attempt + 1,
                reason=str(why) or "time-out",
            )
        raise Unavailable(
            f"{verb.value} on {context_id}: no whole reply in {tries} tries ({str(why) or 'time-out'})",
            context_id=context_id,
            verb=verb.value,
        ) from why

    async def _try(
        self, context_id: str, verb: Verb, body: bytes, model: type[P], silence_s: float
    ) -> list[P]:
        async with self._transport.mailbox() as mailbox:
            async with self._clock.timeout(silence_s):
                await self._transport.ready()
                await self._transport.ask(context_id, verb, body, mailbox.address())
            parts: list[P] = []
            while not parts or not parts[-1].last:
                async with self._clock.timeout(silence_s):
                    part = await self._next(mailbox, model, context_id)
                if part.index > len(parts):
                    raise Unavailable(f"part {len(parts)} of the reply is missing")
                if part.index == len(parts):  # a smaller one came twice
                    parts.append(part)
                if len(parts) > MAX_PARTS:
                    raise PeerError(f"a reply of more than {MAX_PARTS} parts", verb=verb.value)
                # Parts that are here already are taken without waiting, and to decode one takes its time.
                await asyncio.sleep(0)
            return parts

    @staticmethod
    async def _next(mailbox: Mailbox, model: type[P], context_id: str) -> P:
        data = (await mailbox.receive()).data
        try:
            part = decode(model, data)
        except MalformedMessage as malformed:
            try:
                failed = decode(RpcError, data)
            except MalformedMessage:
                raise malformed from None
            raise _Refused(error_from(failed)) from None
        if part.context_id != context_id:
            raise PeerError(f"a reply about {part.context_id} to a request about {context_id}")
        return part


def _is_changing(error: Exception) -> bool:
    return isinstance(error, Unavailable) and error.fields.get("changing") is True


class _Refused(Exception):
    """The service's own word. Carried past the retry of what only did not arrive; never seen outside."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error
