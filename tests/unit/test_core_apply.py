"""A record is folded in if it is the next of the same history, and leaves nothing behind if it is not."""

from collections.abc import Callable

import pytest

from sexton.core import life
from sexton.core.apply import apply
from sexton.core.hash import linked
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, AnyRecord, decode_record
from sexton.schemas.errors import LineageError, PeerError, RevisionGap
from sexton.schemas.ids import Level
from sexton.schemas.records import Appended, Compacted, Pruned, RecordKind, Rewritten
from sexton.schemas.span import SpanState, SpanVersion
from tests.core_kit.audit import audit
from tests.core_kit.build import (
    CONTEXT,
    append,
    committed,
    compact,
    filled,
    grown,
    prune,
    rewrite,
    tower,
    view_ids,
)

START = grown(
    ContextTree.empty(CONTEXT),
    append("fill", *"abcdef"),
    compact("s", "l0:a", "l0:b"),
    prune("p", "l0:f"),
    rewrite("r", "l0:e", "another e"),
)
COMMANDS: dict[RecordKind, AnyCommand] = {
    RecordKind.APPENDED: append("next", "g", "h"),
    RecordKind.COMPACTED: compact("next", "l0:c", "l0:d"),
    RecordKind.REWRITTEN: rewrite("next", "l0:c", "another c"),
    RecordKind.PRUNED: prune("next", "l0:d"),
}
NEXT: dict[RecordKind, AnyRecord] = {
    kind: committed(START, command).record for kind, command in COMMANDS.items()
}
EACH_KIND = pytest.mark.parametrize("record", NEXT.values(), ids=[kind.value for kind in NEXT])


def relinked(record: AnyRecord, **changes: object) -> AnyRecord:
    """The record with other fields and a chain that fits: as from a writer that breaks the rules."""
    return linked(START.chain, record.model_copy(update=changes))


@EACH_KIND
def test_a_record_and_its_wire_form_come_to_the_same_tree(record: AnyRecord) -> None:
    """A follower that reads JSON has the tree of the worker that committed."""
    tree = apply(START, record)

    assert tree == apply(START, decode_record(record.wire()))
    audit(tree)
    assert (START.revision + 1, record.chain) == (tree.revision, tree.chain)


@EACH_KIND
@pytest.mark.parametrize("off_by", [-2, -1, 1, 100])
def test_another_revision_is_a_gap_c87(record: AnyRecord, off_by: int) -> None:
    """C87: an older one, one too early, the same again: not applied, and the gap is named."""
    wrong = record.model_copy(update={"revision": record.revision + off_by})

    with pytest.raises(RevisionGap) as gap:
        apply(START, wrong)
    assert {"expected": START.revision + 1, "got": wrong.revision} == dict(gap.value.fields)


def test_records_are_applied_in_order_only_c87() -> None:
    """C87: 7 before 6 waits; 6 and then 7 is the tree; 6 again is refused."""
    first = committed(START, append("6", "g")).record
    after = apply(START, first)
    second = committed(after, append("7", "h")).record

    with pytest.raises(RevisionGap):
        apply(START, second)
    both = apply(after, second)
    assert ["l0:g", "l0:h"] == list(view_ids(both))[-2:]
    for again in (first, second):
        with pytest.raises(RevisionGap):
            apply(both, again)


@EACH_KIND
@pytest.mark.parametrize(
    "change",
    [
        lambda record: {"context_id": "other"},
        lambda record: {"epoch": record.epoch + 1},
        lambda record: {"epoch": record.epoch - 1},
        lambda record: {"chain": "sha256:" + 64 * "0"},
        lambda record: {"chain": START.chain},
        lambda record: {"event_id": "another"},
        lambda record: {"digest": "sha256:" + 64 * "1"},
    ],
    ids=["context", "epoch + 1", "epoch - 1", "no chain", "the last chain", "event", "digest"],
)
def test_what_does_not_continue_the_history_is_refused(
    record: AnyRecord, change: Callable[[AnyRecord], dict[str, object]]
) -> None:
    """A recreated, restored or edited log is noticed at its first record, and the tree is as it was."""
    before = (START.head, list(START.view()), dict(START.nodes), dict(START.tombstones))

    with pytest.raises(LineageError):
        apply(START, record.model_copy(update=change(record)))
    assert before == (START.head, list(START.view()), dict(START.nodes), dict(START.tombstones))


