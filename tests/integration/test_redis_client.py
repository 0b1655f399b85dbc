"""The connection to Redis: bounded, and good for a server that was restarted."""

import asyncio

import pytest
from pydantic import SecretStr
from redis.exceptions import RedisError

from sexton.worker.adapters.redis_client import open_redis
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.settings import Settings
from tests.support.waiting import deadline


async def test_a_restart_of_the_server_is_not_noticed_by_who_comes_after_it(
    own_servers: EmbeddedServers,
) -> None:
    """Each connection of the pool is found closed once; that is made up for at once, for each of them."""
    redis = open_redis(Settings(redis_url=SecretStr(own_servers.redis_url)), 2.0)
    async with deadline(30, "the pool"):
        await asyncio.gather(*(redis.ping() for _ in range(8)))
        assert 1 < len(redis.connection_pool._available_connections)
        await own_servers.valkey.kill()
        await own_servers.valkey.start()
        for _ in range(16):
            assert await redis.ping()
        await redis.aclose()


async def test_a_server_that_is_away_is_told_and_not_waited_for(own_servers: EmbeddedServers) -> None:
    """One more try, and then it is the caller's turn."""
    redis = open_redis(Settings(redis_url=SecretStr(own_servers.redis_url)), 2.0)
    await redis.ping()
    await own_servers.valkey.kill()
    async with deadline(5, "the refusal"):
        with pytest.raises(RedisError):
            await redis.ping()
    await redis.aclose()
