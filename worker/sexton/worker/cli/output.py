"""Where a command's words go: data to stdout, everything else to stderr."""

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from pydantic_core import to_jsonable_python

from sexton.schemas.base import Message
from sexton.schemas.errors import SextonError
from sexton.worker.cli.codes import ExitCode, OutputFailed

_PRINTABLE_CUT: Final = 200
_PIPED_COLUMNS: Final = 140


@contextmanager
def writing() -> Iterator[None]:
    """Within it, what the system says against writing to stdout is `OutputFailed`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputFailed(f"cannot write to standard output: {error.strerror or error}") from error


class Output:
    """The output of one command. With `as_json`, data are JSON, one value to a line, and so are errors."""

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json

    def data(self, data: bytes) -> None:
        """Bytes to stdout, exactly. Written at once, for whoever reads along.

        Raises:
            OutputFailed: stdout is closed, or its disk is full.
            BrokenPipeError: whoever read has stopped.
        """
        if sys.stdout is None:
            raise OutputFailed("standard output is closed")
        with writing():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def line(self, text: str) -> None:
        """A line to stdout, in UTF-8 whatever the locale. A file's name that is no UTF-8 is escaped."""
        self.data(text.encode(errors="backslashreplace") + b"\n")

    def value(self, value: Mapping[str, Any] | Message) -> None:
        """A JSON value to stdout, in one line."""
        if isinstance(value, Message):
            self.data(value.wire() + b"\n")
        else:
            self.line(json.dumps(value, ensure_ascii=False))

    def say(self, text: str) -> None:
        """A message for people, to stderr."""
        sys.stderr.write(f"sexton: {text}\n")
        sys.stderr.flush()

    def error(self, error: SextonError, code: ExitCode) -> None:
        """What went wrong, in one line: `sexton: CODE: MESSAGE`, or a JSON object with the error's fields."""
        fields = to_jsonable_python(dict(error.fields), exclude_none=True, serialize_unknown=True)
        self.failure(error.code, error.message, code, fields)

    def failure(
        self, code: str, message: str, exit_code: ExitCode, fields: Mapping[str, Any] | None = None
    ) -> None:
        """The same, for what is no error of Sexton's own."""
        if not self.as_json:
            self.say(f"{code}: {message}")
            return
        value = {
            "error": code,
            "message": message,
            "exit_code": exit_code.value,
            "fields": dict(fields or {}),
        }
        sys.stderr.write(json.dumps(value, ensure_ascii=False) + "\n")
        sys.stderr.flush()


def shown(text: str, characters: int = _PRINTABLE_CUT) -> str:
    """Text of foreign origin, for a terminal: nothing in it can move the cursor or start a new line."""
    cut = text if len(text) <= characters else text[:characters] + "…"
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def size(size_bytes: int) -> str:
    """A size for people: `812 B`, `61.2 KB`, `2.4 MB`."""
    if size_bytes < 1000:  # noqa: PLR2004
        return f"{size_bytes} B"
    scaled = float(size_bytes)
    for unit in ("KB", "MB"):
        scaled /= 1000
        if scaled < 1000:  # noqa: PLR2004
            return f"{scaled:.1f} {unit}"
    return f"{scaled / 1000:.1f} GB"