@EACH_KIND
def test_a_wrong_epoch_is_refused_even_if_the_chain_fits(record: AnyRecord) -> None:
    """I2: appends leave the epoch, all else bumps it by one: whoever linked the record."""
    for epoch in (record.epoch + 1, max(record.epoch - 1, 0)):
        with pytest.raises(LineageError, match="epoch"):
            apply(START, relinked(record, epoch=epoch))


@EACH_KIND
def test_another_context_is_refused_even_if_the_chain_fits_c80(record: AnyRecord) -> None:
    """C80: no cross-talk, whoever linked the record."""
    with pytest.raises(LineageError, match="other"):
        apply(START, relinked(record, context_id="other"))


@EACH_KIND
def test_another_history_of_the_same_length_is_refused(record: AnyRecord) -> None:
    """Same context, revision and epoch; another past."""
    other = grown(
        ContextTree.empty(CONTEXT),
        append("fill", *"abcdef"),
        compact("s", "l0:a", "l0:b", summary="sim"),
        prune("p", "l0:f"),
        rewrite("r", "l0:e", "another e"),
    )
    assert (START.revision, START.epoch) == (other.revision, other.epoch)

    with pytest.raises(LineageError, match="does not continue"):
        apply(other, record)


def test_a_log_from_nowhere_is_a_gap() -> None:
    """The first record of a context has revision 1 and an empty chain before it."""
    with pytest.raises(RevisionGap):
        apply(ContextTree.empty(CONTEXT), NEXT[RecordKind.APPENDED])


@pytest.mark.parametrize("with_events", [True, False])
def test_the_log_from_nothing_is_the_tree(with_events: bool) -> None:
    """Replay is the tree, and the only way to it."""
    buffer = filled(*"abcd")
    buffer.compact(["l0:a", "l0:b"], "ab", name="ab")
    buffer.rewrite("l1:ab", "a and b")
    buffer.prune("l0:c")
    tree = ContextTree.empty(CONTEXT, with_events=with_events)
    for record in buffer.log:
        tree = apply(tree, record)

    assert list(buffer.tree.view()) == list(tree.view())
    assert buffer.tree.head == tree.head
    assert (tree.events is not None) == with_events
    assert (buffer.tree == tree) == with_events


# --- records that a writer who breaks the rules could link ---------------------------------------------


def versions(*names: str) -> tuple[SpanVersion, ...]:
    """`l0:a` is its version 1, `l0:a@2` its version 2."""
    parts = [name.partition("@") for name in names]
    return tuple(SpanVersion(span_id=span_id, version=int(version or 1)) for span_id, _, version in parts)


@pytest.mark.parametrize(
    ("what", "sources"),
    [
        ("nothing", ()),
        ("a gap", versions("l0:c", "l0:e@2")),
        ("the wrong order", versions("l0:d", "l0:c")),
        ("one span twice", versions("l0:c", "l0:c")),
        ("an old version", versions("l0:d", "l0:e@1")),
        ("a version to come", versions("l0:c@2")),
        ("what is covered", versions("l0:a", "l0:b")),
        ("what is pruned", versions("l0:f")),
        ("what is unknown", versions("l0:x")),
        ("two levels", versions("l1:s", "l0:c")),
    ],
)
def test_no_record_covers(what: str, sources: tuple[SpanVersion, ...]) -> None:
    """The coverage rule holds for a follower whatever the log says: it stops, it does not guess."""
    with pytest.raises(LineageError):
        apply(START, relinked(NEXT[RecordKind.COMPACTED], sources=sources))


def test_no_record_covers_the_highest_level() -> None:
    """There is no level above it."""
    tree = grown(ContextTree.empty(CONTEXT), *tower())
    record = NEXT[RecordKind.COMPACTED]
    changes = {"revision": 9, "epoch": 8, "sources": versions("l7:s")}

    with pytest.raises(LineageError, match="highest"):
        apply(tree, linked(tree.chain, record.model_copy(update=changes)))


@pytest.mark.parametrize(
    "change",
    [
        {"span_id": "l0:a"},
        {"span_id": "l0:f"},
        {"span_id": "l0:h"},
        {"span_id": "l1:g"},
        {"level": Level.L1_SUMMARY},
        {"span_id": "l1:g", "level": Level.L1_SUMMARY},
        {"version": 2},
    ],
    ids=str,
)
def test_no_record_appends_what_is_no_new_leaf(change: dict[str, object]) -> None:
    """I3 and the namespace of levels: an id in use, used once, or named twice; a summary; a later version."""
    record = NEXT[RecordKind.APPENDED]
    assert isinstance(record, Appended)
    wrong = record.spans[0].model_copy(update=change)

    with pytest.raises(LineageError):
        apply(START, relinked(record, spans=(wrong, record.spans[1])))


