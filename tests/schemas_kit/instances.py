"""Any message, made from the published JSON Schemas alone, as a sender in another language would.

Covers the part of JSON Schema that the documents use. What no schema can say, the rules that tie fields to
each other, is in `_TIED`.
"""

import base64
import re
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from hypothesis import strategies as st

from sexton.schemas.json_schema import json_schemas

Json = Any
Schema = dict[str, Any]

SCHEMAS: Final[dict[str, Schema]] = json_schemas()

TEXTS: Final = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
NUMBERS: Final = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
ANY_JSON: Final = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXTS, inner, max_size=2),
    max_leaves=4,
)
_NOTHING: Final[Schema] = {}
_NAMES: Final = st.sampled_from(["wire", "self", "message", "current", "nearest", "problems", "__class__"])
_UNKNOWN: Final = st.just(_NOTHING) | st.dictionaries(TEXTS | _NAMES, ANY_JSON, max_size=2)


@cache
def instances(name: str) -> st.SearchStrategy[Schema]:
    """Messages of one kind as JSON values, with unknown fields here and there."""
    return _Maker(SCHEMAS[name]).make(SCHEMAS[name])


class _Maker:
    def __init__(self, document: Schema) -> None:
        self._defs: dict[str, Schema] = document.get("$defs", {})

    def make(self, schema: Schema) -> st.SearchStrategy[Json]:
        match schema:
            case {"$ref": str(ref)}:
                return self.make(self._defs[ref.removeprefix("#/$defs/")])
            case {"anyOf": list(choices)} | {"oneOf": list(choices)}:
                return st.one_of([self.make(choice) for choice in choices])
            case {"const": value}:
                return st.just(value)
            case {"enum": list(values)}:
                return st.sampled_from(values)
        kind = schema.get("type")
        return ANY_JSON if kind is None else getattr(self, f"_{kind}")(schema)

    def _object(self, schema: Schema) -> st.SearchStrategy[Json]:
        properties: dict[str, Schema] = schema.get("properties", {})
        required = set(schema.get("required", ()))
        known = st.fixed_dictionaries(
            {name: self.make(properties[name]) for name in properties if name in required},
            optional={name: self.make(properties[name]) for name in properties if name not in required},
        )
        tied = _TIED.get(schema.get("title", ""))
        if tied is not None:
            known = known.flatmap(lambda fields: tied(self, properties, fields))
        return st.builds(lambda unknown, fields: {**unknown, **fields}, self._unknown(properties), known)

    @staticmethod
    def _unknown(properties: Schema) -> st.SearchStrategy[Json]:
        return _UNKNOWN.map(lambda fields: {n: v for n, v in fields.items() if n not in properties})

    def _array(self, schema: Schema) -> st.SearchStrategy[Json]:
        if "prefixItems" in schema:
            return st.tuples(*map(self.make, schema["prefixItems"])).map(list)
        least = schema.get("minItems", 0)
        return st.lists(self.make(schema["items"]), min_size=least, max_size=max(least, 2))

    def _string(self, schema: Schema) -> st.SearchStrategy[Json]:
        if "contentEncoding" in schema:
            return st.binary(max_size=20).map(lambda data: base64.urlsafe_b64encode(data).decode())
        if "pattern" in schema:
            words = _words(schema["pattern"])
            return st.sampled_from(schema["examples"]) | words if "examples" in schema else words
        return TEXTS.filter(lambda s: len(s) >= schema.get("minLength", 0))

    def _integer(self, schema: Schema) -> st.SearchStrategy[Json]:
        return st.integers(schema.get("minimum"), schema.get("maximum"))

    def _boolean(self, schema: Schema) -> st.SearchStrategy[Json]:
        return st.booleans()

    def _null(self, schema: Schema) -> st.SearchStrategy[Json]:
        return st.none()


@cache
def _words(pattern: str) -> st.SearchStrategy[str]:
    """Texts of a pattern; where it has a length, of the shortest and the longest. Drawing afresh is slow."""
    pool = [word for word in _POOL if re.fullmatch(pattern.strip("^$"), word)]
    return st.sampled_from(pool) if pool else st.from_regex(pattern.strip("^$"), fullmatch=True)


_POOL: Final = [
    *("a", "Z-9_", "-" * 64, "x" * 64, "x" * 96),
    *(f"l{level}:{name}" for level in range(8) for name in ("a", "_-9", "x" * 96)),
    *(f"sha256{level}:{digit * 64}" for level in ("", "-l1", "-l7") for digit in "0af"),
]


def _one_text(maker: _Maker, properties: Schema, fields: Schema) -> st.SearchStrategy[Json]:
    """`Text`: exactly one of content and claim."""
    rest = {name: value for name, value in fields.items() if name not in ("content", "claim")}
    content = TEXTS.map(lambda text: {**rest, "content": text})
    claim = maker.make(properties["claim"]["anyOf"][0]).map(lambda made: {**rest, "claim": made})
    return content | claim


def _with_base(maker: _Maker, properties: Schema, fields: Schema) -> st.SearchStrategy[Json]:
    """`Rewrite`: a version or a hash says what is there now."""
    if fields.get("base_version") is not None or fields.get("base_hash") is not None:
        return st.just(fields)
    return st.integers(1, 9).map(lambda version: {**fields, "base_version": version})


def _few_chunks(maker: _Maker, properties: Schema, fields: Schema) -> st.SearchStrategy[Json]:
    """`Claim`: at most 4096 chunks."""
    least = -(-fields["size_bytes"] // 4096)
    return st.just({**fields, "chunk_bytes": max(least, fields["chunk_bytes"])})


_Tied = Callable[[_Maker, Schema, Schema], st.SearchStrategy[Json]]
_TIED: Final[dict[str, _Tied]] = {
    "Text": _one_text,
    "NewSpan": _one_text,
    "Rewrite": _with_base,
    "Claim": _few_chunks,
}
