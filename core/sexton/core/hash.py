"""Hashes. One function for each, used by whoever makes one and by whoever checks one.

A leaf's hash is plain SHA-256 of its bytes, so that anybody can check a quote with `sha256sum`. A
summary's digest is taken over a level tag and the bytes, and its name differs as well (`sha256-l1:`): a
summary can never have the hash of a leaf, not even of a leaf that spells out the tag.

Test vectors: `tests/golden/hash-vectors.json`, published in `docs/protocol.md`.
"""

import hashlib
from collections.abc import Iterable
from typing import Final, TypeVar, cast

from sexton.schemas.codec import AnyRecord
from sexton.schemas.ids import Level
from sexton.schemas.records import (
    Appended,
    Collected,
    CollectionBase,
    Compacted,
    Pruned,
    RecordBase,
    Rewritten,
)
from sexton.schemas.span import Identity, SpanVersion

R = TypeVar("R", bound=RecordBase)

UNLINKED: Final = "sha256:" + 64 * "0"
"""Stands in for the chain of a record until the record it is computed from is complete."""

_TAGS: Final = {level: f"sexton:l{level.value}\0".encode() for level in Level}
_PREFIXES: Final = {level: "sha256:" if level.verbatim else f"sha256-l{level.value}:" for level in Level}


def content_hash(level: Level, data: bytes | memoryview) -> str:
    """Hash of the bytes of a span, or of a part of one, at its level."""
    digest = hashlib.sha256() if level.verbatim else hashlib.sha256(_TAGS[level])
    digest.update(data)
    return _PREFIXES[level] + digest.hexdigest()


def body_digest(data: bytes) -> str:
    """Digest of a command's bytes: tells a repeat from another command under the same event id."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def framed_digest(parts: Iterable[str]) -> str:
    """Digest of a sequence of strings. Each is framed by its length: `("ab", "c")` is not `("a", "bc")`."""
    return digest_of_frames(map(frame, parts))


def frame(part: str) -> bytes:
    """One string of a sequence, as `framed_digest` takes it in."""
    data = part.encode()
    return len(data).to_bytes(8) + data


def digest_of_frames(frames: Iterable[bytes]) -> str:
    """`framed_digest` of strings that are framed already."""
    return "sha256:" + hashlib.sha256(b"".join(frames)).hexdigest()


def chain(previous: str, record: AnyRecord) -> str:
    """The link of a record to the history before it (`previous` is empty for the first one).

    Covers what the record says happened, so that a log that was recreated, restored from an older copy or
    edited does not continue the chain of who followed the first one. The record's own `chain` is not read.
    """
    return framed_digest(
        [
            previous,
            record.context_id,
            str(record.revision),
            str(record.epoch),
            record.kind.value,
            record.event_id,
            record.digest,
            *_named(record),
        ]
    )


def linked(previous: str, record: R) -> R:
    """The record with its `chain` set to its link to the history before it."""
    return record.model_copy(update={"chain": chain(previous, cast("AnyRecord", record))})


def _named(record: AnyRecord) -> Iterable[str]:
    match record:
        case Appended():
            return [part for span in record.spans for part in _identity(span)]
        case Compacted():
            return [
                *_identity(record.summary),
                *(part for source in record.sources for part in _version(source)),
            ]
        case Rewritten():
            return [*_identity(record.before), *_identity(record.after), record.strategy.value]
        case Pruned():
            return _identity(record.span)
        case CollectionBase():
            freed = [str(record.size_freed_bytes)] if isinstance(record, Collected) else []
            return [record.attempt, *freed, *(part for v in record.versions for part in _version(v))]


def _identity(span: Identity) -> list[str]:
    return [*_version(span), span.content_hash, str(span.size_bytes)]


def _version(span: SpanVersion) -> list[str]:
    return [span.span_id, str(span.version)]
