"""The seed's own `resolve` as a table: ours, in strict mode, raises when it raises and gives what it gives.

The trees are made by real commands, and looked at after each of them. A row is a span, a level, a hash, an
epoch and `accept_summary`, in every combination. The seed is handed "the node currently occupying that
span_id" in two ways, since a covered span is in two places:

- *in place*: the node that stands in the view for it: itself, or the summary over it; nothing once pruned;
- *cold*: the covered span itself, as re-expansion brings it back.

Three kinds of row have no counterpart in the seed's code, and are held against what its text says:

- A covered span asked for at its own level. The code knows no cold storage and can only refuse. The text
  asks for re-expansion: "re-expand the leaf, re-hash, re-validate, and only then serve". So the seed's
  `resolve` is run on the re-expanded node.
- A pointer whose level is that of the summary in place and not that of its own span id, such as
  `l0:a` as an L1. Ours has no summary in a leaf's namespace ("must never reuse the identifier namespace of
  its source leaf"): refused.
- A pointer to a covered leaf with `accept_summary=True` and a hash that is not the leaf's. The seed's node in
  place does not know the leaf's hash. Ours does, and refuses a false claim before it looks for a stand-in.

Versions are not in the seed; every pointer here is of the current one. What ours says of the others is in
`test_seed_rewrite_invalidation.py`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import pytest

from sexton.core.buffer import ContextBuffer
from sexton.core.check import accept, check
from sexton.core.tree import ContextTree
from sexton.schemas.errors import LevelMismatch, PointerResurrectionError
from sexton.schemas.ids import Level
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Tier
from sexton.schemas.span import SpanState
from tests.core_kit.build import filled
from tests.spec import seed_resolve as seed

Bytes = dict[tuple[str, int], bytes]
Nodes = dict[str, seed.Node]

HISTORY: list[tuple[str, Callable[[ContextBuffer], object]]] = [
    ("leaves only", lambda b: None),
    ("two leaves under a summary", lambda b: b.compact(["l0:a", "l0:b"], "a and b", name="ab")),
    ("a leaf rewritten", lambda b: b.rewrite("l0:h", "another h")),
    ("another summary", lambda b: b.compact(["l0:c", "l0:d"], "c and d", name="cd")),
    ("both under a roll-up", lambda b: b.compact(["l1:ab", "l1:cd"], "a to d", name="top")),
    ("a leaf pruned", lambda b: b.prune("l0:g")),
    ("a summary of one", lambda b: b.compact(["l0:e"], "e", name="e")),
    ("and that pruned", lambda b: b.prune("l1:e")),
    ("one more summary", lambda b: b.compact(["l0:f"], "f", name="f")),
    ("and that rewritten", lambda b: b.rewrite("l1:f", "still f")),
    ("the roll-up rewritten", lambda b: b.rewrite("l2:top", "A to D")),
]

SUMMARIES = ("l1:ab", "l1:cd", "l1:e", "l1:f", "l2:top")
SPANS = (*(f"l0:{name}" for name in "abcdefgh"), *SUMMARIES, "l0:missing", "l1:missing")


@dataclass(frozen=True)
class Scene:
    """A context at one moment of the history, as ours and as the seed's."""

    tree: ContextTree
    bytes: Bytes
    in_place: Nodes
    cold: Nodes


def scene(step: int) -> Scene:
    buffer = filled(*"abcdefgh")
    for _, change in HISTORY[: step + 1]:
        change(buffer)
    tree = buffer.tree
    in_place: Nodes = {}
    cold: Nodes = {}
    for span_id, node in tree.nodes.items():
        if node.state in (SpanState.LIVE, SpanState.COVERED):
            cold[span_id] = seed_node(buffer, span_id, span_id)
            stands = tree.covering(node)
            if stands is not None:
                in_place[span_id] = seed_node(buffer, span_id, stands.span_id)
    return Scene(tree, dict(buffer._cold), in_place, cold)


def seed_node(buffer: ContextBuffer, span_id: str, content_of: str) -> seed.Node:
    node = buffer.tree.nodes[content_of]
    content = buffer._cold[content_of, node.version].decode()
    return seed.Node(span_id, seed.Level(node.level), content, node.content_hash, node.epoch)


