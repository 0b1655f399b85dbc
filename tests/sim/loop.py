"""An event loop that runs what is ready and nothing else: no timers, no I/O, no time.

With it a run is a function of the choices made between its turns: `settle` returns when every task waits for
something that only the test can give.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, Final, TypeVar

T = TypeVar("T")

_MOST_TURNS: Final = 100_000


class SteppedLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as tasks, futures, locks and `gather` need."""

    def __init__(self) -> None:
        self._ready: deque[asyncio.Handle] = deque()
        self.errors: list[dict[str, Any]] = []
        """What nobody has caught."""

    def settle(self) -> None:
        """Runs until nothing is ready."""
        asyncio._set_running_loop(self)
        try:
            for _ in range(_MOST_TURNS):
                if not self._ready:
                    return
                self._ready.popleft()._run()
        finally:
            asyncio._set_running_loop(None)
        raise AssertionError("something never stops being ready")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Runs what must not have to wait."""
        task = self.create_task(work)
        self.settle()
        assert task.done(), "it waits for something"
        return task.result()

    # --- what asyncio asks of a loop ---

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: Context | None = None
    ) -> asyncio.Task[T]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def time(self) -> float:
        return 0.0

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)
