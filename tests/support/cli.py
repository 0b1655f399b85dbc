"""The command line under test: in this process where that is enough, for it is fast, and its processes."""

import asyncio
import io
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
from pydantic_core import from_json

from sexton.worker.cli.app import run
from tests.support.processes import Program, Programs

UP_WITHIN_S: Final = 40.0


@dataclass(frozen=True, slots=True)
class Ran:
    """What a command came to."""

    code: int
    out: bytes
    err: str

    @property
    def value(self) -> Any:
        """The JSON on stdout."""
        return from_json(self.out)

    @property
    def values(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [from_json(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """The JSON error on stderr."""
        return from_json(self.err)


def _configure_logs(level: str, *, json: bool) -> None:
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


class Cli:
    """Runs commands in this process, with the exit code, stdout and stderr that a program would see."""

    def __init__(self, capture: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capture
        self._monkeypatch = monkeypatch

    def __call__(self, *arguments: str, stdin: bytes = b"", env: Mapping[str, str] | None = None) -> Ran:
        self._capture.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            # The real one would take over the logging of the whole test run.
            patch.setattr("sexton.worker.logs.configure", _configure_logs)
            for name, value in (env or {}).items():
                patch.setenv(name, value)
            before = structlog.get_config() if structlog.is_configured() else None
            try:
                code = run(arguments)
            finally:
                structlog.reset_defaults()
                if before is not None:
                    structlog.configure(**before)
        out, err = self._capture.readouterr()
        return Ran(code, out, err.decode())


def descendants(pid: int) -> set[int]:
    """The processes that were started by `pid`, by its children, and so on."""
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True)
    parents = {int(child): int(parent) for child, parent in map(str.split, listed.stdout.splitlines())}
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid, os.getpid()}
        found |= more


def arguments_of(pid: int) -> str:
    """The command line of a process; empty for a watcher's shell, whose words are the same."""
    shown = subprocess.run(
        ["ps", "-o", "args=", "-p", str(pid)], stdout=subprocess.PIPE, text=True, check=False
    ).stdout.strip()
    return "" if "sexton-watch" in shown else shown


@contextmanager
def running_up(
    folder: Path, *options: str, env: Mapping[str, str] | None = None
) -> Iterator[tuple[Program, str]]:
    """`sexton up` with its data in `folder`, and the URL that it prints when commands can be taken."""
    programs = Programs(folder / f"programs-{uuid.uuid4().hex}")
    program = programs.sexton("up", "--data", str(folder / "data"), *options, env=env)
    try:
        url = asyncio.run(program.line("^nats://", within_s=UP_WITHIN_S)).string
        yield program, url
    finally:
        programs.kill_all()
