"""What the contracts of the ports on Redis have in common."""

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from tests.sim.registry_bench import connected


@pytest.fixture
async def redis(any_redis_url: str) -> AsyncIterator[Redis]:
    """A client of the shared Valkey and, where there is one, of a redis-server: the test runs on each."""
    redis = connected(any_redis_url)
    yield redis
    await redis.aclose()
