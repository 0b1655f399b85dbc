"""The guards of the collection protocol: how to switch off each of them, and a schedule that needs it.

The first nine are those of the checked model, and their schedules are its shortest runs, step by step, in
the words of the real code: what the model calls `c1:ready` is a collector that waits to commit `collecting`;
its `c1:still-free` is one that waits to commit `condemned`; its `pin:add` is a pin that is in the registry
and waits to read the log's head. The others are guards that the model takes for granted, because there a
heartbeat is one step, a message is never late, and an answer never lost.

A guard is switched off at its one place in the real code, by the test. Nothing in the product knows of it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pytest

from sexton.core import collection, lease
from sexton.core.collection import Version
from sexton.core.lease import PinBook
from sexton.core.pins import pins_digest
from sexton.core.registry import HolderState, RegistryState
from sexton.core.sweep import Observation, Step, SweepRules, judge_stone, still_free
from sexton.core.tree import Tombstone
from sexton.schemas.leases import HeartbeatRequest, LeaseReply, PinCost, PinRequest
from sexton.schemas.span import SpanState
from sexton.worker import collect
from sexton.worker.collect import Collector, StoneReport, SweepReport
from sexton.worker.leases import Leases
from tests.sim.holder import SimHolder
from tests.sim.memory_registry import MemoryRegistry
from tests.sim.world import QUIET_MS, TTL_MS, World

OLD: Final = ("l0:a", 1)
"""The version that all is about: a tombstone."""
OTHER: Final = ("l0:b", 1)

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Guard:
    """One guard."""

    name: str
    off: Callable[[Patch], None]
    schedule: Callable[[World], None]


GUARDS: Final[dict[str, Guard]] = {}


def guard(
    name: str, off: Callable[[Patch], None]
) -> Callable[[Callable[[World], None]], Callable[[World], None]]:
    """The schedule below needs the guard that `off` switches off."""

    def known(schedule: Callable[[World], None]) -> Callable[[World], None]:
        GUARDS[name] = Guard(name, off, schedule)
        return schedule

    return known


# --- how each is switched off ------------------------------------------------------------------------------


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
    patch.setattr(lease, "pins_digest", lambda pins: pins_digest(()))


def no_pending_in_digest(patch: Patch) -> None:
    """A pin counts once it is granted."""
    common = PinBook._common

    def without(book: PinBook) -> Any:
        granted = [pin for pin in book.claims() if book._claims[pin.span_id, pin.version].proven]
        return common(book) | {"digest": pins_digest(granted)}

    patch.setattr(PinBook, "_common", without)


def log_before_registry(patch: Patch) -> None:
    """A pin reads the log first, and writes the registry then."""

    async def pin(leases: Leases, request: PinRequest) -> LeaseReply:
        known = await leases._contexts.refresh(request.context_id)
        granted, refused = await leases._judged(known.tree, request, request.pins)
        taken = await leases._registry.pin(request)
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


def any_answer_grants(patch: Patch) -> None:
    """A grant is taken for the claim there is, whichever claim it answers."""
    take_in = PinBook._take_in

    def taken(book: PinBook, reply: LeaseReply) -> Any:
        for claim in book._claims.values():
            claim.asked = 0
        return take_in(book, reply)

    patch.setattr(PinBook, "_take_in", taken)


# --- the schedules of the model ----------------------------------------------------------------------------


def begin(world: World, *, holder: bool = True) -> SimHolder:
    """A tombstone, and a holder with a good lease and no pins."""
    world.append("a", "b")
    world.rewrite("l0:a")
    return world.registered("h1") if holder else world.start_holder("h1")


def marked_and_quiet(world: World, holder: SimHolder) -> None:
    """`c1:mark > beat`, and the time that a mark must stand."""
    world.sweep("c1")
    world.finish("c1")
    world.elapse(QUIET_MS + 1)
    holder.beat()
    world.finish("h1.beat")


@guard("quiet", never_wait)
def quiet(world: World) -> None:
    """A fail-over loses a pin that was granted a moment ago; the next sweep finds nothing."""
    holder = begin(world)
    world.replicate()
    holder.pin(OLD)
    world.run("h1.op", "log.head")
    world.fail_over()
    world.finish("h1.op")
    world.sweep("c1")
    world.finish("c1")
    world.sweep("c1")
    world.finish("c1")


def lost_between_the_checks(world: World) -> None:
    """A pin is granted after the first look and lost by a fail-over before the second one."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    world.replicate()
    holder.pin(OLD)
    world.sweep("c1")
    world.run("c1", "log.append:collecting")
    world.run("h1.op", "log.head")
    world.fail_over()
    world.finish("h1.op")
    world.finish("c1")


