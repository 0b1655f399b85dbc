"""The index of contexts that may have tombstones, on Redis or Valkey. One slot for all of it."""

from collections.abc import Awaitable, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sexton.worker.ports import RegistryUnavailable
from sexton.worker.shards import shard_of

NOTED_FOR_S: Final = 120
"""A note is kept at least this long, far longer than a commit takes from its note to its record."""

# KEYS[1] index of a shard; ARGV: context, seconds. Drops the context unless it was noted lately.
_DROP: Final = """
local noted = redis.call('ZSCORE', KEYS[1], ARGV[1])
if noted and tonumber(noted) < redis.call('TIME')[1] - tonumber(ARGV[2]) then
  redis.call('ZREM', KEYS[1], ARGV[1])
end
return 1
"""

# KEYS[1] index of a shard; ARGV: contexts
_NOTE: Final = """
local now = redis.call('TIME')[1]
for _, context in ipairs(ARGV) do redis.call('ZADD', KEYS[1], now, context) end
return 1
"""

# KEYS[1] lock; ARGV: token, milliseconds. Takes it, or renews it if it is ours.
_LOCK: Final = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""

_UNLOCK: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end return 1"

# KEYS[1] marker; ARGV: empty to ask, or what was answered before, to set it. Answers with nothing if the
# index is complete, or since when it is not. It counts only for the server that it was set on, and is set
# only if that has lost nothing since it was asked: contexts noted before a loss would be missing for good.
_COMPLETE_SCRIPT: Final = """
local info = redis.call('INFO', 'server') .. redis.call('INFO', 'replication')
local id = string.match(info, 'run_id:(%w+)') .. string.match(info, 'master_replid:(%w+)')
local known = redis.call('GET', KEYS[1])
if known == id then return '' end
if not known or string.sub(known, 1, #id) ~= id then
  local t = redis.call('TIME')
  known = id .. ':' .. t[1] .. '-' .. t[2]
  redis.call('SET', KEYS[1], known)
  return known
end
if known ~= ARGV[1] then return known end
redis.call('SET', KEYS[1], id)
return ''
"""


class RedisSweepIndex:
    """`SweepIndex` on Redis 7 or Valkey."""

    def __init__(self, client: Redis, name: str = "sweep") -> None:
        """Args: the client; and a name for this index, if it is not the sweeper's."""
        self._redis = client
        self._base = f"sexton:{{{name}}}"
        self._marker = f"{self._base}:complete"
        self._note = client.register_script(_NOTE)
        self._drop = client.register_script(_DROP)
        self._lock = client.register_script(_LOCK)
        self._unlock = client.register_script(_UNLOCK)
        self._complete = client.register_script(_COMPLETE_SCRIPT)
        self._incomplete_since = b""

    async def note(self, context_ids: Sequence[str]) -> None:
        """See `SweepIndex.note`."""
        shards: dict[int, list[str]] = {}
        for context_id in context_ids:
            shards.setdefault(shard_of(context_id), []).append(context_id)
        for shard, names in shards.items():
            for start in range(0, len(names), _PER_CALL):
                await _tried(
                    "note",
                    self._note(keys=[self._index(shard)], args=names[start : start + _PER_CALL]),
                )

    async def drop(self, context_id: str) -> None:
        """See `SweepIndex.drop`."""
        await _tried(
            "drop",
            self._drop(keys=[self._index(shard_of(context_id))], args=[context_id, NOTED_FOR_S]),
        )

    async def contexts(self, shard: int, limit: int) -> list[str]:
        """See `SweepIndex.contexts`."""
        found: list[bytes] = await _tried("contexts", self._redis.zrange(self._index(shard), 0, limit - 1))
        return [name.decode() for name in found]

    async def complete(self) -> bool:
        """See `SweepIndex.complete`."""
        self._incomplete_since = await _tried("complete", self._complete(keys=[self._marker], args=[""]))
        return not self._incomplete_since

    async def set_complete(self) -> None:
        """See `SweepIndex.set_complete`."""
        await _tried("complete", self._complete(keys=[self._marker], args=[self._incomplete_since]))

    async def lock(self, shard: int, token: str, for_s: float) -> bool:
        """See `SweepIndex.lock`."""
        return bool(
            await _tried("lock", self._lock(keys=[self._lock_of(shard)], args=[token, int(for_s * 1000)]))
        )

    async def unlock(self, shard: int, token: str) -> None:
        """See `SweepIndex.unlock`."""
        await _tried("unlock", self._unlock(keys=[self._lock_of(shard)], args=[token]))

    def _index(self, shard: int) -> str:
        return f"{self._base}:index:{shard}"

    def _lock_of(self, shard: int) -> str:
        return f"{self._base}:lock:{shard}"


_PER_CALL: Final = 1000


async def _tried(what: str, call: Awaitable[Any]) -> Any:
    try:
        return await call
    except (RedisError, OSError, TimeoutError) as e:
        raise RegistryUnavailable(f"sweep_index.{what}: {type(e).__name__}", operation=what) from e
