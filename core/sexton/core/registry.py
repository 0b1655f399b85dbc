"""The registry's rules as one value without a clock: leases, pins, marks of one context.

The service keeps them in Redis, as one script (`worker/sexton/worker/adapters/registry.lua`), on Redis's own
clock. This is the same in Python, with the time passed in: what holders are tested against without a server,
what the simulator runs, and what the contract tests hold the script to.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from sexton.core.collection import Version
from sexton.core.sweep import LivePin, Mark, Observation
from sexton.schemas.errors import Fenced, LeaseLost, TooManyHolders, TooManyPins
from sexton.schemas.leases import (
    MAX_HOLDERS,
    MAX_PINS,
    MAX_TTL_MS,
    HeartbeatRequest,
    HolderRequest,
    Pin,
    PinCost,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion

CHANGING_MS: Final = 10_000
"""How long a note of a change stands that nobody clears: above a usual commit with its retries."""

Changing = Mapping[Version, frozenset[str]]
"""Versions that commands are about to change: by version, the tokens of the notes that stand."""


@dataclass(frozen=True, slots=True)
class HeldPin:
    """One pin of one holder."""

    cost: PinCost
    since_ms: int
    operation: int
    """The operation that added it."""


@dataclass(slots=True)
class HolderState:
    """What is known of one holder."""

    incarnation: int
    operation: int = 0
    digest: str = ""
    """Of the pins that the holder claims; empty if it is not known whether they are those held here."""
    beat_ms: int = 0
    agreed_ms: int = 0
    """The last heartbeat that claimed what is known here, in `agreed_in`."""
    agreed_in: str = ""
    ends_ms: int | None = None
    """End of its lease; none if it has ended and been seen to."""
    forget_ms: int | None = None
    """When to forget that this holder was there; set once its lease has ended."""
    held: dict[Version, HeldPin] = field(default_factory=dict)

    def is_good(self, now_ms: int) -> bool:
        """Whether its lease is good."""
        return self.ends_ms is not None and self.ends_ms > now_ms

    def end_lease(self, now_ms: int) -> None:
        """Its incarnation and last operation are remembered for as long as a message from before may be
        under way and count: one that is older must not begin the next lease with an older set.
        """
        self.held.clear()
        self.ends_ms, self.digest = None, ""
        self.forget_ms = now_ms + MAX_TTL_MS

    def note_operation(self, operation: int, digest: str) -> None:
        """A digest covers all pins of the holder: it is believed only if none of the operations before it is
        missing, as they are after a fail-over to an older copy.
        """
        if operation == self.operation:
            return
        unbroken = operation == self.operation + 1 and self.digest
        self.operation, self.digest = operation, digest if unbroken else ""


@dataclass(frozen=True, slots=True)
class Change:
    """A note of what a command is about to change."""

    until_ms: int
    versions: frozenset[Version]


@dataclass(slots=True)
class RegistryState:
    """The registry of one context. `copy` it to have an older one to fail over to."""

    generation: str
    began_ms: int
    holders: dict[str, HolderState] = field(default_factory=dict)
    marks: dict[Version, Mark] = field(default_factory=dict)
    changes: dict[str, Change] = field(default_factory=dict)
    """By token."""

    def copy(self) -> "RegistryState":
        """A copy that shares nothing with this one."""
        holders = {name: replace(holder, held=dict(holder.held)) for name, holder in self.holders.items()}
        return RegistryState(self.generation, self.began_ms, holders, dict(self.marks), dict(self.changes))

    # --- on a holder's behalf ------------------------------------------------------------------------

    def beat(self, request: HeartbeatRequest, now_ms: int) -> tuple[int, bool]:
        """Takes in a heartbeat. Gives the last operation known, and whether the holder is to announce.

        Raises:
            Fenced: a newer process of the holder's id has registered.
            LeaseLost: the lease has run out, and the heartbeat does not begin a new one.
            TooManyHolders: it would begin one more lease than a context may have.
        """
        try:
            holder = self._leased(request, now_ms)
        except LeaseLost:
            if request.leave:
                return request.operation, False
            if not request.register_new:
                raise
            self._check_room(request.holder_id, now_ms)
            holder = self._begun(request)
        if request.leave:
            holder.operation = max(holder.operation, request.operation)
            holder.end_lease(now_ms)
            return request.operation, False
        ends_ms = now_ms + request.ttl_ms
        holder.ends_ms = ends_ms if holder.ends_ms is None else max(holder.ends_ms, ends_ms)
        if request.pins is not None and request.operation >= holder.operation:
            wanted = {(pin.span_id, pin.version) for pin in request.pins}
            holder.held = {v: kept for v, kept in holder.held.items() if v in wanted}
            self._add(holder, request.pins, request.operation, now_ms)
            holder.operation, holder.digest = request.operation, request.digest
        holder.beat_ms = now_ms
        agreed = holder.digest == request.digest
        if agreed:
            # Who claims another set than is known here has not been heard out: a sweep must not count it.
            holder.agreed_ms, holder.agreed_in = now_ms, self.generation
        self._tidy(now_ms)
        return holder.operation, not agreed

    def _check_room(self, holder_id: str, now_ms: int) -> None:
        before = self.holders.get(holder_id)
        if before is not None and before.is_good(now_ms):
            return  # a newer process takes an older one's place
        if sum(holder.is_good(now_ms) for holder in self.holders.values()) >= MAX_HOLDERS:
            raise TooManyHolders(f"a context has at most {MAX_HOLDERS} holders", limit=MAX_HOLDERS)

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
        self._add(holder, request.pins, request.operation, now_ms)
        holder.note_operation(request.operation, request.digest)
        return True

    def release(self, request: ReleaseRequest, now_ms: int) -> bool:
        """Drops pins; False if the operation is older than one already known. Raises as `pin`."""
        holder = self._leased(request, now_ms)
        if request.operation < holder.operation:
            return False
        for version in request.versions:
            holder.held.pop((version.span_id, version.version), None)
        holder.note_operation(request.operation, request.digest)
        return True

    def withdraw(self, request: HolderRequest, versions: Iterable[SpanVersion]) -> None:
        """Takes back pins that the log has refused, if `request` is still the holder's last operation.

        Only what this operation added is dropped: the answer may be lost, and the holder go on to count on
        what it was granted before. The digest is forgotten, so that it announces what it holds.
        """
        holder = self.holders.get(request.holder_id)
        if holder is None or (holder.incarnation, holder.operation) != (
            request.incarnation,
            request.operation,
        ):
            return
        for named in versions:
            version = (named.span_id, named.version)
            held = holder.held.get(version)
            if held is not None and held.operation == request.operation:
                del holder.held[version]
        holder.digest = ""

    # --- on a command's ------------------------------------------------------------------------------

    def change(
        self, token: str, versions: Sequence[Version], now_ms: int
    ) -> dict[Version, tuple[LivePin, ...]]:
        """The live pins on versions, and a note, in the same instant, that they are about to change.

        A pin that is registered before is among them; one that is registered after finds the note.
        """
        self._tidy_changes(now_ms)
        self.changes[token] = Change(now_ms + CHANGING_MS, frozenset(versions))
        return {version: self.live(version, now_ms) for version in versions}

    def changed(self, token: str) -> None:
        """The command is through, whatever came of it."""
        self.changes.pop(token, None)

    def changing(self, pins: Iterable[Pin], now_ms: int) -> Changing:
        """The notes that a grant of these pins must wait for. A cheap pin stops no command."""
        self._tidy_changes(now_ms)
        wanted = [(pin.span_id, pin.version) for pin in pins if pin.cost is not PinCost.CHEAP]
        found = {
            version: frozenset(token for token, note in self.changes.items() if version in note.versions)
            for version in wanted
        }
        return {version: tokens for version, tokens in found.items() if tokens}

    def standing(self, tokens: Iterable[str], now_ms: int) -> frozenset[str]:
        """Those of some notes that still stand."""
        self._tidy_changes(now_ms)
        return frozenset(tokens) & self.changes.keys()

    def _tidy_changes(self, now_ms: int) -> None:
        """Drops notes that have run out, and cuts those that a server whose clock was ahead has written."""
        self.changes = {
            token: replace(note, until_ms=min(note.until_ms, now_ms + CHANGING_MS))
            for token, note in self.changes.items()
            if note.until_ms > now_ms
        }

    # --- on a sweep's --------------------------------------------------------------------------------

    def live(self, version: Version, now_ms: int) -> tuple[LivePin, ...]:
        """The pins on a version of holders whose lease is good."""
        return tuple(
            LivePin(holder_id, held.cost, held.since_ms)
            for holder_id, holder in self.holders.items()
            if holder.is_good(now_ms) and (held := holder.held.get(version)) is not None
        )

    def observe(self, versions: Sequence[Version], now_ms: int, *, mark: bool) -> Observation:
        """What a sweep looks at. With `mark`, unpinned versions without a mark of this generation get one."""
        self._tidy(now_ms)
        agreed = [
            holder.agreed_ms if holder.agreed_in == self.generation else 0
            for holder in self.holders.values()
            if holder.is_good(now_ms)
        ]
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
            oldest_beat_ms=min(agreed, default=None),
            pins=pins,
            marks={version: self.marks[version] for version in versions if version in self.marks},
        )

    def _leased(self, request: HolderRequest, now_ms: int) -> HolderState:
        """The holder, if no newer process has registered and its lease is good."""
        known = self.holders.get(request.holder_id)
        if known is not None and known.forget_ms is not None and known.forget_ms <= now_ms:
            del self.holders[request.holder_id]
            known = None
        if known is not None and request.incarnation < known.incarnation:
            raise Fenced(
                f"another process of {request.holder_id} has registered since", incarnation=known.incarnation
            )
        if known is None or request.incarnation > known.incarnation or not known.is_good(now_ms):
            raise LeaseLost(f"{request.holder_id} has no good lease on {request.context_id}")
        return known

    def _begun(self, request: HolderRequest) -> HolderState:
        """A new lease. Whatever an older one or an older process held, it holds no more."""
        before = self.holders.get(request.holder_id)
        holder = HolderState(incarnation=request.incarnation)
        if before is not None and before.incarnation == request.incarnation:
            holder.operation = before.operation
        self.holders[request.holder_id] = holder
        return holder

    def _tidy(self, now_ms: int) -> None:
        """Ends leases that have run out, and shortens those that end later than any can: a server whose clock
        was ahead of this one's has written them.
        """
        for holder in self.holders.values():
            if holder.ends_ms is None:
                continue
            if holder.ends_ms <= now_ms:
                holder.end_lease(now_ms)
            else:
                holder.ends_ms = min(holder.ends_ms, now_ms + MAX_TTL_MS)

    def _add(self, holder: HolderState, pins: Iterable[Pin], operation: int, now_ms: int) -> None:
        for pin in pins:
            version = (pin.span_id, pin.version)
            before = holder.held.get(version)
            if before is None:
                before = HeldPin(pin.cost, now_ms, operation)
            holder.held[version] = replace(before, cost=pin.cost)
            self.marks.pop(version, None)
