"""The command that shows a context: its view, and what is under it."""

from collections.abc import Iterator
from typing import Annotated, Any

import typer

from sexton.core.tree import ContextTree, Node, Tombstone
from sexton.schemas.span import Identity, Labels, SpanState
from sexton.worker.cli.client import Client
from sexton.worker.cli.output import shown, size


async def tree(
    client: Client,
    level: Annotated[
        int,
        typer.Option(metavar="N", min=0, max=7, help="Under a summary, show nothing below this level."),
    ] = 0,
    everything: Annotated[
        bool, typer.Option("--all", help="Also what has left the view: pruned spans and old versions.")
    ] = False,
) -> None:
    """Show the view, and under each summary what it covers."""
    context = await client.open()
    now = context.tree
    gone = [stone for _, stone in sorted(now.tombstones.items())] if everything else []
    if client.out.as_json:
        client.out.value(
            {
                "context_id": now.context_id,
                "revision": now.revision,
                "epoch": now.epoch,
                "view_count": now.view_count,
                "view_bytes": now.view_bytes,
                "spans": [_span(node, depth) for depth, node in _walk(now, level)],
                "tombstones": [_tombstone(stone) for stone in gone],
            }
        )
        return
    client.out.line(
        f"{now.context_id}  revision {now.revision}  epoch {now.epoch}  "
        f"view {now.view_count} spans, {size(now.view_bytes)}"
    )
    for depth, node in _walk(now, level):
        client.out.line(_row(node.identity, node.state, node.labels, depth))
    for stone in gone:
        client.out.line(_row(stone.identity, stone.state, stone.labels))


def _walk(tree: ContextTree, lowest: int) -> Iterator[tuple[int, Node]]:
    """The view, each span followed by what it covers, one deeper."""
    for top in tree.view():
        stack = [(0, top)]
        while stack:
            depth, node = stack.pop()
            yield depth, node
            below = [tree.nodes[source] for source in node.sources]
            stack.extend((depth + 1, source) for source in reversed(below) if source.level >= lowest)


def _row(identity: Identity, state: SpanState, labels: Labels, depth: int = 0) -> str:
    name = "  " * depth + identity.span_id
    about = [labels.role, labels.kind, f"group {labels.group}" if labels.group else None]
    words = "  ".join(shown(text) for text in about if text) + ("  open" if labels.open else "")
    columns = f"{name:<44} v{identity.version:<3} {state.value:<10} {size(identity.size_bytes):>9}"
    return f"{columns}  {words}".rstrip()


def _span(node: Node, depth: int) -> dict[str, Any]:
    return {
        "span_id": node.span_id,
        "level": node.level.value,
        "depth": depth,
        "version": node.version,
        "state": node.state.value,
        "size_bytes": node.size_bytes,
        "content_hash": node.content_hash,
        "epoch": node.epoch,
        "covered_by": node.covered_by,
        "sources": list(node.sources),
        "labels": node.labels.model_dump(mode="json", exclude_none=True),
    }


def _tombstone(stone: Tombstone) -> dict[str, Any]:
    return {
        **stone.identity.model_dump(mode="json"),
        "state": stone.state.value,
        "epoch": stone.epoch,
        "strategy": stone.strategy.value if stone.strategy is not None else None,
        "labels": stone.labels.model_dump(mode="json", exclude_none=True),
    }
