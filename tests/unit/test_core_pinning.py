"""Which versions can be pinned, and by what two sides compare what is."""

from itertools import combinations, permutations, product

import pytest

from sexton.core import collection
from sexton.core.apply import apply
from sexton.core.collection import Version
from sexton.core.pinning import judge
from sexton.core.pins import EMPTY_DIGEST, SEVERITY, highest, pins_digest
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyRecord
from sexton.schemas.leases import GrantedPin, Pin, PinCost, PinRefusal, RefusedPin
from sexton.schemas.span import SpanState
from tests.core_kit.build import CONTEXT, append, compact, grown, prune, rewrite

START = grown(
    ContextTree.empty(CONTEXT),
    append("fill", *"abcd"),
    rewrite("r", "l0:a", "another a"),
    prune("p", "l0:b"),
    compact("s", "l0:c"),
)


def with_stones(tree: ContextTree, state: SpanState) -> ContextTree:
    """The tree with both of its tombstones on their way."""
    versions = sorted(tree.tombstones)
    for plan in (collection.announce, collection.condemn, collection.finish):
        if tree.tombstones and tree.tombstones[versions[0]].state is not state:
            record: AnyRecord | None = plan(tree, versions, "one")
            assert record is not None
            tree = apply(tree, record)
    return tree


def pin(version: Version, cost: PinCost = PinCost.CHEAP) -> Pin:
    return Pin(span_id=version[0], version=version[1], cost=cost)


STONES = [("l0:a", 1), ("l0:b", 1)]


@pytest.mark.parametrize("cost", PinCost)
@pytest.mark.parametrize(
    ("version", "state"),
    [
        (("l0:a", 2), SpanState.LIVE),
        (("l0:d", 1), SpanState.LIVE),
        (("l1:s", 1), SpanState.LIVE),
        (("l0:c", 1), SpanState.COVERED),
        (("l0:a", 1), SpanState.TOMBSTONE),
        (("l0:b", 1), SpanState.TOMBSTONE),
    ],
)
def test_what_has_its_bytes_can_be_pinned(version: Version, state: SpanState, cost: PinCost) -> None:
    """Current, covered, and superseded or pruned as long as nobody has announced its collection."""
    verdict = judge(START, pin(version, cost))
    assert isinstance(verdict, GrantedPin)
    assert (*version, cost, state) == (verdict.span_id, verdict.version, verdict.cost, verdict.state)


@pytest.mark.parametrize("version", STONES, ids=["rewritten", "pruned"])
@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (SpanState.COLLECTING, PinRefusal.COLLECTING),
        (SpanState.CONDEMNED, PinRefusal.COLLECTING),
        (SpanState.COLLECTED, PinRefusal.COLLECTED),
    ],
)
def test_what_is_being_collected_cannot(version: Version, state: SpanState, reason: PinRefusal) -> None:
    """I4: from the announcement on. The answer says what the span is now."""
    tree = with_stones(START, state)
    verdict = judge(tree, pin(version))
    assert isinstance(verdict, RefusedPin)
    assert reason is verdict.reason
    assert tree.nodes[version[0]].current == verdict.current


@pytest.mark.parametrize("version", STONES, ids=["rewritten", "pruned"])
def test_what_was_called_off_can_be_pinned_again(version: Version) -> None:
    """C104."""
    tree = with_stones(START, SpanState.COLLECTING)
    record = collection.call_off(tree, [version], "one")
    assert record is not None
    assert isinstance(judge(apply(tree, record), pin(version)), GrantedPin)


@pytest.mark.parametrize(
    "version", [("l0:stranger", 1), ("l1:a", 1), ("l0:a", 3), ("l0:a", 2**53 - 1), ("l0:b", 2)]
)
def test_what_is_not_there_is_unknown(version: Version) -> None:
    """No such span, or no such version yet: the future cannot be pinned."""
    verdict = judge(START, pin(version))
    assert isinstance(verdict, RefusedPin)
    assert PinRefusal.UNKNOWN is verdict.reason
    assert (verdict.current is None) == (version[0] not in START.nodes)


def test_nothing_of_a_context_that_is_not_there_can_be_pinned() -> None:
    verdict = judge(ContextTree.empty(CONTEXT), pin(("l0:a", 1)))
    assert isinstance(verdict, RefusedPin)
    assert PinRefusal.UNKNOWN is verdict.reason


PINS = [pin(version, cost) for version, cost in product([("l0:a", 1), ("l0:a", 11), ("l0:a1", 1)], PinCost)]
SETS = [
    pins
    for size in range(4)
    for pins in combinations(PINS, size)
    if len({(p.span_id, p.version) for p in pins}) == size
]


def test_a_digest_is_of_the_set_and_not_of_its_order() -> None:
    for pins in SETS:
        assert {pins_digest(pins)} == {pins_digest(order) for order in permutations(pins)}


def test_different_sets_have_different_digests() -> None:
    """Each part is framed: version 1 of `a1` is not version 11 of `a`; a cost is a part of it, too."""
    assert len(SETS) == len({pins_digest(pins) for pins in SETS})


def test_a_digest_does_not_see_what_else_a_message_brings() -> None:
    """A later holder may send more with a pin; a granted pin is a pin."""
    plain = pin(("l0:a", 1))
    granted = judge(START, plain)
    assert isinstance(granted, GrantedPin)
    assert pins_digest([plain]) == pins_digest([granted])
    assert pins_digest([plain]) == pins_digest([plain.model_copy(update={"unknown": 1})])
    assert EMPTY_DIGEST == pins_digest([])


def test_the_highest_cost_counts() -> None:
    assert [PinCost.CHEAP, PinCost.EXPENSIVE, PinCost.IMMOVABLE] == sorted(PinCost, key=SEVERITY.__getitem__)
    assert highest([]) is None
    for costs in permutations(PinCost):
        assert PinCost.IMMOVABLE is highest(costs)
    assert PinCost.EXPENSIVE is highest([PinCost.CHEAP, PinCost.EXPENSIVE, PinCost.CHEAP])
