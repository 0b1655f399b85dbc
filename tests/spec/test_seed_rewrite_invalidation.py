"""Seed 2: which structural signals indicate that a rewrite has invalidated a retained span.

`seed-2.a` is its core distinction, `b` what was observed, `c` the condition of validity, `d` the decision
boundary, `e` the operational effect.
"""

from collections.abc import Callable, Mapping

import pytest

from sexton.core.artifact import ArtifactKey, DerivedArtifact
from sexton.core.buffer import ContextBuffer
from sexton.core.hash import content_hash
from sexton.schemas.errors import CommandRejected, PointerResurrectionError, StaleSpanError, Unreachable
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.outcome import Committed, NoChange, RejectionCode
from sexton.schemas.span import SpanState, Strategy
from tests.core_kit.build import filled, view_ids

Offsets = Mapping[str, tuple[int, int]]

TURNS = [
    "Read the log. Find the crash. Write the fix.",
    "The log is read. Find the crash. Write the fix. Ask for a review of it by Ann.",
    "Crash found: a null in parse(). Write the fix.",
    "Fix it.",
    "Fix written: parse() checks its input. Ask Ann.",
]


def offset_map(text: str) -> Offsets:
    """Where each sentence lies, in bytes: what the retrieval stage keeps of the task span."""
    places: dict[str, tuple[int, int]] = {}
    at = 0
    for sentence in text.split(". "):
        places[sentence] = (at, len(sentence.encode()))
        at += len(sentence.encode()) + len(". ")
    return places


class Builder:
    """Makes an artifact, and remembers of what."""

    def __init__(self) -> None:
        self.built: list[str] = []

    def __call__(self, text: str) -> str:
        self.built.append(text)
        return text.upper()


def rolling() -> ContextBuffer:
    """A context whose "current task" span is rewritten on every turn."""
    buffer = ContextBuffer("plan")
    buffer.add("l0:system", "You are a careful engineer.")
    buffer.add("l0:task", TURNS[0])
    buffer.add("l0:question", "What now?")
    return buffer


# --- core distinction --------------------------------------------------------------------------------


def test_a_rewrite_keeps_id_place_and_type_and_is_loud_all_the_same() -> None:
    """seed-2.a: all that a naive holder looks at is as before; version and hash are not."""
    buffer = rolling()
    pointer = buffer.mint("l0:task")
    before, view = buffer.tree.nodes["l0:task"], view_ids(buffer.tree)
    buffer.rewrite("l0:task", TURNS[1])
    after = buffer.tree.nodes["l0:task"]

    assert view == view_ids(buffer.tree)
    assert (before.level, before.labels, before.state) == (after.level, after.labels, after.state)
    assert (1, 2) == (before.version, after.version)
    assert before.content_hash != after.content_hash
    with pytest.raises(StaleSpanError) as stale:
        buffer.resolve(pointer)
    assert after.current == stale.value.current


def test_a_prune_is_loud_by_itself() -> None:
    """seed-2.a: the other operator: the span is gone, and every dereference says so."""
    buffer = rolling()
    pointer, artifact = buffer.mint("l0:task"), buffer.derive("l0:task", offset_map)
    buffer.prune("l0:task")

    for use in (
        lambda: buffer.resolve(pointer),
        lambda: buffer.use(artifact),
        lambda: buffer.use(artifact, rederive=True),
        lambda: buffer.mint("l0:task"),
        lambda: buffer.derive("l0:task", len),
    ):
        with pytest.raises(Unreachable):
            use()


def test_a_pruned_span_stays_gone_for_pointers_of_every_version() -> None:
    """seed-2.a: also for one from before a rewrite that came before the prune."""
    buffer = rolling()
    old = buffer.mint("l0:task")
    buffer.rewrite("l0:task", TURNS[1])
    new = buffer.mint("l0:task")
    buffer.prune("l0:task")

    for pointer in (old, new):
        with pytest.raises(PointerResurrectionError):
            buffer.resolve(pointer)


