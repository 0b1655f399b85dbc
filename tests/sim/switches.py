"""How each guard of the protocol is switched off: at its one place in the real code, by the test.

Nothing in the product knows of it.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from sexton.core import collection
from sexton.core.collection import Version
from sexton.core.lease import PinBook
from sexton.core.pins import EMPTY_DIGEST, PinsDigest, pins_digest
from sexton.core.registry import HolderState, RegistryState
from sexton.core.sweep import LivePin, Observation, Step, SweepRules, judge_stone, still_free
from sexton.core.tree import Tombstone
from sexton.schemas.leases import HeartbeatRequest, LeaseReply, PinRequest
from sexton.schemas.span import SpanState
from sexton.worker import collect
from sexton.worker.collect import Collector, StoneReport, SweepReport
from sexton.worker.contexts import Known
from sexton.worker.holdings import Change
from sexton.worker.leases import Leases
from tests.sim.memory_registry import MemoryRegistry

Patch = pytest.MonkeyPatch


def never_wait(patch: Patch) -> None:
    """A mark is enough."""

    def judged(version: Version, stone: Tombstone, seen: Observation, rules: SweepRules) -> Step:
        step = judge_stone(version, stone, seen, rules)
        return Step.ANNOUNCE if step in (Step.WAIT_QUIET, Step.WAIT_HOLD_BACK) else step

    patch.setattr(collect, "judge_stone", judged)


def no_hold_back(patch: Patch) -> None:
    """A registry that has just lost all it had is taken at its word."""

    def judged(version: Version, stone: Tombstone, seen: Observation, rules: SweepRules) -> Step:
        return judge_stone(version, stone, seen, replace(rules, hold_back_ms=0))

    patch.setattr(collect, "judge_stone", judged)


def one_generation(patch: Patch) -> None:
    """A registry that fails over, or restarts, does not say so."""
    patch.setattr(MemoryRegistry, "_new_server", lambda self: "the same")


def no_generation_check(patch: Patch) -> None:
    """The second check does not ask for the generation."""
    patch.setattr(collect, "still_free", lambda version, marked_in, seen: not seen.pins.get(version))


def no_second_check(patch: Patch) -> None:
    """The second check does not ask for pins."""

    def free(version: Version, marked_in: str, seen: Observation) -> bool:
        return still_free(version, marked_in, replace(seen, pins={}))

    patch.setattr(collect, "still_free", free)


def no_digest(patch: Patch) -> None:
    """All sets of pins look alike."""
    patch.setattr(PinsDigest, "value", lambda digest: EMPTY_DIGEST)


def no_pending_in_digest(patch: Patch) -> None:
    """A pin counts once it is granted."""
    common = PinBook._common

    def without(book: PinBook) -> Any:
        granted = [pin for pin in book.claims() if book._claims[pin.span_id, pin.version].granted]
        return common(book) | {"digest": pins_digest(granted)}

    patch.setattr(PinBook, "_common", without)


def log_before_registry(patch: Patch) -> None:
    """A pin reads the log first, and writes the registry then."""

    async def pin(leases: Leases, request: PinRequest) -> LeaseReply:
        known = await leases._contexts.refresh(request.context_id)
        granted, refused = await leases._judged(known.tree, request, request.pins)
        taken = (await leases._registry.pin(request)).taken
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=request.operation,
            granted=granted if taken else (),
            refused=refused,
            announce=not taken,
        )

    patch.setattr(Leases, "pin", pin)


def any_attempt(patch: Patch) -> None:
    """A collector may call off and condemn what another one has announced."""
    patch.setattr(collection, "_is_of", lambda stone, attempt: stone.state is SpanState.COLLECTING)


def no_condemning(patch: Patch) -> None:
    """What was free at the second check is deleted right then."""

    async def collected(
        collector: Collector, context_id: str, judged: list[StoneReport], report: SweepReport
    ) -> None:
        ready = [stone.version for stone in judged if stone.step is Step.ANNOUNCE]
        if not ready:
            return
        marked_in = judged[0].seen.generation
        record = await collector._commit(
            context_id, lambda tree: collection.announce(tree, ready, "uncondemned")
        )
        if record is None:
            return
        seen = await collector._registry.observe(context_id, ready, mark=False)
        for stone in judged:
            if stone.version in ready and still_free(stone.version, marked_in, seen):
                await collector._cold.delete(context_id, stone.stone.identity)

    patch.setattr(Collector, "_collect", collected)


def any_heartbeat_is_heard(patch: Patch) -> None:
    """A heartbeat counts for the quiet, whatever set it claims."""
    beat = RegistryState.beat

    def heard(state: RegistryState, request: HeartbeatRequest, now_ms: int) -> tuple[int, bool]:
        result = beat(state, request, now_ms)
        holder = state.holders[request.holder_id]
        holder.agreed_ms, holder.agreed_in = now_ms, state.generation
        return result

    patch.setattr(RegistryState, "beat", heard)


def any_heartbeat_renews(patch: Patch) -> None:
    """A holder counts its lease from every heartbeat that was answered."""
    taken_in = PinBook.on_heartbeat

    def renewed(book: PinBook, request: HeartbeatRequest, reply: LeaseReply, sent_at: float) -> Any:
        result = taken_in(book, request, reply, sent_at)
        book.valid_until = max(book.valid_until, sent_at + book.ttl_ms / 1000)
        return result

    patch.setattr(PinBook, "on_heartbeat", renewed)


def every_digest_is_believed(patch: Patch) -> None:
    """The registry does not ask whether operations are missing before the one it takes in."""

    def noted(holder: HolderState, operation: int, digest: str) -> None:
        holder.operation, holder.digest = operation, digest

    patch.setattr(HolderState, "note_operation", noted)


def refusals_take_back_all(patch: Patch) -> None:
    """A refusal drops what was granted before, too."""
    withdraw = RegistryState.withdraw

    def withdrawn(state: RegistryState, request: Any, versions: Sequence[Any]) -> None:
        holder = state.holders.get(request.holder_id)
        for version in versions:
            key = (version.span_id, version.version)
            if holder is not None and key in holder.held:
                holder.held[key] = replace(holder.held[key], operation=request.operation)
        withdraw(state, request, versions)

    patch.setattr(RegistryState, "withdraw", withdrawn)


def leases_forget_operations(patch: Patch) -> None:
    """A new lease takes any announcement for the newest."""
    begun = RegistryState._begun

    def forgetful(state: RegistryState, request: Any) -> HolderState:
        holder = begun(state, request)
        holder.operation = 0
        return holder

    patch.setattr(RegistryState, "_begun", forgetful)


def no_notes(patch: Patch) -> None:
    """A command reads the pins, and says nothing."""

    def change(
        state: RegistryState, token: str, versions: Sequence[Version], now_ms: int
    ) -> dict[Version, tuple[LivePin, ...]]:
        return {version: state.live(version, now_ms) for version in versions}

    patch.setattr(RegistryState, "change", change)


def no_waiting(patch: Patch) -> None:
    """A pin is granted, whatever is about to change."""
    patch.setattr(RegistryState, "changing", lambda state, pins, now_ms: {})


def no_renewal(patch: Patch) -> None:
    """A reading is good for ever."""
    patch.setattr(Change, "is_fresh", True)


def cleared_while_sent(patch: Patch) -> None:
    """A command that is through clears its note, though a record of it may still be on its way."""
    over = Change.over

    def cleared(change: Change, known: Known | None = None) -> None:
        change.stored()
        over(change, known)

    patch.setattr(Change, "over", cleared)


def log_before_the_wait(patch: Patch) -> None:
    """A pin reads the log's head, and waits for the notes to go then."""

    async def pin(leases: Leases, request: PinRequest) -> LeaseReply:
        answer = await leases._registry.pin(request)
        known = await leases._contexts.refresh(request.context_id)
        await leases._in_change(request.context_id, answer.changing)
        granted, refused = await leases._judged(known.tree, request, request.pins)
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=request.operation,
            granted=granted,
            refused=refused,
        )

    patch.setattr(Leases, "pin", pin)


def any_answer_grants(patch: Patch) -> None:
    """A grant is taken for the claim there is, whichever claim it answers."""
    take_in = PinBook._take_in

    def taken(book: PinBook, reply: LeaseReply) -> Any:
        for claim in book._claims.values():
            claim.asked = 0
        return take_in(book, reply)

    patch.setattr(PinBook, "_take_in", taken)
