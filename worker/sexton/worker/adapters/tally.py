"""`Tally` on Redis or Valkey: one hash, a field for each count of each shard."""

from collections import Counter
from collections.abc import Awaitable, Mapping
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sexton.schemas.errors import Unavailable

_KEY: Final = "sexton:{census}:counts"


class RedisTally:
    """`Tally` on Redis 7 or Valkey."""

    def __init__(self, client: Redis) -> None:
        self._redis = client

    async def put(self, shard: int, counts: Mapping[str, int]) -> None:
        """See `Tally.put`."""
        fields: dict[Any, Any] = {f"{name}:{shard}": count for name, count in counts.items()}
        await _tried("put", self._redis.hset(_KEY, mapping=fields))

    async def totals(self) -> Mapping[str, int]:
        """See `Tally.totals`."""
        found: dict[bytes, bytes] = await _tried("totals", self._redis.hgetall(_KEY))
        totals: Counter[str] = Counter()
        for field, count in found.items():
            totals[field.decode().partition(":")[0]] += int(count)
        return totals


async def _tried(what: str, call: Awaitable[Any]) -> Any:
    try:
        return await call
    except (RedisError, OSError, TimeoutError) as e:
        raise Unavailable(f"census.{what}: {type(e).__name__}", operation=what) from e
