"""What a command is given to read: text, or a pointer. From a file, or `-` for standard input."""

import sys
from pathlib import Path
from typing import BinaryIO, Final

from sexton.schemas.codec import decode
from sexton.schemas.errors import MalformedMessage, UnsupportedSchema
from sexton.schemas.limits import MAX_SPAN_BYTES
from sexton.schemas.pointer import Pointer
from sexton.worker.cli.codes import BadInput

STDIN: Final = "-"
_MAX_POINTER_BYTES: Final = 64 * 1024


def stdin() -> BinaryIO:
    """Standard input. Raises `BadInput` if the program was started without one."""
    if sys.stdin is None:
        raise BadInput("standard input is closed")
    return sys.stdin.buffer


def read_bytes(source: str, limit_bytes: int) -> bytes:
    """What is in a file, or on standard input. Raises `BadInput` if there is none such, or too much."""
    name = "standard input" if source == STDIN else source
    if not source:
        raise BadInput("the name of a file is empty")
    try:
        if source == STDIN:
            data = stdin().read(limit_bytes + 1)
        else:
            with Path(source).open("rb") as file:
                data = file.read(limit_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise BadInput(f"cannot read {name!a}: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > limit_bytes:
        raise BadInput(f"{name!a} has more than {limit_bytes} bytes", limit=limit_bytes)
    return data


def read_text(source: str) -> str:
    """The content of a span to be. Raises `BadInput` unless it is UTF-8 and not empty."""
    data = read_bytes(source, MAX_SPAN_BYTES)
    if not data:
        raise BadInput("the input is empty, and an empty span holds nothing to point at")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadInput(f"the input is not UTF-8, at byte {error.start}", offset=error.start) from None


def read_pointer(given: str) -> Pointer:
    """A pointer: its JSON itself, or a file that holds it, or `-`. Raises `BadInput`."""
    data = given.encode(errors="surrogatepass")  # what is no UTF-8 stays so, and is refused
    if not given.lstrip().startswith(("{", "[", '"')):
        data = read_bytes(given, _MAX_POINTER_BYTES)
    try:
        return decode(Pointer, data)
    except (MalformedMessage, UnsupportedSchema) as error:
        raise BadInput(f"not a pointer: {error.message}", reason=error.code) from None
