"""Each guard of the protocol is needed: without it its schedule deletes what a holder counts on.

Where the code differs from the checked model, and why it is at least as strong:

- *One mark for all collectors*, in the registry, where the model has one in each collector's memory. The mark
  says: unpinned at every moment since, in this generation. A pin clears it, whoever set it. So a collector
  that goes on from another's mark has waited longer than one that goes on from its own.
- *Times, where the model has flags.* "Has beaten since the mark" is a heartbeat stamped later than the mark,
  by the registry's own clock, in the same script that takes it in. A heartbeat in the same millisecond does
  not count. Besides, a mark must be older than the quiet time.
- *Holding back, where the model looks into the holders.* In the model a collector waits for every holder
  whose lease is good by its *own* count, though the registry may not know of it. Nobody can ask such a
  holder. Instead nothing is announced for the longest lease after a generation began: by then each of them
  has been heard in this generation, or has stopped counting on its lease. It rests on two things: leases are
  never longer than that, and a heartbeat renews a lease, by the holder's count, only if the registry agreed
  with its digest (`agreed-renewal`).
- *Repairing is two steps, where the model has one.* There, a heartbeat with another digest restores the pins
  at once. Here the registry answers "announce", and the pins are back with the next heartbeat. In between,
  the first one counts neither for the quiet (`agreed-quiet`) nor for the lease (`agreed-renewal`).
- *The digest is of a whole set, where the model compares one pin.* It is stored as the holder tells it, with
  an operation; so it is believed only while no operation is missing (`unbroken-digest`).
- *Answers get lost, where a step of the model tells both sides.* A refusal takes back only what its own
  operation had added (`withdraw-own`), and messages that come late or twice are told by their numbers
  (`remembered-operations`, `answered-claim`); what the numbers do not tell, the quiet does (`agreed-quiet`).

`mark-cleared` is in the model to save work, and is not needed there. Here it is what makes a shared mark mean
what it says.
"""

import pytest

from tests.sim.guards import GUARDS, MODEL, OLD, Guard
from tests.sim.seeded import first_violation
from tests.sim.world import World

EACH = pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS.keys())


def test_the_guards_are_those_of_the_model() -> None:
    """None is forgotten."""
    named = "quiet generation gen-recheck recheck digest pending-in-digest pin-order attempt condemn"
    assert set(named.split()) == MODEL


@EACH
def test_with_its_guard_a_schedule_does_no_harm(guard: Guard) -> None:
    """I4, and I5 afterwards: once the holder has let go, all is collected."""
    with World() as world:
        guard.schedule(world)
        world.assert_sound()
        world.calm_down()
        world.release_all()
        world.collect_all()
        world.assert_sound()
        world.assert_all_freed()


@EACH
def test_without_its_guard_it_deletes_what_is_held(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4 broken: by this schedule, for want of this one guard."""
    guard.off(monkeypatch)
    with World() as world:
        guard.schedule(world)
        assert any(what.startswith("I4") and str(OLD) in what for what in world.stores.violations), (
            world.story()
        )


FOUND = ("quiet", "condemn", "hold-back")
"""Those that turn up soon; the others take a schedule that is seldom hit upon."""


@pytest.mark.parametrize("name", FOUND)
def test_without_a_guard_chaos_finds_it_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I4 broken: a search that knows of no guard sees that one is missing."""
    GUARDS[name].off(monkeypatch)
    assert any(first_violation(seed, steps=400) for seed in range(400))
