"""What every message has in common.

The rules of the wire: JSON in UTF-8, additive only. A reader keeps the fields it does not know and passes
them on, so `extra="allow"` everywhere, also in nested parts. A field that holds nothing (`null`) is left out
when a message is written, known or not. `schema_version` rises only when a reader that ignores what is new
would act wrongly; a reader then refuses the message instead of guessing.
"""

import math
import re
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from sexton.schemas.errors import MalformedMessage

SCHEMA_VERSION: Final = 1
"""The newest message version that this build understands."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""JSON numbers past this lose digits in JavaScript and others; counters stay below it."""

Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER, strict=True)]
"""A non-negative counter or a size; the unit is in the field's name."""

Ordinal = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER, strict=True)]
"""A counter that starts at one: version, revision."""

Flag = Annotated[bool, Field(strict=True)]
"""True or false, and not `"yes"` or 1."""

T = TypeVar("T")

Items = Annotated[tuple[T, ...], Field(fail_fast=True)]
"""A list that is refused at its first bad item. Told one by one, the bad items of a single message of 1 MiB
would take seconds and a gigabyte."""


MAX_UNKNOWN_DEPTH: Final = 32
"""Lists and objects inside each other in an unknown field. JSON readers stop at some depth, ours at 200: what
is accepted in a command must not be too deep once it lies in a record in a reply."""


def _kept_as_it_is(value: Any, depth: int = 0) -> Any:
    """Refuses what could not be passed on: numbers that JSON has no word for, and too much depth.

    Not with a `ValueError`, which pydantic would collect, one for each field.
    """
    match value:
        case float() if not math.isfinite(value):
            raise MalformedMessage("not a message: a number that is not finite")
        case dict() | list() | tuple() if depth == MAX_UNKNOWN_DEPTH:
            raise MalformedMessage(f"not a message: an unknown field of more than {depth} levels")
        case dict():
            for item in value.values():
                _kept_as_it_is(item, depth + 1)
        case list() | tuple():
            for item in value:
                _kept_as_it_is(item, depth + 1)
    return value


def _json(value: Any) -> Any:
    return _kept_as_it_is(value)


Json = Annotated[Any, AfterValidator(_json)]
"""Any JSON: a field that this reader does not know."""


class OpenEnum(StrEnum):
    """Words of which a later sender may know more than this reader.

    For what is told and not acted on: an unknown word is read and passed on, as a member of its own that is
    equal to its text. Where a reader that does not know the word would act wrongly, the enum is a plain one.
    """

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not isinstance(value, str) or not _word_re.fullmatch(value):
            return None
        member = str.__new__(cls, value)
        member._name_ = value.upper()
        member._value_ = value
        return member


WORD: Final = r"[a-z][a-z0-9_]{0,63}"
"""What a word of an `OpenEnum` looks like."""
_word_re: Final = re.compile(WORD)


class Part(BaseModel):
    """A piece of a message. Immutable; unknown fields are kept and passed on."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        extra="allow",
        frozen=True,
        allow_inf_nan=False,
        ser_json_bytes="base64",
        val_json_bytes="base64",
        # Rejected input may hold span content, which must not reach a log or an error text.
        hide_input_in_errors=True,
        use_attribute_docstrings=True,
    )

    __pydantic_extra__: dict[str, Json] = Field(init=False)


class Message(Part):
    """A whole message: a part that says which version of the wire it speaks."""

    # The upper bound makes a newer message an error wherever it lies, also inside another message.
    schema_version: Annotated[int, Field(ge=1, le=SCHEMA_VERSION, strict=True)] = SCHEMA_VERSION
    """Version of the wire rules the sender needs its reader to know."""

    def wire(self) -> bytes:
        """The message as UTF-8 JSON, without the fields that hold nothing."""
        return self.model_dump_json(exclude_none=True).encode()
