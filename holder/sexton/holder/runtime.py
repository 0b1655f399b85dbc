"""What all parts of one holder share."""

from dataclasses import dataclass
from typing import Any

from sexton.holder.clock import Clock
from sexton.holder.ports import Transport
from sexton.holder.settings import HolderSettings


@dataclass(frozen=True, slots=True)
class Runtime:
    """The holder's way out, its clock, its bounds and its log."""

    holder_id: str
    """Names this holder to the registry."""
    incarnation: int
    """Grows with each process of that id."""
    transport: Transport
    clock: Clock
    settings: HolderSettings
    log: Any
