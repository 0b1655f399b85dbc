"""A tree as a message and back.

`restore(dump(tree))` is the tree again. A snapshot is cut into pieces by size, so that a context of any
length fits into messages of a bounded one.

Both ways also come in steps, for whoever has other things to do meanwhile: `steps` yields after a bounded
number of entries, whether a piece is ready or not, and a `Restoration` takes in one piece at a time.
"""

# rpds maps are generic to type checkers only; their annotations must not be evaluated.
from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import pairwise
from typing import Any, Final, TypeVar

from rpds import HashTrieMap

from sexton.core.labels import shared
from sexton.core.tree import Applied, ContextTree, Group, Node, Tombstone
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import MalformedMessage
from sexton.schemas.rpc import Head, Snapshot, SnapshotEvent, SnapshotSpan, SnapshotTombstone
from sexton.schemas.span import Identity, Labels, SpanState

PIECE_BYTES: Final = 128 * 1024
"""A piece stays below this in JSON, as far as one entry allows. It is what a reader decodes in one go."""

STEP_ENTRIES: Final = 256
"""Entries looked at in one step, at most."""

_ENTRY_BYTES: Final = 512
"""What an entry takes in JSON without its sources and labels, on the safe side."""

_NO_LABELS: Final = Labels()

_Entry = SnapshotSpan | SnapshotTombstone | SnapshotEvent | str

T = TypeVar("T")
Key = Callable[[T], Any]


def dump(tree: ContextTree, *, with_events: bool = False) -> Snapshot:
    """The whole tree as one snapshot. Costs in proportion to the context."""
    batch = [entry for entry in _entries(tree, with_events=with_events) if entry is not None]
    return _piece(tree, batch, with_events=with_events)


def pieces(tree: ContextTree, piece_bytes: int = PIECE_BYTES) -> Iterator[Snapshot]:
    """The tree as snapshots of about `piece_bytes` each in JSON, without events. At least one."""
    return (piece for piece in steps(tree, piece_bytes) if piece is not None)


def steps(
    tree: ContextTree, piece_bytes: int = PIECE_BYTES, *, with_events: bool = False
) -> Iterator[Snapshot | None]:
    """`pieces`, and None wherever one step is done and no piece is ready.

    No step looks at more than `STEP_ENTRIES` entries, so none takes long, however large the context is.
    """
    batch: list[_Entry] = []
    weight = seen = 0
    for entry in _entries(tree, with_events=with_events):
        if entry is None:
            seen = 0
            yield None
            continue
        size = _weight(entry)
        if batch and weight + size > piece_bytes:
            yield _piece(tree, batch, with_events=with_events)
            batch, weight, seen = [], 0, 0
        batch.append(entry)
        weight += size
        seen += 1
        if seen == STEP_ENTRIES:
            seen = 0
            yield None
    yield _piece(tree, batch, with_events=with_events)


def restore(snapshots: Iterable[Snapshot]) -> ContextTree:
    """The tree that the pieces of one snapshot make up. It has events if the snapshot has.

    Raises:
        MalformedMessage: the pieces are of different contexts or heads, or do not fit together.
    """
    restoration = Restoration()
    for snapshot in snapshots:
        restoration.add(snapshot)
    return restoration.tree()


class Restoration:
    """A tree that is put together from the pieces of one snapshot, in order."""

    def __init__(self) -> None:
        self._context_id = ""
        self._head: Head | None = None
        self._nodes: HashTrieMap[str, Node] = HashTrieMap()
        self._tombstones: HashTrieMap[tuple[str, int], Tombstone] = HashTrieMap()
        self._events: HashTrieMap[str, Applied] | None = None
        self._groups: dict[str, int] = {}
        self._open: set[str] = set()
        self._first: str | None = None
        self._last: Node | None = None
        """The end of the view so far. Its right neighbour may come in the next piece."""
        self._count = self._view_count = self._view_bytes = 0
        self._named: set[str] = set()
        """Spans that others refer to."""

    def add(self, snapshot: Snapshot) -> None:
        """Takes in the next piece. Costs in proportion to it.

        Raises:
            MalformedMessage: it is not of the same snapshot as those before it.
        """
        if self._head is None:
            self._head, self._context_id = snapshot.head, snapshot.context_id
        if snapshot.head != self._head or snapshot.context_id != self._context_id:
            raise MalformedMessage("the pieces are not of one snapshot")
        self._add_spans(snapshot.spans)
        stones = {(s.span_id, s.version): _tombstone(s) for s in snapshot.tombstones}
        self._tombstones = self._tombstones.update(stones)
        self._open.update(snapshot.open_groups)
        if snapshot.events is not None:
            known = self._events if self._events is not None else HashTrieMap()
            self._events = known.update({e.event_id: _applied(e) for e in snapshot.events})

    def tree(self) -> ContextTree:
        """The tree, once all pieces are there.

        Raises:
            MalformedMessage: there was no piece, or one is missing.
        """
        if self._head is None:
            raise MalformedMessage("a snapshot has at least one piece")
        missing = [span_id for span_id in self._named if span_id not in self._nodes]
        if missing:
            raise MalformedMessage(f"a snapshot refers to spans it does not hold, such as {min(missing)}")
        groups = {name: Group(live=n, open=name in self._open) for name, n in self._groups.items()}
        return ContextTree(
            context_id=self._context_id,
            revision=self._head.revision,
            epoch=self._head.epoch,
            chain=self._head.chain,
            first=self._first,
            last=self._last.span_id if self._last is not None else None,
            view_count=self._view_count,
            view_bytes=self._view_bytes,
            nodes=self._nodes,
            tombstones=self._tombstones,
            groups=HashTrieMap(groups),
            events=self._events,
        )

    def _add_spans(self, spans: Sequence[SnapshotSpan]) -> None:
        view = [span for span in spans if span.state is SpanState.LIVE]
        before = self._last.span_id if self._last is not None else None
        left = dict(zip((s.span_id for s in view), (before, *(s.span_id for s in view)), strict=False))
        right = {a.span_id: b.span_id for a, b in pairwise(view)}
        nodes = {s.span_id: _node(s, left.get(s.span_id), right.get(s.span_id)) for s in spans}
        last = nodes[view[-1].span_id] if view else None
        if self._last is not None and view:
            nodes[self._last.span_id] = replace(self._last, next=view[0].span_id)
        self._nodes = self._nodes.update(nodes)
        self._count += len(spans)
        if len(self._nodes) != self._count:
            raise MalformedMessage("a snapshot names a span twice")
        for span in spans:
            self._named.update(span.sources)
            if span.covered_by is not None:
                self._named.add(span.covered_by)
        for span in view:
            name = span.labels.group
            if name is not None and span.level.verbatim:
                self._groups[name] = self._groups.get(name, 0) + 1
        self._first = self._first if self._first is not None or not view else view[0].span_id
        self._last = last if last is not None else self._last
        self._view_count += len(view)
        self._view_bytes += sum(span.size_bytes for span in view)


