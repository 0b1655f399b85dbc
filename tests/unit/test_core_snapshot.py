"""A tree as a message and back, whole or in pieces."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sexton.core.snapshot import PIECE_BYTES, STEP_ENTRIES, dump, pieces, restore, steps
from sexton.core.tree import ContextTree
from sexton.schemas.codec import decode
from sexton.schemas.errors import MalformedMessage
from sexton.schemas.limits import MAX_LABEL_BYTES
from sexton.schemas.rpc import Head, Snapshot
from sexton.schemas.span import Labels, NewSpan
from tests.core_kit.audit import audit
from tests.core_kit.build import CONTEXT, append, compact, filled, grown, leaf, prune
from tests.core_kit.fates import TREE

GROUPS = grown(
    ContextTree.empty(CONTEXT),
    append(
        "fill",
        "a",
        leaf("open", group="o", waits=True),
        leaf("call", group="c", waits=True),
        leaf("result", group="c"),
        leaf("gone", group="g"),
    ),
    compact("s", "l0:gone"),
)
EMPTY = ContextTree.empty(CONTEXT)
TREES = {"fates": TREE, "groups": GROUPS, "empty": EMPTY}
EACH = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


def wired(snapshot: Snapshot) -> Snapshot:
    return decode(Snapshot, snapshot.wire())


def without_events(tree: ContextTree) -> ContextTree:
    return restore([dump(tree)])


@EACH
def test_a_worker_gets_its_tree_back(tree: ContextTree) -> None:
    """With events: equal in all, over the wire, and fit to go on."""
    restored = restore([wired(dump(tree, with_events=True))])

    assert tree == restored
    assert tree.events == restored.events
    audit(restored)
    assert grown(tree, append("next", "z")) == grown(restored, append("next", "z"))


@EACH
@pytest.mark.parametrize("piece_bytes", [1, 700, 2_000, PIECE_BYTES])
def test_a_holder_gets_the_tree_without_events(tree: ContextTree, piece_bytes: int) -> None:
    """In pieces of any size, over the wire; all else is equal."""
    parts = [wired(piece) for piece in pieces(tree, piece_bytes)]
    restored = restore(parts)

    assert restored.events is None
    assert without_events(tree) == restored
    assert (tree.head, list(tree.view())) == (restored.head, list(restored.view()))
    assert (tree.nodes, tree.tombstones, tree.groups) == (
        restored.nodes,
        restored.tombstones,
        restored.groups,
    )
    audit(restored)


@EACH
def test_pieces_are_as_many_as_they_must(tree: ContextTree) -> None:
    """One entry a piece at the smallest, one piece at the largest, and one for a context of nothing."""
    open_groups = sum(group.open for group in tree.groups.values())
    entries = len(tree.nodes) + len(tree.tombstones) + open_groups

    assert max(entries, 1) == len(list(pieces(tree, 1)))
    assert 1 == len(list(pieces(tree)))


@pytest.mark.parametrize(
    "labels",
    [
        Labels(),
        Labels(role="r" * MAX_LABEL_BYTES, kind="k" * MAX_LABEL_BYTES, media_type="m" * MAX_LABEL_BYTES),
        Labels(
            role="é" * (MAX_LABEL_BYTES // 2), kind="👩" * (MAX_LABEL_BYTES // 4), group="g" * 64, open=True
        ),
        Labels(role='"\\' * (MAX_LABEL_BYTES // 2), kind="\x01" * MAX_LABEL_BYTES),
        Labels.model_validate({"of_a_later_version": "x" * 4_000}),
        Labels.model_validate({"of_a_later_version": [{"a": None}] * 330}),
    ],
    ids=["none", "long", "of several bytes", "escaped", "unknown text", "unknown list"],
)
def test_a_piece_stays_below_its_size(labels: Labels) -> None:
    """In JSON as it is sent, whatever the labels hold: a sync must fit into messages of a bounded size."""
    tree = EMPTY
    for batch in range(5):
        labelled = [f"n{batch}-{i}" + "x" * 80 for i in range(40)]
        plain = [f"p{batch}-{i}" + "y" * 80 for i in range(30)]
        tree = grown(
            tree,
            append(f"e{batch}", *(NewSpan(name=name, content="text", labels=labels) for name in labelled)),
            append(f"f{batch}", *plain),
            compact(f"s{batch}" + "z" * 60, *(f"l0:{name}" for name in plain)),
        )

    limit, empty = 20_000, Snapshot(context_id=CONTEXT, head=tree.head)
    found = list(pieces(tree, limit))
    assert 1 < len(found)
    assert max(len(piece.wire()) for piece in found) <= limit + len(empty.wire())
    assert without_events(tree) == restore([wired(piece) for piece in found])


def test_no_step_looks_at_more_than_so_many_entries() -> None:
    """Whatever it is that a context has much of: of a long one nothing is done in one go."""
    tree = EMPTY
    for batch in range(3):
        names = [f"n{batch}-{i}" for i in range(2 * STEP_ENTRIES)]
        tree = grown(tree, append(f"e{batch}", *names))
        tree = grown(tree, compact(f"s{batch}", *(f"l0:{name}" for name in names[:100])))
        for name in names[100:110]:
            tree = grown(tree, prune(f"p-{name}", f"l0:{name}"))
    looked_at: list[object] = []
    per_step: list[int] = []

    class Counted:
        """A map whose entries are counted as they are read."""

        def __init__(self, entries: Any) -> None:
            self._entries = entries

        def __len__(self) -> int:
            return len(self._entries)

        def __getitem__(self, key: object) -> object:
            looked_at.append(key)
            return self._entries[key]

        def values(self) -> Iterator[object]:
            return (self[key] for key in self._entries)

        def items(self) -> Iterator[tuple[object, object]]:
            return ((key, self[key]) for key in self._entries)

    maps: Any = {name: Counted(getattr(tree, name)) for name in ("nodes", "tombstones", "groups", "events")}
    found: list[Snapshot] = []
    for piece in steps(replace(tree, **maps), 10**9, with_events=True):
        per_step.append(len(looked_at))
        looked_at.clear()
        found += [piece] if piece is not None else []
    assert STEP_ENTRIES >= max(per_step)
    assert tree == restore(found)


def test_equal_trees_make_equal_snapshots() -> None:
    """Whatever the order that their maps were filled in."""
    assert dump(TREE, with_events=False) == dump(restore([dump(TREE, with_events=True)]))
    assert list(pieces(TREE, 700)) == list(pieces(without_events(TREE), 700))


def test_unknown_labels_are_passed_on() -> None:
    """What a later writer says of a span survives a reader of today."""
    labels = Labels.model_validate({"role": "user", "of_a_later_version": {"a": [1]}})
    tree = grown(EMPTY, append("e", NewSpan(name="a", content="a", labels=labels)))
    restored = restore([wired(dump(tree))])

    assert {"of_a_later_version": {"a": [1]}} == restored.nodes["l0:a"].labels.model_extra


def test_a_snapshot_without_events_is_no_workers() -> None:
    """Who decides must know what was committed; a snapshot may leave it out, and says so."""
    assert restore([dump(TREE)]).events is None
    assert dump(without_events(TREE), with_events=True).events is None


WHOLE = dump(TREE, with_events=True)


@pytest.mark.parametrize(
    "spoil",
    [
        list,
        lambda: [WHOLE, dump(EMPTY)],
        lambda: [WHOLE, WHOLE],
        lambda: [WHOLE, Snapshot(context_id="other", head=WHOLE.head)],
        lambda: [
            WHOLE,
            Snapshot(context_id=CONTEXT, head=Head(revision=1, epoch=0, chain=WHOLE.head.chain)),
        ],
        lambda: [WHOLE.model_copy(update={"spans": WHOLE.spans[1:]})],
        lambda: [s.model_copy(update={"spans": s.spans[:1]}) for s in [WHOLE]],
    ],
    ids=["nothing", "two heads", "a span twice", "two contexts", "two revisions", "no summary", "no leaf"],
)
def test_pieces_that_do_not_fit_are_refused(spoil: Callable[[], list[Snapshot]]) -> None:
    """A typed error of the peer's, and no tree that is half of something."""
    with pytest.raises(MalformedMessage):
        restore(spoil())


def test_a_restored_buffer_goes_on_as_if_nothing_had_been() -> None:
    """C18, C24: repeats are known, ids stay used, pointers hold."""
    buffer = filled("a", "b", "c")
    pointer = buffer.mint("l0:a")
    command = compact("s", "l0:a", "l0:b")
    first = buffer.submit(command)
    buffer._tree = restore([wired(dump(buffer.tree, with_events=True))])

    assert first == buffer.submit(command)
    assert "<a>".ljust(20, ".") == buffer.resolve(pointer).text
    assert "sum" + "<c>".ljust(20, ".") == buffer.render()
