"""The state of one context: an immutable value that `apply` makes the next one of.

Persistent maps (`rpds`) hold it, so a new revision shares all but what changed with the one before. Who
holds a tree holds one revision, whole, however long they take; nobody needs a lock, and a commit costs in
proportion to what it changes.

The view is a doubly linked list through its nodes: a run of it is replaced, and checked for contiguity, by
looking at the run alone. Content is not kept here, only its hash and size.
"""

# rpds maps are generic to type checkers only; their annotations must not be evaluated.
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Self

from rpds import HashTrieMap

from sexton.schemas.commands import CommandKind
from sexton.schemas.ids import Level
from sexton.schemas.rpc import Head
from sexton.schemas.span import CurrentIdentity, Identity, Labels, SpanState, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One span at its current version."""

    span_id: str
    level: Level
    version: int
    content_hash: str
    size_bytes: int
    labels: Labels
    state: SpanState
    epoch: int
    """The epoch at which it came to be as it is: new, rewritten, covered or pruned."""
    covered_by: str | None = None
    sources: tuple[str, ...] = ()
    """Of a summary: what it covers, in the order of the view."""
    prev: str | None = None
    """Left neighbour in the view; means something only while live."""
    next: str | None = None
    """Right neighbour in the view; means something only while live."""

    @property
    def identity(self) -> Identity:
        """What makes this version this version."""
        return Identity(
            span_id=self.span_id,
            version=self.version,
            level=self.level,
            content_hash=self.content_hash,
            size_bytes=self.size_bytes,
        )

    @property
    def current(self) -> CurrentIdentity:
        """What errors and rejections say of it."""
        return CurrentIdentity(
            span_id=self.span_id,
            version=self.version,
            level=self.level,
            content_hash=self.content_hash,
            size_bytes=self.size_bytes,
            state=self.state,
            epoch=self.epoch,
            covered_by=self.covered_by,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tombstone:
    """A version that is no longer current and not yet collected."""

    identity: Identity
    labels: Labels
    state: SpanState
    strategy: Strategy | None
    """What the rewrite did with it; None if the span was pruned."""
    epoch: int
    """The epoch at which it stopped being current."""
    attempt: str | None = None
    """While collecting: the attempt that announced it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """A call and its results, as far as they are in the view."""

    live: int
    """Members in the view."""
    open: bool
    """The latest member said that a result is still missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Applied:
    """A command that was committed, with what its outcome says."""

    kind: CommandKind
    digest: str
    revision: int
    epoch: int
    spans: tuple[tuple[str, int], ...]
    strategy: Strategy | None = None
    size_before_bytes: int | None = None
    size_after_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTree:
    """One context at one revision."""

    context_id: str
    revision: int = 0
    epoch: int = 0
    chain: str = ""
    first: str | None = None
    """Start of the view."""
    last: str | None = None
    """End of the view."""
    view_count: int = 0
    view_bytes: int = 0
    nodes: HashTrieMap[str, Node] = field(default_factory=HashTrieMap)
    tombstones: HashTrieMap[tuple[str, int], Tombstone] = field(default_factory=HashTrieMap)
    groups: HashTrieMap[str, Group] = field(default_factory=HashTrieMap)
    events: HashTrieMap[str, Applied] | None = field(default_factory=HashTrieMap)
    """Committed commands by event id. None where nobody decides on this tree, as in a holder."""

    @classmethod
    def empty(cls, context_id: str, *, with_events: bool = True) -> Self:
        """A context before its first record."""
        return cls(context_id=context_id, events=HashTrieMap() if with_events else None)

    @property
    def head(self) -> Head:
        """Where the log is."""
        return Head(revision=self.revision, epoch=self.epoch, chain=self.chain)

    def view(self, start: str | None = None) -> Iterator[Node]:
        """The active view in order, from `start` or from its beginning. Costs what it yields."""
        at = self.first if start is None else start
        while at is not None:
            node = self.nodes[at]
            yield node
            at = node.next

    def covering(self, node: Node) -> Node | None:
        """The summary that stands in the view in the place of a covered node.

        None if that summary was pruned since. Costs at most one step per level.
        """
        while node.state is SpanState.COVERED and node.covered_by is not None:
            node = self.nodes[node.covered_by]
        return node if node.state is SpanState.LIVE else None

    def leaves(self, span_id: str) -> Iterator[Node]:
        """The leaves under a span, in order; a leaf itself. Costs what it yields, and the levels between."""
        stack = [span_id]
        while stack:
            node = self.nodes[stack.pop()]
            if node.sources:
                stack.extend(reversed(node.sources))
            else:
                yield node
