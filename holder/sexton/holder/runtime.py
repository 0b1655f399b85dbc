"""What all parts of one holder share."""

from dataclasses import dataclass
from typing import Any

from sexton.holder.clock import Clock
from sexton.holder.ports import Transport
from sexton.holder.settings import HolderSettings


@dataclass(frozen=True, slots=True)
class Runtime:
    """The holder's way out, its clock, its bounds and its log."""

    transport: Transport
    clock: Clock
    settings: HolderSettings
    log: Any
