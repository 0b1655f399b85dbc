"""How a command ends: by itself, by a signal, by an error."""

import asyncio
import os
import signal

import pytest

from sexton.schemas.errors import Unavailable
from sexton.worker.cli.codes import ExitCode
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import Interrupted, exit_code, run_async


def test_a_result_comes_back() -> None:
    """Nothing happened on the way."""

    async def work() -> int:
        return 7

    assert 7 == run_async(work)


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, ExitCode.INTERRUPTED), (signal.SIGTERM, ExitCode.TERMINATED)],
)
def test_a_signal_lets_the_work_clean_up(number: signal.Signals, code: ExitCode) -> None:
    """It is cancelled, comes to its `finally`, and the code says which signal it was."""
    cleaned = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    with pytest.raises(Interrupted) as interrupted:
        run_async(work)

    assert [True] == cleaned
    assert code is interrupted.value.exit_code
    assert signal.default_int_handler is signal.getsignal(signal.SIGINT)
    assert signal.SIG_DFL is signal.getsignal(signal.SIGTERM)


def test_a_cancellation_from_inside_is_no_signal() -> None:
    """It is an error of the work, and passes as it is."""

    async def work() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run_async(work)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Unavailable("nobody answers"), ExitCode.UNAVAILABLE),
        (Interrupted(signal.SIGTERM), ExitCode.TERMINATED),
        (KeyboardInterrupt(), ExitCode.INTERRUPTED),
    ],
)
def test_every_end_is_a_code(error: BaseException, code: ExitCode, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is raised, and only errors are told."""

    def work() -> None:
        raise error

    assert code == exit_code(Output(), work)
    out, err = capfd.readouterr()
    assert "" == out
    assert err == ("sexton: unavailable: nobody answers\n" if isinstance(error, Unavailable) else "")


def test_an_unexpected_error_is_told_with_its_traceback(capfd: pytest.CaptureFixture[str]) -> None:
    """It is a bug, and somebody has to find it."""

    def work() -> None:
        raise ZeroDivisionError("of all things")

    assert ExitCode.INTERNAL == exit_code(Output(), work)
    assert "sexton: internal: ZeroDivisionError: of all things" in capfd.readouterr().err
