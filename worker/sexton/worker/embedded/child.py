"""A child process that does not outlive its parent, however the parent ends.

`atexit` and signal handlers do not run when a process is killed with SIGKILL, and the kernel's own remedy
(PDEATHSIG) exists on Linux only. What works everywhere is a pipe. This process holds the write end, and a
small shell beside the child blocks on the read end. When this process ends, for whatever reason, the kernel
closes the write end; the shell reads end-of-file and kills the child.

The child is started *by* that shell, which forks the watcher first and then becomes the child by `exec`. So
there is no moment in which the child runs unwatched, and it is this process's own child under its own pid:
its signals and exit status come as they are. An orderly end writes a line into the pipe, which tells the
watcher to leave without killing: by then the pid may belong to somebody else.
"""

import asyncio
import io
import os
import signal
import subprocess
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

# `read` fails on end-of-file and succeeds on a line. $$ is the outer shell's pid, also inside ( ).
_WATCH_AND_EXEC: Final = """
exec 3<&0 </dev/null
( read -r _ <&3 || kill -KILL $$ ) &
exec "$@" 3<&-
"""

_FIRST_POLL_S: Final = 0.001
_SLOWEST_POLL_S: Final = 0.02
_REAP_S: Final = 5.0

_not_in_forks: weakref.WeakSet[io.IOBase] = weakref.WeakSet()


def close_in_forks(file: io.IOBase) -> None:
    """Have `file` closed in every process forked from this one.

    A descriptor is closed by exec, but a bare fork (multiprocessing) copies it, and the copy would keep a
    pipe open, or a lock held, after this process is gone.
    """
    _not_in_forks.add(file)


def _close_them() -> None:
    for file in list(_not_in_forks):
        file.close()


os.register_at_fork(after_in_child=_close_them)


class ChildProcess:
    """One running program. It has a session of its own, so no signal from the terminal reaches it.

    Not bound to an event loop: it may be started in one and stopped in another.
    """

    def __init__(self, popen: subprocess.Popen[bytes], lifeline: io.RawIOBase) -> None:
        """Use `spawn`. `lifeline` is the write end of the pipe that the watcher reads."""
        self._popen = popen
        self._lifeline = lifeline

    @classmethod
    def spawn(
        cls,
        argv: Sequence[str],
        *,
        stdout: Path,
        stderr: Path | None = None,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Start `argv`, with its output appended to files, and return at once.

        `argv[0]` is a path, or a name on PATH. `stderr` goes to the file of `stdout` if it is not given;
        `env` replaces the environment. A program that cannot be run shows as exit code 126 or 127, with the
        reason in the output.
        """
        read_end, write_end = os.pipe()
        lifeline = io.FileIO(write_end, "wb")
        close_in_forks(lifeline)
        try:
            with stdout.open("ab") as out, (stderr or stdout).open("ab") as err:
                popen = subprocess.Popen(  # noqa: S603 - no shell reads argv; it is passed on as it is
                    ["/bin/sh", "-c", _WATCH_AND_EXEC, "sexton-watch", *argv],
                    stdin=read_end,
                    stdout=out,
                    stderr=err,
                    cwd=cwd,
                    env=env,
                    start_new_session=True,
                )
        except BaseException:
            lifeline.close()
            raise
        finally:
            os.close(read_end)
        return cls(popen, lifeline)

    @property
    def pid(self) -> int:
        """The program's own pid."""
        return self._popen.pid

    def poll(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        code = self._popen.poll()
        if code is not None:
            self._dismiss_watcher()
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if the program has ended."""
        self._popen.send_signal(number)

    async def wait(self) -> int:
        """Wait for the program to end and return its exit code. Bound it with `asyncio.timeout`."""
        delay_s = _FIRST_POLL_S
        while (code := self.poll()) is None:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 1.5, _SLOWEST_POLL_S)
        return code

    async def stop(self, *, grace_s: float) -> int:
        """Ask it to end with SIGTERM, kill it after `grace_s`, and return its exit code.

        Also works on a paused program. If the call is cancelled, the program is killed at once.
        """
        self.send_signal(signal.SIGTERM)
        self.send_signal(signal.SIGCONT)
        try:
            async with asyncio.timeout(grace_s):
                return await self.wait()
        except TimeoutError:
            return self.kill()
        except BaseException:
            self.kill()
            raise

    def kill(self) -> int:
        """SIGKILL, and wait until it is gone (milliseconds). Returns its exit code."""
        self.send_signal(signal.SIGKILL)
        code = self._popen.wait(_REAP_S)
        self._dismiss_watcher()
        return code

    async def pause(self) -> None:
        """Freeze it with SIGSTOP; on return, all its threads stand still.

        Raises ProcessLookupError if the program has ended.
        """
        self.send_signal(signal.SIGSTOP)
        async with asyncio.timeout(_REAP_S):
            while True:
                if self._has_stopped():
                    return
                await asyncio.sleep(_FIRST_POLL_S)

    def resume(self) -> None:
        """Let it go on with SIGCONT."""
        self.send_signal(signal.SIGCONT)

    def _has_stopped(self) -> bool:
        if self.poll() is not None:
            raise ProcessLookupError(f"process {self.pid} has ended")
        pid, status = os.waitpid(self.pid, os.WNOHANG | os.WUNTRACED)
        if pid and not os.WIFSTOPPED(status):
            # It ended between the two calls, and its status has been taken here: Popen must be told.
            self._popen.returncode = os.waitstatus_to_exitcode(status)
        return pid != 0 and os.WIFSTOPPED(status)

    def _dismiss_watcher(self) -> None:
        if not self._lifeline.closed:
            with suppress(BrokenPipeError):  # the watcher has been killed by somebody
                self._lifeline.write(b"\n")
            self._lifeline.close()


def tail(path: Path, *, since_byte: int = 0, most_bytes: int = 4000) -> str:
    """The end of a log file, from `since_byte` on at the earliest; empty if there is no such file."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(min(end, max(since_byte, end - most_bytes)))
            return file.read(most_bytes).decode(errors="replace").strip()
    except FileNotFoundError:
        return ""
