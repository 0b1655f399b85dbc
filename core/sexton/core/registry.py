"""The registry's rules as one value without a clock: leases, pins, marks of one context.

The service keeps them in Redis, as one script (`worker/sexton/worker/adapters/registry.lua`), on Redis's own
clock. This is the same in Python, with the time passed in: what holders are tested against without a server,
what the simulator runs, and what the contract tests hold the script to.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from sexton.core.collection import Version
from sexton.core.sweep import LivePin, Mark, Observation
from sexton.schemas.errors import Fenced, LeaseLost, TooManyPins
from sexton.schemas.leases import (
    MAX_PINS,
    HeartbeatRequest,
    HolderRequest,
    Pin,
    PinCost,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion


@dataclass(slots=True)
class HolderState:
    """What is known of one holder."""

    incarnation: int
    operation: int = 0
    digest: str = ""
    beat_ms: int = 0
    ends_ms: int = 0
    """End of its lease."""
    held: dict[Version, tuple[PinCost, int]] = field(default_factory=dict)
    """Its pins, each with its cost and since when."""


@dataclass(slots=True)
class RegistryState:
    """The registry of one context. Copy it to have an older one to fail over to."""

    generation: str
    began_ms: int
    holders: dict[str, HolderState] = field(default_factory=dict)
    marks: dict[Version, Mark] = field(default_factory=dict)

    # --- on a holder's behalf ------------------------------------------------------------------------

    def beat(self, request: HeartbeatRequest, now_ms: int) -> tuple[int, bool]:
        """Takes in a heartbeat. Gives the last operation known, and whether the holder is to announce.

        Raises:
            Fenced: a newer process of the holder's id has registered.
            LeaseLost: the lease has run out, and the heartbeat does not begin a new one.
        """
        holder = self._holder(request)
        if request.leave:
            left = HolderState(incarnation=request.incarnation, operation=request.operation)
            self.holders[request.holder_id] = left
            return request.operation, False
        if holder.ends_ms <= now_ms:
            if not request.register_new:
                raise LeaseLost(f"{request.holder_id} has no good lease on {request.context_id}")
            holder = HolderState(incarnation=request.incarnation)
        self.holders[request.holder_id] = holder
        holder.ends_ms = max(holder.ends_ms, now_ms + request.ttl_ms)
        holder.beat_ms = now_ms
        if request.pins is not None and request.operation > holder.operation:
            wanted = {(pin.span_id, pin.version) for pin in request.pins}
            holder.held = {v: kept for v, kept in holder.held.items() if v in wanted}
            self._add(holder, request.pins, now_ms)
            holder.operation, holder.digest = request.operation, request.digest
        return holder.operation, holder.digest != request.digest

    def pin(self, request: PinRequest, now_ms: int, limit: int = MAX_PINS) -> bool:
        """Adds pins; False if the operation is older than one already known.

        Raises:
            Fenced, LeaseLost: as `beat`.
            TooManyPins: the holder would have more than `limit`.
        """
        holder = self._leased(request, now_ms)
        if request.operation < holder.operation:
            return False
        fresh = {(pin.span_id, pin.version) for pin in request.pins} - holder.held.keys()
        if len(holder.held) + len(fresh) > limit:
            raise TooManyPins(f"a holder pins at most {limit} versions of a context", limit=limit)
        self._add(holder, request.pins, now_ms)
        holder.operation, holder.digest = request.operation, request.digest
        return True

    def release(self, request: ReleaseRequest, now_ms: int) -> bool:
        """Drops pins; False if the operation is older than one already known. Raises as `pin`."""
        holder = self._leased(request, now_ms)
        if request.operation < holder.operation:
            return False
        for version in request.versions:
            holder.held.pop((version.span_id, version.version), None)
        holder.operation, holder.digest = request.operation, request.digest
        return True

    def withdraw(self, request: HolderRequest, versions: Iterable[SpanVersion]) -> None:
        """Takes back pins that the log has refused, if `request` is still the holder's last operation."""
        holder = self.holders.get(request.holder_id)
        if holder is None or (holder.incarnation, holder.operation) != (
            request.incarnation,
            request.operation,
        ):
            return
        for version in versions:
            holder.held.pop((version.span_id, version.version), None)
        holder.digest = ""

    # --- on a sweep's --------------------------------------------------------------------------------

    def live(self, version: Version, now_ms: int) -> tuple[LivePin, ...]:
        """The pins on a version of holders whose lease is good."""
        return tuple(
            LivePin(holder_id, *holder.held[version])
            for holder_id, holder in self.holders.items()
            if holder.ends_ms > now_ms and version in holder.held
        )

    def observe(self, versions: Sequence[Version], now_ms: int, *, mark: bool) -> Observation:
        """What a sweep looks at. With `mark`, unpinned versions without a mark of this generation get one."""
        beats = [holder.beat_ms for holder in self.holders.values() if holder.ends_ms > now_ms]
        pins = {version: self.live(version, now_ms) for version in versions}
        if mark:
            for version, live in pins.items():
                known = self.marks.get(version)
                if not live and (known is None or known.generation != self.generation):
                    self.marks[version] = Mark(self.generation, now_ms)
        return Observation(
            generation=self.generation,
            began_ms=self.began_ms,
            now_ms=now_ms,
            oldest_beat_ms=min(beats, default=None),
            pins=pins,
            marks={version: self.marks[version] for version in versions if version in self.marks},
        )

    def _leased(self, request: HolderRequest, now_ms: int) -> HolderState:
        holder = self._holder(request)
        if holder.ends_ms <= now_ms:
            raise LeaseLost(f"{request.holder_id} has no good lease on {request.context_id}")
        return holder

    def _holder(self, request: HolderRequest) -> HolderState:
        known = self.holders.get(request.holder_id)
        if known is not None and request.incarnation < known.incarnation:
            raise Fenced(
                f"another process of {request.holder_id} has registered since", incarnation=known.incarnation
            )
        if known is None or request.incarnation > known.incarnation:
            # Whatever an older process held, it holds no more.
            return HolderState(incarnation=request.incarnation)
        return known

    def _add(self, holder: HolderState, pins: Iterable[Pin], now_ms: int) -> None:
        for pin in pins:
            version = (pin.span_id, pin.version)
            _, since_ms = holder.held.get(version, (pin.cost, now_ms))
            holder.held[version] = (pin.cost, since_ms)
            self.marks.pop(version, None)
