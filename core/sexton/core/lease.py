"""A holder's side of its lease and pins on one context: what it claims, what is proven, what to send next.

No I/O and no clock: times are the holder's own monotonic seconds, passed in. The caller sends one operation
at a time, and tells what came of it.

The rules:

- A lease is counted from the moment the last good heartbeat was *sent*: the registry counts from later, so
  the holder never believes in a lease that the registry has let go. A heartbeat is good if the registry
  knew the same pins: one that it answered with "announce" renews nothing here, or a holder could go on to
  count on a pin that a fail-over has lost, for longer than a collector waits.
- Past it, every pin is unproven. The holder registers, announces all it claims, and only what is granted
  then is proven again.
- A pin is claimed from the moment it is asked for: the digest of every heartbeat covers it, so that a
  registry that has lost it, or never got it, asks for the whole set.
- An operation whose answer is lost may or may not have been done. It is not sent again: the whole set is
  announced instead, under the next number.
- An announced pin that is answered with neither yes nor no is being changed at that moment: it is announced
  again. A pin is proven for the cost class that it was granted with.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypedDict

from sexton.core.collection import Version
from sexton.core.pins import SEVERITY, PinsDigest
from sexton.schemas.leases import (
    HeartbeatRequest,
    LeaseReply,
    Pin,
    PinCost,
    PinRequest,
    RefusedPin,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion

NEVER: Final = -math.inf


@dataclass(slots=True)
class _Claim:
    cost: PinCost
    asked: int
    """The operation that first asked for it. An answer to an older one is about a claim before this."""
    asked_cost: int
    """The operation that first asked for it with this cost class."""
    granted: PinCost | None = None
    """The highest cost class that it is known to be granted with, in the lease that is good now."""


class _Common(TypedDict):
    context_id: str
    holder_id: str
    incarnation: int
    operation: int
    digest: str


class PinBook:
    """What one holder claims on one context.

    Args:
        context_id: the context.
        holder_id: the holder.
        incarnation: grows with each process of the holder id.
        ttl_ms: the lease to ask for.
    """

    def __init__(self, context_id: str, holder_id: str, incarnation: int, ttl_ms: int) -> None:
        self.context_id = context_id
        self.holder_id = holder_id
        self.incarnation = incarnation
        self.ttl_ms = ttl_ms
        self.valid_until = NEVER
        """End of the lease by the holder's own count, in its monotonic seconds."""
        self.fenced_by: int | None = None
        """The incarnation that took our place, if one did."""
        self._operation = 0
        self._registered = False
        self._announce = True
        self._claims: dict[Version, _Claim] = {}
        self._digest = PinsDigest()
        """Of the claims."""

    # --- what is true now ----------------------------------------------------------------------------

    def is_good(self, now: float) -> bool:
        """Whether the lease is good, by the holder's own count."""
        return self._registered and now < self.valid_until

    def is_proven(self, version: Version, now: float, cost: PinCost = PinCost.CHEAP) -> bool:
        """Whether a pin is granted, with at least this cost class, under a lease that is good now.

        With any, its bytes will not be collected.
        """
        claim = self._claims.get(version)
        return claim is not None and _covers(claim.granted, cost) and self.is_good(now)

    def unproven(self, now: float) -> list[Version]:
        """What is claimed and not proven, with its cost class."""
        return [
            version for version, claim in self._claims.items() if not self.is_proven(version, now, claim.cost)
        ]

    def claims(self) -> tuple[Pin, ...]:
        """All that is claimed, answered or not."""
        return tuple(
            Pin(span_id=span_id, version=version, cost=claim.cost)
            for (span_id, version), claim in self._claims.items()
        )

    @property
    def must_beat(self) -> bool:
        """A heartbeat is due at once: there is no lease, or the registry must hear the whole set."""
        return not self._registered or self._announce

    # --- what to send --------------------------------------------------------------------------------

    def heartbeat(self, now: float) -> HeartbeatRequest:
        """The next heartbeat. Registers and announces all claims if it must."""
        if self._registered and now >= self.valid_until:
            self.on_lease_lost()
        announce = self._announce or not self._registered
        if announce:
            self._operation += 1
        return HeartbeatRequest(
            **self._common(),
            ttl_ms=self.ttl_ms,
            register_new=not self._registered,
            pins=self.claims() if announce else None,
        )

    def leave(self) -> HeartbeatRequest:
        """The last heartbeat: gives up the lease and all pins."""
        self._drop_all()
        self._operation += 1
        return HeartbeatRequest(**self._common(), ttl_ms=self.ttl_ms, leave=True)

    def ask(self, pins: Sequence[Pin]) -> PinRequest:
        """Claims pins, and asks for them. They count from now on."""
        self._operation += 1
        for pin in pins:
            version = (pin.span_id, pin.version)
            known = self._claims.setdefault(version, _Claim(pin.cost, self._operation, self._operation))
            if known.cost is not pin.cost:
                known.cost, known.asked_cost = pin.cost, self._operation
                if _covers(known.granted, pin.cost):
                    known.granted = pin.cost
            self._digest.put(version, pin.cost)
        return PinRequest(**self._common(), pins=tuple(pins))

    def let_go(self, versions: Iterable[Version]) -> ReleaseRequest | None:
        """Drops claims, and says so. None if none of them was claimed."""
        gone = [version for version in versions if self._claims.pop(version, None) is not None]
        if not gone:
            return None
        for version in gone:
            self._digest.drop(version)
        self._operation += 1
        named = tuple(SpanVersion(span_id=span_id, version=version) for span_id, version in gone)
        return ReleaseRequest(**self._common(), versions=named)

    # --- what came of it -----------------------------------------------------------------------------

    def on_heartbeat(
        self, request: HeartbeatRequest, reply: LeaseReply, sent_at: float
    ) -> tuple[RefusedPin, ...]:
        """Takes in the answer to a heartbeat; gives the claims that are lost by it."""
        self._registered = True
        if not reply.announce:
            self.valid_until = max(self.valid_until, sent_at + self.ttl_ms / 1000)
        if request.pins is not None and request.operation == self._operation:
            answered = {(pin.span_id, pin.version) for pin in (*reply.granted, *reply.refused)}
            self._announce = any((pin.span_id, pin.version) not in answered for pin in request.pins)
        return self._take_in(reply)

    def on_pins(self, reply: LeaseReply) -> tuple[RefusedPin, ...]:
        """Takes in the answer to `ask` or `let_go`; gives the claims that are lost by it."""
        return self._take_in(reply)

    def on_lease_lost(self) -> None:
        """The registry has no lease of ours, or ours has run out by our own count: all is unproven."""
        self._registered = False
        self._announce = True
        self.valid_until = NEVER
        for claim in self._claims.values():
            claim.granted = None

    def on_no_answer(self) -> None:
        """An operation on pins went unanswered: it may have been done. The whole set will tell."""
        self._announce = True

    def on_fenced(self, newest: int) -> None:
        """Another process of our id has registered, under the incarnation `newest`."""
        self.on_lease_lost()
        self._drop_all()
        self.fenced_by = newest

    def _take_in(self, reply: LeaseReply) -> tuple[RefusedPin, ...]:
        for granted in reply.granted:
            claim = self._claims.get((granted.span_id, granted.version))
            if claim is None or reply.operation < claim.asked:
                continue
            if reply.operation >= claim.asked_cost:
                claim.granted = claim.cost
            elif claim.granted is None:
                # With another cost class, which may be any by now.
                claim.granted = PinCost.CHEAP
        lost: list[RefusedPin] = []
        for refused in reply.refused:
            claim = self._claims.get((refused.span_id, refused.version))
            if claim is not None and claim.asked <= reply.operation:
                del self._claims[refused.span_id, refused.version]
                self._digest.drop((refused.span_id, refused.version))
                lost.append(refused)
        if reply.announce or reply.refused:
            # The registry forgets its digest with a refusal, and wants to hear what is left.
            self._announce = True
        return tuple(lost)

    def _common(self) -> _Common:
        return {
            "context_id": self.context_id,
            "holder_id": self.holder_id,
            "incarnation": self.incarnation,
            "operation": self._operation,
            "digest": self._digest.value(),
        }

    def _drop_all(self) -> None:
        self._claims.clear()
        self._digest.clear()


def _covers(granted: PinCost | None, cost: PinCost) -> bool:
    return granted is not None and SEVERITY[granted] >= SEVERITY[cost]
