"""What the tests of leases and pins share: a service in memory that notes what holders say to it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from sexton.core.collection import Version
from sexton.core.registry import HolderState
from sexton.holder import Context
from sexton.holder.pins import Pinned
from sexton.holder.testing import MemoryService
from sexton.schemas.codec import decode
from sexton.schemas.leases import HeartbeatRequest, LeaseReply, Pin, PinCost, PinRequest, ReleaseRequest
from sexton.schemas.outcome import Committed
from sexton.schemas.rpc import Verb
from sexton.schemas.span import Strategy
from tests.holder_kit import CONTEXT, Rig

PATIENT: Final[dict[str, Any]] = {"sync_interval_s": 1000.0, "staleness_bound_s": 2000.0}
"""Settings of a holder that asks for nothing by itself but what heartbeats and callers ask for."""


@dataclass
class Heard:
    """What was asked of the registry, in order, each with the time at which it arrived."""

    beats: list[tuple[float, HeartbeatRequest]] = field(default_factory=list)
    pins: list[PinRequest] = field(default_factory=list)
    releases: list[ReleaseRequest] = field(default_factory=list)

    @property
    def last(self) -> HeartbeatRequest:
        """The last heartbeat."""
        return self.beats[-1][1]

    @property
    def beat_times(self) -> list[float]:
        """When heartbeats arrived."""
        return [at for at, _ in self.beats]


class ListeningService(MemoryService):
    """Notes what it hears of leases and pins. Can be made to ask for announcements for ever."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = Heard()
        self.insatiable = False
        """Every heartbeat is answered with the wish to hear the whole set."""

    def answer(self, context_id: str, verb: Verb, body: bytes) -> list[bytes]:
        match verb:
            case Verb.HEARTBEAT:
                self.heard.beats.append((self.monotonic(), decode(HeartbeatRequest, body)))
            case Verb.PIN:
                self.heard.pins.append(decode(PinRequest, body))
            case Verb.RELEASE:
                self.heard.releases.append(decode(ReleaseRequest, body))
        parts = super().answer(context_id, verb, body)
        if self.insatiable and verb is Verb.HEARTBEAT:
            parts = [decode(LeaseReply, part).model_copy(update={"announce": True}).wire() for part in parts]
        return parts


@asynccontextmanager
async def pin(
    r: Rig,
    span_id: str,
    *,
    cost: PinCost = PinCost.CHEAP,
    version: int | None = None,
    context: Context | None = None,
) -> AsyncIterator[Pinned]:
    """A version pinned for as long as the block lasts; time passes as needed to take it and to let go."""
    scope = (context or r.context).pin(span_id, cost=cost, version=version)
    pinned = await r.run(scope.__aenter__())
    try:
        yield pinned
    finally:
        await r.run(scope.__aexit__(None, None, None))


async def rewrite_elsewhere(r: Rig, span_id: str, text: str = "Ship on Monday.") -> Strategy | None:
    """Another holder rewrites a span. Gives what became of the old version."""
    if not r.others:
        await r.another()
    other = await r.run(r.others[0].open(CONTEXT))
    outcome = await r.run(other.rewrite(span_id, text))
    assert isinstance(outcome, Committed)
    return outcome.strategy


async def settled(r: Rig) -> None:
    """Two heartbeats later, the registry holds what is claimed."""
    await r.clock.advance(2 * r.holder.settings.lease_ttl_s / 3)
    assert claimed(r) == held(r)


def listening(r: Rig) -> ListeningService:
    """The rig's service, which must be one that listens."""
    assert isinstance(r.service, ListeningService)
    return r.service


def heard(r: Rig) -> Heard:
    """What the rig's service has heard."""
    return listening(r).heard


def known(r: Rig, holder_id: str | None = None) -> HolderState:
    """What the registry knows of a holder; of the rig's own if none is named."""
    return r.service.registries[CONTEXT].holders[holder_id or r.holder.name]


def held(r: Rig, holder_id: str | None = None) -> dict[Version, PinCost]:
    """What the registry holds for a holder whose lease is good: version and cost class."""
    holder = r.service.registries[CONTEXT].holders.get(holder_id or r.holder.name)
    if holder is None or not holder.is_good(int(r.clock.monotonic() * 1000)):
        return {}
    return {version: pin.cost for version, pin in holder.held.items()}


def claimed(r: Rig) -> dict[Version, PinCost]:
    """What the rig's holder claims."""
    claims: tuple[Pin, ...] = r.context._keeper._book.claims()
    return {(pin.span_id, pin.version): pin.cost for pin in claims}
