"""Folds a log record into a tree. The only way a tree changes.

A record is taken only if it is the next one of the same history. All checks come before any change, and a
tree is a value: a refused record leaves nothing behind.
"""

# rpds maps are generic to type checkers only; their annotations must not be evaluated.
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import pairwise

from rpds import HashTrieMap

from sexton.core import collection, life
from sexton.core import hash as hashing
from sexton.core.labels import shared
from sexton.core.tree import Applied, ContextTree, Group, Node, Tombstone
from sexton.schemas.codec import AnyRecord
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import LineageError, RevisionGap
from sexton.schemas.ids import TOP_LEVEL, Level, level_of
from sexton.schemas.records import Appended, CollectionBase, Compacted, Pruned, RecordKind, Rewritten
from sexton.schemas.span import SpanEntry, SpanState

CommandRecord = Appended | Compacted | Rewritten | Pruned
"""Records that come of a command; the others are a collector's."""


def apply(tree: ContextTree, record: AnyRecord) -> ContextTree:
    """The tree after `record`. Costs in proportion to the record.

    Raises:
        RevisionGap: the record is not the next one; `expected` and `got` say by how much.
        LineageError: it is the next one by number and does not continue this history.
    """
    _check_next(tree, record)
    changed = _changed(tree, record)
    events = changed.events
    if events is not None and not isinstance(record, CollectionBase):
        events = events.insert(record.event_id, applied(record))
    return replace(changed, revision=record.revision, epoch=record.epoch, chain=record.chain, events=events)


def applied(record: CommandRecord) -> Applied:
    """What is remembered of the command behind a record, so that a repeat gets the same outcome."""
    known = partial(Applied, digest=record.digest, revision=record.revision, epoch=record.epoch)
    match record:
        case Appended():
            return known(kind=CommandKind.APPEND, spans=tuple((s.span_id, s.version) for s in record.spans))
        case Compacted():
            return known(
                kind=CommandKind.COMPACT,
                spans=((record.summary.span_id, record.summary.version),),
                size_before_bytes=record.size_before_bytes,
                size_after_bytes=record.size_after_bytes,
            )
        case Rewritten():
            after = record.after
            return known(
                kind=CommandKind.REWRITE, spans=((after.span_id, after.version),), strategy=record.strategy
            )
        case Pruned():
            return known(kind=CommandKind.PRUNE, spans=((record.span.span_id, record.span.version),))


def _check_next(tree: ContextTree, record: AnyRecord) -> None:
    if record.context_id != tree.context_id:
        raise LineageError(f"a record of {record.context_id} is none of {tree.context_id}")
    if record.revision != tree.revision + 1:
        raise RevisionGap(
            f"{tree.context_id}: expected revision {tree.revision + 1}, got {record.revision}",
            expected=tree.revision + 1,
            got=record.revision,
        )
    bumps = isinstance(record, Compacted | Rewritten | Pruned)
    if record.epoch != tree.epoch + bumps:
        raise LineageError(
            f"{tree.context_id}: revision {record.revision} says epoch {record.epoch}, "
            f"expected {tree.epoch + bumps}",
            revision=record.revision,
        )
    if record.chain != hashing.chain(tree.chain, record):
        raise LineageError(
            f"{tree.context_id}: revision {record.revision} does not continue this history",
            revision=record.revision,
        )


def _changed(tree: ContextTree, record: AnyRecord) -> ContextTree:
    match record:
        case Appended():
            return _appended(tree, record)
        case Compacted():
            return _compacted(tree, record)
        case Rewritten():
            return _rewritten(tree, record)
        case Pruned():
            return _pruned(tree, record)
        case CollectionBase():
            return collection.advance(tree, record)


def _appended(tree: ContextTree, record: Appended) -> ContextTree:
    if not record.spans:
        raise LineageError(f"revision {record.revision} appends nothing")
    groups, nodes = tree.groups, tree.nodes
    fresh: list[Node] = []
    previous = tree.last
    for entry in record.spans:
        _check_new(entry, Level.L0_VERBATIM)
        fresh.append(_new_node(entry, epoch=record.epoch, prev=previous))
        previous = entry.span_id
        name = entry.labels.group
        if name is not None:
            known = groups.get(name)
            live = known.live if known is not None else 0
            groups = groups.insert(name, Group(live=live + 1, open=entry.labels.open))
    _check_unused(tree, [node.span_id for node in fresh])
    linked = [replace(a, next=b.span_id) for a, b in pairwise(fresh)] + fresh[-1:]
    updates = {node.span_id: node for node in linked}
    if tree.last is not None:
        updates[tree.last] = replace(nodes[tree.last], next=fresh[0].span_id)
    return replace(
        tree,
        nodes=nodes.update(updates),
        groups=groups,
        first=tree.first if tree.first is not None else fresh[0].span_id,
        last=fresh[-1].span_id,
        view_count=tree.view_count + len(fresh),
        view_bytes=tree.view_bytes + sum(node.size_bytes for node in fresh),
    )


