"""Chaos: a schedule made of choices, by whoever makes them: a seeded generator, or hypothesis."""

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeVar

from sexton.core.collection import Version
from sexton.schemas.codec import AnyCommand
from sexton.schemas.leases import PinCost
from tests.sim.gates import Way
from tests.sim.holder import SimHolder
from tests.sim.world import TTL_MS, World

T = TypeVar("T")

HOUR_MS: Final = 3_600_000
SPANS: Final = ("l0:a", "l0:b")


class Chooser(Protocol):
    """Makes the choices."""

    def pick(self, among: Sequence[T]) -> T:
        """One of these."""
        ...

    def weighted(self, among: Sequence[T], weights: Sequence[float]) -> T:
        """One of these, the heavier ones more often."""
        ...


class Chaos:
    """Does one thing after another to a world, each possible at its time.

    Args:
        world: what it is done to.
        choose: makes the choices.
        losses: how often the registry may be lost or replaced.
        versions: how many versions of all spans there may be.
    """

    def __init__(self, world: World, choose: Chooser, *, losses: int = 3, versions: int = 8) -> None:
        self.world = world
        self.choose = choose
        self.losses = losses
        self.versions = versions
        self.skewed = False
        self._commands: list[AnyCommand] = []
        self._focus = ""

    def begin(self) -> None:
        """Two spans, one of them rewritten; two holders, one with a pin on what is current."""
        world = self.world
        world.append("a", "b")
        for name in ("h1", "h2"):
            world.registered(name)
        world.rewrite("l0:a")
        world.holders["h1"].pin(("l0:b", 1))
        world.finish("h1.op")
        world.replicate()

    def step(self) -> None:
        """One thing."""
        does, weights = zip(*self._possible(), strict=True)
        self.choose.weighted(does, weights)()

    def _possible(self) -> list[tuple[Callable[[], None], float]]:
        world = self.world
        found: list[tuple[Callable[[], None], float]] = [
            (self._time_passes, 7),
            (world.replicate, 2),
            (self._a_worker_dies, 0.5),
            (self._a_holder_is_replaced, 0.6),
            (self._a_holder_acts, 14),
        ]
        if world.gates.waiting:
            found.append((self._somebody_goes_on, 75))
        if world.gates.ghosts:
            found.append((self._a_ghost_walks, 3))
        if self.losses:
            found.append((self._the_registry_is_lost, 1))
        if idle := [actor for actor in ("c1", "c2") if not world.gates.of(actor)]:
            found.append((lambda: world.sweep(self.choose.pick(idle)), 9))
        if len(idle) < 2:
            found.append((self._a_collector_dies, 0.7))
        if len(world.stores.sizes) < self.versions:
            found.append((self._a_command_comes, 4))
        if self._commands:
            found.append((self._a_command_comes_again, 0.7))
        return found

    # --- what may happen ---

    def _somebody_goes_on(self) -> None:
        waiting = self.world.gates.waiting
        mine = [here for here in waiting if here.actor == self._focus]
        if not mine or self.choose.weighted((True, False), (3, 7)):
            mine = waiting
        here = self.choose.pick(mine)
        self._focus = here.actor
        way = Way.THROUGH
        if self.choose.weighted((False, True), (14, 1)):
            way = self.choose.pick(here.ways)
        self.world.let(here, way)

    def _a_ghost_walks(self) -> None:
        self.world.gates.haunt(self.choose.pick(self.world.gates.ghosts))
        self.world.look()

    def _time_passes(self) -> None:
        times = (1, 400, 1_500, 2_500, TTL_MS // 2, TTL_MS - 1, TTL_MS + 2_500)
        self.world.elapse(self.choose.weighted(times, (5, 5, 5, 5, 3, 1, 1)))

    def _a_holder_acts(self) -> None:
        everybody = [*self.world.holders.values(), *self.world.zombies]
        if not everybody:
            self.world.start_holder("h1", incarnation=100)
            return
        holder = self.choose.pick(everybody)
        does, weights = zip(*self._possible_of(holder), strict=True)
        self.choose.weighted(does, weights)()

    def _possible_of(self, holder: SimHolder) -> list[tuple[Callable[[], None], float]]:
        found: list[tuple[Callable[[], None], float]] = [(lambda: None, 0.1)]
        if holder.book.fenced_by is not None:
            return found
        tries = self.choose.pick((1, 1, 2))
        found += [
            (lambda lane=lane: holder.beat(lane), weight)  # type: ignore[misc]
            for lane, weight in (("beat", 6), ("beat2", 1))
            if not holder.is_busy(lane)
        ]
        if holder.asking:
            found.append((lambda: holder.give_up(self.choose.pick(list(holder.asking))), 2))
        if not holder.is_busy("op"):
            found.append((lambda: holder.pin(self._any_version(), cost=self._any_cost(), tries=tries), 6))
            claims: list[Version] = [(pin.span_id, pin.version) for pin in holder.book.claims()]
            if claims:
                found.append((lambda: holder.let_go(self.choose.pick(claims), tries=tries), 3))
        return found

    def _any_version(self) -> Version:
        """Mostly of those that are there; old ones, too."""
        return self.choose.pick(sorted(self.world.stores.sizes))

    def _any_cost(self) -> PinCost:
        return self.choose.pick((PinCost.CHEAP, PinCost.CHEAP, PinCost.EXPENSIVE))

    def _a_command_comes(self) -> None:
        world = self.world
        span_id = self.choose.pick(SPANS)
        prune = self.choose.weighted((False, True), (9, 1))
        command: AnyCommand = world.pruning(span_id) if prune else world.rewriting(span_id)
        self._commands.append(command)
        world.command(self._a_worker(), command)

    def _a_command_comes_again(self) -> None:
        self.world.command(self._a_worker(), self.choose.pick(self._commands), redelivered=True)

    def _a_worker_dies(self) -> None:
        self.world.crash_worker(self._a_worker())

    def _a_worker(self) -> str:
        return self.choose.pick(("w1", "w2"))

    def _a_collector_dies(self) -> None:
        self.world.kill(self.choose.pick(("c1", "c2")))

    def _a_holder_is_replaced(self) -> None:
        if self.world.holders:
            name = self.choose.pick(sorted(self.world.holders))
            self.world.restart_holder(name, zombie=self.choose.weighted((False, True), (3, 1)))

    def _the_registry_is_lost(self) -> None:
        self.losses -= 1
        if self.choose.weighted((False, True), (3, 1)):
            self.world.flush()
            return
        skew_ms = self.choose.weighted((self.world.skew_ms, HOUR_MS, -HOUR_MS, 0), (5, 1, 1, 1))
        self.skewed = self.skewed or skew_ms != self.world.skew_ms
        self.world.fail_over(self.choose.pick(self.world.copies), skew_ms=skew_ms)

    # --- the end ---

    def end(self, *, release: bool) -> None:
        """I5: the chaos stops, holders let go or die, and all is collected in a bounded time."""
        world = self.world
        world.calm_down()
        if release:
            world.release_all()
        else:
            world.all_die()
        if self.skewed:
            # Leases that a server with a clock ahead has written are cut at the first sweep.
            world.sweep("c1")
            world.finish("c1")
            world.elapse(300_000)
        world.collect_all()
        world.assert_sound()
        world.assert_all_freed()
