"""What a granted pin promises on a version that is current, and what it takes for the promise to hold.

While a holder holds a pin to be proven, no record changes the version if the pin is `immovable`, and no
rewrite makes it unreadable if the pin is `expensive`. It is judged at the moment a record is stored.

Left out is what decision 0022 leaves out: the registry has lost something since the pin was asked for, or
since the command read the pins; or the record was stored longer after it was sent than a note stands then.
"""

from collections.abc import Callable
from typing import Any, Final

from sexton.core.collection import Version
from sexton.core.registry import CHANGING_MS
from sexton.schemas.codec import AnyRecord
from sexton.schemas.leases import PinCost
from sexton.schemas.records import Compacted, Pruned, Rewritten
from sexton.schemas.span import Strategy
from sexton.worker.holdings import FRESH_S
from tests.sim.gates import ACTOR

ON_THE_WAY_MS: Final = CHANGING_MS - int(FRESH_S * 1000)
"""How long a record may be under way to the log."""


class Promises:
    """Watches over the promises of one world."""

    def __init__(self, world: Any) -> None:
        self._world = world
        self.losses = 0
        """How often the registry has lost something, or may have."""
        self._read_in: dict[str, int] = {}

    def on_call(self, call: str) -> None:
        """An actor calls the registry."""
        actor, _, name = call.partition(": ")
        if name == "change":
            self._read_in[actor] = self.losses

    def sending(self) -> Callable[[AnyRecord], None]:
        """An actor sends a record. Gives what judges it when it is stored."""
        sent_ms, read_in = self._world.now_ms, self._read_in.get(ACTOR.get())

        def judge(record: AnyRecord) -> None:
            if read_in == self.losses and self._world.now_ms - sent_ms < ON_THE_WAY_MS:
                self._judge(record)

        return judge

    def _judge(self, record: AnyRecord) -> None:
        for version in changed_by(record):
            for holder in self._world.holders.values():
                cost = holder.counts_on(version, self.losses)
                unreadable = (
                    isinstance(record, Rewritten) and record.strategy is Strategy.INVALIDATE_AND_REKEY
                )
                if cost is PinCost.IMMOVABLE or (cost is PinCost.EXPENSIVE and unreadable):
                    self._world.stores.violations.append(
                        f"promise: {holder.name} pins {version} as {cost}, and it is {record.kind.value}"
                    )


def changed_by(record: AnyRecord) -> list[Version]:
    """The current versions that a record changes."""
    match record:
        case Rewritten():
            return [(record.before.span_id, record.before.version)]
        case Pruned():
            return [(record.span.span_id, record.span.version)]
        case Compacted():
            return [(source.span_id, source.version) for source in record.sources]
        case _:
            return []
