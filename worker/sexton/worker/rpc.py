"""Answers to holders: `sync`, `fetch`, `put`. Requests and replies, no state of their own."""

from typing import Final, TypeVar

import structlog

from sexton.core.answer import fetch_parts
from sexton.core.lease_parts import lease_parts
from sexton.schemas.codec import decode
from sexton.schemas.errors import InvalidInput
from sexton.schemas.leases import HeartbeatRequest, PinRequest, ReleaseRequest
from sexton.schemas.rpc import (
    FetchRequest,
    PutReply,
    PutRequest,
    SyncRequest,
    Verb,
)
from sexton.worker.fetch import Fetcher
from sexton.worker.leases import Leases
from sexton.worker.ports import ColdStore
from sexton.worker.replies import Parts
from sexton.worker.sync import Sync
from sexton.worker.texts import store_chunk

log: Final = structlog.get_logger("sexton.rpc")


class RpcService:
    """Answers holders' requests."""

    def __init__(self, sync: Sync, fetcher: Fetcher, cold: ColdStore, leases: Leases) -> None:
        self._sync = sync
        self._fetcher = fetcher
        self._cold = cold
        self._leases = leases

    async def parts(self, verb: Verb, context_id: str, data: bytes) -> Parts:
        """The parts of one answer. Raises the error that is to be the answer instead."""
        match verb:
            case Verb.SYNC:
                return await self._sync.parts(_same(context_id, decode(SyncRequest, data)))
            case Verb.FETCH:
                answer, found = await self._fetcher.fetch(_same(context_id, decode(FetchRequest, data)))
                return fetch_parts(answer, found)
            case Verb.PUT:
                request = _same(context_id, decode(PutRequest, data))
                await store_chunk(self._cold, request)
                return [PutReply(context_id=context_id)]
            case Verb.PIN:
                return lease_parts(await self._leases.pin(_same(context_id, decode(PinRequest, data))))
            case Verb.RELEASE:
                return [await self._leases.release(_same(context_id, decode(ReleaseRequest, data)))]
            case Verb.HEARTBEAT:
                return lease_parts(
                    await self._leases.heartbeat(_same(context_id, decode(HeartbeatRequest, data)))
                )


R = TypeVar("R", SyncRequest, FetchRequest, PutRequest, PinRequest, ReleaseRequest, HeartbeatRequest)


def _same(context_id: str, request: R) -> R:
    if request.context_id != context_id:
        raise InvalidInput(f"a request for {request.context_id} was sent to {context_id}")
    return request
