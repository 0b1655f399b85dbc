"""Summarisers: one that needs no model, and one that runs any program."""

import asyncio
import os
import re
import shlex
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import Level
from sexton.schemas.limits import INLINE_BYTES
from sexton.worker.ports import Summariser

_SEPARATOR: Final = "\n\n"
_READ_BYTES: Final = 64 * 1024
_MAX_OUTPUT_BYTES: Final = 2 * INLINE_BYTES
_END_S: Final = 1.0


ALWAYS: Final = ("PATH", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR")
"""Variables of the worker that the program gets. No others: among them are passwords."""
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")


class SummariserFailedError(Exception):
    """The program ended with an error or wrote no UTF-8."""


def make_summariser(spec: str, env: str = "") -> Summariser:
    """The summariser that a setting names.

    Args:
        spec: `extractive`, or `command:PROGRAM ARGS`.
        env: names of variables that the program gets beside `ALWAYS`, with commas between them.

    Raises:
        InvalidInput: there is no such summariser, or a name that can be none.
    """
    names = [name.strip() for name in env.split(",") if name.strip()]
    if wrong := [name for name in names if not _NAME.fullmatch(name)]:
        raise InvalidInput(
            f"summariser_env names variables, and {wrong[0]!a} is none", field="summariser_env"
        )
    if spec == "extractive":
        return ExtractiveSummariser()
    kind, _, command = spec.partition(":")
    if kind == "command" and command.strip():
        return CommandSummariser(shlex.split(command), names)
    raise InvalidInput("summariser is 'extractive' or 'command:PROGRAM ARGS'", field="summariser")


class ExtractiveSummariser:
    """Quotes the beginning of every source, within a share of their size. Needs no model.

    A stand-in for trying and for tests, and a fallback that never invents anything.
    """

    def __init__(self, ratio: float = 0.2) -> None:
        self._ratio = ratio

    async def __call__(self, sources: Sequence[str], level: Level, size_bytes: int) -> str:  # noqa: ARG002
        """See `Summariser`."""
        room = max(1, int(size_bytes * self._ratio) // len(sources) - len(_SEPARATOR))
        lines = [_beginning(source, room) for source in sources]
        text = _SEPARATOR.join(line for line in lines if line)
        return text or f"[{len(sources)} spans]"


class CommandSummariser:
    """Runs a program per summary: the sources on its standard input, the summary on its standard output.

    The program learns level and size from `SEXTON_LEVEL` and `SEXTON_SIZE_BYTES`. Of the worker's environment
    it gets `ALWAYS`, and what it is given by name: a key of a model's provider, but no passwords of NATS and
    Redis. It is killed, with all that it has started, if the call is cancelled or if it writes without end.
    """

    def __init__(self, argv: Sequence[str], env: Sequence[str] = ()) -> None:
        """Args: the program with its arguments; and names of variables that it gets beside `ALWAYS`."""
        self._argv = list(argv)
        self._env = (*ALWAYS, *env)

    async def __call__(self, sources: Sequence[str], level: Level, size_bytes: int) -> str:
        """See `Summariser`. Raises `SummariserFailedError`, or `OSError` if the program cannot start."""
        process = await asyncio.create_subprocess_exec(
            *self._argv,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={
                **{name: os.environ[name] for name in self._env if name in os.environ},
                "SEXTON_LEVEL": level.name,
                "SEXTON_SIZE_BYTES": str(size_bytes),
            },
            start_new_session=True,
        )
        try:
            _, out = await asyncio.gather(_feed(process, sources), _read(process))
            await process.wait()
        except BaseException:
            await asyncio.shield(_end(process))
            raise
        if process.returncode != 0:
            raise SummariserFailedError(f"the summariser ended with status {process.returncode}")
        try:
            return out.decode()
        except UnicodeDecodeError as e:
            raise SummariserFailedError("the summariser wrote no UTF-8") from e


async def _feed(process: Process, sources: Sequence[str]) -> None:
    assert process.stdin is not None  # noqa: S101 - a pipe, as asked for
    # A program may end without having read it all.
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(_SEPARATOR.join(sources).encode())
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: Process) -> bytes:
    assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
    out = bytearray()
    while chunk := await process.stdout.read(_READ_BYTES):
        out += chunk
        if len(out) > _MAX_OUTPUT_BYTES:
            raise SummariserFailedError(f"the summariser wrote over {_MAX_OUTPUT_BYTES} bytes")
    return bytes(out)


async def _end(process: Process) -> None:
    """Kills the program with all that it has started, and lets go of its pipe."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    assert process.stdout is not None  # noqa: S101 - a pipe, as asked for
    with suppress(TimeoutError):
        async with asyncio.timeout(_END_S):
            # What it wrote and nobody has read keeps the pipe open, and that keeps `wait` from coming back.
            while await process.stdout.read(_READ_BYTES):
                pass
            await process.wait()


def _beginning(source: str, room: int) -> str:
    """The first words of a source within `room` bytes, whitespace folded."""
    words = " ".join(source[: room * 2].split())
    cut = words.encode()[:room].decode(errors="ignore")
    return cut.rsplit(" ", 1)[0] if len(cut) < len(words) and " " in cut else cut
