"""A worker as a program of its own whose sweeps hang at one point between a collector's steps.

Run as `python -m tests.leases_kit.worker_program`, with the worker's settings in the environment. The name of
a context says where its sweeps hang: `POINTS` has the names. It prints `at NAME`; then it is killed.
"""

import asyncio
from typing import Any, Final

import sexton.worker.subscriptions
from sexton.schemas.span import Identity
from sexton.worker import logs
from sexton.worker.adapters.cold import ObjectColdStore
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.app import Worker
from sexton.worker.ending import end_process
from sexton.worker.program import run
from sexton.worker.settings import Settings

LAST: Final = b"l0:c"
"""Of the spans whose old versions are collected, the one that is not deleted yet amid the deletes."""

POINTS: Final = {
    "before-collecting": ("append", "before", b'"kind":"collecting"'),
    "after-collecting": ("append", "after", b'"kind":"collecting"'),
    "before-condemned": ("append", "before", b'"kind":"condemned"'),
    "after-condemned": ("append", "after", b'"kind":"condemned"'),
    "amid-the-deletes": ("delete", "before", LAST),
    "before-collected": ("append", "before", b'"kind":"collected"'),
    "after-collected": ("append", "after", b'"kind":"collected"'),
    "after-the-marks": ("observe", "after", b""),
}
"""By context: a call of the collector, and whether before or after it."""


async def _hang(context_id: str) -> None:
    print("at", context_id, flush=True)
    await asyncio.Event().wait()


def _patch(owner: type[Any], method: str, name: str) -> None:
    original = getattr(owner, method)

    async def wrapped(self: Any, context_id: str, *args: Any, **kwargs: Any) -> Any:
        call, where, kind = POINTS.get(context_id, ("", "", b""))
        about = args[0].span_id.encode() if isinstance(args[0], Identity) else args[0]
        here = call == name and (not kind or kind in about)
        if here and where == "before":
            await _hang(context_id)
        result = await original(self, context_id, *args, **kwargs)
        if here and where == "after":
            await _hang(context_id)
        return result

    setattr(owner, method, wrapped)


def main() -> None:
    """Runs the worker until SIGTERM."""
    settings = Settings()
    logs.configure(settings.log_level)
    # Each sweep that hangs keeps its place.
    sexton.worker.subscriptions.OPS_CONCURRENCY = len(POINTS) + 1  # type: ignore[misc]
    _patch(NatsLog, "append", "append")
    _patch(RedisRegistry, "observe", "observe")
    _patch(ObjectColdStore, "delete", "delete")
    asyncio.run(run(Worker(settings)))


if __name__ == "__main__":
    main()
    end_process(0)