def test_no_record_appends_nothing() -> None:
    """It would be a revision in which nothing happened; no writer commits one."""
    with pytest.raises(LineageError, match="nothing"):
        apply(START, relinked(NEXT[RecordKind.APPENDED], spans=()))


@pytest.mark.parametrize(
    "change",
    [
        {"span_id": "l1:s"},
        {"span_id": "l1:new", "version": 2},
        {"span_id": "l2:new"},
        {"level": Level.L2_ROLLUP},
        {"span_id": "l0:new", "level": Level.L0_VERBATIM},
    ],
    ids=str,
)
def test_no_record_makes_a_summary_that_is_none(change: dict[str, object]) -> None:
    """An id in use, a later version, a level that is not the next one up."""
    record = NEXT[RecordKind.COMPACTED]
    assert isinstance(record, Compacted)

    with pytest.raises(LineageError):
        apply(START, relinked(record, summary=record.summary.model_copy(update=change)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"version": 2}, {}),
        ({"span_id": "l0:a"}, {"span_id": "l0:a"}),
        ({"span_id": "l0:f"}, {"span_id": "l0:f"}),
        ({"span_id": "l0:x"}, {"span_id": "l0:x"}),
        ({}, {"version": 1}),
        ({}, {"version": 3}),
        ({}, {"span_id": "l0:d"}),
        ({}, {"level": Level.L1_SUMMARY}),
    ],
    ids=str,
)
def test_no_record_rewrites_to_what_is_no_next_version(
    before: dict[str, object], after: dict[str, object]
) -> None:
    """I2: of a span in the view, at its version, to the next one, at its level."""
    record = NEXT[RecordKind.REWRITTEN]
    assert isinstance(record, Rewritten)

    with pytest.raises(LineageError):
        apply(
            START,
            relinked(
                record,
                before=record.before.model_copy(update=before),
                after=record.after.model_copy(update=after),
            ),
        )


@pytest.mark.parametrize("name", ["l0:a", "l0:f", "l0:x", "l0:d@2", "l0:e@1"])
def test_no_record_prunes_what_is_not_in_the_view(name: str) -> None:
    """Covered, pruned, unknown, or of another version."""
    record = NEXT[RecordKind.PRUNED]
    assert isinstance(record, Pruned)
    (named,) = versions(name)
    wrong = record.span.model_copy(update={"span_id": named.span_id, "version": named.version})

    with pytest.raises(LineageError):
        apply(START, relinked(record, span=wrong))


def test_refusals_are_the_peers_fault() -> None:
    """Nobody who follows a log did anything wrong; and both kinds are one catch."""
    assert issubclass(RevisionGap, PeerError)
    assert issubclass(LineageError, PeerError)


# --- the life of a version -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", SpanState)
@pytest.mark.parametrize("kind", RecordKind)
def test_what_is_not_in_the_table_cannot_happen(state: SpanState, kind: RecordKind) -> None:
    """One table of transitions; a pair that is not in it is an error that names both."""
    if (state, kind) in life.TRANSITIONS:
        assert life.TRANSITIONS[state, kind] is life.after(state, kind, "l0:a")
        return
    with pytest.raises(LineageError, match=f"l0:a is {state.value} and cannot be {kind.value}"):
        life.after(state, kind, "l0:a")


def test_nothing_comes_back_to_life() -> None:
    """I3, C101: no transition leads to `live`, and none leads on from `covered` or `collected`."""
    assert SpanState.LIVE not in life.TRANSITIONS.values()
    assert {SpanState.COVERED, SpanState.COLLECTED}.isdisjoint(state for state, _ in life.TRANSITIONS)


def test_every_state_is_reached() -> None:
    """From the start, by records alone."""
    assert set(SpanState) == {life.START, *life.TRANSITIONS.values()}


def test_the_picture_is_drawn_from_the_table() -> None:
    """Each transition is one line of the diagram, and nothing else is."""
    lines = life.diagram().splitlines()

    assert ["stateDiagram-v2", "    [*] --> live"] == lines[:2]
    expected = {f"    {a.value} --> {b.value}: {kind.value}" for (a, kind), b in life.TRANSITIONS.items()}
    assert expected == set(lines[2:])
    assert len(life.TRANSITIONS) + 2 == len(lines)