# --- what was observed -------------------------------------------------------------------------------


def test_observed_offset_map_into_a_rolling_rewrite_is_caught_on_every_turn() -> None:
    """seed-2.b: old offsets never slice new text, be they past its end or inside another sentence."""
    buffer = rolling()
    offsets = buffer.derive("l0:task", offset_map)
    assert "Find the crash" == sliced(buffer, buffer.use(offsets)["Find the crash"])
    past_the_end, elsewhere = 0, 0

    for text in TURNS[1:]:
        start, length = offsets.value["Find the crash"]
        naive = text.encode()[start : start + length]
        past_the_end += len(naive) < length
        elsewhere += len(naive) == length and naive != b"Find the crash"
        buffer.rewrite("l0:task", text)
        with pytest.raises(StaleSpanError):
            buffer.use(offsets)
        again = buffer.use(offsets, rederive=True)
        assert offset_map(text) == again
        for sentence, place in again.items():
            assert sentence == sliced(buffer, place)
    assert past_the_end, "the story has a turn where the naive slice is cut short"
    assert elsewhere, "and one where it gives another sentence"


def sliced(buffer: ContextBuffer, place: tuple[int, int]) -> str:
    return buffer.resolve(buffer.mint("l0:task", offset=place[0], length=place[1])).text


def test_observed_pointers_into_a_rolling_rewrite_are_caught_on_every_turn() -> None:
    """seed-2.b: pointers to parts are refused by version, before any offset is looked at."""
    buffer = rolling()
    pointers = []
    for text in TURNS[1:]:
        node = buffer.tree.nodes["l0:task"]
        pointers.append(buffer.mint("l0:task", offset=node.size_bytes - 4, length=4))
        buffer.rewrite("l0:task", text)
        for pointer in pointers:
            with pytest.raises(StaleSpanError) as stale:
                buffer.resolve(pointer)
            assert buffer.tree.nodes["l0:task"].current == stale.value.current


# --- condition of validity ---------------------------------------------------------------------------


def test_the_version_grows_and_the_hash_is_new_on_every_mutation() -> None:
    """seed-2.c: the buffer's guarantee under which a stale consumer notices."""
    buffer = rolling()
    for number, text in enumerate(TURNS[1:], start=2):
        buffer.rewrite("l0:task", text)
        node = buffer.tree.nodes["l0:task"]
        assert (number, content_hash(Level.L0_VERBATIM, text.encode())) == (node.version, node.content_hash)


def test_an_artifact_is_keyed_by_span_version_and_hash() -> None:
    """seed-2.c: the key names all three, of the bytes that the artifact was made from."""
    buffer = rolling()
    artifact = buffer.derive("l0:task", offset_map)

    assert ArtifactKey("l0:task", 1, content_hash(Level.L0_VERBATIM, TURNS[0].encode())) == artifact.key
    assert offset_map(TURNS[0]) == artifact.value


@pytest.mark.parametrize(
    "forge",
    [
        lambda key: ArtifactKey(key.span_id, key.version + 1, key.content_hash),
        lambda key: ArtifactKey(key.span_id, key.version, "sha256:" + 64 * "0"),
        lambda key: ArtifactKey("l0:question", key.version, key.content_hash),
    ],
    ids=["version", "hash", "span"],
)
def test_each_part_of_the_key_counts(forge: Callable[[ArtifactKey], ArtifactKey]) -> None:
    """seed-2.c: an artifact whose key differs in one part alone is stale."""
    buffer = rolling()
    artifact = buffer.derive("l0:task", offset_map)

    with pytest.raises(StaleSpanError):
        buffer.use(DerivedArtifact(forge(artifact.key), artifact.value))


