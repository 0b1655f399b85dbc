"""What every message has in common.

The rules of the wire: JSON in UTF-8, additive only. A reader keeps the fields it does not know and passes
them on, so `extra="allow"` everywhere, also in nested parts. `schema_version` rises only when a reader
that ignores what is new would act wrongly; a reader then refuses the message instead of guessing.
"""

from typing import Annotated, ClassVar, Final

from pydantic import BaseModel, ConfigDict, Field

SCHEMA_VERSION: Final = 1
"""The newest message version that this build understands."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""JSON numbers past this lose digits in JavaScript and others; counters stay below it."""

Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER, strict=True)]
"""A non-negative counter or a size; the unit is in the field's name."""

Ordinal = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER, strict=True)]
"""A counter that starts at one: version, revision."""


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


class Message(Part):
    """A whole message: a part that says which version of the wire it speaks."""

    schema_version: Ordinal = SCHEMA_VERSION
    """Version of the wire rules the sender needs its reader to know."""

    def wire(self) -> bytes:
        """The message as UTF-8 JSON, without the fields that hold nothing."""
        return self.model_dump_json(exclude_none=True).encode()
