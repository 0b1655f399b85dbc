"""Whole contexts: how long reading, sending and storing one holds up everything else in the same process.

Run it: `python benchmarks/bench_sync.py`. Each row is done twice in the same run: all at once, as the
measure, and in steps, as a worker or a holder does it. "Longest turn" is the longest time in which the event
loop served nobody else, and "collector" the longest run of Python's garbage collector, which may be most of
it: a full one costs in proportion to all that the process holds. Milliseconds of wall time, the median of
several rounds.
"""

import argparse
import asyncio
import gc
import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

import structlog
from rich.console import Console
from rich.table import Table

from sexton.core.answer import SyncMode, snapshot_steps, sync_parts
from sexton.core.apply import apply
from sexton.core.decide import Commit, decide
from sexton.core.hash import body_digest
from sexton.core.snapshot import Restoration, dump, restore
from sexton.core.tree import ContextTree
from sexton.schemas.codec import decode
from sexton.schemas.commands import Append
from sexton.schemas.rpc import Snapshot, SyncPart
from sexton.schemas.span import Labels, NewSpan
from sexton.worker.contexts import Known, packed, unpacked
from sexton.worker.snapshots import Snapshots

ROUNDS = 5
ASKERS = 4

BATCH = 1000

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Row:
    """One thing to do, in both ways."""

    name: str
    at_once: Work
    in_steps: Work


def context(spans: int) -> ContextTree:
    """A context of so many leaves."""
    tree = ContextTree.empty("bench")
    for start in range(0, spans, BATCH):
        names = [f"n{n}" for n in range(start, min(start + BATCH, spans))]
        labelled = tuple(NewSpan(name=n, content=n, labels=Labels(role="user")) for n in names)
        command = Append(context_id="bench", event_id=f"fill-{start}", spans=labelled)
        decision = decide(tree, command, body_digest(b"bench"), [n.encode() for n in names])
        assert isinstance(decision, Commit), decision
        tree = apply(tree, decision.record)
    return tree


@dataclass
class Figures:
    """What one round took, in seconds."""

    took: float = 0.0
    turn: float = 0.0
    collector: float = 0.0


async def measured(work: Work) -> Figures:
    """One round, with a task beside it that wants every turn it can get."""
    figures, over, collecting_since = Figures(), False, 0.0

    async def probe() -> None:
        last = time.perf_counter()
        while not over:
            await asyncio.sleep(0)
            now = time.perf_counter()
            figures.turn, last = max(figures.turn, now - last), now

    def on_collector(phase: str, _: object) -> None:
        nonlocal collecting_since
        if phase == "start":
            collecting_since = time.perf_counter()
        else:
            figures.collector = max(figures.collector, time.perf_counter() - collecting_since)

    gc.callbacks.append(on_collector)
    probing = asyncio.create_task(probe())
    await asyncio.sleep(0)
    began = time.perf_counter()
    await work()
    figures.took = time.perf_counter() - began
    over = True
    await probing
    gc.callbacks.remove(on_collector)
    return figures


async def medians(work: Work) -> list[str]:
    """The same of several rounds, as a row shows it."""
    rounds = [await measured(work) for _ in range(ROUNDS)]
    columns = ([f.took for f in rounds], [f.turn for f in rounds], [f.collector for f in rounds])
    return [f"{statistics.median(column) * 1000:,.1f}" for column in columns]


async def drained(parts: AsyncIterator[bytes]) -> list[bytes]:
    """All parts, a turn each, as they are sent."""
    found: list[bytes] = []
    async for part in parts:
        found.append(part)
        await asyncio.sleep(0)
    return found


def answered(tree: ContextTree, askers: int) -> Row:
    """The answers to so many holders that need a snapshot."""

    async def at_once() -> None:
        for _ in range(askers):
            [part.wire() for part in list(sync_parts(tree, SyncMode.SNAPSHOT))]
            await asyncio.sleep(0)

    async def in_steps() -> None:
        snapshots = Snapshots(max_bytes=0, spawn=asyncio.ensure_future)
        await asyncio.gather(*(drained(snapshots.parts(tree)) for _ in range(askers)))

    return Row(f"answer {askers} that need a snapshot", at_once, in_steps)


def taken_over(parts: Sequence[bytes]) -> Row:
    """What a holder does with the answer."""

    async def at_once() -> None:
        restore(piece for part in parts if (piece := decode(SyncPart, part).snapshot) is not None)

    async def in_steps() -> None:
        restoration = Restoration()
        for part in parts:
            piece = decode(SyncPart, part).snapshot
            await asyncio.sleep(0)
            if piece is not None:
                restoration.add(piece)
            await asyncio.sleep(0)
        restoration.tree()

    return Row("take over a snapshot (holder)", at_once, in_steps)


def stored(tree: ContextTree) -> Row:
    """What a worker keeps in Redis now and then."""

    async def at_once() -> None:
        await asyncio.to_thread(lambda: dump(tree, with_events=True).wire())

    return Row("store a snapshot (at once: in a thread)", at_once, lambda: packed(Known(tree)))


def loaded(tree: ContextTree, data: bytes) -> Row:
    """What a worker begins with."""
    whole = dump(tree, with_events=True).wire()

    async def at_once() -> None:
        await asyncio.to_thread(lambda: restore([decode(Snapshot, whole)]))

    return Row("load a snapshot (at once: in a thread)", at_once, lambda: unpacked(data))


async def run(spans: int) -> None:
    """Measures, and prints a table."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    tree = context(spans)
    parts = [part.wire() for part in snapshot_steps(tree) if part is not None]
    rows = [
        answered(tree, 1),
        answered(tree, ASKERS),
        taken_over(parts),
        stored(tree),
        loaded(tree, await packed(Known(tree))),
    ]
    table = Table(title=f"A context of {spans:,} spans, milliseconds", title_justify="left")
    for column in ("work", "at once", "longest turn", "collector", "in steps", "longest turn", "collector"):
        table.add_column(column, justify="left" if column == "work" else "right")
    for row in rows:
        table.add_row(row.name, *await medians(row.at_once), *await medians(row.in_steps))
    Console(width=130).print(table)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="Measure what whole contexts cost everybody else.")
    parser.add_argument("--spans", type=int, default=40_000, help="of the context")
    asyncio.run(run(parser.parse_args().spans))


if __name__ == "__main__":
    main()
