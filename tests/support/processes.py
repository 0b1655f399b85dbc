"""Programs under test as child processes: output to files, a line to wait for, and an end by force."""

import asyncio
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from sexton.worker.embedded import ChildProcess
from tests.support.waiting import DeadlineExceeded, deadline

Stream = Literal["stdout", "stderr"]

_POLL_S: Final = 0.005
_REPORTED_BYTES: Final = 6000


class Program:
    """One running program. Its output is in `stdout_path` and `stderr_path`.

    It has a session of its own, and does not outlive the tests' process.
    """

    def __init__(self, name: str, child: ChildProcess, stdout_path: Path, stderr_path: Path) -> None:
        self.name = name
        self.child = child
        self.stdout_path = stdout_path
        self.stderr_path = stderr_path

    @property
    def pid(self) -> int:
        return self.child.pid

    @property
    def running(self) -> bool:
        return self.child.poll() is None

    @property
    def stdout(self) -> str:
        return self.stdout_path.read_text(encoding="utf-8", errors="replace")

    @property
    def stderr(self) -> str:
        return self.stderr_path.read_text(encoding="utf-8", errors="replace")

    async def line(self, pattern: str, *, stream: Stream = "stdout", within_s: float = 15.0) -> re.Match[str]:
        """Wait for the first whole line in which `pattern` is found. Fails at once if the program ends."""
        try:
            async with deadline(within_s, f"a line like {pattern!r} from {self.name}"):
                return await self._find_line(re.compile(pattern), stream)
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.report()}") from error

    async def exit_code(self, *, within_s: float = 15.0) -> int:
        """Wait for the program to end by itself."""
        try:
            async with deadline(within_s, f"the end of {self.name}"):
                return await self.child.wait()
        except DeadlineExceeded as error:
            raise DeadlineExceeded(f"{error}\n{self.report()}") from error

    def send_signal(self, number: int) -> None:
        self.child.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, as a crash would; on return it is gone."""
        self.child.kill()

    def report(self) -> str:
        """The end of its output, for the message of a failure."""
        state = "running" if (code := self.child.poll()) is None else f"exit code {code}"
        return "\n".join(
            [f"{self.name} ({state})"]
            + [
                f"--- {stream} of {self.name} ---\n{text[-_REPORTED_BYTES:]}"
                for stream, text in (("stdout", self.stdout), ("stderr", self.stderr))
                if text
            ]
        )

    async def _find_line(self, wanted: re.Pattern[str], stream: Stream) -> re.Match[str]:
        while True:
            ended = self.child.poll()  # asked first, so that the lines read after it are all there are
            for line in self._whole_lines(stream):
                if match := wanted.search(line):
                    return match
            if ended is not None:
                raise AssertionError(f"no line like {wanted.pattern!r} came\n{self.report()}")
            await asyncio.sleep(_POLL_S)

    def _whole_lines(self, stream: Stream) -> list[str]:
        text = self.stdout if stream == "stdout" else self.stderr
        return text[: text.rfind("\n") + 1].splitlines()


class Programs:
    """Starts the programs of one test, and kills what is left of them at its end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers = itertools.count(1)
        self.started: list[Program] = []

    def start(self, *argv: str, name: str | None = None, env: Mapping[str, str] | None = None) -> Program:
        """Start `argv`; `env` is added to the environment of the tests."""
        self._folder.mkdir(parents=True, exist_ok=True)
        name = f"{name or Path(argv[0]).name}-{next(self._numbers)}"
        out, err = self._folder / f"{name}.stdout", self._folder / f"{name}.stderr"
        out.touch()
        err.touch()
        child = ChildProcess.spawn(
            argv, stdout=out, stderr=err, env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        )
        program = Program(name, child, out, err)
        self.started.append(program)
        return program

    def python(self, *args: str, name: str | None = None, env: Mapping[str, str] | None = None) -> Program:
        """Start this Python with `args`: `programs.python("-m", "package.module")`."""
        return self.start(sys.executable, *args, name=name, env=env)

    def sexton(self, *args: str, env: Mapping[str, str] | None = None) -> Program:
        """Start the installed command: `programs.sexton("up", "--data", str(folder))`."""
        command = Path(sys.executable).with_name("sexton")
        return self.start(str(command), *args, name=f"sexton-{args[0]}" if args else "sexton", env=env)

    def kill_all(self) -> None:
        for program in self.started:
            program.kill()


def alive(pid: int) -> bool:
    """Whether the process runs or is frozen. One that has ended and waits to be reaped is not alive."""
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    return bool(state) and not state.startswith("Z")