guard("generation", one_generation)(lost_between_the_checks)
guard("gen-recheck", no_generation_check)(lost_between_the_checks)


@guard("recheck", no_second_check)
def recheck(world: World) -> None:
    """C104: a pin is granted between the first look and the announcement."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    holder.pin(OLD)
    world.sweep("c1")
    world.run("c1", "log.append:collecting")
    world.finish("h1.op")
    world.finish("c1")


@guard("digest", no_digest)
def digest(world: World) -> None:
    """A fail-over loses a pin, and the holder goes on to renew its lease for longer than is held back."""
    holder = begin(world)
    world.replicate()
    holder.pin(OLD)
    world.run("h1.op", "log.head")
    world.fail_over()
    world.finish("h1.op")
    world.sweep("c1")
    world.finish("c1")
    world.elapse(TTL_MS - 1_000)
    holder.beat()
    world.finish("h1.beat")
    world.elapse(2_000)
    world.sweep("c1")
    world.finish("c1")


@guard("pending-in-digest", no_pending_in_digest)
def pending(world: World) -> None:
    """As before, and the heartbeat is sent while the grant is still on its way."""
    holder = begin(world)
    world.replicate()
    holder.pin(OLD)
    world.run("h1.op", "log.head")
    world.fail_over()
    world.run("h1.op", "net.reply")
    world.sweep("c1")
    world.finish("c1")
    world.elapse(TTL_MS - 1_000)
    holder.beat()
    world.finish("h1.beat")
    world.finish("h1.op")
    world.elapse(2_000)
    world.sweep("c1")
    world.finish("c1")


@guard("pin-order", log_before_registry)
def pin_order(world: World) -> None:
    """C99: a pin has read the log before the announcement, and is written after the second check."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    holder.pin(OLD)
    world.run("h1.op", "registry.pin")
    world.sweep("c1")
    world.run("c1", "log.append:condemned")
    world.finish("h1.op")
    world.finish("c1")


@guard("attempt", any_attempt)
def attempt(world: World) -> None:
    """A collector calls off what another announced, and that one condemns what was announced after."""
    holder = begin(world, holder=False)
    world.sweep("c1")
    world.finish("c1")
    world.elapse(QUIET_MS + 1)
    world.sweep("c1")
    world.run("c1", "log.append:collecting")
    world.replicate()
    world.fail_over()
    world.run("c1", "registry.observe")
    world.sweep("c2")
    world.finish("c2")
    world.elapse(TTL_MS + QUIET_MS)
    world.sweep("c2")
    world.run("c2", "log.append:condemned")
    world.finish("c1")
    world.sweep("c1")
    world.run("c1", "log.append:collecting")
    holder.beat()
    world.finish("h1.beat")
    holder.pin(OLD)
    world.finish("h1.op")
    world.run("c1", "registry.observe")
    world.finish("c2")
    world.finish("c1")


