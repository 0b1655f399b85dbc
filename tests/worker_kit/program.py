"""A worker as a program of its own, that hangs at chosen points of chosen contexts' commands.

Run as `python -m tests.worker_kit.program`, with the worker's settings in the environment, and in
`SEXTON_TEST_STOP_AT` a JSON object from context ids to points. When a command of such a context comes to its
point, the program prints `at POINT in CONTEXT`, and the command goes no further; the rest of the worker lives
on, and says `in_progress`. Then it is killed.

With `SEXTON_TEST_FREEZE` the whole process stops there instead, as by SIGSTOP, and goes on from there with
SIGCONT. `SEXTON_TEST_CHANGING_MS` is how long its notes of changes stand.
"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from sexton.worker import logs
from sexton.worker.adapters.cold import ObjectColdStore
from sexton.worker.adapters.hot import RedisHotStore
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.app import Worker
from sexton.worker.delivery import Delivery
from sexton.worker.ending import end_process
from sexton.worker.outbox import Outbox
from sexton.worker.program import run
from sexton.worker.settings import Settings
from tests.worker_kit.notes import brief_notes

POINTS: dict[str, tuple[Any, str, str]] = {
    "before the bytes": (ObjectColdStore, "write", "before"),
    "after the bytes": (ObjectColdStore, "write", "after"),
    "before the record": (NatsLog, "append", "before"),
    "after the record": (NatsLog, "append", "after"),
    "after the hot bytes": (RedisHotStore, "put", "after"),
    "before the outcome": (Outbox, "publish", "before"),
    "after the outcome": (Outbox, "publish", "after"),
    "after the deferral": (Outbox, "defer", "after"),
    "after the summary": (Outbox, "send", "after"),
    "before the dead letter": (Delivery, "_bury", "before"),
}
"""Where a command can be stopped: a method, before or after it."""


def stop(point: str, contexts: set[str]) -> None:
    """Makes the commands of `contexts` hang at `point`."""
    owner, method, where = POINTS[point]
    original: Callable[..., Awaitable[Any]] = getattr(owner, method)

    async def wrapped(self: Any, about: Any, *more: Any) -> Any:
        context_id = _context_of(about)
        if where == "before" and context_id in contexts:
            await _hang(point, context_id)
        result = await original(self, about, *more)
        if where == "after" and context_id in contexts:
            await _hang(point, context_id)
        return result

    setattr(owner, method, wrapped)


def _context_of(about: Any) -> str:
    """The context that a method's first argument names: itself, an outcome, a subject or a message."""
    if hasattr(about, "raw_message"):
        about = about.raw_message.subject
    found = str(getattr(about, "context_id", about))
    return found.split(".")[-2] if "." in found else found


async def _hang(point: str, context_id: str) -> None:
    print("at", point, "in", context_id, flush=True)
    if os.environ.get("SEXTON_TEST_FREEZE"):
        os.kill(os.getpid(), signal.SIGSTOP)
        return
    await asyncio.Event().wait()


def main() -> None:
    """Runs the worker until SIGTERM."""
    settings = Settings()
    logs.configure(settings.log_level)
    wanted: dict[str, str] = json.loads(os.environ.get("SEXTON_TEST_STOP_AT", "{}"))
    if changing_ms := os.environ.get("SEXTON_TEST_CHANGING_MS"):
        brief_notes(int(changing_ms), setattr)
    for point in set(wanted.values()):
        stop(point, {context for context, at in wanted.items() if at == point})
    asyncio.run(run(Worker(settings)))


if __name__ == "__main__":
    main()
    end_process(0)