def _piece(tree: ContextTree, batch: Sequence[_Entry], *, with_events: bool) -> Snapshot:
    has_events = with_events and tree.events is not None
    return Snapshot(
        context_id=tree.context_id,
        head=tree.head,
        spans=tuple(e for e in batch if isinstance(e, SnapshotSpan)),
        tombstones=tuple(e for e in batch if isinstance(e, SnapshotTombstone)),
        open_groups=tuple(e for e in batch if isinstance(e, str)),
        events=tuple(e for e in batch if isinstance(e, SnapshotEvent)) if has_events else None,
    )


def _weight(entry: _Entry) -> int:
    match entry:
        case str():
            return len(entry) + 8
        case SnapshotEvent():
            return _ENTRY_BYTES + sum(len(span_id) + 24 for span_id, _ in entry.spans)
    size = _ENTRY_BYTES
    if entry.labels is not _NO_LABELS and entry.labels != _NO_LABELS:
        # As they are written: with escapes, characters of several bytes, and fields unknown to this reader.
        size += len(entry.labels.model_dump_json(exclude_none=True).encode())
    return size + sum(len(s) + 8 for s in entry.sources) if isinstance(entry, SnapshotSpan) else size


def _entries(tree: ContextTree, *, with_events: bool) -> Iterator[_Entry | None]:
    """All there is to say of a tree, and None where entries were looked at that are not told yet.

    Live spans come first, in the order of the view; all else by its key, so that equal trees dump equal.
    """
    for node in tree.view():
        yield _span(node)
    if len(tree.nodes) > tree.view_count:
        for other in _in_order(tree.nodes.values(), lambda node: node.span_id, _is_out_of_view):
            yield _span(other) if other is not None else None
    for stone in _in_order(tree.tombstones.values(), lambda stone: _version(stone.identity)):
        yield _snapshot_tombstone(stone) if stone is not None else None
    for group in _in_order(tree.groups.items(), lambda item: item[0], lambda item: item[1].open):
        yield group[0] if group is not None else None
    if with_events and tree.events is not None:
        for event_id, known in tree.events.items():
            yield _event(event_id, known)


def _in_order(
    items: Iterable[T], key: Key[T], wanted: Callable[[T], bool] = lambda _: True
) -> Iterator[T | None]:
    """The wanted ones, sorted, without a step that takes all of them: short runs, merged as they are read."""
    runs: list[list[T]] = []
    run: list[T] = []
    yield None
    for looked_at, item in enumerate(items, 1):
        if wanted(item):
            run.append(item)
        if looked_at % STEP_ENTRIES == 0:
            runs.append(sorted(run, key=key))
            run = []
            yield None
    yield None
    yield from merge(*runs, sorted(run, key=key), key=key)


def _is_out_of_view(node: Node) -> bool:
    return node.state is not SpanState.LIVE


def _version(identity: Identity) -> tuple[str, int]:
    return identity.span_id, identity.version


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


def _snapshot_tombstone(stone: Tombstone) -> SnapshotTombstone:
    return SnapshotTombstone(
        **dict(stone.identity),
        labels=stone.labels,
        state=stone.state,
        strategy=stone.strategy,
        epoch=stone.epoch,
        attempt=stone.attempt,
    )


def _event(event_id: str, known: Applied) -> SnapshotEvent:
    return SnapshotEvent.model_construct(
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
        labels=shared(span.labels),
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
