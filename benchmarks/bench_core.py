"""The pure core: what deciding, applying and chaining cost, by context size; hashing beside it, as a measure.

Run it: `python benchmarks/bench_core.py`. Figures are the best of several rounds, in microseconds of CPU time
for one operation. Read them as ratios: a row above the line should not grow with the context. Each row stands
for itself: `decide` and `apply` both make the chain once.
"""

import argparse
import time
import timeit
from collections.abc import Callable
from functools import partial

from rich.console import Console
from rich.table import Table

from sexton.core import hash as hashing
from sexton.core.apply import apply
from sexton.core.check import check, mint
from sexton.core.decide import Commit, decide, texts
from sexton.core.plan import plan
from sexton.core.snapshot import dump, restore
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, decode_command, decode_record
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.ids import Level
from sexton.schemas.span import NewSpan, Text

SIZES = (100, 10_000, 100_000)
LEAF = "A line of a transcript, of an ordinary length. " * 20
"""About 1 KiB."""
BATCH = 1000
ROUNDS = 5
TARGET_S = 0.05
"""How long a round should take; how many operations that is, is found out first."""


def context(spans: int) -> ContextTree:
    """A context of so many leaves."""
    tree = ContextTree.empty("bench")
    for start in range(0, spans, BATCH):
        names = range(start, min(start + BATCH, spans))
        command = Append(
            context_id="bench",
            event_id=f"fill-{start}",
            spans=tuple(NewSpan(name=f"n{number}", content=LEAF) for number in names),
        )
        tree = apply(tree, decided(tree, command).record)
    return tree


def decided(tree: ContextTree, command: AnyCommand) -> Commit:
    """The commit of a command that must be in order."""
    contents = [(text.content or "").encode() for text in texts(command)]
    decision = decide(tree, command, hashing.body_digest(b"bench"), contents)
    assert isinstance(decision, Commit), decision
    return decision


def commands() -> dict[str, AnyCommand]:
    """One of each kind, on a context of at least 100 spans."""
    ids = {"context_id": "bench", "event_id": "op"}
    sources = tuple(SourceRef(span_id=f"l0:n{number}") for number in range(40, 56))
    return {
        "append 1": Append(**ids, spans=(NewSpan(content=LEAF),)),
        "append 100": Append(**ids, spans=tuple(NewSpan(content=LEAF) for _ in range(100))),
        "compact 16": Compact(**ids, sources=sources, summary=Text(content=LEAF)),
        "rewrite": Rewrite(**ids, span_id="l0:n50", base_version=1, text=Text(content=LEAF + "!")),
        "prune": Prune(**ids, span_id="l0:n50"),
    }


def best_us(act: Callable[[], object]) -> float:
    """Microseconds for one operation, in the best round."""
    timer = timeit.Timer(act, timer=time.process_time)
    number = 1
    while (took_s := timer.timeit(number)) < TARGET_S / 10:
        number *= 10
    number = max(1, int(number * TARGET_S / took_s))
    return min(timer.repeat(ROUNDS, number)) / number * 1e6


def operations(tree: ContextTree) -> dict[str, Callable[[], object]]:
    """What is measured on one context."""
    found: dict[str, Callable[[], object]] = {}
    for name, command in commands().items():
        record = decided(tree, command).record
        found[f"{name}: decide"] = partial(decided, tree, command)
        found[f"{name}: apply"] = partial(apply, tree, record)
        found[f"{name}: chain alone"] = partial(hashing.chain, tree.chain, record)
        found[f"{name}: read the command"] = partial(decode_command, command.wire())
        found[f"{name}: read the record"] = partial(decode_record, record.wire())
    found["check"] = partial(check, mint(tree, "l0:n50"), tree)
    return found


def whole(tree: ContextTree) -> dict[str, Callable[[], object]]:
    """What costs a walk over the context, and should."""
    return {
        "plan (the view)": partial(plan, tree, 0),
        "dump (the tree)": partial(dump, tree),
        "restore (the tree)": partial(restore, [dump(tree)]),
    }


def main() -> None:
    """Measures, and prints a table."""
    parser = argparse.ArgumentParser(description="Measure the pure core.")
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), metavar="SPANS", help="at least 100 each"
    )
    sizes: list[int] = parser.parse_args().sizes
    trees = {spans: context(spans) for spans in sizes}

    table = Table(title="Core, microseconds an operation", title_justify="left")
    table.add_column("operation")
    for spans in sizes:
        table.add_column(f"{spans:,} spans", justify="right")
    for rows in (operations, whole):
        columns = {spans: rows(tree) for spans, tree in trees.items()}
        for name in columns[sizes[0]]:
            table.add_row(name, *(f"{best_us(columns[spans][name]):,.1f}" for spans in sizes))
        table.add_section()
    for size_bytes in (1024, 64 * 1024):
        data = b"x" * size_bytes
        for level in (Level.L0_VERBATIM, Level.L1_SUMMARY):
            cost = best_us(partial(hashing.content_hash, level, data))
            table.add_row(f"hash {size_bytes // 1024} KiB at L{level.value}", f"{cost:,.1f}")
    Console().print(table)


if __name__ == "__main__":
    main()
