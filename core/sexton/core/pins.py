"""What live holders need, as far as the rules ask for it, and the digest by which two sides compare it."""

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sexton.core.hash import digest_of_frames, frame
from sexton.schemas.leases import Pin, PinCost

Pins = Mapping[tuple[str, int], PinCost]
"""The highest cost class among the live pins on each `(span_id, version)`; no entry, no live pin."""

NO_PINS: Final[Pins] = MappingProxyType({})

SEVERITY: Final = {PinCost.CHEAP: 1, PinCost.EXPENSIVE: 2, PinCost.IMMOVABLE: 3}


def highest(costs: Iterable[PinCost]) -> PinCost | None:
    """The cost class that counts among several pins on one version; None if there is none."""
    return max(costs, key=SEVERITY.__getitem__, default=None)


def pins_digest(pins: Iterable[Pin]) -> str:
    """Digest of a set of pins, whatever their order."""
    return digest_of_frames(
        _framed(pin.span_id, pin.version, pin.cost)
        for pin in sorted(pins, key=lambda p: (p.span_id, p.version))
    )


class PinsDigest:
    """`pins_digest` of a set that changes a little at a time: a change costs its own, not the whole set's."""

    def __init__(self) -> None:
        self._order: list[tuple[str, int]] = []
        self._frames: dict[tuple[str, int], bytes] = {}

    def put(self, version: tuple[str, int], cost: PinCost) -> None:
        """Adds a pin, or gives it another cost class."""
        if version not in self._frames:
            insort(self._order, version)
        self._frames[version] = _framed(*version, cost)

    def drop(self, version: tuple[str, int]) -> None:
        """Takes a pin away, if it is there."""
        if self._frames.pop(version, None) is not None:
            del self._order[bisect_left(self._order, version)]

    def clear(self) -> None:
        """Takes all away."""
        self._order.clear()
        self._frames.clear()

    def value(self) -> str:
        """The digest of what is there."""
        return digest_of_frames(self._frames[version] for version in self._order)


def _framed(span_id: str, version: int, cost: PinCost) -> bytes:
    return frame(span_id) + frame(str(version)) + frame(cost.value)


EMPTY_DIGEST: Final = pins_digest(())
"""Digest of no pins at all."""

__all__ = [
    "EMPTY_DIGEST",
    "NO_PINS",
    "SEVERITY",
    "PinCost",
    "Pins",
    "PinsDigest",
    "highest",
    "pins_digest",
]
