"""The JSON Schemas that are published: a document for each message, made from the models.

They say what a sender must send. A reader is as strict as they are, with the differences that
`docs/wire.md` lists: it also holds the rules that tie fields to each other.
"""

import ast
import inspect
import pkgutil
from collections.abc import Iterator
from enum import Enum
from importlib import import_module
from textwrap import dedent
from typing import Any, Final

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

import sexton.schemas
from sexton.schemas.base import WORD, Message, OpenEnum
from sexton.schemas.commands import COMMAND, CommandBase
from sexton.schemas.leases import HolderRequest
from sexton.schemas.outcome import OUTCOME, OutcomeBase
from sexton.schemas.records import LOG_RECORD, CollectionBase, RecordBase
from sexton.schemas.rpc import ReplyPart

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"

Document = dict[str, Any]

_BASES: Final = frozenset({CommandBase, RecordBase, CollectionBase, OutcomeBase, ReplyPart, HolderRequest})
"""What messages have in common; never sent as they are."""
_ADDITIVE: Final = "Fields that are not named here are kept and passed on, unless they are null."
_BASE64URL: Final = (
    "Bytes in the URL-safe alphabet of RFC 4648, section 5 (`-` and `_` for `+` and `/`), padded with `=`. "
    "A reader also takes the standard alphabet, and does without the padding."
)
_NOTE: Final = "x-note"
"""Where a text waits to be joined to a description, which pydantic sets last."""
_UNIONS: Final[dict[str, tuple[TypeAdapter[Any], str]]] = {
    "command": (COMMAND, "A command of any kind; `kind` says which."),
    "record": (
        LOG_RECORD,
        "A log record of any known kind; `kind` says which. A reader that meets another kind starts over "
        "from a snapshot.",
    ),
    "outcome": (OUTCOME, "An outcome of any status; `status` says which."),
}


def name_of(message: type[Message]) -> str:
    """The published name of a message: `SyncPart` is `sync_part`."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in message.__name__).removeprefix("_")


def messages() -> dict[str, type[Message]]:
    """Every message there is, by its published name. A new one is found by itself."""
    for module in pkgutil.iter_modules(sexton.schemas.__path__, "sexton.schemas."):
        import_module(module.name)
    return {name_of(message): message for message in sorted(_below(Message), key=name_of)}


def json_schemas() -> dict[str, Document]:
    """A JSON Schema for each message and for each union of messages, by its published name."""
    schemas = {
        name: _published(name, message.model_json_schema(schema_generator=_Generator))
        for name, message in messages().items()
    }
    for name, (adapter, description) in _UNIONS.items():
        body = adapter.json_schema(schema_generator=_Generator)
        schemas[name] = _published(name, {"title": name.title(), "description": description, **body})
    return dict(sorted(schemas.items()))


def _below(message: type[Message]) -> Iterator[type[Message]]:
    for subclass in message.__subclasses__():
        # By module: a test, or whoever embeds this, may have messages of its own.
        if subclass.__module__.startswith("sexton.schemas.") and subclass not in _BASES:
            yield subclass
        yield from _below(subclass)


def _published(name: str, body: JsonSchemaValue) -> Document:
    """`body` as a document of its own, in the words of the wire."""
    _mend(body)
    for key in ("$schema", "$id"):
        body.pop(key, None)
    defs = body.pop("$defs", None)
    body["description"] = f"{body['description']}\n\n{_ADDITIVE}"
    document = {"$schema": DIALECT, "$id": f"urn:sexton:schema:{name}", **body}
    return document if defs is None else {**document, "$defs": dict(sorted(defs.items()))}


def _mend(node: Any) -> None:
    """Says what every message on the wire has, and what pydantic has another word for; in place."""
    match node:
        case dict():
            if isinstance(node.get("properties"), dict):
                _mend_object(node)
            notes = [node.get("description"), node.pop(_NOTE, None)]
            if any(notes):
                node["description"] = _unwrapped("\n\n".join(note for note in notes if note))
            for value in node.values():
                _mend(value)
        case list():
            for value in node:
                _mend(value)


def _mend_object(node: Document) -> None:
    node["additionalProperties"] = True
    properties = node["properties"]
    # What tells messages apart is always sent, though a model that is built in Python need not be told.
    for schema in properties.values():
        if schema.get("default", ...) is None:
            del schema["default"]
    told = {name for name, schema in properties.items() if "const" in schema or name == "schema_version"}
    for name in told:
        properties[name].pop("default", None)
    required = told.union(node.pop("required", ()))
    if required:
        node["required"] = [name for name in properties if name in required]


def _unwrapped(text: str) -> str:
    """Paragraphs as lines; the line breaks of a docstring are those of its source. Lists keep theirs."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(p if p.startswith("- ") else " ".join(p.split()) for p in paragraphs)


class _Generator(GenerateJsonSchema):
    """Pydantic's generator, with the few things that it would say otherwise."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002
        # "Context Id" for `context_id` says nothing.
        return False

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:  # noqa: ARG002
        return {"type": "string", "contentEncoding": "base64url", _NOTE: _BASE64URL}

    def chain_schema(self, schema: core_schema.ChainSchema) -> JsonSchemaValue:
        # The last step knows most: `Level` is an integer first, and then one of eight.
        return self.generate_inner(schema["steps"][-1])

    def enum_schema(self, schema: core_schema.EnumSchema) -> JsonSchemaValue:
        result = super().enum_schema(schema)
        enum: type[Enum] = schema["cls"]
        values = [member.value for member in enum]
        if described := _described_members(enum):
            result[_NOTE] = described
        if issubclass(enum, OpenEnum):
            del result["enum"]
            result |= {"pattern": f"^{WORD}$", "examples": values}
        return result

    def encode_default(self, dft: Any) -> Any:
        encoded = super().encode_default(dft)
        if isinstance(encoded, dict):
            return {name: value for name, value in encoded.items() if value is not None}
        return encoded


def _described_members(enum: type[Enum]) -> str:
    """The docstrings of an enum's members, as a list. Python does not keep them; the source does."""
    if not issubclass(enum, str):
        return ""
    body = ast.parse(dedent(inspect.getsource(enum))).body[0]
    assert isinstance(body, ast.ClassDef)  # noqa: S101
    lines = []
    for statement, after in zip(body.body, [*body.body[1:], None], strict=True):
        match statement, after:
            case (
                ast.Assign(targets=[ast.Name(id=name)]),
                ast.Expr(value=ast.Constant(value=str() as text)),
            ):
                lines.append(f"- `{enum[name].value}`: {' '.join(text.split())}")
    return "\n".join(lines)


__all__ = ["DIALECT", "Document", "json_schemas", "messages", "name_of"]
