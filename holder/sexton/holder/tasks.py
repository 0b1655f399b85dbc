"""Background tasks that somebody owns: none is lost, none fails unheard, all end with their owner."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from sexton import tracing

FailureHandler = Callable[[BaseException], None]


class Tasks:
    """The tasks of one owner."""

    def __init__(self, log: Any) -> None:
        self._log = log
        self._running: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None], name: str, on_failure: FailureHandler) -> None:
        """Runs `work` until it ends or this is closed. If it raises, that is logged and told."""
        # Not in the trace of whoever happens to start it: it goes on for much longer.
        task = asyncio.get_running_loop().create_task(work, name=name, context=tracing.detached())
        self._running.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            self._running.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._log.error(
                    "holder.task_failed", task=name, error=type(error).__name__, reason=str(error)
                )
                on_failure(error)

        task.add_done_callback(ended)

    async def close(self) -> None:
        """Cancels all and waits for their end."""
        while self._running:
            # Again, if need be: a library below may swallow a cancellation.
            running = list(self._running)
            for task in running:
                task.cancel()
            await asyncio.wait(running, timeout=1.0)
