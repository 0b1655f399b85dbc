"""The registry and the sweep index in memory, on a clock that is passed in.

The rules are `sexton.core.registry`'s, the second implementation of `registry.lua`; the contract tests run
both through the same cases and side by side. What is added here is what a server does: it holds many
contexts, and it can be emptied, restarted, and replaced by an older copy of itself.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sexton.core.collection import Version
from sexton.core.pins import Pins, highest
from sexton.core.registry import RegistryState
from sexton.core.sweep import LivePin, Observation
from sexton.schemas.leases import (
    MAX_TTL_MS,
    HeartbeatRequest,
    HolderRequest,
    LeaseInfo,
    PinInfo,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion
from sexton.worker.adapters.sweep_index import NOTED_FOR_S
from sexton.worker.ports import Beat, LivePins, Taken
from sexton.worker.shards import shard_of


@dataclass(slots=True)
class Data:
    """All that a server holds: what a copy, a restart from disk, or nothing is left of."""

    contexts: dict[str, tuple[str, RegistryState]] = field(default_factory=dict)
    """Each with the server that its generation began on."""
    noted: dict[str, int] = field(default_factory=dict)
    complete: tuple[str, str] | None = None
    """On which server, and since when not (empty: it is)."""
    locks: dict[int, tuple[str, int]] = field(default_factory=dict)

    def copy(self) -> "Data":
        return Data(
            {name: (server, state.copy()) for name, (server, state) in self.contexts.items()},
            dict(self.noted),
            self.complete,
            dict(self.locks),
        )


class MemoryRegistry:
    """`Registry` and `SweepIndex` in memory.

    Args:
        now_ms: the server's clock.
    """

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._data = Data()
        self._began = 0
        self._server = self._new_server()
        self._incomplete_since = ""

    # --- what happens to servers -----------------------------------------------------------------------

    def snapshot(self) -> Data:
        """A copy of all there is, as a replica or a disk may have it later."""
        return self._data.copy()

    def flush(self) -> None:
        """FLUSHALL: everything is gone; the server stays the same."""
        self._data = Data()

    def fail_over(self, copy: Data) -> None:
        """Another server takes over, with an older copy; or this one restarts from its disk."""
        self._data = copy.copy()
        self._server = self._new_server()

    def _new_server(self) -> str:
        """What tells one server, and one life of it, from another."""
        self._began += 1
        return f"server-{self._began}"

    def _state(self, context_id: str) -> RegistryState:
        """The context's registry, in its generation."""
        server, state = self._data.contexts.get(context_id, ("", None))
        if state is None:
            state = RegistryState("", 0)
        if server != self._server:
            self._began += 1
            state.generation, state.began_ms = f"{self._server}-{self._began}", self._now_ms()
            self._data.contexts[context_id] = (self._server, state)
        return state

    # --- `Registry` ------------------------------------------------------------------------------------

    async def beat(self, request: HeartbeatRequest) -> Beat:
        state, now_ms = self._state(request.context_id), self._now_ms()
        operation, announce = state.beat(request, now_ms)
        taken = request.pins is not None and not request.leave and operation == request.operation
        return Beat(operation, announce, state.changing(request.pins or (), now_ms) if taken else {})

    async def pin(self, request: PinRequest) -> Taken:
        state, now_ms = self._state(request.context_id), self._now_ms()
        taken = state.pin(request, now_ms)
        return Taken(taken, state.changing(request.pins, now_ms) if taken else {})

    async def release(self, request: ReleaseRequest) -> bool:
        return self._state(request.context_id).release(request, self._now_ms())

    async def withdraw(self, request: HolderRequest, versions: Sequence[SpanVersion]) -> None:
        self._state(request.context_id).withdraw(request, versions)

    async def live(self, context_id: str, versions: Sequence[Version]) -> LivePins:
        state, now_ms = self._state(context_id), self._now_ms()
        return self._live(state, {version: state.live(version, now_ms) for version in versions})

    async def change(self, context_id: str, versions: Sequence[Version], token: str) -> LivePins:
        state = self._state(context_id)
        return self._live(state, state.change(token, versions, self._now_ms()) if versions else {})

    def _live(self, state: RegistryState, live: Mapping[Version, tuple[LivePin, ...]]) -> LivePins:
        if not live:
            return LivePins(pins={}, age_ms=MAX_TTL_MS)
        pins: Pins = {
            version: cost
            for version, found in live.items()
            if (cost := highest(pin.cost for pin in found)) is not None
        }
        return LivePins(pins=pins, age_ms=self._now_ms() - state.began_ms)

    async def changed(self, context_id: str, token: str) -> None:
        self._state(context_id).changed(token)

    async def standing(self, context_id: str, tokens: Iterable[str]) -> frozenset[str]:
        return self._state(context_id).standing(tokens, self._now_ms())

    async def observe(self, context_id: str, versions: Sequence[Version], *, mark: bool) -> Observation:
        return self._state(context_id).observe(versions, self._now_ms(), mark=mark)

    async def generation(self, context_id: str) -> str:
        return self._state(context_id).generation

    async def born(self, context_id: str, generation: str) -> None:
        state = self._state(context_id)
        if state.generation == generation:
            state.began_ms = 0

    async def unmark(self, context_id: str, versions: Sequence[Version]) -> None:
        for version in versions:
            self._state(context_id).marks.pop(version, None)

    async def holders(self, context_id: str) -> list[LeaseInfo]:
        now_ms, state = self._now_ms(), self._state(context_id)
        return [
            LeaseInfo(
                holder_id=holder_id,
                incarnation=holder.incarnation,
                expires_in_ms=holder.ends_ms - now_ms,
                beat_ms_ago=max(0, now_ms - holder.beat_ms),
                pins=len(holder.held),
                agreed_ms_ago=max(0, now_ms - holder.agreed_ms)
                if holder.agreed_in == state.generation
                else None,
            )
            for holder_id, holder in state.holders.items()
            if holder.ends_ms is not None
        ]

    async def held(self, context_id: str) -> list[PinInfo]:
        now_ms = self._now_ms()
        return [
            PinInfo(
                span_id=span_id,
                version=version,
                cost=pin.cost,
                holder_id=holder_id,
                held_for_ms=max(0, now_ms - pin.since_ms),
            )
            for holder_id, holder in self._state(context_id).holders.items()
            if holder.is_good(now_ms)
            for (span_id, version), pin in holder.held.items()
        ]

    # --- `SweepIndex` ----------------------------------------------------------------------------------

    async def note(self, context_ids: Sequence[str]) -> None:
        self._data.noted.update(dict.fromkeys(context_ids, self._now_ms() // 1000))

    async def drop(self, context_id: str) -> None:
        noted = self._data.noted.get(context_id)
        if noted is not None and noted < self._now_ms() // 1000 - NOTED_FOR_S:
            del self._data.noted[context_id]

    async def contexts(self, shard: int, limit: int) -> list[str]:
        ours = [(noted, name) for name, noted in self._data.noted.items() if shard_of(name) == shard]
        return [name for _, name in sorted(ours)[:limit]]

    async def complete(self) -> bool:
        known = self._data.complete
        if known is None or known[0] != self._server:
            self._began += 1
            self._data.complete = known = (self._server, f"since-{self._began}")
        self._incomplete_since = known[1]
        return not known[1]

    async def set_complete(self) -> None:
        if self._data.complete == (self._server, self._incomplete_since):
            self._data.complete = (self._server, "")

    async def lock(self, shard: int, token: str, for_s: float) -> bool:
        holder, until_ms = self._data.locks.get(shard, ("", 0))
        if holder != token and until_ms > self._now_ms():
            return False
        self._data.locks[shard] = (token, self._now_ms() + int(for_s * 1000))
        return True

    async def unlock(self, shard: int, token: str) -> None:
        if self._data.locks.get(shard, ("", 0))[0] == token:
            del self._data.locks[shard]
