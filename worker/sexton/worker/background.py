"""What a program does beside its handlers: tasks that end with it, and whose own end is noticed."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import structlog

from sexton.schemas.errors import PermissionRefused, Unavailable
from sexton.worker.cancelling import cancelled
from sexton.worker.health import Check
from sexton.worker.health.checks import OK
from sexton.worker.provision import ProvisionError

_CANCEL_AGAIN_S: Final = 0.2


class Background:
    """Tasks of one program."""

    def __init__(self, component: str) -> None:
        """Args: what the program is called in its log."""
        self._component = component
        self._log = structlog.get_logger(f"sexton.{component}")
        self._tasks: set[asyncio.Task[None]] = set()
        self._died: list[str] = []

    def spawn(self, work: Coroutine[Any, Any, None], *, lasting: str | None = None) -> None:
        """Begins a task. One that is `lasting`, under a name, must not end before the program does."""
        task = asyncio.create_task(work, name=lasting)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._finished(done, lasting))

    def check(self) -> Check:
        """Ok if what must last still does: for `/livez`."""
        return Check.failed(f"{self._died[0]} has ended") if self._died else OK

    async def close(self) -> None:
        """Ends all of them."""
        while self._tasks:
            for task in self._tasks:
                task.cancel()
            # Again, if need be: Python 3.11's `wait_for` loses a cancellation that comes with its answer.
            await asyncio.wait(self._tasks, timeout=_CANCEL_AGAIN_S)

    def _finished(self, task: asyncio.Task[None], lasting: str | None) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error(f"{self._component}.task_failed", exc_info=error)
        if lasting is not None:
            self._died.append(lasting)


class Provisioning:
    """Provisions again whenever that is called for."""

    def __init__(
        self, component: str, provision: Callable[[], Awaitable[None]], *, first_s: float, longest_s: float
    ) -> None:
        """Args: the program's name in its log; how it provisions; and the delays after a fault."""
        self._component = component
        self._log = structlog.get_logger(f"sexton.{component}")
        self._provision = provision
        self._first_s = first_s
        self._longest_s = longest_s
        self._called_for = asyncio.Event()
        self.failed = asyncio.Event()
        """Set when what is there is not as meant: the program cannot go on."""
        self.error: ProvisionError | None = None
        """Why."""

    def again(self) -> None:
        """Something may be missing."""
        self._called_for.set()

    async def run(self) -> None:
        """Does it, each time until it is done. Waits for ever once it has failed."""
        delay_s = self._first_s
        while not cancelled():
            await self._called_for.wait()
            self._called_for.clear()
            try:
                await self._provision()
                delay_s = self._first_s
            except (Unavailable, PermissionRefused) as e:
                # A server that has just started may answer before its JetStream does.
                self._log.warning(f"{self._component}.provision_failed", reason=e.message, delay_s=delay_s)
                self._called_for.set()
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._longest_s)
            except ProvisionError as e:
                self._log.critical(f"{self._component}.gives_up", reason=e.message)
                self.error = e
                self.failed.set()
                await asyncio.Event().wait()