@guard("condemn", no_condemning)
def condemn(world: World) -> None:
    """One collector deletes while another one calls it off, and a pin is granted on bytes that are gone."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    holder.pin(OLD)
    world.sweep("c1")
    world.run("c1", "log.append:condemned", "cold.delete")
    world.run("h1.op", "log.head")
    world.step("c1")
    world.sweep("c2")
    world.finish("c2")
    world.finish("h1.op")
    world.finish("c1")


MODEL: Final = frozenset(GUARDS)
"""The guards that the checked model names."""


# --- what the model takes for granted ----------------------------------------------------------------------


@guard("hold-back", no_hold_back)
def hold_back(world: World) -> None:
    """C100: the registry is emptied. No holder is known any more, so there is none to hear from."""
    holder = begin(world)
    holder.pin(OLD)
    world.finish("h1.op")
    world.flush()
    world.sweep("c1")
    world.finish("c1")
    world.elapse(QUIET_MS + 1)
    world.sweep("c1")
    world.finish("c1")


def a_late_withdrawal(world: World) -> None:
    """A pin is sent twice; refused the first time, granted the second, and then the refusal takes it back."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    world.sweep("c1")
    world.run("c1", "registry.observe")
    world.run("c1", "log.append:collecting")
    world.step("c1")
    holder.pin(OLD, tries=2)
    world.run("h1.op", "registry.withdraw")
    holder.give_up("h1.op")
    world.finish("c1")
    for label in ("net.request", "registry.pin", "log.head", "log.read", "net.reply"):
        world.pass_gate("h1.op", label)
    assert [OLD] == holder.proven()
    world.pass_gate("h1.op", "registry.withdraw")
    world.sweep("c2")
    world.finish("c2")
    world.elapse(QUIET_MS + 1)
    holder.beat()
    world.finish("h1.beat")
    world.sweep("c2")
    world.finish("c2")


guard("agreed-quiet", any_heartbeat_is_heard)(a_late_withdrawal)


@guard("agreed-renewal", any_heartbeat_renews)
def agreed_renewal(world: World) -> None:
    """A heartbeat from before the pin is late, and agrees with the older copy; the next one does not."""
    holder = begin(world)
    world.replicate()
    holder.beat()
    holder.pin(OLD)
    world.finish("h1.op")
    world.fail_over()
    world.sweep("c1")
    world.finish("c1")
    world.elapse(TTL_MS - 1_000)
    world.run("h1.beat", "net.reply")
    holder.beat("beat2")
    world.finish("h1.beat2")
    world.elapse(2_000)
    world.sweep("c1")
    world.finish("c1")


@guard("unbroken-digest", every_digest_is_believed)
def unbroken_digest(world: World) -> None:
    """A fail-over loses a pin; the digest of the next one covers both, and all seems well."""
    holder = begin(world)
    world.replicate()
    holder.pin(OLD)
    world.finish("h1.op")
    world.fail_over()
    holder.pin(OTHER)
    world.finish("h1.op")
    world.sweep("c1")
    world.finish("c1")
    world.elapse(TTL_MS - 1_000)
    holder.beat()
    world.finish("h1.beat")
    world.elapse(2_000)
    world.sweep("c1")
    world.finish("c1")


@guard("withdraw-own", refusals_take_back_all)
def withdraw_own(world: World) -> None:
    """A pin is granted, announced for collection, asked for again, refused, and the refusal is lost."""
    holder = begin(world)
    marked_and_quiet(world, holder)
    world.sweep("c1")
    world.run("c1", "log.append:collecting")
    holder.pin(OLD)
    world.finish("h1.op")
    world.step("c1")
    holder.pin(OLD, cost=PinCost.EXPENSIVE)
    world.run("h1.op", "net.reply")
    world.finish("c1")


@guard("remembered-operations", leases_forget_operations)
def remembered_operations(world: World) -> None:
    """A registration is overtaken by a pin, and by the end of the lease that had that pin."""
    holder = begin(world)
    holder.beat()
    world.elapse(3_000)
    world.finish("h1.beat")
    world.elapse(TTL_MS - 2_500)
    holder.beat()
    holder.pin(OLD)
    world.finish("h1.op")
    world.elapse(3_000)
    world.sweep("c1")
    world.finish("c1")
    world.elapse(1)
    world.finish("h1.beat")
    world.elapse(QUIET_MS + 1)
    world.sweep("c1")
    world.finish("c1")


@guard("answered-claim", any_answer_grants)
def answered_claim(world: World) -> None:
    """C93: a pin is granted, let go of and asked for again; the first grant arrives last."""
    holder = begin(world)
    holder.pin(OLD)
    world.finish("h1.op")
    holder.book.on_no_answer()
    holder.beat("beat2")
    world.run("h1.beat2", "net.reply")
    holder.let_go(OLD)
    world.finish("h1.op")
    holder.beat()
    holder.pin(OLD)
    world.sweep("c1")
    world.finish("c1")
    world.elapse(QUIET_MS + 1)
    world.run("h1.beat", "net.reply")
    world.finish("h1.beat2")
    world.sweep("c1")
    world.finish("c1")
