"""The guards of the collection protocol: how to switch off each of them, and a schedule that needs it.

The first nine are those of the checked model, and their schedules are its shortest runs, step by step, in
the words of the real code: what the model calls `c1:ready` is a collector that waits to commit `collecting`;
its `c1:still-free` is one that waits to commit `condemned`; its `pin:add` is a pin that is in the registry
and waits to read the log's head. The others are guards that the model takes for granted, because there a
heartbeat is one step, a message is never late, and an answer never lost.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sexton.schemas.leases import PinCost
from tests.sim.holder import SimHolder
from tests.sim.switches import (
    Patch,
    any_answer_grants,
    any_attempt,
    any_heartbeat_is_heard,
    any_heartbeat_renews,
    every_digest_is_believed,
    leases_forget_operations,
    log_before_registry,
    never_wait,
    no_condemning,
    no_digest,
    no_generation_check,
    no_hold_back,
    no_pending_in_digest,
    no_second_check,
    one_generation,
    refusals_take_back_all,
)
from tests.sim.world import QUIET_MS, TTL_MS, World

OLD: Final = ("l0:a", 1)
"""The version that all is about: a tombstone."""
OTHER: Final = ("l0:b", 1)


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
