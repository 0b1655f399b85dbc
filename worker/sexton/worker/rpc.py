"""Answers to holders: `sync`, `fetch`, `put`. Requests and replies, no state of their own."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

import structlog

from sexton.core.answer import SyncMode, error_part, fetch_parts, sync_mode, sync_parts
from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.errors import InvalidInput, SextonError, Unavailable
from sexton.schemas.rpc import (
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
from sexton.worker.contexts import Contexts
from sexton.worker.fetch import Fetcher
from sexton.worker.ports import ColdStore
from sexton.worker.texts import store_chunk

log: Final = structlog.get_logger("sexton.rpc")

Send = Callable[[bytes], Awaitable[None]]
Parts = Iterable[SyncPart] | Iterable[FetchPart] | Iterable[PutReply] | Iterable[RpcError]


class RpcService:
    """Answers requests. Every request gets an answer, if only an error."""

    def __init__(self, contexts: Contexts, fetcher: Fetcher, cold: ColdStore) -> None:
        self._contexts = contexts
        self._fetcher = fetcher
        self._cold = cold

    async def answer(self, verb: Verb, subject: str, data: bytes, send: Send) -> None:
        """Answers one request by sending one or more parts."""
        context_id = ""
        parts: Parts
        try:
            context_id = subjects.context_of(subject)
            parts = await self._parts(verb, context_id, data)
        except SextonError as e:
            parts = [error_part(context_id or "unknown", e)]
        except Exception as e:
            log.exception("rpc.failed", verb=verb.value)
            parts = [error_part(context_id or "unknown", Unavailable(f"internal error: {type(e).__name__}"))]
        part: ReplyPart
        for part in parts:
            await send(part.wire())

    async def _parts(self, verb: Verb, context_id: str, data: bytes) -> Parts:
        match verb:
            case Verb.SYNC:
                return await self._sync(_same(context_id, decode(SyncRequest, data)))
            case Verb.FETCH:
                answer, found = await self._fetcher.fetch(_same(context_id, decode(FetchRequest, data)))
                return fetch_parts(answer, found)
            case Verb.PUT:
                request = _same(context_id, decode(PutRequest, data))
                await store_chunk(self._cold, request)
                return [PutReply(context_id=context_id)]

    async def _sync(self, request: SyncRequest) -> Iterable[SyncPart]:
        known = await self._contexts.refresh(request.context_id)
        mode = sync_mode(known.tree, request)
        if mode is SyncMode.RECORDS:
            records = self._contexts.tail(request.context_id, request.revision)
            if records is not None:
                return sync_parts(known.tree, mode, records)
            mode = SyncMode.SNAPSHOT
        return sync_parts(known.tree, mode)


R = TypeVar("R", SyncRequest, FetchRequest, PutRequest)


def _same(context_id: str, request: R) -> R:
    if request.context_id != context_id:
        raise InvalidInput(f"a request for {request.context_id} was sent to {context_id}")
    return request
