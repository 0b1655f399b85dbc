"""What live holders need, as far as the rules ask for it."""

from collections.abc import Mapping
from enum import IntEnum
from types import MappingProxyType
from typing import Final


class PinCost(IntEnum):
    """What it costs a holder to lose the version it pinned; the order is that of severity."""

    CHEAP = 1
    """An offset map, a token count: rebuilt at once."""
    EXPENSIVE = 2
    """An embedding, an extraction that took a model call."""
    IMMOVABLE = 3
    """The bytes must stay current: a patch in flight, a quote being checked."""


Pins = Mapping[tuple[str, int], PinCost]
"""The highest cost class among the live pins on each `(span_id, version)`; no entry, no live pin."""

NO_PINS: Final[Pins] = MappingProxyType({})
