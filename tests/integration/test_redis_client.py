"""The connection to Redis: bounded, and good for a server that was restarted."""

import asyncio

import pytest
from pydantic import SecretStr
from redis.exceptions import RedisError, ResponseError

from sexton.schemas.errors import Unavailable
from sexton.worker.adapters.redis_client import answers, open_redis
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.settings import Settings
from tests.support.waiting import deadline, eventually


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


async def test_a_server_that_gave_no_answer_is_left_alone_for_a_while(own_servers: EmbeddedServers) -> None:
    """A frozen server takes one time-out from whoever asks first, and none from those who come after."""
    settings = Settings(redis_url=SecretStr(own_servers.redis_url))
    redis = open_redis(settings, 0.5, pause_s=60.0)
    patient = open_redis(settings, 0.5)
    await redis.ping()
    await own_servers.valkey.pause()
    with pytest.raises(RedisError, match="Timeout"):
        await redis.ping()
    async with deadline(2, "a hundred refusals"):
        for _ in range(100):
            with pytest.raises(RedisError, match="a moment ago"):
                await redis.ping()
    await own_servers.valkey.resume()
    assert await patient.ping()
    with pytest.raises(RedisError, match="a moment ago"):
        await redis.ping()
    await redis.aclose()
    await patient.aclose()


async def test_it_is_asked_again_after_that_and_a_refusal_is_an_answer(own_servers: EmbeddedServers) -> None:
    """The first good answer ends it; what the server does not permit or understand does not begin it."""
    redis = open_redis(Settings(redis_url=SecretStr(own_servers.redis_url)), 0.2, pause_s=0.05)
    await own_servers.valkey.pause()
    with pytest.raises(RedisError, match="Timeout"):
        await redis.ping()
    await own_servers.valkey.resume()

    async def answered() -> bool:
        try:
            return bool(await redis.ping())
        except RedisError:
            return False

    await eventually(answered)
    for _ in range(3):
        with pytest.raises(ResponseError):
            await redis.execute_command("NONSENSE")
        assert await redis.ping()
    await redis.aclose()


@pytest.mark.parametrize(
    ("how", "reason"),
    [("full", "OutOfMemoryError"), ("a replica", "ReadOnlyError"), ("away", "ConnectionError")],
)
async def test_a_server_that_takes_no_writes_does_not_pass_for_ready(
    own_servers: EmbeddedServers, how: str, reason: str
) -> None:
    """A PING is answered all the same, and no lease is taken."""
    redis = open_redis(Settings(redis_url=SecretStr(own_servers.redis_url)), 2.0)
    await answers(redis)
    match how:
        case "full":
            await redis.config_set("maxmemory", "1mb")
        case "a replica":
            await redis.execute_command("REPLICAOF", "127.0.0.1", "1")
        case _:
            await own_servers.valkey.kill()
    with pytest.raises(Unavailable, match=reason):
        await answers(redis)
    await redis.aclose()
