"""How a program of the service connects to Redis or Valkey, and what it does when it is refused something."""

import time
from typing import Any, Final, cast
from urllib.parse import urlsplit

import structlog
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    ConnectionError,  # noqa: A004 - redis-py's own
    NoPermissionError,
    RedisError,
    ResponseError,
)

from sexton.schemas.errors import InvalidInput, PermissionRefused, Unavailable
from sexton.worker.settings.connections import ConnectionSettings

log: Final = structlog.get_logger("sexton.redis")

STANDS_S: Final = 60.0
"""A refusal stands for this long after it was last met, unless the command is let through before."""


class WatchedRedis(Redis):
    """A client that keeps in mind which commands it was refused. An outage is something else."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.refused: dict[str, tuple[str, float]] = {}
        """By command: why, and when that was met last."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        command = str(args[0]).upper()
        try:
            answer = await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except RedisError as e:
            if (why := refusal(e)) is not None:
                if command not in self.refused:
                    log.error("redis.refused", command=command, reason=why)  # noqa: TRY400 - raised on
                self.refused[command] = why, time.monotonic()
            raise
        self.refused.pop(command, None)
        return answer

    def check_permitted(self) -> None:
        """Raises `PermissionRefused` if a refusal stands."""
        now = time.monotonic()
        for command, (why, at) in self.refused.items():
            if now - at < STANDS_S:
                raise PermissionRefused(f"Redis refused {command}: {why}", operation="redis", subject=command)


class ImpatientRedis(WatchedRedis):
    """A client that leaves its server alone for a while after it gave no answer.

    Whoever asks meanwhile hears at once that there is none, instead of waiting for the same time-out again. A
    refusal is an answer.
    """

    def __init__(self, *args: Any, pause_s: float, **options: Any) -> None:
        """Args: as redis-py's; and how long the server is left alone."""
        super().__init__(*args, **options)
        self._breakers = AsyncCircuitBreakerFactory(1, pause_s, exclude=[ResponseError, AuthenticationError])

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """See redis-py."""
        breaker = await self._breakers.get_breaker("redis")
        try:
            async with breaker:
                return await super().execute_command(*args, **options)
        except OpenedState:
            raise ConnectionError("no answer a moment ago") from None


def open_redis(
    settings: ConnectionSettings, timeout_s: float, *, pause_s: float | None = None
) -> WatchedRedis:
    """A client whose every wait is bounded. Connects when it is first used.

    Args:
        settings: where Redis is, and who we are there.
        timeout_s: for each answer.
        pause_s: leave it alone for so long after it gave no answer; see `ImpatientRedis`.

    Raises:
        InvalidInput: `redis_url` is not the address of a Redis, or a file that TLS needs cannot be used.
    """
    url = settings.redis_url.get_secret_value()
    options: dict[str, Any] = {"username": settings.redis_username}
    if settings.redis_password is not None:
        options["password"] = settings.redis_password.get_secret_value()
    if settings.redis_tls_ca_file is not None:
        options["ssl_ca_certs"] = _authorities(settings, url)
    try:
        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=32,
            timeout=timeout_s,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            # Once, at once, not for a time-out: after a restart of the server each connection of the pool
            # is found closed by whoever takes it next. Other retries are for the caller to decide on.
            retry=Retry(NoBackoff(), 1, supported_errors=(ConnectionError,)),
            **{name: value for name, value in options.items() if value is not None},
        )
    except ValueError:
        # Not redis-py's own words: they may hold the address, and that a password.
        raise InvalidInput("redis_url is not the address of a Redis", field="redis_url") from None
    if pause_s is None:
        return cast("WatchedRedis", WatchedRedis.from_pool(pool))
    client = ImpatientRedis(connection_pool=pool, pause_s=pause_s)
    client.auto_close_connection_pool = True  # as `from_pool` says it
    return client


async def answers(client: WatchedRedis) -> None:
    """Returns if the server takes what we write, and lets us do our work. Raises `Unavailable` if not.

    A server that is full, or a replica, answers a PING all the same, and takes no lease.
    """
    try:
        await client.set(_READY_KEY, b"1", px=_READY_KEPT_MS)
        client.check_permitted()
    except (RedisError, OSError, TimeoutError) as e:
        raise Unavailable(f"registry.write: {refusal(e) or type(e).__name__}", operation="write") from e
    except PermissionRefused as e:
        raise Unavailable(e.message, operation="write") from e


_READY_KEY: Final = "sexton:{start}:ready"
_READY_KEPT_MS: Final = 5000


async def check_access(client: WatchedRedis) -> None:
    """Whether we are let in, asked at the start. An outage passes: Redis may be away for a while.

    Raises:
        PermissionRefused: a wrong password, none where one is needed, or commands that are not permitted.
    """
    try:
        await client.ping()
        # What every script begins with. The key is none that anything is kept under.
        await client.eval(_PROBE, 1, "sexton:{start}:probe")
    except (RedisError, OSError, TimeoutError) as e:
        if (why := refusal(e)) is not None:
            raise PermissionRefused(f"Redis refused us: {why}", operation="redis", subject="start") from None


_PROBE: Final = """
redis.call('TIME')
redis.call('INFO', 'server')
redis.call('HMGET', KEYS[1], 'id')
return 1
"""


def refusal(error: BaseException) -> str | None:
    """Redis's word for a refusal: WRONGPASS, NOAUTH or NOPERM. None for any other error."""
    if not isinstance(error, AuthenticationError | NoPermissionError | ResponseError):
        return None
    text = str(error)
    if isinstance(error, NoPermissionError) or "NOPERM" in text or "ACL failure" in text:
        return "NOPERM"
    if isinstance(error, AuthenticationError) or "WRONGPASS" in text or "NOAUTH" in text:
        asked = ("NOAUTH", "uthentication required", "HELLO must be called")
        return "NOAUTH" if any(words in text for words in asked) else "WRONGPASS"
    return None


def _authorities(settings: ConnectionSettings, url: str) -> str:
    path = settings.redis_tls_ca_file
    if urlsplit(url).scheme != "rediss":
        raise InvalidInput(
            "redis_tls_ca_file is for an address that begins with rediss://", field="redis_url"
        )
    try:
        if path is not None:
            path.read_bytes()
    except OSError as e:
        raise InvalidInput(
            f"redis_tls_ca_file: cannot read {str(path)!a}: {e.strerror}", field="redis_tls_ca_file"
        ) from None
    return str(path)
