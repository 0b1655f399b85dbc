"""A tree as a message and back.

`restore(dump(tree))` is the tree again. A snapshot is cut into pieces by size, so that a context of any
length fits into messages of a bounded one.
"""

# rpds maps are generic to type checkers only; their annotations must not be evaluated.
from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Final

from rpds import HashTrieMap

from sexton.core.tree import Applied, ContextTree, Group, Node, Tombstone
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import MalformedMessage
from sexton.schemas.rpc import Snapshot, SnapshotEvent, SnapshotSpan, SnapshotTombstone
from sexton.schemas.span import Identity, Labels, SpanState

PIECE_BYTES: Final = 256 * 1024
"""A piece stays below this in JSON, as far as one entry allows."""

_ENTRY_BYTES: Final = 512
"""What an entry takes in JSON without its sources and labels, on the safe side."""

_NO_LABELS: Final = Labels()

_Entry = SnapshotSpan | SnapshotTombstone | str


def dump(tree: ContextTree, *, with_events: bool = False) -> Snapshot:
    """The whole tree as one snapshot. Costs in proportion to the context."""
    return Snapshot(
        context_id=tree.context_id,
        head=tree.head,
        spans=tuple(_spans(tree)),
        tombstones=tuple(_tombstones(tree)),
        open_groups=tuple(_open_groups(tree)),
        events=tuple(_events(tree)) if with_events and tree.events is not None else None,
    )


def pieces(tree: ContextTree, piece_bytes: int = PIECE_BYTES) -> Iterator[Snapshot]:
    """The tree as snapshots of about `piece_bytes` each in JSON, without events. At least one."""
    batch: list[_Entry] = []
    weight = 0
    entries: Iterator[_Entry] = chain(_spans(tree), _tombstones(tree), _open_groups(tree))
    for entry in entries:
        weight += _weight(entry)
        if batch and weight > piece_bytes:
            yield _piece(tree, batch)
            batch, weight = [], _weight(entry)
        batch.append(entry)
    yield _piece(tree, batch)


def restore(snapshots: Sequence[Snapshot]) -> ContextTree:
    """The tree that the pieces of one snapshot make up. It has events if the snapshot has.

    Raises:
        MalformedMessage: the pieces are of different contexts or heads, or do not fit together.
    """
    if not snapshots:
        raise MalformedMessage("a snapshot has at least one piece")
    head, context_id = snapshots[0].head, snapshots[0].context_id
    if any(s.head != head or s.context_id != context_id for s in snapshots):
        raise MalformedMessage("the pieces are not of one snapshot")
    spans = [span for s in snapshots for span in s.spans]
    view = [span.span_id for span in spans if span.state is SpanState.LIVE]
    left = dict(zip(view[1:], view, strict=False))
    right = dict(pairwise(view))
    nodes = {span.span_id: _node(span, left.get(span.span_id), right.get(span.span_id)) for span in spans}
    if len(nodes) != len(spans):
        raise MalformedMessage("a snapshot names a span twice")
    dangling = [n for n in nodes.values() if any(s not in nodes for s in (*n.sources, n.covered_by) if s)]
    if dangling:
        raise MalformedMessage(f"a snapshot refers to spans it does not hold, at {dangling[0].span_id}")
    stones = [stone for s in snapshots for stone in s.tombstones]
    events = None
    if any(s.events is not None for s in snapshots):
        events = HashTrieMap({e.event_id: _applied(e) for s in snapshots for e in s.events or ()})
    return ContextTree(
        context_id=context_id,
        revision=head.revision,
        epoch=head.epoch,
        chain=head.chain,
        first=view[0] if view else None,
        last=view[-1] if view else None,
        view_count=len(view),
        view_bytes=sum(nodes[span_id].size_bytes for span_id in view),
        nodes=HashTrieMap(nodes),
        tombstones=HashTrieMap({(s.span_id, s.version): _tombstone(s) for s in stones}),
        groups=_groups(nodes.values(), {g for s in snapshots for g in s.open_groups}),
        events=events,
    )