def _compacted(tree: ContextTree, record: Compacted) -> ContextTree:
    sources = [_named(tree, s.span_id, s.version) for s in record.sources]
    if not sources or any(a.next != b.span_id for a, b in pairwise(sources)):
        raise LineageError(f"revision {record.revision} covers what is no run of the view")
    level = sources[0].level
    if level is TOP_LEVEL or any(node.level is not level for node in sources):
        raise LineageError(f"revision {record.revision} covers what is not of one level below the highest")
    _check_new(record.summary, Level(level + 1))
    _check_unused(tree, [record.summary.span_id])
    before, behind = sources[0].prev, sources[-1].next
    summary = replace(
        _new_node(record.summary, epoch=record.epoch, prev=before),
        sources=tuple(node.span_id for node in sources),
        next=behind,
    )
    updates = {
        node.span_id: replace(
            node,
            state=life.after(node.state, RecordKind.COMPACTED, node.span_id),
            epoch=record.epoch,
            covered_by=summary.span_id,
            prev=None,
            next=None,
        )
        for node in sources
    }
    updates[summary.span_id] = summary
    linked = _relinked(tree, before, behind, summary.span_id, summary.span_id)
    return replace(
        linked,
        nodes=linked.nodes.update(updates),
        groups=_left_view(tree, sources),
        view_count=tree.view_count - len(sources) + 1,
        view_bytes=tree.view_bytes - sum(node.size_bytes for node in sources) + summary.size_bytes,
    )


def _rewritten(tree: ContextTree, record: Rewritten) -> ContextTree:
    node = _named(tree, record.before.span_id, record.before.version)
    after = record.after
    if (after.span_id, after.version, after.level) != (node.span_id, node.version + 1, node.level):
        raise LineageError(f"revision {record.revision} is no next version of {node.span_id}")
    old = Tombstone(
        identity=node.identity,
        labels=node.labels,
        state=life.after(node.state, RecordKind.REWRITTEN, node.span_id),
        strategy=record.strategy,
        epoch=record.epoch,
    )
    new = replace(
        node,
        version=after.version,
        content_hash=after.content_hash,
        size_bytes=after.size_bytes,
        epoch=record.epoch,
    )
    return replace(
        tree,
        nodes=tree.nodes.insert(node.span_id, new),
        tombstones=tree.tombstones.insert((node.span_id, node.version), old),
        view_bytes=tree.view_bytes - node.size_bytes + new.size_bytes,
    )


def _pruned(tree: ContextTree, record: Pruned) -> ContextTree:
    node = _named(tree, record.span.span_id, record.span.version)
    state = life.after(node.state, RecordKind.PRUNED, node.span_id)
    linked = _relinked(tree, node.prev, node.next, node.next, node.prev)
    gone = replace(node, state=state, epoch=record.epoch, prev=None, next=None)
    stone = Tombstone(
        identity=node.identity, labels=node.labels, state=state, strategy=None, epoch=record.epoch
    )
    return replace(
        linked,
        nodes=linked.nodes.insert(node.span_id, gone),
        tombstones=tree.tombstones.insert((node.span_id, node.version), stone),
        groups=_left_view(tree, [node]),
        view_count=tree.view_count - 1,
        view_bytes=tree.view_bytes - node.size_bytes,
    )


def _new_node(entry: SpanEntry, *, epoch: int, prev: str | None) -> Node:
    return Node(
        span_id=entry.span_id,
        level=entry.level,
        version=entry.version,
        content_hash=entry.content_hash,
        size_bytes=entry.size_bytes,
        labels=shared(entry.labels),
        state=life.START,
        epoch=epoch,
        prev=prev,
    )


def _named(tree: ContextTree, span_id: str, version: int) -> Node:
    node = tree.nodes.get(span_id)
    if node is None or node.version != version or node.state is not SpanState.LIVE:
        raise LineageError(f"{span_id} version {version} is not in the view of {tree.context_id}")
    return node


def _check_new(entry: SpanEntry, level: Level) -> None:
    """A span begins at version 1, at the level that its place and its id say."""
    if entry.version != 1 or not level is entry.level is level_of(entry.span_id):
        raise LineageError(
            f"{entry.span_id} cannot begin as version {entry.version} of {entry.level.name}, "
            f"but as version 1 of {level.name}",
            span_id=entry.span_id,
        )


def _check_unused(tree: ContextTree, span_ids: list[str]) -> None:
    used = [s for s in span_ids if s in tree.nodes]
    if used or len(set(span_ids)) != len(span_ids):
        raise LineageError(f"span ids are used twice in {tree.context_id}: {used or span_ids}")


def _relinked(
    tree: ContextTree, before: str | None, behind: str | None, to_right: str | None, to_left: str | None
) -> ContextTree:
    """Mends the list around a hole: `before` gets `to_right` as its next, `behind` gets `to_left`."""
    nodes, first, last = tree.nodes, tree.first, tree.last
    if before is None:
        first = to_right
    else:
        nodes = nodes.insert(before, replace(nodes[before], next=to_right))
    if behind is None:
        last = to_left
    else:
        nodes = nodes.insert(behind, replace(nodes[behind], prev=to_left))
    return replace(tree, nodes=nodes, first=first, last=last)


def _left_view(tree: ContextTree, nodes: Iterable[Node]) -> HashTrieMap[str, Group]:
    """The groups after `nodes` have left the view. A group with no member there is forgotten."""
    groups = tree.groups
    for node in nodes:
        name = node.labels.group if node.level.verbatim else None
        known = groups.get(name) if name is not None else None
        if name is None or known is None:
            continue
        if known.live > 1:
            groups = groups.insert(name, replace(known, live=known.live - 1))
        else:
            groups = groups.remove(name)
    return groups
