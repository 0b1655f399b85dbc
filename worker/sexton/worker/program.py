"""Running a worker or a pager as a process: signals, HTTP beside it, and an end in order."""

import asyncio
import contextlib
import gc
import signal
from collections.abc import AsyncIterator, Iterator, Sequence
from types import TracebackType
from typing import Final, Protocol, Self

import structlog

from sexton.worker.health import Health, Phase
from sexton.worker.settings import Settings
from sexton.worker.web import Endpoint, make_app, serving
from sexton.worker.web.routes import Refresh

log: Final = structlog.get_logger("sexton.program")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Program(Protocol):
    """What can be run. As a context manager it starts, and ends in order within its grace time."""

    settings: Settings
    health: Health
    ended: asyncio.Event
    """Set when it cannot go on; `__aexit__` then raises why."""

    @property
    def refresh(self) -> Sequence[Refresh]:
        """What brings its gauges up to date."""
        ...

    def hurry(self) -> None:
        """Has it give back at once what is in flight. To be called while it ends."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


@contextlib.asynccontextmanager
async def exposed(program: Program) -> AsyncIterator[Endpoint | None]:
    """Serves health and metrics, if a port is set: from before the program starts until it is gone.

    Raises:
        InvalidInput: the port is taken, or the address cannot be used.
    """
    settings = program.settings
    if settings.http_port is None:
        yield None
        return
    app = make_app(program.health, refresh=program.refresh)
    async with serving(app, settings.http_host, settings.http_port) as endpoint:
        yield endpoint


async def run(program: Program) -> None:
    """Runs a program until SIGTERM or SIGINT. To be the last thing that a process does.

    The first signal ends it in order, or calls off its start; the second one ends its grace time. More change
    nothing.

    Raises:
        SextonError: why it could not start, or go on.
    """
    stop = asyncio.Event()
    with _told(program, stop):
        try:
            async with exposed(program), program:
                # What a start leaves behind stays to the end: no full collection need look at it again, and
                # stop everything for as long as that takes.
                gc.freeze()
                await _first(stop, program.ended)
        except asyncio.CancelledError:
            if not stop.is_set():
                raise
            log.info("program.start_called_off")


@contextlib.contextmanager
def _told(program: Program, stop: asyncio.Event) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - this is a coroutine in a task

    def on_signal(number: signal.Signals) -> None:
        log.info("program.told_to_end", signal=number.name, again=stop.is_set())
        if stop.is_set():
            program.hurry()
            return
        stop.set()
        if program.health.phase is Phase.STARTING:
            task.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
            # Everything is let go by now. One that comes this late must not turn that into a failure.
            signal.signal(number, signal.SIG_IGN)


async def _first(*events: asyncio.Event) -> None:
    """Waits for one of them."""
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()
