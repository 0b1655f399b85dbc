"""I4 and I5 under chaos: workers, holders, the registry, the network and time do what they like.

Then all is quiet, holders let go or die, and within a few sweeps every tombstone is collected, its bytes are
gone, and the log says how many there were. `SEXTON_HYPOTHESIS=thorough` tries many more.
"""

import random

import pytest

from tests.sim.chaos import Chaos
from tests.sim.effort import PATIENCE, THOROUGH, effort
from tests.sim.seeded import Seeded
from tests.sim.world import World

GROUPS = 8
SEEDS = effort(80, 4_000)
STEPS = effort(250, 500)


@PATIENCE
@pytest.mark.parametrize("group", range(GROUPS))
def test_nothing_held_is_deleted_and_nothing_free_is_kept(group: int) -> None:
    """I4 after every step, I5 at the end."""
    collected = 0
    first = random.randrange(10**9) if THOROUGH else 0
    for seed in range(first + group, first + SEEDS, GROUPS):
        with World() as world:
            chaos = Chaos(world, Seeded(seed))
            chaos.begin()
            for step in range(STEPS):
                chaos.step()
                assert [] == world.stores.violations, f"seed {seed}, step {step}\n{world.story()}"
            chaos.end(release=seed % 2 == 0)
            collected += world.stores.freed_bytes > 0
    assert collected >= SEEDS // GROUPS // 2, "there was little to do"


def test_a_seed_is_a_schedule() -> None:
    """What was found once can be looked at."""

    def story(seed: int) -> list[str]:
        with World() as world:
            chaos = Chaos(world, Seeded(seed))
            chaos.begin()
            for _ in range(100):
                chaos.step()
            return world.gates.trace

    assert story(7) == story(7)
    assert story(7) != story(8)
