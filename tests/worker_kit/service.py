"""Workers under test: in this process, or as a program that can be killed."""

import asyncio
import json
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.settings import Settings
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline
from tests.worker_kit.sender import Sender, sending

ROOT: Final = Path(__file__).parents[2]


def settings(servers: EmbeddedServers, **more: Any) -> Settings:
    """Settings for a test: few partitions, a short ack wait, the cold store beside the servers' data."""
    fields: dict[str, Any] = {
        "nats_url": servers.nats_url,
        "redis_url": servers.redis_url,
        "cold_url": cold_folder(servers).as_uri(),
        "partitions": 2,
        "ack_wait_s": 1.0,
        "summarise_concurrency": 1,
        "retry_delay_s": 0.02,
        "io_timeout_s": 2.0,
    }
    return Settings(**(fields | more))


def cold_folder(servers: EmbeddedServers) -> Path:
    """Where the cold store of `settings` is."""
    return servers.nats.data_dir.parent / "cold"


def partition_of(context_id: str, partitions: int) -> int:
    """The lane of a context's commands: the server's own function, FNV-1a over the token."""
    found = 2166136261
    for byte in context_id.encode():
        found = (found ^ byte) * 16777619 % 2**32
    return found % partitions


@asynccontextmanager
async def serving(servers: EmbeddedServers, **more: Any) -> AsyncIterator[tuple[Worker, Sender]]:
    """A worker in this process, and a commanding side."""
    async with Worker(settings(servers, **more)) as worker, sending(servers.nats_url) as sender:
        yield worker, sender


def start_worker(
    programs: Programs,
    servers: EmbeddedServers,
    *,
    stop_at: Mapping[str, str] | None = None,
    freeze: bool = False,
    changing_ms: int | None = None,
    **more: Any,
) -> Program:
    """A worker as a program. `stop_at` says at which point the commands of a context hang, and say so.

    With `freeze` the program is stopped there, and goes on from there with SIGCONT. `changing_ms` is how long
    its notes of changes stand.
    """
    config = settings(servers, **more)
    env = {
        f"SEXTON_{name.upper()}": str(value)
        for name, value in config.model_dump(exclude_defaults=True).items()
        if name != "redis_url"
    }
    env |= {
        "SEXTON_REDIS_URL": servers.redis_url,
        "SEXTON_TEST_STOP_AT": json.dumps(dict(stop_at or {})),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep),
    }
    if freeze:
        env["SEXTON_TEST_FREEZE"] = "1"
    if changing_ms is not None:
        env["SEXTON_TEST_CHANGING_MS"] = str(changing_ms)
    return programs.python("-m", "tests.worker_kit.program", name="worker", env=env)


async def ready(*workers: Program) -> None:
    """Waits until the programs take commands."""
    async with deadline(30, "the workers' start"):
        lines = [worker.line("worker.ready", stream="stderr", within_s=30) for worker in workers]
        await asyncio.gather(*lines)
