"""When a tombstone may be collected, as a table."""

from dataclasses import replace
from typing import Any

import pytest

from sexton.core.sweep import LivePin, Mark, Observation, Step, SweepRules, judge_stone, still_free
from sexton.core.tree import Tombstone
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.span import Identity, Labels, SpanState, Strategy

VERSION = ("l0:a", 1)
OTHER = ("l0:b", 1)
RULES = SweepRules(hold_back_ms=1_000, quiet_ms=100)
NOW = 10_000
PIN = LivePin("h1", PinCost.CHEAP, 5_000)

TOMBSTONE, COLLECTING, CONDEMNED = SpanState.TOMBSTONE, SpanState.COLLECTING, SpanState.CONDEMNED


def stone(state: SpanState) -> Tombstone:
    return Tombstone(
        identity=Identity(
            span_id="l0:a",
            version=1,
            level=Level.L0_VERBATIM,
            content_hash="sha256:" + 64 * "0",
            size_bytes=7,
        ),
        labels=Labels(),
        state=state,
        strategy=Strategy.INVALIDATE_AND_REKEY,
        epoch=1,
        attempt="one" if state is not TOMBSTONE else None,
    )


def seen(**changes: Any) -> Observation:
    """Everything is ready: an old mark, an old generation, one holder that was heard from since."""
    ready = Observation(
        generation="g2",
        began_ms=NOW - 5_000,
        now_ms=NOW,
        oldest_beat_ms=NOW - 10,
        pins={VERSION: ()},
        marks={VERSION: Mark("g2", NOW - 500)},
    )
    return replace(ready, **changes)


PINNED = {"pins": {VERSION: (PIN,)}}
UNMARKED: dict[str, Any] = {"marks": {}}
READY: dict[str, Any] = {}

TABLE: list[tuple[SpanState, dict[str, Any], Step]] = [
    (TOMBSTONE, READY, Step.ANNOUNCE),
    (COLLECTING, READY, Step.ANNOUNCE),
    # Condemned is condemned: nothing is asked any more.
    (CONDEMNED, READY, Step.FINISH),
    (CONDEMNED, PINNED, Step.FINISH),
    (CONDEMNED, UNMARKED, Step.FINISH),
    (CONDEMNED, {"began_ms": NOW}, Step.FINISH),
    # A live pin, whatever else.
    (TOMBSTONE, PINNED, Step.KEEP),
    (COLLECTING, PINNED, Step.CALL_OFF),
    (TOMBSTONE, PINNED | UNMARKED, Step.KEEP),
    (COLLECTING, PINNED | {"began_ms": NOW}, Step.CALL_OFF),
    (TOMBSTONE, {"pins": {OTHER: (PIN,)}}, Step.ANNOUNCE),
    # A mark, and of this generation.
    (TOMBSTONE, UNMARKED, Step.MARK),
    (COLLECTING, UNMARKED, Step.MARK),
    (TOMBSTONE, {"marks": {OTHER: Mark("g2", 0)}}, Step.MARK),
    (TOMBSTONE, {"marks": {VERSION: Mark("g1", NOW - 500)}}, Step.MARK),
    (COLLECTING, {"marks": {VERSION: Mark("g1", NOW - 500)}}, Step.MARK),
    # Holding back after a loss.
    (TOMBSTONE, {"began_ms": NOW - 999}, Step.WAIT_HOLD_BACK),
    (COLLECTING, {"began_ms": NOW - 999}, Step.WAIT_HOLD_BACK),
    (TOMBSTONE, {"began_ms": NOW - 1_000}, Step.ANNOUNCE),
    (TOMBSTONE, {"began_ms": 0}, Step.ANNOUNCE),
    (TOMBSTONE, {"began_ms": NOW - 999, "oldest_beat_ms": None}, Step.WAIT_HOLD_BACK),
    # The mark must stand for a while,
    (TOMBSTONE, {"marks": {VERSION: Mark("g2", NOW - 99)}}, Step.WAIT_QUIET),
    (TOMBSTONE, {"marks": {VERSION: Mark("g2", NOW - 100)}}, Step.ANNOUNCE),
    (COLLECTING, {"marks": {VERSION: Mark("g2", NOW - 99)}}, Step.WAIT_QUIET),
    # and every live holder be heard from, after it.
    (TOMBSTONE, {"oldest_beat_ms": NOW - 501}, Step.WAIT_QUIET),
    (TOMBSTONE, {"oldest_beat_ms": NOW - 500}, Step.WAIT_QUIET),
    (TOMBSTONE, {"oldest_beat_ms": NOW - 499}, Step.ANNOUNCE),
    (TOMBSTONE, {"oldest_beat_ms": 0}, Step.WAIT_QUIET),
    (TOMBSTONE, {"oldest_beat_ms": None}, Step.ANNOUNCE),
    (TOMBSTONE, {"marks": {VERSION: Mark("g2", NOW)}, "oldest_beat_ms": None}, Step.WAIT_QUIET),
]


@pytest.mark.parametrize(("state", "changes", "step"), TABLE)
def test_what_to_do_with_a_tombstone(state: SpanState, changes: dict[str, Any], step: Step) -> None:
    """I4, I5: every guard has its row, at its edge."""
    assert step is judge_stone(VERSION, stone(state), seen(**changes), RULES)


def test_every_step_is_in_the_table() -> None:
    assert set(Step) == {step for _, _, step in TABLE}


@pytest.mark.parametrize(
    ("changes", "free"),
    [
        (READY, True),
        (UNMARKED, True),
        ({"oldest_beat_ms": 0}, True),
        (PINNED, False),
        ({"generation": "g3"}, False),
        (PINNED | {"generation": "g3"}, False),
        ({"pins": {}}, True),
        ({"pins": {OTHER: (PIN,)}}, True),
    ],
)
def test_the_second_check(changes: dict[str, Any], free: bool) -> None:
    """No live pin, and the generation of the mark; the quiet has been kept before."""
    assert free is still_free(VERSION, "g2", seen(**changes))


def test_nobody_alive_is_heard_from_by_definition() -> None:
    assert seen(oldest_beat_ms=None).heard_from_all_since(NOW)
    assert not seen(oldest_beat_ms=NOW).heard_from_all_since(NOW)
    assert seen(oldest_beat_ms=NOW + 1).heard_from_all_since(NOW)
