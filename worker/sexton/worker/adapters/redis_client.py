"""How a program of the service connects to Redis or Valkey."""

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.worker.settings import Settings


def open_redis(settings: Settings, timeout_s: float) -> Redis:
    """A client whose every wait is bounded. Connects when it is first used.

    Raises:
        InvalidInput: `redis_url` is not the address of a Redis.
    """
    try:
        pool = BlockingConnectionPool.from_url(
            settings.redis_url.get_secret_value(),
            max_connections=32,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Retries are for the caller to decide on: here they would only make it wait.
            retry=Retry(NoBackoff(), 0),
        )
    except ValueError:
        # Not redis-py's own words: they may hold the address, and that a password.
        raise InvalidInput("redis_url is not the address of a Redis", field="redis_url") from None
    return Redis.from_pool(pool)


async def answers(client: Redis) -> None:
    """Returns if the server answers. Raises `Unavailable` if not."""
    try:
        await client.ping()
    except (RedisError, OSError, TimeoutError) as e:
        raise Unavailable(f"registry.ping: {type(e).__name__}", operation="ping") from e
