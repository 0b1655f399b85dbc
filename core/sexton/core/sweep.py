"""When a tombstone may be collected: the rules of a sweep (design, section 7).

A sweep reads the registry once, atomically (`Observation`), and asks `judge_stone` about each tombstone.
Everything is decided on the registry's own clock. The checked model of this protocol is in the design; each
guard there has its counterpart here or in `sexton.core.collection`:

- *quiet*: `Observation.heard_from_all_since`, for every holder that the registry knows;
- *generation*: a mark counts only in the generation that it was set in; and for one longest lease after a
  generation began, in which holders that the registry does not know may still count on theirs, nothing is
  announced at all: unknown is not zero;
- *second check*: `still_free`, on an observation made after the announcement was committed;
- *attempt*, *condemn*: `sexton.core.collection`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from sexton.core.collection import Version
from sexton.core.tree import Tombstone
from sexton.schemas.leases import PinCost
from sexton.schemas.span import SpanState


@dataclass(frozen=True, slots=True)
class Mark:
    """A sweep's note that a version had no live pin."""

    generation: str
    at_ms: int


@dataclass(frozen=True, slots=True)
class LivePin:
    """A pin of a holder whose lease is good."""

    holder_id: str
    cost: PinCost
    since_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The registry at one instant, as far as a sweep of one context looks at it."""

    generation: str
    """Changes whenever the registry starts empty, restarts or fails over."""
    began_ms: int
    """When this generation began."""
    now_ms: int
    """The registry's clock."""
    oldest_beat_ms: int | None
    """The last heartbeat of the live holder that was silent for longest; None without any live holder."""
    pins: Mapping[Version, tuple[LivePin, ...]]
    """Live pins on the versions looked at."""
    marks: Mapping[Version, Mark]
    """Marks on the versions looked at."""

    def heard_from_all_since(self, at_ms: int) -> bool:
        """Whether every live holder has sent a heartbeat after `at_ms`."""
        return self.oldest_beat_ms is None or self.oldest_beat_ms > at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepRules:
    """The times that a sweep keeps, in milliseconds."""

    hold_back_ms: int
    """The longest lease: after the registry lost anything, nothing is announced for this long."""
    quiet_ms: int
    """How long a mark must stand: over a heartbeat interval plus the registry's worst loss."""


class Step(StrEnum):
    """What a sweep does with one tombstone."""

    KEEP = "keep"
    """A live holder pins it."""
    CALL_OFF = "call_off"
    """A collector that died had announced it, and a live holder pins it."""
    MARK = "mark"
    """Note that it has no live pin."""
    WAIT_HOLD_BACK = "wait_hold_back"
    """Marked, but the registry is young: holders that it lost may still count on their leases."""
    WAIT_QUIET = "wait_quiet"
    """Marked, but the mark is young, or a live holder has not been heard from since."""
    ANNOUNCE = "announce"
    """Commit `collecting`, check again, condemn, delete."""
    FINISH = "finish"
    """Condemned by somebody: delete and record it."""


def judge_stone(version: Version, stone: Tombstone, seen: Observation, rules: SweepRules) -> Step:
    """What to do with a tombstone now."""
    if stone.state is SpanState.CONDEMNED:
        return Step.FINISH
    if seen.pins.get(version):
        return Step.CALL_OFF if stone.state is SpanState.COLLECTING else Step.KEEP
    mark = seen.marks.get(version)
    if mark is None or mark.generation != seen.generation:
        return Step.MARK
    if seen.now_ms - seen.began_ms < rules.hold_back_ms:
        return Step.WAIT_HOLD_BACK
    if seen.now_ms - mark.at_ms < rules.quiet_ms or not seen.heard_from_all_since(mark.at_ms):
        return Step.WAIT_QUIET
    return Step.ANNOUNCE


def still_free(version: Version, marked_in: str, seen: Observation) -> bool:
    """The second check, after `collecting` was committed: no live pin, and the same generation."""
    return not seen.pins.get(version) and seen.generation == marked_in
