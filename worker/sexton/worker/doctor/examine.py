"""The whole examination: one part after the other, and each whatever became of the others."""

from collections.abc import AsyncIterator, Iterable

from sexton.schemas.errors import SextonError
from sexton.worker.doctor.findings import Finding, fault
from sexton.worker.doctor.judge_settings import judge_settings
from sexton.worker.doctor.look_cold import look_at_cold
from sexton.worker.doctor.look_nats import look_at_nats
from sexton.worker.doctor.look_redis import look_at_redis
from sexton.worker.settings import Settings


async def examine(
    settings: Settings, *, unknown: Iterable[str] = (), monitor: str | None = None
) -> AsyncIterator[Finding]:
    """Looks at everything that a worker with these settings needs.

    Args:
        settings: the worker's.
        unknown: variables that are no settings.
        monitor: address of NATS's monitoring port, if there is one.
    """
    for finding in judge_settings(settings, unknown):
        yield finding
    parts = (
        ("nats.connection", look_at_nats(settings, monitor), "SEXTON_NATS_URL and the credentials beside it"),
        (
            "redis.connection",
            look_at_redis(settings),
            "SEXTON_REDIS_URL, and its user and password",
        ),
        ("cold.store", look_at_cold(settings), "SEXTON_COLD_URL, and the keys that its cloud wants"),
    )
    for check, part, variables in parts:
        try:
            async for finding in part:
                yield finding
        except SextonError as e:
            yield fault(check, e.message, f"let it run, and be reached from here; see {variables}")
