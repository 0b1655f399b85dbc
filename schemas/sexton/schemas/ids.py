"""Names, levels and hashes: the tokens that go into subjects, keys and pointers.

Every token is validated before it is used, so no id can hold a dot, a star, a space or a `>` and reach
another subject or key.
"""

import re
from enum import IntEnum
from typing import Annotated, Any, Final

from pydantic import GetCoreSchemaHandler, StringConstraints
from pydantic_core import CoreSchema, core_schema

from sexton.schemas.errors import InvalidInput

TOKEN: Final = r"[A-Za-z0-9_-]{1,64}"  # noqa: S105 - a pattern, no password
"""What may stand in a subject, between two dots."""

_SPAN = r"l[0-7]:[A-Za-z0-9_-]{1,96}"
_HASH = r"sha256(-l[1-7])?:[0-9a-f]{64}"

ContextId = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$")]
"""One shared buffer, the unit of ordering."""
EventId = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$")]
"""Names one command; sending it again with the same id counts once."""
HolderId = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$")]
"""Names one holder process."""
GroupId = Annotated[str, StringConstraints(pattern=f"^{TOKEN}$")]
"""Names a call and its results."""
SpanName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,96}$")]
"""The part of a span id behind its level."""
SpanId = Annotated[str, StringConstraints(pattern=f"^{_SPAN}$")]
"""`l0:NAME` … `l7:NAME`: the level is in the id, so no summary can sit in a leaf's namespace."""
ContentHash = Annotated[str, StringConstraints(pattern=f"^{_HASH}$")]
"""`sha256:HEX` for leaves, `sha256-lN:HEX` for summaries of level N."""
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
"""A digest that names its algorithm, over something that is no span."""

_token_re: Final = re.compile(TOKEN)
_span_re: Final = re.compile(_SPAN)


class Level(IntEnum):
    """How far a span is from the verbatim text. A span's level never changes."""

    L0_VERBATIM = 0
    L1_SUMMARY = 1
    L2_ROLLUP = 2
    L3_ROLLUP = 3
    L4_ROLLUP = 4
    L5_ROLLUP = 5
    L6_ROLLUP = 6
    L7_ROLLUP = 7

    @property
    def verbatim(self) -> bool:
        """Whether spans of this level are the original bytes."""
        return self is Level.L0_VERBATIM

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """An integer and nothing that could pass for one: by itself an enum takes `"1"`, `true` and 1.0."""
        return core_schema.chain_schema([core_schema.int_schema(strict=True), handler(source)])


TOP_LEVEL: Final = Level.L7_ROLLUP


def token(value: str, what: str) -> str:
    """Returns `value` if it may stand in a subject, else raises `InvalidInput` that names `what`."""
    if not _token_re.fullmatch(value):
        raise InvalidInput(f"{what} must match {TOKEN}, got {_shown(value)}", field=what)
    return value


def level_of(span_id: str) -> Level:
    """The level that a span id carries.

    Raises:
        InvalidInput: the id is not of the form `lN:NAME`.
    """
    if not _span_re.fullmatch(span_id):
        raise InvalidInput(f"span_id must match {_SPAN}, got {_shown(span_id)}", field="span_id")
    return Level(int(span_id[1]))


def span_id(level: Level, name: str) -> str:
    """Builds a span id. Raises `InvalidInput` if the name could not stand in one."""
    built = f"l{level.value}:{name}"
    level_of(built)
    return built


def _shown(value: str, limit: int = 80) -> str:
    """`value` for an error text: escaped, and cut, for it may be 10 KB long or hold control characters."""
    return ascii(value) if len(value) <= limit else f"{value[:limit]!a}… ({len(value)} characters)"
