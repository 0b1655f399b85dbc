"""Looking at Redis or Valkey. Leaves nothing but the generation of a context of the doctor's own."""

import time
from collections.abc import AsyncIterator, Mapping
from datetime import timedelta
from typing import Final

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from sexton.core import hash as hashing
from sexton.core.decide import Blob
from sexton.schemas.errors import Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.span import Identity
from sexton.worker.adapters.hot import RedisHotStore
from sexton.worker.adapters.redis_client import open_redis
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.doctor.findings import Finding, fault, ok, warning
from sexton.worker.doctor.judge_clocks import judge_clock
from sexton.worker.doctor.judge_redis import judge_redis
from sexton.worker.doctor.probe import CONTEXT, SPAN
from sexton.worker.settings import Settings

PROBE: Final = b"sexton doctor"


async def look_at_redis(settings: Settings) -> AsyncIterator[Finding]:
    """Connects as a worker would, and looks.

    Raises:
        Unavailable: it does not answer, or does not permit what must be.
        InvalidInput: an address that is none.
    """
    redis = open_redis(settings, settings.io_timeout_s)
    try:
        yield await _speed(redis, settings)
        for finding in judge_redis(await redis.info(), await _config(redis)):
            yield finding
        before = time.time()
        seconds, micros = await redis.time()
        after = time.time()
        told = float(seconds) + float(micros) / 1e6
        yield judge_clock("redis", told - (before + after) / 2, (after - before) / 2)
        await RedisRegistry(redis).live(CONTEXT, [(SPAN, 1)])
        yield ok("redis.registry", "the registry's script runs")
        yield await _hot(redis, settings)
    except RedisError as e:
        raise Unavailable(f"Redis: {type(e).__name__}{_hint(e)}") from e
    finally:
        await redis.aclose()


async def _speed(redis: Redis, settings: Settings) -> Finding:
    await redis.ping()
    began = time.perf_counter()
    await redis.ping()
    took_s = time.perf_counter() - began
    found = f"answers in {1000 * took_s:.1f} ms"
    if took_s > settings.hot_timeout_s / 2:
        return warning(
            "redis.connection",
            f"{found}, and a worker waits {settings.hot_timeout_s:g} s",
            "put it nearer to the workers, or raise SEXTON_HOT_TIMEOUT_S",
        )
    return ok("redis.connection", found)


async def _config(redis: Redis) -> Mapping[str, str] | None:
    try:
        found = await redis.config_get("appendfsync", "min-replicas-to-write")
    except (NoPermissionError, ResponseError):  # as it should be for a worker's user
        return None
    return {str(name): str(value) for name, value in found.items()}


async def _hot(redis: Redis, settings: Settings) -> Finding:
    digest = hashing.content_hash(Level.L0_VERBATIM, PROBE)
    hot = RedisHotStore(redis, timedelta(seconds=5), settings.hot_max_bytes)
    await hot.put(CONTEXT, [Blob(span_id=SPAN, version=1, content_hash=digest, data=PROBE)])
    identity = Identity(
        span_id=SPAN, level=Level.L0_VERBATIM, version=1, content_hash=digest, size_bytes=len(PROBE)
    )
    if await hot.get(CONTEXT, identity) == PROBE:
        return ok("redis.hot", "bytes can be kept and read")
    return fault(
        "redis.hot",
        "bytes that were put cannot be read",
        "let the user SET, GET and DEL keys that begin with sexton:, as deploy/valkey does",
    )


def _hint(error: RedisError) -> str:
    text = str(error)
    return next((f" ({word})" for word in ("NOAUTH", "WRONGPASS", "NOPERM") if word in text.upper()), "")
