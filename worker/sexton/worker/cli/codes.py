"""The exit codes, in one place. `--help` and `docs/cli.md` say what stands here."""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Self

from sexton.schemas import errors
from sexton.schemas.errors import SextonError
from sexton.worker.embedded import EmbeddedServerError
from sexton.worker.ingest import TranscriptError


class ExitCode(IntEnum):
    """How a command ended."""

    meaning: str

    def __new__(cls, value: int, meaning: str) -> Self:
        """A code and what it means, in one line."""
        code = int.__new__(cls, value)
        code._value_ = value
        code.meaning = meaning
        return code

    OK = 0, "Done, or there was nothing to do. Also `up`, `worker` and `pager` when told to end."
    INTERNAL = 1, "A fault in Sexton, or an answer that breaks the protocol. Please report it."
    USAGE = 2, "The command line cannot be right: an unknown option, a malformed id, a bad offset."
    REJECTED = 3, "The service rejected the command. Nothing has changed; the message holds the code."
    POINTER_REFUSED = (
        4,
        "The pointer no longer leads to its bytes: rewritten, pruned, unknown, or not verbatim.",
    )
    HARD_FAILURE = 5, "Committed bytes are lost or damaged. An operator is needed."
    UNAVAILABLE = 6, "No answer in time, or no connection. The same command may be given again."
    BAD_INPUT = 7, "A file or a pointer that was given cannot be used as it is. Nothing has changed."
    IRREDUCIBLE = 8, "The budget cannot be met: what remains is fresh, open, or at the top level."
    CHECK_FAILED = 9, "`demo` or `doctor` ran to its end, and something that must hold did not."
    SERVER = 10, "A server could not be started as asked, or ended by itself."
    NOT_PERMITTED = 11, "A server refused the credentials, or what they permit does not reach this far."
    OUTPUT = 12, "Standard output cannot be written: it is closed, or its disk is full."
    INTERRUPTED = 130, "Ended by Ctrl-C."
    BROKEN_PIPE = 141, "Whoever read the output stopped reading."
    TERMINATED = 143, "Ended by SIGTERM."


class BadInput(errors.CallerError):
    """A file, or what came on standard input, cannot be used as it is."""

    code = "bad_input"


class OutputFailed(errors.CallerError):
    """What was asked for is there and cannot be written out."""

    code = "output"


_BY_CLASS: Final[Sequence[tuple[type[SextonError], ExitCode]]] = (
    # The first that fits; so what is more special stands before its base.
    (BadInput, ExitCode.BAD_INPUT),
    (OutputFailed, ExitCode.OUTPUT),
    (TranscriptError, ExitCode.BAD_INPUT),
    (errors.PointerResurrectionError, ExitCode.POINTER_REFUSED),
    (errors.CommandRejected, ExitCode.REJECTED),
    (errors.Irreducible, ExitCode.IRREDUCIBLE),
    (errors.PermissionRefused, ExitCode.NOT_PERMITTED),
    (errors.HardFailure, ExitCode.HARD_FAILURE),
    (errors.TransientError, ExitCode.UNAVAILABLE),
    (errors.InvalidInput, ExitCode.USAGE),
    (EmbeddedServerError, ExitCode.SERVER),
)

_BY_CODE: Final[Mapping[str, ExitCode]] = {"provision": ExitCode.SERVER}
"""Errors by their stable code, where importing the class would import a whole worker."""


def exit_code_of(error: SextonError) -> ExitCode:
    """The exit code that an error ends a command with."""
    for kind, code in _BY_CLASS:
        if isinstance(error, kind):
            return code
    return _BY_CODE.get(error.code, ExitCode.INTERNAL)


def epilog() -> str:
    """The table of exit codes, for `--help`."""
    rows = [f"  {code.value:>3}  {code.meaning}" for code in ExitCode]
    return "\n".join(["Exit codes:", *rows])
