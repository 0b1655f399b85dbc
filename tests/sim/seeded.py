"""Choices by a seed: the same seed, the same schedule."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from tests.sim.chaos import Chaos
from tests.sim.world import World

T = TypeVar("T")


class Seeded:
    """A `Chooser` by a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def pick(self, among: Sequence[T]) -> T:
        return self._random.choice(among)

    def weighted(self, among: Sequence[T], weights: Sequence[float]) -> T:
        return self._random.choices(among, weights)[0]

    def seldom(self, chance: float) -> bool:
        return self._random.random() < chance


@dataclass(frozen=True)
class Broken:
    """A schedule that breaks something."""

    seed: int
    steps: int
    what: str
    story: str


def first_violation(seed: int, steps: int, **limits: int) -> Broken | None:
    """Runs a schedule until the first violation of I4; None if there is none in so many steps."""
    with World() as world:
        chaos = Chaos(world, Seeded(seed), **limits)
        chaos.begin()
        for step in range(steps):
            chaos.step()
            if broken := [what for what in world.stores.violations if what.startswith("I4")]:
                return Broken(seed, step, broken[0], world.story())
    return None