def rows(scene: Scene) -> Iterator[Pointer]:
    epochs = range(scene.tree.epoch + 2)
    for span_id, level, epoch, accepts in product(SPANS, range(3), epochs, (False, True)):
        node = scene.tree.nodes.get(span_id)
        hashes = {seed_hash(scene.cold, span_id), seed_hash(scene.in_place, span_id), "sha256:" + 64 * "f"}
        for content_hash in sorted(hashes - {""}):
            yield Pointer(
                context_id=scene.tree.context_id,
                span_id=span_id,
                level=Level(level),
                version=1 if node is None else node.version,
                offset=0,
                length=1 if node is None else node.size_bytes,
                content_hash=content_hash,
                epoch=epoch,
                accept_summary=accepts,
            )


def seed_hash(nodes: Nodes, span_id: str) -> str:
    return nodes[span_id].content_hash if span_id in nodes else ""


def ours(pointer: Pointer, scene: Scene) -> str | None:
    """What is served in strict mode, or None for a refusal."""
    verdict = check(pointer, scene.tree, strict=True)
    try:
        target, stamped = verdict.granted()
        data = scene.bytes[target.span_id, target.version]
        accept(verdict, data[stamped.offset : stamped.offset + stamped.length], Tier.COLD)
    except PointerResurrectionError:
        return None
    return data.decode()


def seeds(pointer: Pointer, nodes: Nodes, epoch: int) -> tuple[str | None, str]:
    """What the seed's `resolve` gives, or None for a refusal; and by which branch."""
    claim = seed.Pointer(
        pointer.span_id,
        seed.Level(pointer.level),
        pointer.content_hash,
        pointer.epoch,
        pointer.accept_summary,
    )
    try:
        content = seed.resolve(claim, nodes, epoch)
    except seed.PointerResurrectionError as e:
        branches = ("unreachable", "stale", "level mismatch", "hash mismatch")
        (branch,) = [branch for branch in branches if branch in str(e)]
        return None, branch
    same = nodes[pointer.span_id].level == claim.level
    return content, "served" if same else "summary accepted"


def compared(pointer: Pointer, scene: Scene) -> tuple[str | None, str]:
    """What the seed says of a row, by the reading that the module's text gives for its kind."""
    own, place = scene.cold.get(pointer.span_id), scene.in_place.get(pointer.span_id)
    epoch = scene.tree.epoch
    if own is None or own is place or own == place:
        return seeds(pointer, scene.in_place, epoch)
    stand_in = place is not None and pointer.accept_summary and pointer.level is Level.L0_VERBATIM
    level = seed.Level(pointer.level)
    if own.level is level and not stand_in:
        content, branch = seeds(pointer, scene.cold, epoch)
        return content, f"re-expansion: {branch}"
    if own.level is level and pointer.content_hash != own.content_hash:
        return None, "false claim on a covered leaf"
    if place is not None and own.level is not level and level is place.level:
        return None, "namespace"
    return seeds(pointer, scene.in_place, epoch)


@pytest.mark.parametrize("step", range(len(HISTORY)), ids=[what for what, _ in HISTORY])
def test_strict_resolution_agrees_with_the_seed(step: int) -> None:
    """Every branch combination: ours raises exactly when the seed raises, and gives the same content."""
    at = scene(step)
    for pointer in rows(at):
        content, branch = compared(pointer, at)
        assert content == ours(pointer, at), (branch, pointer)


def test_every_branch_of_the_seed_is_in_the_table() -> None:
    """A table that misses a branch proves nothing about it."""
    at = scene(len(HISTORY) - 1)
    seen = Counter(compared(pointer, at)[1] for pointer in rows(at))

    plain = {"unreachable", "stale", "level mismatch", "hash mismatch", "served", "summary accepted"}
    expanded = {f"re-expansion: {branch}" for branch in ("stale", "hash mismatch", "served")}
    assert plain | expanded | {"namespace", "false claim on a covered leaf"} == set(seen)


def test_a_summary_in_a_leafs_namespace_is_refused_by_level() -> None:
    """The row that the seed cannot tell apart: ours says why it refuses."""
    at = scene(1)
    summary = at.tree.nodes["l1:ab"]
    pointer = Pointer(
        context_id=at.tree.context_id,
        span_id="l0:a",
        level=Level.L1_SUMMARY,
        version=1,
        offset=0,
        length=summary.size_bytes,
        content_hash=summary.content_hash,
        epoch=at.tree.epoch,
    )

    assert isinstance(check(pointer, at.tree, strict=True).error, LevelMismatch)
