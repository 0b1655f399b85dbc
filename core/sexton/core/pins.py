"""What live holders need, as far as the rules ask for it, and the digest by which two sides compare it."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from sexton.core.hash import framed_digest
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
    return framed_digest(
        part
        for pin in sorted(pins, key=lambda p: (p.span_id, p.version))
        for part in (pin.span_id, str(pin.version), pin.cost.value)
    )


EMPTY_DIGEST: Final = pins_digest(())
"""Digest of no pins at all."""

__all__ = ["EMPTY_DIGEST", "NO_PINS", "SEVERITY", "PinCost", "Pins", "highest", "pins_digest"]
