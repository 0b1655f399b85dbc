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
from sexton.worker.cli.codes import ExitCode, OutputFailed, exit_code_of
from sexton.worker.cli.output import Output, writing

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
        if sys.stdout is not None:
            with writing():
                sys.stdout.flush()
    except OutputFailed as error:
        _forget_stdout()
        out.error(error, code := exit_code_of(error))
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
    if sys.stdout is None:
        return
    with contextlib.suppress(OSError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def fill_closed_streams() -> None:
    """Puts the null device where the program was started with a standard stream closed.

    Else the next socket or file would take its number, and whatever a child or a library writes there would
    go into it. For Python they stay closed: `sys.stdin` and `sys.stdout` are None. Complaints go nowhere.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: PTH123, SIM115 - for as long as the program runs
