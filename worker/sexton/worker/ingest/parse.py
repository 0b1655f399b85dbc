"""From the bytes of one row to a JSON object, or to the reason why there is none."""

import json
import re
from typing import Any, Final, NamedTuple

from pydantic_core import from_json

from sexton.worker.ingest.model import BadReason

BOM: Final = b"\xef\xbb\xbf"
BLANKS: Final = b" \t\r\n"
"""What JSON counts as white space."""

_NOT_A_LABEL: Final = re.compile(r"[^A-Za-z0-9_.:-]+")
_LABEL_LENGTH: Final = 64


class Problem(NamedTuple):
    """Why some bytes are no row."""

    reason: BadReason
    message: str


def text_problem(raw: bytes) -> Problem | None:
    """What keeps `raw` from being text: bytes that are not UTF-8, or a NUL, the mark of a binary file."""
    if (at := raw.find(0)) >= 0:
        return Problem(BadReason.NUL_BYTE, f"a NUL byte, at byte {at} of it")
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        return Problem(BadReason.NOT_UTF8, f"not UTF-8, at byte {error.start} of it")
    return None


def parse_object(body: bytes) -> dict[str, Any] | Problem:
    """Parses one JSON object, without a byte order mark.

    An escaped lone surrogate does not spoil the row, for the bytes of it are plain ASCII. The parsed value
    then holds a string that cannot be encoded, so nothing from it may be passed on unless `encodable` or
    `label` has seen it.
    """
    try:
        value = from_json(body)
    except ValueError as error:
        if "recursion limit" in str(error):
            return Problem(BadReason.TOO_DEEP, "JSON nested too deep")
        value = _parse_leniently(body)
    if isinstance(value, Problem):
        return value
    if not isinstance(value, dict):
        return Problem(BadReason.NOT_AN_OBJECT, f"JSON, but no object: {_json_type(value)}")
    return value


def _parse_leniently(body: bytes) -> Any | Problem:
    """The second try, for what the fast parser refuses: this one takes lone surrogates."""
    try:
        # Whole numbers become floats: an integer of thousands of digits is slow to convert, and refused.
        return json.loads(body.decode(), parse_int=float)
    except RecursionError:
        return Problem(BadReason.TOO_DEEP, "JSON nested too deep")
    except UnicodeDecodeError as error:
        return Problem(BadReason.NOT_UTF8, f"not UTF-8, at byte {error.start} of it")
    except json.JSONDecodeError as error:
        return Problem(BadReason.NOT_JSON, f"not JSON: {error.msg}, at character {error.pos} of it")


def _json_type(value: object) -> str:
    if value is None:
        return "null"
    names = {bool: "a boolean", int: "a number", float: "a number", str: "a string", list: "an array"}
    return names[type(value)]


def encodable(value: object) -> str | None:
    """`value` if it is a non-empty string, with lone surrogates written as escapes; else None."""
    if not isinstance(value, str) or not value:
        return None
    return value.encode("utf-8", "backslashreplace").decode()


def label(value: object) -> str | None:
    """A short, plain name for a label, made from a string of the file; None if nothing is left of it."""
    if not isinstance(value, str):
        return None
    return _NOT_A_LABEL.sub("_", value[: 4 * _LABEL_LENGTH])[:_LABEL_LENGTH] or None
