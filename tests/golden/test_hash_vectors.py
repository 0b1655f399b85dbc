"""The published test vectors: what the code gives, and what anybody gets by hand with SHA-256.

The file is the law here. A vector is only ever added; one that has to change means another algorithm, and
that has another name in the hash (C75).
"""

import hashlib
import json
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.core.apply import apply
from sexton.core.hash import body_digest, chain, content_hash, framed_digest
from sexton.core.tree import ContextTree
from sexton.schemas.codec import decode_record
from sexton.schemas.ids import Level
from sexton.schemas.records import RecordKind

VECTORS: Final[dict[str, Any]] = json.loads(
    Path(__file__).with_name("hash-vectors.json").read_text(encoding="utf-8")
)


def vectors(name: str) -> list[dict[str, Any]]:
    found = VECTORS[name]["vectors"]
    assert isinstance(found, list)
    return found


def data_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["hex"]) if "hex" in vector else str(vector["text"]).encode()


def framed_by_hand(parts: list[str]) -> str:
    framed = b"".join(len(part.encode()).to_bytes(8, "big") + part.encode() for part in parts)
    return "sha256:" + hashlib.sha256(framed).hexdigest()


def hash_of(text: str, level: int) -> str:
    """The published hash of a text."""
    (found,) = [v["hash"] for v in vectors("content_hash") if (v.get("text"), v["level"]) == (text, level)]
    return str(found)


@pytest.mark.parametrize("vector", vectors("content_hash"), ids=lambda v: f"l{v['level']} {v['what'][:40]}")
def test_content_hash_is_the_published_one_c73_c74(vector: dict[str, Any]) -> None:
    """C73, C74: the hash is of the stored bytes and the level, and of nothing else, by one function."""
    data, level = data_of(vector), vector["level"]
    tagged = data if level == 0 else f"sexton:l{level}\0".encode() + data
    prefix = "sha256:" if level == 0 else f"sha256-l{level}:"

    assert vector["hash"] == content_hash(Level(level), data)
    assert vector["hash"] == prefix + hashlib.sha256(tagged).hexdigest()
    assert vector["hash"] == content_hash(Level(level), memoryview(data))


def test_every_level_has_a_vector() -> None:
    """A level without one could change its tag unnoticed."""
    assert set(Level) == {Level(vector["level"]) for vector in vectors("content_hash")}


def test_a_summary_never_has_the_hash_of_a_leaf() -> None:
    """Not of a leaf with its text, and not of one that spells out the tag: by digest one, by name never."""
    text = "The fox jumps over the dog."
    summary, spelled = hash_of(text, 1), hash_of(f"sexton:l1\0{text}", 0)

    assert summary.partition(":")[2] == spelled.partition(":")[2]
    assert summary != spelled
    assert len(Level) == len({hash_of(text, level) for level in Level})


@pytest.mark.parametrize(
    ("one", "other"),
    [("a\nb\n", "a\r\nb\r\n"), ("\ufeffa", "a"), ("é", "e\u0301")],
    ids=["CRLF", "BOM", "NFD"],
)
def test_nothing_is_normalised_before_it_is_hashed_c77(one: str, other: str) -> None:
    """C77: what looks alike and has other bytes has another hash."""
    assert hash_of(one, 0) != hash_of(other, 0)


@pytest.mark.parametrize("vector", vectors("framed_digest"), ids=lambda v: repr(v["parts"]))
def test_framed_digest_is_the_published_one(vector: dict[str, Any]) -> None:
    """Each part stands behind its length."""
    assert vector["digest"] == framed_digest(vector["parts"])
    assert vector["digest"] == framed_by_hand(vector["parts"])


def test_parts_cannot_run_into_each_other_c79() -> None:
    """C79: `("ab", "c")`, `("a", "bc")` and `("abc",)` are three; no part and one empty one are two."""
    digests = [vector["digest"] for vector in vectors("framed_digest")]

    assert len(digests) == len(set(digests))
    assert framed_digest(["ab", "c"]) != framed_digest(["a", "bc"])


@pytest.mark.parametrize("vector", vectors("body_digest"), ids=lambda v: str(v["text"]))
def test_body_digest_is_plain_sha256(vector: dict[str, Any]) -> None:
    """A sender can compute it over the bytes it sends."""
    data = data_of(vector)

    assert vector["digest"] == body_digest(data)
    assert vector["digest"] == "sha256:" + hashlib.sha256(data).hexdigest()


def test_chain_is_the_published_one() -> None:
    """The whole history of the file, each link from the one before, by the code and by hand."""
    previous = ""
    for vector in vectors("chain"):
        record = decode_record(vector["record"])

        assert vector["record"]["chain"] == chain(previous, record)
        assert vector["record"]["chain"] == framed_by_hand(vector["parts"])
        assert previous == vector["parts"][0]
        assert named_by_hand(vector["record"]) == vector["parts"][1:]
        previous = record.chain


def test_the_published_history_is_one() -> None:
    """It can be applied, and has every kind of record in it."""
    tree = ContextTree.empty("notes")
    for vector in vectors("chain"):
        tree = apply(tree, decode_record(vector["record"]))

    assert (9, 3, 0, {}) == (tree.revision, tree.epoch, tree.view_count, dict(tree.tombstones))
    assert set(RecordKind) == {RecordKind(vector["record"]["kind"]) for vector in vectors("chain")}


def named_by_hand(record: dict[str, Any]) -> list[str]:
    """What a link covers, read off the JSON."""
    parts = [record[name] for name in ("context_id", "revision", "epoch", "kind", "event_id", "digest")]
    for name in ("spans", "summary", "before", "after", "span"):
        for span in record.get(name, []) if name == "spans" else filter(None, [record.get(name)]):
            parts += [span["span_id"], span["version"], span["content_hash"], span["size_bytes"]]
    parts += [record[name] for name in ("strategy", "attempt", "size_freed_bytes") if name in record]
    for version in (*record.get("sources", ()), *record.get("versions", ())):
        parts += [version["span_id"], version["version"]]
    return [str(part) for part in parts]