def _piece(tree: ContextTree, batch: Sequence[_Entry]) -> Snapshot:
    return Snapshot(
        context_id=tree.context_id,
        head=tree.head,
        spans=tuple(e for e in batch if isinstance(e, SnapshotSpan)),
        tombstones=tuple(e for e in batch if isinstance(e, SnapshotTombstone)),
        open_groups=tuple(e for e in batch if isinstance(e, str)),
    )


def _weight(entry: _Entry) -> int:
    if isinstance(entry, str):
        return len(entry) + 8
    size = _ENTRY_BYTES
    if entry.labels != _NO_LABELS:
        # As they are written: with escapes, characters of several bytes, and fields unknown to this reader.
        size += len(entry.labels.model_dump_json(exclude_none=True).encode())
    return size + sum(len(s) + 8 for s in entry.sources) if isinstance(entry, SnapshotSpan) else size


def _spans(tree: ContextTree) -> Iterator[SnapshotSpan]:
    """Live ones first, in the order of the view; the others by id, so that equal trees dump equal."""
    for node in tree.view():
        yield _span(node)
    others = [node for node in tree.nodes.values() if node.state is not SpanState.LIVE]
    for node in sorted(others, key=lambda n: n.span_id):
        yield _span(node)


def _span(node: Node) -> SnapshotSpan:
    return SnapshotSpan.model_construct(
        span_id=node.span_id,
        version=node.version,
        level=node.level,
        content_hash=node.content_hash,
        size_bytes=node.size_bytes,
        labels=node.labels,
        state=node.state,
        epoch=node.epoch,
        covered_by=node.covered_by,
        sources=node.sources,
    )


def _tombstones(tree: ContextTree) -> Iterator[SnapshotTombstone]:
    for _, stone in sorted(tree.tombstones.items()):
        yield SnapshotTombstone(
            **dict(stone.identity),
            labels=stone.labels,
            state=stone.state,
            strategy=stone.strategy,
            epoch=stone.epoch,
            attempt=stone.attempt,
        )


def _open_groups(tree: ContextTree) -> list[str]:
    return sorted(name for name, group in tree.groups.items() if group.open)


def _events(tree: ContextTree) -> Iterator[SnapshotEvent]:
    for event_id, known in (tree.events or HashTrieMap()).items():
        yield SnapshotEvent.model_construct(
            event_id=event_id,
            digest=known.digest,
            kind=known.kind.value,
            revision=known.revision,
            epoch=known.epoch,
            spans=known.spans,
            strategy=known.strategy,
            size_before_bytes=known.size_before_bytes,
            size_after_bytes=known.size_after_bytes,
        )


def _node(span: SnapshotSpan, prev: str | None, following: str | None) -> Node:
    return Node(
        span_id=span.span_id,
        level=span.level,
        version=span.version,
        content_hash=span.content_hash,
        size_bytes=span.size_bytes,
        labels=span.labels,
        state=span.state,
        epoch=span.epoch,
        covered_by=span.covered_by,
        sources=span.sources,
        prev=prev,
        next=following,
    )


def _tombstone(stone: SnapshotTombstone) -> Tombstone:
    identity = Identity(
        span_id=stone.span_id,
        version=stone.version,
        level=stone.level,
        content_hash=stone.content_hash,
        size_bytes=stone.size_bytes,
    )
    return Tombstone(
        identity=identity,
        labels=stone.labels,
        state=stone.state,
        strategy=stone.strategy,
        epoch=stone.epoch,
        attempt=stone.attempt,
    )


def _groups(nodes: Iterable[Node], opened: set[str]) -> HashTrieMap[str, Group]:
    live: dict[str, int] = {}
    for node in nodes:
        name = node.labels.group
        if name is not None and node.state is SpanState.LIVE and node.level.verbatim:
            live[name] = live.get(name, 0) + 1
    return HashTrieMap({name: Group(live=count, open=name in opened) for name, count in live.items()})


def _applied(event: SnapshotEvent) -> Applied:
    return Applied(
        kind=CommandKind(event.kind),
        digest=event.digest,
        revision=event.revision,
        epoch=event.epoch,
        spans=event.spans,
        strategy=event.strategy,
        size_before_bytes=event.size_before_bytes,
        size_after_bytes=event.size_after_bytes,
    )
