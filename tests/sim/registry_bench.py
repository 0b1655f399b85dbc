"""A registry to try things on, in memory or on a server, and clients of it that number their operations."""

import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sexton.core.collection import Version
from sexton.core.pins import pins_digest
from sexton.core.sweep import Observation
from sexton.schemas.leases import (
    MAX_TTL_MS,
    HeartbeatRequest,
    HolderRequest,
    Pin,
    PinCost,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.adapters.sweep_index import RedisSweepIndex
from sexton.worker.ports import Beat, Registry, SweepIndex, Taken
from tests.sim.memory_registry import Data, MemoryRegistry
from tests.support.waiting import eventually

LONG_MS = 60_000
A, B, C = ("l0:a", 1), ("l0:b", 1), ("l0:b", 2)


class Bench(Protocol):
    """What a case of the contract is given."""

    registry: Registry
    index: SweepIndex
    context_id: str

    async def elapse(self, ms: int) -> None:
        """Lets at least so much of the server's time go by."""
        ...

    async def take_over(self) -> None:
        """Another server takes over, with all there is."""
        ...

    async def copy(self) -> Any:
        """A copy of the context as it is."""
        ...

    async def fall_back(self, copy: Any) -> None:
        """Another server takes over, with an older copy of the context."""
        ...

    async def lose(self) -> None:
        """All of the context is gone."""
        ...


class MemoryBench:
    def __init__(self, context_id: str = "ctx") -> None:
        self.now_ms = 1_800_000_000_000
        self.memory = MemoryRegistry(lambda: self.now_ms)
        self.registry: Registry = self.memory
        self.index: SweepIndex = self.memory
        self.context_id = context_id

    async def elapse(self, ms: int) -> None:
        self.now_ms += ms

    async def take_over(self) -> None:
        self.memory.fail_over(self.memory.snapshot())

    async def copy(self) -> Data:
        return self.memory.snapshot()

    async def fall_back(self, copy: Data) -> None:
        self.memory.fail_over(copy)

    async def lose(self) -> None:
        self.memory.flush()


class ServerBench:
    """On a server that others use too: what happens to it is done to the keys of one context."""

    def __init__(self, redis: Redis, context_id: str | None = None) -> None:
        self.redis = redis
        self.registry: Registry = RedisRegistry(redis)
        self.index: SweepIndex = RedisSweepIndex(redis)
        self.context_id = context_id or f"t_{uuid.uuid4().hex}"

    async def elapse(self, ms: int) -> None:
        began = await self._time_ms()
        await eventually(self._time_ms, until=lambda now: now >= began + ms, what="a later time")

    async def take_over(self) -> None:
        await self.redis.hset(f"sexton:{{{self.context_id}}}:gen", "id", "another server")

    async def copy(self) -> list[tuple[bytes, int, bytes]]:
        return [
            (key, max(0, await self.redis.pttl(key)), await self.redis.dump(key) or b"")
            for key in await self._keys()
        ]

    async def fall_back(self, copy: list[tuple[bytes, int, bytes]]) -> None:
        await self.lose()
        for key, ttl_ms, value in copy:
            await self.redis.restore(key, ttl_ms, value)
        if copy:
            await self.take_over()

    async def lose(self) -> None:
        if keys := await self._keys():
            await self.redis.delete(*keys)

    async def contents(self) -> dict[str, Any]:
        """All there is of the context, by key."""
        found: dict[str, Any] = {}
        for key in await self._keys():
            kind = await self.redis.type(key)
            if kind == b"hash":
                found[key.decode()] = await self.redis.hgetall(key)
            else:
                assert b"zset" == kind
                found[key.decode()] = await self.redis.zrange(key, 0, -1, withscores=True)
        return found

    async def _keys(self) -> list[bytes]:
        # No SCAN: other tests' keys are many.
        prefix = f"sexton:{{{self.context_id}}}:"
        keys = [key async for key in self.redis.scan_iter(match=f"{_escaped(prefix)}*", count=10_000)]
        return sorted(keys)

    async def _time_ms(self) -> int:
        seconds, micros = await self.redis.time()
        return seconds * 1000 + micros // 1000


def _escaped(prefix: str) -> str:
    return "".join(f"[{c}]" if c in "*?[]" else c for c in prefix)


def connected(url: str, timeout_s: float = 10.0) -> Redis:
    """A client as the worker's: it does not try again by itself."""
    pool = BlockingConnectionPool.from_url(
        url, max_connections=4, timeout=timeout_s, socket_timeout=timeout_s, retry=Retry(NoBackoff(), 0)
    )
    return Redis.from_pool(pool)


def pin(version: Version, cost: PinCost = PinCost.CHEAP) -> Pin:
    return Pin(span_id=version[0], version=version[1], cost=cost)


@dataclass
class Client:
    """A holder that keeps no rule but the numbering, and whatever the test makes of that."""

    bench: Bench
    holder_id: str = "h1"
    incarnation: int = 1
    ttl_ms: int = LONG_MS
    operation: int = 0
    claims: dict[Version, PinCost] = field(default_factory=dict)

    async def register(self, *versions: Version, cost: PinCost = PinCost.CHEAP) -> Beat:
        """Begins a lease with these pins."""
        self.claims = dict.fromkeys(versions, cost)
        return await self.announce(register_new=True)

    async def announce(self, **more: Any) -> Beat:
        self.operation += 1
        return await self.beat(pins=self.pins(), **more)

    async def beat(self, **more: Any) -> Beat:
        return await self.bench.registry.beat(self.heartbeat(**more))

    async def pin(self, *versions: Version, cost: PinCost = PinCost.CHEAP, **more: Any) -> Taken:
        self.claims.update(dict.fromkeys(versions, cost))
        self.operation += 1
        return await self.bench.registry.pin(self.pin_request(versions, cost, **more))

    async def release(self, *versions: Version, **more: Any) -> bool:
        for version in versions:
            self.claims.pop(version, None)
        self.operation += 1
        return await self.bench.registry.release(self.release_request(versions, **more))

    async def withdraw(self, *versions: Version, **more: Any) -> None:
        await self.bench.registry.withdraw(self._request(**more), _named(versions))

    async def leave(self) -> Beat:
        self.operation += 1
        self.claims.clear()
        return await self.beat(leave=True)

    # --- requests, to be sent when the test says ---

    def pins(self) -> tuple[Pin, ...]:
        return tuple(pin(version, cost) for version, cost in self.claims.items())

    def heartbeat(self, **more: Any) -> HeartbeatRequest:
        # A lease shorter than the wire allows, so that a test need not wait.
        request = HeartbeatRequest(**self._fields(), ttl_ms=MAX_TTL_MS)
        return request.model_copy(update={"ttl_ms": self.ttl_ms} | more)

    def pin_request(
        self, versions: Iterable[Version], cost: PinCost = PinCost.CHEAP, **more: Any
    ) -> PinRequest:
        pins = tuple(pin(version, cost) for version in versions)
        return PinRequest(**self._fields(), pins=pins).model_copy(update=more)

    def release_request(self, versions: Iterable[Version], **more: Any) -> ReleaseRequest:
        return ReleaseRequest(**self._fields(), versions=_named(versions)).model_copy(update=more)

    def _request(self, **more: Any) -> HolderRequest:
        return HolderRequest(**self._fields()).model_copy(update=more)

    def _fields(self) -> dict[str, Any]:
        return {
            "context_id": self.bench.context_id,
            "holder_id": self.holder_id,
            "incarnation": self.incarnation,
            "operation": self.operation,
            "digest": pins_digest(self.pins()),
        }


async def look(bench: Bench, *versions: Version, mark: bool = False) -> Observation:
    return await bench.registry.observe(bench.context_id, versions or (A, B, C), mark=mark)


async def holders_of(bench: Bench, version: Version) -> set[str]:
    """Who pins a version, by a good lease."""
    seen = await look(bench, version)
    return {live.holder_id for live in seen.pins[version]}


def _named(versions: Iterable[Version]) -> Sequence[SpanVersion]:
    return tuple(SpanVersion(span_id=span_id, version=version) for span_id, version in versions)
