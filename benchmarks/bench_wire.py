"""Messages: what reading and writing one costs, beside plain `json` on the same bytes.

Run it: `python benchmarks/bench_wire.py`. Figures are the best of several rounds, in microseconds of CPU time
for one message. Read them as ratios: `json.loads` checks nothing, and gives back what it was given.
The refusals are messages of 256 KiB that a reader must give up on early.
"""

import argparse
import json
import time
import timeit
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from sexton.schemas.base import Message
from sexton.schemas.codec import decode, decode_command, decode_outcome, decode_record
from sexton.schemas.commands import Append
from sexton.schemas.errors import PeerError
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import Appended
from sexton.schemas.rpc import FetchPart, Head, SyncPart
from sexton.schemas.span import Labels, NewSpan, SpanEntry, SpanVersion

DIGEST = "sha256:" + "0f" * 32
LEAF = "A line of a transcript, of an ordinary length. " * 20
"""About 1 KiB."""
LARGE_BYTES = 256 * 1024
IDS = {"context_id": "bench", "event_id": "5f1e2d3c4b5a69788796a5b4c3d2e1f0"}
LABELS = Labels(role="assistant", group="call_8Hq2", media_type="application/json")
TARGET_S = 0.05
"""How long a round should take; how many operations that is, is found out first."""

Read = Callable[[bytes], Message]


def append(spans: int, content: str = LEAF) -> Append:
    return Append(**IDS, spans=tuple(NewSpan(content=content, labels=LABELS) for _ in range(spans)))


def appended(spans: int) -> Appended:
    entries = (
        SpanEntry(
            span_id=f"l0:{IDS['event_id']}-{number}",
            version=1,
            level=Level.L0_VERBATIM,
            content_hash=DIGEST,
            size_bytes=len(LEAF),
            labels=LABELS,
        )
        for number in range(spans)
    )
    return Appended(**IDS, revision=17, epoch=3, digest=DIGEST, chain=DIGEST, spans=tuple(entries))


def extended(record: Appended) -> bytes:
    """A record with two fields that no reader knows, in each of its spans."""
    raw = json.loads(record.wire())
    for span in raw["spans"]:
        span |= {"x_source": "somewhere", "x_weights": [0.5, 0.25]}
    return json.dumps(raw, separators=(",", ":")).encode()


def messages() -> dict[str, tuple[Read, bytes]]:
    """What is read: a name, how, and the bytes."""
    pointer = Pointer(
        context_id="bench",
        span_id="l0:n50",
        level=Level.L0_VERBATIM,
        version=1,
        offset=0,
        length=len(LEAF),
        content_hash=DIGEST,
        epoch=3,
    )
    leaf = SpanVersion(span_id="l0:n50", version=1)
    committed = Committed(**IDS, kind="append", revision=17, epoch=3, spans=(leaf,))
    record = json.loads(appended(1).wire())
    part = SyncPart(
        context_id="bench", head=Head(revision=17, epoch=3, chain=DIGEST), records=(record,) * 100
    )
    chunk = FetchPart(context_id="bench", data=bytes(range(256)) * (LARGE_BYTES // 256))
    return {
        "pointer": (partial(decode, Pointer), pointer.wire()),
        "append, 1 span": (decode_command, append(1).wire()),
        "append, 100 spans": (decode_command, append(100).wire()),
        "append, 256 KiB in 1 span": (decode_command, append(1, "x" * LARGE_BYTES).wire()),
        "appended, 1 span": (decode_record, appended(1).wire()),
        "appended, 100 spans": (decode_record, appended(100).wire()),
        "appended, 100 spans, unknown fields": (decode_record, extended(appended(100))),
        "committed": (decode_outcome, committed.wire()),
        "sync part, 100 records": (partial(decode, SyncPart), part.wire()),
        "fetch part, 256 KiB": (partial(decode, FetchPart), chunk.wire()),
    }


def refusals() -> dict[str, tuple[Read, bytes]]:
    """What is refused: large messages, in which all is wrong."""
    raw = json.loads(append(1).wire())
    numbers = [0] * (LARGE_BYTES // 3)
    return {
        "no JSON": (decode_command, b"x" * LARGE_BYTES),
        "too deep": (decode_command, b"[" * LARGE_BYTES),
        "spans are numbers": (decode_command, json.dumps(raw | {"spans": numbers}).encode()),
        "kind is a text of 256 KiB": (decode_command, json.dumps(raw | {"kind": "x" * LARGE_BYTES}).encode()),
        "newer version": (decode_command, json.dumps(raw | {"schema_version": 2, "spans": numbers}).encode()),
    }


def refused(read: Read, data: bytes) -> str:
    """The name of the error that reading gives."""
    try:
        read(data)
    except PeerError as e:
        return type(e).__name__
    return "read"


def best_us(act: Callable[[], object], rounds: int) -> float:
    """Microseconds for one operation, in the best round."""
    timer = timeit.Timer(act, timer=time.process_time)
    number = 1
    while (took_s := timer.timeit(number)) < TARGET_S / 10:
        number *= 10
    number = max(1, int(number * TARGET_S / took_s))
    return min(timer.repeat(rounds, number)) / number * 1e6


def main() -> None:
    """Measures, and prints two tables."""
    parser = argparse.ArgumentParser(description="Measure reading and writing of messages.")
    parser.add_argument("--rounds", type=int, default=5, help="the best of so many counts (default: 5)")
    rounds: int = parser.parse_args().rounds

    table = Table(title="Messages, microseconds each", title_justify="left")
    table.add_column("message")
    for column in ("bytes", "json.loads", "read", "ratio", "write", "json.dumps"):
        table.add_column(column, justify="right")
    for name, (read, data) in messages().items():
        message, plain = read(data), json.loads(data)
        loads_us = best_us(partial(json.loads, data), rounds)
        read_us = best_us(partial(read, data), rounds)
        write_us = best_us(message.wire, rounds)
        dumps_us = best_us(partial(json.dumps, plain), rounds)
        costs = (f"{loads_us:,.1f}", f"{read_us:,.1f}", f"{read_us / loads_us:.2f}", f"{write_us:,.1f}")
        table.add_row(name, f"{len(data):,}", *costs, f"{dumps_us:,.1f}")
    Console().print(table)

    table = Table(title="Refusals, microseconds each", title_justify="left")
    table.add_column("message")
    table.add_column("error")
    for column in ("bytes", "refuse"):
        table.add_column(column, justify="right")
    for name, (read, data) in refusals().items():
        cost = best_us(partial(refused, read, data), rounds)
        table.add_row(name, refused(read, data), f"{len(data):,}", f"{cost:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