def test_the_same_bytes_again_are_another_version() -> None:
    """seed-2.c: A, B, A. The hash is as it was, and still the artifact and the pointer are of version 1."""
    buffer = rolling()
    pointer, artifact = buffer.mint("l0:task"), buffer.derive("l0:task", offset_map)
    buffer.rewrite("l0:task", TURNS[1])
    buffer.rewrite("l0:task", TURNS[0])

    assert pointer.content_hash == buffer.tree.nodes["l0:task"].content_hash
    with pytest.raises(StaleSpanError):
        buffer.use(artifact)
    with pytest.raises(StaleSpanError):
        buffer.resolve(pointer)


def test_a_rewrite_to_the_same_bytes_changes_nothing() -> None:
    """seed-2.c: no mutation, no version, no bump; artifacts stay good."""
    buffer = rolling()
    artifact = buffer.derive("l0:task", offset_map)

    assert isinstance(buffer.rewrite("l0:task", TURNS[0]), NoChange)
    assert (0, offset_map(TURNS[0])) == (buffer.epoch, buffer.use(artifact))


def test_a_current_artifact_is_used_as_it_is() -> None:
    """seed-2.c: what happens to other spans, or to the span's place, costs no rebuild."""
    buffer = rolling()
    build = Builder()
    artifact = buffer.derive("l0:task", build)
    buffer.rewrite("l0:question", "And now?")
    buffer.add("l0:more", "more")
    buffer.compact(["l0:system", "l0:task"], "careful", name="s")

    assert TURNS[0].upper() == buffer.use(artifact, rederive=True)
    assert [TURNS[0]] == build.built
    buffer.prune("l1:s")
    assert TURNS[0].upper() == buffer.use(artifact), "covered is not changed"


# --- decision boundary -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pins", "strategy"),
    [
        ({}, Strategy.INVALIDATE_AND_REKEY),
        ({("l0:task", 1): PinCost.CHEAP}, Strategy.INVALIDATE_AND_REKEY),
        ({("l0:task", 1): PinCost.EXPENSIVE}, Strategy.COPY_ON_REWRITE),
        ({("l0:task", 2): PinCost.EXPENSIVE}, Strategy.INVALIDATE_AND_REKEY),
        ({("l0:system", 1): PinCost.EXPENSIVE}, Strategy.INVALIDATE_AND_REKEY),
        ({("l0:system", 1): PinCost.IMMOVABLE}, Strategy.INVALIDATE_AND_REKEY),
    ],
    ids=["nobody", "cheap", "expensive", "another version", "another span", "another span, immovable"],
)
def test_the_live_holders_decide_what_becomes_of_the_old_version(
    pins: dict[tuple[str, int], PinCost], strategy: Strategy
) -> None:
    """seed-2.d: invalidate and rekey is the default; copy on rewrite is for what is dear to rebuild."""
    buffer = rolling()
    buffer.pins = pins
    outcome = buffer.rewrite("l0:task", TURNS[1])

    assert isinstance(outcome, Committed)
    assert strategy is outcome.strategy
    stone = buffer.tree.tombstones["l0:task", 1]
    assert (SpanState.TOMBSTONE, strategy) == (stone.state, stone.strategy)


def test_invalidated_means_gone_for_everyone() -> None:
    """seed-2.d: the old version can no longer be resolved, however it is asked for."""
    buffer = rolling()
    pointer = buffer.mint("l0:task")
    buffer.pins = {("l0:task", 1): PinCost.CHEAP}
    buffer.rewrite("l0:task", TURNS[1])

    for accept_superseded in (False, True):
        with pytest.raises(StaleSpanError) as stale:
            buffer.resolve(pointer, accept_superseded=accept_superseded)
        assert not stale.value.fields["superseded_readable"]


