"""Hot bytes and snapshots on Redis or Valkey. All of it may be lost at any moment."""

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Final, TypeVar, cast

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from sexton.core.decide import Blob
from sexton.schemas.span import Identity

T = TypeVar("T")

log: Final = structlog.get_logger("sexton.hot")

_COMPRESSION: Final = 1
_PAUSE_S: Final = 1.0


class RedisHotStore:
    """`HotStore` on Redis. A fault is logged once per outage and otherwise reads as a miss.

    After a fault, Redis is left alone for a second: one that is frozen would else cost each reader and
    each commit its whole time-out.
    """

    def __init__(self, client: Redis, ttl: timedelta, max_bytes: int) -> None:
        self._redis = client
        self._ttl = ttl
        self._max_bytes = max_bytes
        self._down = False
        self._left_alone_until = 0.0

    async def put(self, context_id: str, blobs: Sequence[Blob]) -> None:
        """See `HotStore.put`. One round trip for all."""
        small = {
            _blob_key(context_id, blob.span_id, blob.version): blob.data
            for blob in blobs
            if len(blob.data) <= self._max_bytes
        }
        if len(small) == 1:
            # Most commits have one; a pipeline costs twice as much as its only command.
            [(key, data)] = small.items()
            await self._tried(
                lambda: cast("Awaitable[object]", self._redis.set(key, data, ex=self._ttl)), None
            )
        elif small:
            pipe = self._redis.pipeline(transaction=False)
            for key, data in small.items():
                pipe.set(key, data, ex=self._ttl)
            await self._tried(pipe.execute, None)

    async def get(self, context_id: str, identity: Identity) -> bytes | None:
        """See `HotStore.get`."""
        if identity.size_bytes > self._max_bytes:
            return None
        key = _blob_key(context_id, identity.span_id, identity.version)
        return await self._tried(lambda: cast("Awaitable[bytes | None]", self._redis.get(key)), None)

    async def drop(self, context_id: str, identities: Sequence[Identity]) -> None:
        """See `HotStore.drop`."""
        if identities:
            keys = [_blob_key(context_id, i.span_id, i.version) for i in identities]
            await self._tried(lambda: cast("Awaitable[object]", self._redis.unlink(*keys)), None)

    async def put_snapshot(self, context_id: str, data: bytes) -> None:
        """See `HotStore.put_snapshot`."""
        # In a thread, here and below: it lets go of the interpreter while it works.
        packed = await asyncio.to_thread(zlib.compress, data, _COMPRESSION)
        key = _snapshot_key(context_id)
        await self._tried(lambda: cast("Awaitable[object]", self._redis.set(key, packed)), None)

    async def get_snapshot(self, context_id: str) -> bytes | None:
        """See `HotStore.get_snapshot`."""
        key = _snapshot_key(context_id)
        packed = await self._tried(lambda: cast("Awaitable[bytes | None]", self._redis.get(key)), None)
        if packed is None:
            return None
        try:
            return await asyncio.to_thread(zlib.decompress, packed)
        except zlib.error:
            log.warning("hot.snapshot_damaged", context_id=context_id)
            return None

    async def _tried(self, call: Callable[[], Awaitable[T]], otherwise: T) -> T:
        if time.monotonic() < self._left_alone_until:
            return otherwise
        try:
            result = await call()
        except (RedisError, OSError, TimeoutError) as e:
            if not self._down:
                log.warning("hot.unavailable", error=type(e).__name__)
            self._down = True
            self._left_alone_until = time.monotonic() + _PAUSE_S
            return otherwise
        if self._down:
            log.info("hot.available")
        self._down = False
        return result


def _blob_key(context_id: str, span_id: str, version: int) -> str:
    return f"sexton:{{{context_id}}}:bytes:{span_id}:{version}"


def _snapshot_key(context_id: str) -> str:
    return f"sexton:{{{context_id}}}:snapshot"
