"""Running a command to its exit code: signals, deadlines, and errors as one clear line."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

import structlog

from sexton.schemas.errors import SextonError
from sexton.worker import logs
from sexton.worker.cli.codes import ExitCode, exit_code_of
from sexton.worker.cli.output import Output

T = TypeVar("T")

_ENDING: Final = {signal.SIGINT: ExitCode.INTERRUPTED, signal.SIGTERM: ExitCode.TERMINATED}
_LEVELS: Final = ("ERROR", "WARNING", "INFO", "DEBUG")


class Interrupted(BaseException):
    """A signal asked the program to end, and everything was let go in order."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(number.name)
        self.exit_code = _ENDING[number]


def configure_logs(verbose: int, *, lasting: bool = False) -> None:
    """Logs for a person at a terminal, on stderr: more with each `-v`.

    A command that lasts tells of warnings, too. One that soon ends says in its own words what went wrong.
    """
    logs.configure(_LEVELS[min(verbose + lasting, len(_LEVELS) - 1)], json=False)


def run_async(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Runs to the end, or to the first SIGINT or SIGTERM, which cancels it so that it can clean up.

    A second signal ends the program at once; what it started as a `ChildProcess` dies with it.

    Raises:
        Interrupted: a signal came.
    """
    received: list[signal.Signals] = []

    async def guarded() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - this is a coroutine in a task

        def on_signal(number: signal.Signals) -> None:
            received.append(number)
            loop.remove_signal_handler(number)
            task.cancel()

        for number in _ENDING:
            loop.add_signal_handler(number, on_signal, number)
        try:
            return await work()
        finally:
            for number in _ENDING:
                loop.remove_signal_handler(number)

    try:
        result = asyncio.run(guarded())
    except asyncio.CancelledError:
        if not received:
            raise
    else:
        if not received:
            return result
    raise Interrupted(received[0])


def exit_code(out: Output, work: Callable[[], int | None]) -> int:
    """Does the work, tells its errors, expected ones in a line, and says with what code it ended."""
    try:
        code: int = work() or ExitCode.OK
        sys.stdout.flush()
    except SextonError as error:
        out.error(error, code := exit_code_of(error))
    except Interrupted as interrupted:
        code = interrupted.exit_code
    except KeyboardInterrupt:
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        code = ExitCode.BROKEN_PIPE
    except Exception as error:  # noqa: BLE001 - the outermost place: told with its traceback, and as a code
        structlog.get_logger("sexton.cli").exception("cli.failed")
        out.failure("internal", f"{type(error).__name__}: {error}", ExitCode.INTERNAL)
        code = ExitCode.INTERNAL
    return code


def _forget_stdout() -> None:
    """Nobody reads any more. Else Python complains when it flushes at its end."""
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