def test_copied_means_readable_for_who_asks() -> None:
    """seed-2.d: the old bytes, marked as superseded; not asked for, it is stale, and the error says so."""
    buffer = rolling()
    pointer = buffer.mint("l0:task", offset=0, length=13)
    buffer.pins = {("l0:task", 1): PinCost.EXPENSIVE}
    buffer.rewrite("l0:task", TURNS[1])

    with pytest.raises(StaleSpanError) as stale:
        buffer.resolve(pointer)
    assert stale.value.fields["superseded_readable"]
    got = buffer.resolve(pointer, accept_superseded=True)
    assert ("Read the log.", True, True) == (got.text, got.answer.superseded, got.answer.verbatim)
    assert (1, 1) == (got.answer.pointer.version, got.answer.pointer.epoch)
    current = buffer.resolve(buffer.mint("l0:task"), accept_superseded=True)
    assert (TURNS[1], False) == (current.text, current.answer.superseded)


def test_a_copy_outlives_what_comes_after_it() -> None:
    """seed-2.d: more rewrites, a compaction, a prune of the summary: the kept version is still there."""
    buffer = rolling()
    pointer = buffer.mint("l0:task")
    buffer.pins = {("l0:task", 1): PinCost.EXPENSIVE}
    buffer.rewrite("l0:task", TURNS[1])
    buffer.pins = {}
    second = buffer.mint("l0:task")
    buffer.rewrite("l0:task", TURNS[2])
    buffer.compact(["l0:system", "l0:task"], "careful", name="s")
    buffer.prune("l1:s")

    assert TURNS[0] == buffer.resolve(pointer, accept_superseded=True).text
    with pytest.raises(StaleSpanError):
        buffer.resolve(second, accept_superseded=True)


@pytest.mark.parametrize("operator", ["rewrite", "prune", "compact"])
def test_what_a_holder_cannot_lose_does_not_move_c37(operator: str) -> None:
    """seed-2.d, C37: an immovable pin refuses every operator, by name, and nothing changes."""
    buffer = rolling()
    buffer.pins = {("l0:task", 1): PinCost.IMMOVABLE}
    before = buffer.tree
    operators: dict[str, Callable[[], object]] = {
        "rewrite": lambda: buffer.rewrite("l0:task", TURNS[1]),
        "prune": lambda: buffer.prune("l0:task"),
        "compact": lambda: buffer.compact(["l0:system", "l0:task"], "careful"),
    }

    with pytest.raises(CommandRejected) as refusal:
        operators[operator]()
    assert RejectionCode.IMMOVABLE is refusal.value.outcome.code
    assert (before.nodes["l0:task"].current,) == refusal.value.outcome.spans
    assert before is buffer.tree


# --- operational effect ------------------------------------------------------------------------------


def test_stale_holders_fail_at_use_and_re_derive() -> None:
    """seed-2.e: one rebuild per change, at the moment of use, whoever missed the bump."""
    buffer = rolling()
    build = Builder()
    artifact = buffer.derive("l0:task", build)
    for text in TURNS[1:3]:
        buffer.rewrite("l0:task", text)

    assert [TURNS[0]] == build.built, "a rewrite by itself rebuilds nothing"
    assert TURNS[2].upper() == buffer.use(artifact, rederive=True)
    assert [TURNS[0], TURNS[2]] == build.built, "versions that nobody used are not built"


def test_an_artifact_that_cannot_be_rebuilt_is_stale() -> None:
    """seed-2.e: one that came without its builder, as from another process, is not rebuilt."""
    buffer = rolling()
    artifact = DerivedArtifact(buffer.derive("l0:task", len).key, 7)
    assert 7 == buffer.use(artifact, rederive=True)
    buffer.rewrite("l0:task", TURNS[1])

    with pytest.raises(StaleSpanError):
        buffer.use(artifact, rederive=True)


def test_tombstones_are_all_that_grows() -> None:
    """seed-2.e: the cost: one tombstone for each old version, named, for the collector to find."""
    buffer = filled("a")
    for number in range(10):
        buffer.rewrite("l0:a", f"text {number}")

    assert {("l0:a", version) for version in range(1, 11)} == set(buffer.tree.tombstones)
    assert (1, 1) == (buffer.tree.view_count, len(buffer.tree.nodes))
