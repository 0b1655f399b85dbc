"""The steps of collecting tombstones, as far as the log shows them (design, section 7).

`announce`, `call_off`, `condemn` and `finish` give the record to commit on exactly the tree they are given,
or None if the log no longer allows that step: then somebody else was faster, and there is nothing to do.
`advance` folds such a record into a tree. When a step may be taken at all is `sexton.core.sweep`'s.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from sexton.core import hash as hashing
from sexton.core import life
from sexton.core.tree import ContextTree, Tombstone
from sexton.schemas.errors import LineageError
from sexton.schemas.records import (
    CollectAborted,
    Collected,
    Collecting,
    CollectionBase,
    Condemned,
    RecordKind,
)
from sexton.schemas.span import SpanState, SpanVersion

Version = tuple[str, int]
R = TypeVar("R", bound=CollectionBase)


def announce(tree: ContextTree, versions: Sequence[Version], attempt: str) -> Collecting | None:
    """Announces the collection of `versions`: tombstones, or left over by a collector that died."""
    return _record(
        tree, Collecting, versions, attempt, lambda s: s.state in (SpanState.TOMBSTONE, SpanState.COLLECTING)
    )


def call_off(tree: ContextTree, versions: Sequence[Version], attempt: str) -> CollectAborted | None:
    """Calls off what this attempt has announced, and nobody has announced anew or condemned."""
    return _record(tree, CollectAborted, versions, attempt, lambda s: _is_of(s, attempt))


def condemn(tree: ContextTree, versions: Sequence[Version], attempt: str) -> Condemned | None:
    """Condemns what this attempt has announced, and nobody has announced anew or called off."""
    return _record(tree, Condemned, versions, attempt, lambda s: _is_of(s, attempt))


def finish(tree: ContextTree, versions: Sequence[Version], attempt: str) -> Collected | None:
    """Records that the bytes of condemned versions are gone. Any attempt may finish another's."""
    return _record(tree, Collected, versions, attempt, lambda s: s.state is SpanState.CONDEMNED)


def left_over(tree: ContextTree) -> dict[str, list[Version]]:
    """What is announced and not condemned, by attempt."""
    found: dict[str, list[Version]] = {}
    for version, stone in tree.tombstones.items():
        if stone.state is SpanState.COLLECTING and stone.attempt is not None:
            found.setdefault(stone.attempt, []).append(version)
    return found


def advance(tree: ContextTree, record: CollectionBase) -> ContextTree:
    """The tree's tombstones after a collector's record. Called by `apply`, which checks its place.

    Raises:
        LineageError: a version is no tombstone in a state that the record can follow.
    """
    kind: RecordKind = record.kind  # type: ignore[attr-defined]  # every kind of it has one
    nodes, stones = tree.nodes, tree.tombstones
    for named in record.versions:
        version = (named.span_id, named.version)
        stone = stones.get(version)
        if stone is None:
            raise LineageError(f"{named.span_id} version {named.version} is no tombstone")
        state = life.after(stone.state, kind, named.span_id)
        if kind in _OWN_STEPS and not _is_of(stone, record.attempt):
            raise LineageError(f"{named.span_id} version {named.version} is not of attempt {record.attempt}")
        node = nodes[named.span_id]
        pruned = node.version == named.version
        if pruned:
            nodes = nodes.insert(named.span_id, replace(node, state=state))
        if state is SpanState.COLLECTED:
            stones = stones.remove(version)
        else:
            attempt = record.attempt if state is not SpanState.TOMBSTONE else None
            stones = stones.insert(version, replace(stone, state=state, attempt=attempt))
    return replace(tree, nodes=nodes, tombstones=stones)


_OWN_STEPS = frozenset({RecordKind.COLLECT_ABORTED, RecordKind.CONDEMNED})


def _is_of(stone: Tombstone, attempt: str) -> bool:
    return stone.state is SpanState.COLLECTING and stone.attempt == attempt


def _record(
    tree: ContextTree,
    kind: type[R],
    versions: Sequence[Version],
    attempt: str,
    allowed: Callable[[Tombstone], bool],
) -> R | None:
    stones = [(v, s) for v in versions if (s := tree.tombstones.get(v)) is not None and allowed(s)]
    if not stones:
        return None
    freed: dict[str, int] = {}
    if kind is Collected:
        freed = {"size_freed_bytes": sum(stone.identity.size_bytes for _, stone in stones)}
    named = [SpanVersion(span_id=v[0], version=v[1]) for v, _ in stones]
    record = kind(
        context_id=tree.context_id,
        revision=tree.revision + 1,
        epoch=tree.epoch,
        event_id=f"gc-{tree.revision + 1}",
        digest=hashing.framed_digest([attempt, *(f"{v.span_id}@{v.version}" for v in named)]),
        chain=hashing.UNLINKED,
        attempt=attempt,
        versions=tuple(named),
        **freed,
    )
    return hashing.linked(tree.chain, record)
