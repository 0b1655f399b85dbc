"""An audit of a tree against the rules, by counting everything again. Knows nothing of how trees are made."""

from collections import Counter
from collections.abc import Set as AbstractSet

from sexton.core.tree import ContextTree, Node
from sexton.schemas.ids import Level
from sexton.schemas.span import SpanState


def audit(tree: ContextTree, collected: AbstractSet[tuple[str, int]] = frozenset()) -> None:
    """Fails unless the tree keeps the coverage rule, its links and its counts.

    `collected` are the versions whose bytes were recorded as gone.
    """
    view = _walked(tree)
    _check_view(tree, view)
    _check_places(tree)
    _check_coverage(tree)
    _check_versions(tree, collected)
    _check_groups(tree, view)


def _walked(tree: ContextTree) -> list[Node]:
    """The view from its first span to its last, link by link; stops at a loop."""
    view: list[Node] = []
    at = tree.first
    while at is not None:
        assert len(view) < len(tree.nodes), "the view goes in a circle"
        view.append(tree.nodes[at])
        at = view[-1].next
    return view


def _check_view(tree: ContextTree, view: list[Node]) -> None:
    ids = [node.span_id for node in view]
    assert len(ids) == len(set(ids)), "a span is in the view twice"
    live = {span_id for span_id, node in tree.nodes.items() if node.state is SpanState.LIVE}
    assert live == set(ids), "the view is the live spans"
    assert [None, *ids[:-1]][: len(ids)] == [node.prev for node in view], "the links to the left"
    assert (ids[-1] if ids else None) == tree.last
    assert len(ids) == tree.view_count
    assert sum(node.size_bytes for node in view) == tree.view_bytes


def _check_places(tree: ContextTree) -> None:
    """Each span is in exactly one place, and says so in one way only."""
    for span_id, node in tree.nodes.items():
        assert span_id == node.span_id
        assert int(span_id[1]) == node.level, "the level is in the id"
        assert node.epoch <= tree.epoch
        assert (node.covered_by is not None) == (node.state is SpanState.COVERED)
        if node.state is not SpanState.LIVE:
            assert (None, None) == (node.prev, node.next)


def _check_coverage(tree: ContextTree) -> None:
    """A covered span has one summary, one level up, that names it once; leaves have no sources."""
    coverers = Counter(source for node in tree.nodes.values() for source in node.sources)
    assert {1} >= set(coverers.values()), "a span is under two summaries"
    covered = {span_id for span_id, node in tree.nodes.items() if node.state is SpanState.COVERED}
    assert covered == set(coverers), "the sources of summaries are the covered spans"
    for node in tree.nodes.values():
        assert (node.level is not Level.L0_VERBATIM) == bool(node.sources)
        for source in node.sources:
            assert node.span_id == tree.nodes[source].covered_by
            assert node.level == tree.nodes[source].level + 1


_GONE = (SpanState.TOMBSTONE, SpanState.COLLECTING, SpanState.CONDEMNED, SpanState.COLLECTED)


def _check_versions(tree: ContextTree, collected: AbstractSet[tuple[str, int]]) -> None:
    """Every version that was, and is not current, is a tombstone, until it is collected.

    So is the last one of a pruned span, and the span says which.
    """
    expected = {
        (span_id, version) for span_id, node in tree.nodes.items() for version in range(1, node.version)
    }
    expected |= {(span_id, node.version) for span_id, node in tree.nodes.items() if node.state in _GONE}
    assert collected <= expected
    assert expected - collected == set(tree.tombstones)
    for (span_id, version), stone in tree.tombstones.items():
        assert (span_id, version) == (stone.identity.span_id, stone.identity.version)
        assert tree.nodes[span_id].level is stone.identity.level, "a span's level never changes"
        assert (stone.strategy is None) == (version == tree.nodes[span_id].version), "only prunes have none"
        assert stone.state in _GONE[:-1]
        assert (stone.attempt is None) == (stone.state is SpanState.TOMBSTONE)
        if stone.strategy is None:
            assert stone.state is tree.nodes[span_id].state
    for span_id, version in collected:
        node = tree.nodes[span_id]
        assert version < node.version or node.state is SpanState.COLLECTED


def _check_groups(tree: ContextTree, view: list[Node]) -> None:
    live = Counter(
        node.labels.group for node in view if node.labels.group and node.level is Level.L0_VERBATIM
    )
    assert live == {name: group.live for name, group in tree.groups.items()}
