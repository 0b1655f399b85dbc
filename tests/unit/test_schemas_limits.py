"""The limits fit each other: what is accepted can be committed, answered and sent on."""

from typing import Final

from sexton.schemas.commands import Append, Compact, SourceRef
from sexton.schemas.ids import Level
from sexton.schemas.leases import MAX_PINS, HeartbeatRequest, Pin, PinCost
from sexton.schemas.limits import (
    CHUNK_BYTES,
    INLINE_BYTES,
    MAX_CLAIM_CHUNKS,
    MAX_COMMAND_BYTES,
    MAX_LABEL_BYTES,
    MAX_PAYLOAD_BYTES,
    MAX_SOURCES,
    MAX_SPAN_BYTES,
    MAX_SPANS_PER_APPEND,
)
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.schemas.records import Appended, Compacted
from sexton.schemas.rpc import FetchPart, Head, PutRequest, SyncPart
from sexton.schemas.span import (
    Claim,
    CurrentIdentity,
    Labels,
    NewSpan,
    SpanEntry,
    SpanState,
    SpanVersion,
    Text,
)

HEADERS: Final = 16 * 1024
"""Bytes left for NATS headers."""
LARGEST: Final = 2**53 - 1
ID: Final = "x" * 64
DIGEST: Final = "sha256:" + "f" * 64
TOP_HASH: Final = "sha256-l7:" + "f" * 64
SPAN_ID: Final = "l7:" + "x" * 96
RECORD: Final = {
    "context_id": ID,
    "revision": LARGEST,
    "epoch": LARGEST,
    "event_id": ID,
    "digest": DIGEST,
    "chain": DIGEST,
}


def largest_labels(command_bytes: int, spans: int) -> Labels:
    """Labels that make an append of one-letter spans as large as a command may be, by an unknown field."""
    bare = Append(context_id=ID, event_id=ID, spans=(NewSpan(content="x", labels=Labels(x="")),) * spans)
    return Labels(x="y" * ((command_bytes - len(bare.wire())) // spans))


def record_of(labels: Labels, spans: int) -> Appended:
    entry = SpanEntry(
        span_id=f"l0:{ID}-{spans}",
        version=1,
        level=Level.L0_VERBATIM,
        content_hash=DIGEST,
        size_bytes=1,
        labels=labels,
    )
    return Appended(**RECORD, spans=(entry,) * spans)


def test_the_record_of_the_largest_append_can_be_published() -> None:
    """Also if next to nothing of the command is content, which a record leaves out: all labels, all ids."""
    for spans in (1, 10, MAX_SPANS_PER_APPEND):
        labels = largest_labels(MAX_COMMAND_BYTES, spans)
        append = Append(context_id=ID, event_id=ID, spans=(NewSpan(content="x", labels=labels),) * spans)
        assert MAX_COMMAND_BYTES - spans <= len(append.wire()) <= MAX_COMMAND_BYTES
        record = record_of(labels, spans)
        assert len(record.wire()) + HEADERS <= MAX_PAYLOAD_BYTES
        part = SyncPart(
            context_id=ID,
            head=Head(revision=LARGEST, epoch=LARGEST, chain=DIGEST),
            records=(record.model_dump(mode="json", exclude_none=True),),
        )
        assert len(part.wire()) + HEADERS <= MAX_PAYLOAD_BYTES


def test_the_record_of_the_largest_compaction_can_be_published() -> None:
    """As many sources as there may be, all of the longest names."""
    sources = (SpanVersion(span_id=SPAN_ID, version=LARGEST),) * MAX_SOURCES
    summary = SpanEntry(**identity(), labels=Labels(x="y" * (MAX_COMMAND_BYTES - MAX_SOURCES * 112)))
    record = Compacted(
        **RECORD, summary=summary, sources=sources, size_before_bytes=LARGEST, size_after_bytes=LARGEST
    )
    assert len(record.wire()) + HEADERS <= MAX_PAYLOAD_BYTES
    command = Compact(
        context_id=ID,
        event_id=ID,
        sources=tuple(SourceRef(span_id=SPAN_ID, version=LARGEST) for _ in range(MAX_SOURCES)),
        summary=Text(content="x"),
    )
    assert len(command.wire()) < MAX_COMMAND_BYTES // 2


def identity() -> dict[str, object]:
    return {
        "span_id": SPAN_ID,
        "version": LARGEST,
        "level": Level.L7_ROLLUP,
        "content_hash": TOP_HASH,
        "size_bytes": MAX_SPAN_BYTES,
    }


def test_the_largest_outcomes_can_be_published() -> None:
    """One that names all leaves of an append, and one that names all sources of a compaction."""
    leaves = (SpanVersion(span_id=SPAN_ID, version=1),) * MAX_SPANS_PER_APPEND
    committed = Committed(context_id=ID, event_id=ID, kind="append", revision=1, epoch=0, spans=leaves)
    current = CurrentIdentity(**identity(), state=SpanState.COVERED, epoch=LARGEST, covered_by=SPAN_ID)
    rejected = Rejected(
        context_id=ID,
        event_id=ID,
        code=RejectionCode.ALREADY_COVERED,
        message="x" * 128 * 1024,
        spans=(current,) * MAX_SOURCES,
    )
    for outcome in (committed, rejected):
        assert len(outcome.wire()) + HEADERS <= MAX_PAYLOAD_BYTES


def test_a_chunk_fits_into_a_message() -> None:
    """In base64, which is a third longer."""
    claim = Claim(digest=DIGEST, size_bytes=MAX_SPAN_BYTES, chunk_bytes=CHUNK_BYTES)
    chunk = b"\xff" * CHUNK_BYTES
    for message in (
        PutRequest(context_id=ID, claim=claim, index=claim.chunks - 1, data=chunk),
        FetchPart(context_id=ID, data=chunk),
    ):
        assert len(message.wire()) + HEADERS <= MAX_PAYLOAD_BYTES


def test_the_largest_span_can_be_claimed() -> None:
    """In chunks of the usual size, well within their number."""
    claim = Claim(digest=DIGEST, size_bytes=MAX_SPAN_BYTES, chunk_bytes=CHUNK_BYTES)
    assert claim.chunks <= MAX_CLAIM_CHUNKS // 2


def test_a_full_set_of_pins_can_be_announced() -> None:
    """In one message, with the longest names there are."""
    heartbeat = HeartbeatRequest(
        context_id=ID,
        holder_id=ID,
        incarnation=LARGEST,
        operation=LARGEST,
        digest=DIGEST,
        ttl_ms=1000,
        pins=(Pin(span_id=SPAN_ID, version=LARGEST, cost=PinCost.EXPENSIVE),) * MAX_PINS,
    )
    assert len(heartbeat.wire()) + HEADERS <= MAX_PAYLOAD_BYTES


def test_what_is_inline_fits_into_a_command() -> None:
    """Unless it is mostly control characters, which JSON writes with six bytes: then it is to be claimed."""
    for text in ("x" * INLINE_BYTES, "\n" * INLINE_BYTES, "🪦" * (INLINE_BYTES // 4)):
        append = Append(context_id=ID, event_id=ID, spans=(NewSpan(content=text),))
        assert len(append.wire()) <= MAX_COMMAND_BYTES


def test_a_label_is_much_shorter_than_a_command() -> None:
    """Four of them on every span of an append."""
    assert 4 * MAX_LABEL_BYTES * 512 < MAX_COMMAND_BYTES
