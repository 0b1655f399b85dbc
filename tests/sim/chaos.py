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
COLLECTORS: Final = ("c1", "c2")

SHORT: Final = (1, 400, 1_500, 2_500)
MIXED: Final = (*SHORT, *SHORT, TTL_MS // 2, TTL_MS // 2, TTL_MS - 1_000, TTL_MS + 2_500)
LONG: Final = (1_500, 2_500, TTL_MS // 2, TTL_MS - 1_000)

_TEMPERS: Final = {
    "somebody_goes_on": 40.0,
    "a_holder_acts": 10.0,
    "a_sweep_begins": 7.0,
    "time_passes": 5.0,
    "a_command_comes": 3.0,
    "a_ghost_walks": 3.0,
    "a_copy_is_made": 2.0,
    "the_registry_is_lost": 1.0,
    "a_command_comes_again": 0.7,
    "a_collector_dies": 0.5,
    "a_worker_dies": 0.4,
    "a_holder_is_replaced": 0.3,
}
"""What may happen, and how likely each is."""


class Chooser(Protocol):
    """Makes the choices."""

    def pick(self, among: Sequence[T]) -> T:
        """One of these."""
        ...

    def weighted(self, among: Sequence[T], weights: Sequence[float]) -> T:
        """One of these, the heavier ones more often."""
        ...

    def seldom(self, chance: float) -> bool:
        """Whether something happens that has this chance."""
        ...


class Chaos:
    """Does one thing after another to a world, each possible at its time.

    Args:
        world: what it is done to.
        choose: makes the choices.
        losses: how often the registry may be lost or replaced.
        versions: how many versions of all spans there may be.
    """

    def __init__(self, world: World, choose: Chooser, *, losses: int = 12, versions: int = 30) -> None:
        self.world = world
        self.choose = choose
        self.losses = losses
        self.versions = versions
        self.skewed = False
        self._commands: list[AnyCommand] = []
        # Every run has a temper of its own: what is rare in one is common in another.
        self._temper = {name: choose.pick((0.5, 1.0, 2.0)) for name in _TEMPERS}
        self._bursts = choose.pick(((1,), (1, 2, 3), (1, 3, 20), (20,)))
        self._keeps_alive = choose.pick((0.0, 0.5, 0.9))
        self._fails = choose.pick((0.0, 0.01, 0.05))
        self._times = choose.pick((SHORT, MIXED, LONG))

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
        names, weights = zip(*self._possible(), strict=True)
        name = self.choose.weighted(names, weights)
        getattr(self, name)()

    def _possible(self) -> list[tuple[str, float]]:
        """What may happen now, and how likely it is."""
        world = self.world
        idle = self._idle()
        now = {
            "somebody_goes_on": bool(world.gates.waiting),
            "a_ghost_walks": bool(world.gates.ghosts),
            "the_registry_is_lost": self.losses > 0,
            "a_sweep_begins": bool(idle),
            "a_collector_dies": len(idle) < len(COLLECTORS),
            "a_command_comes": len(world.stores.sizes) < self.versions,
            "a_command_comes_again": bool(self._commands),
            "a_holder_is_replaced": bool(world.holders),
        }
        likely = {name: weight for name, weight in _TEMPERS.items() if now.get(name, True)}
        return [(name, weight * self._temper[name]) for name, weight in likely.items()]

    def _idle(self) -> list[str]:
        return [actor for actor in COLLECTORS if not self.world.gates.of(actor)]

    # --- what may happen ---

    def somebody_goes_on(self) -> None:
        gates = self.world.gates
        actor = self.choose.pick(gates.waiting).actor
        for _ in range(self.choose.pick(self._bursts)):
            if not (waiting := gates.of(actor)):
                return
            here = self.choose.pick(waiting)
            way = Way.THROUGH
            if self.choose.seldom(self._fails):
                way = self.choose.pick(here.ways)
            self.world.let(here, way)

    def a_sweep_begins(self) -> None:
        self.world.sweep(self.choose.pick(self._idle()))

    def a_copy_is_made(self) -> None:
        self.world.replicate()

    def a_ghost_walks(self) -> None:
        self.world.gates.haunt(self.choose.pick(self.world.gates.ghosts))
        self.world.look()

    def time_passes(self) -> None:
        self.world.elapse(self.choose.pick(self._times))
        for name, holder in self.world.holders.items():
            keeps = self.choose.seldom(self._keeps_alive)
            if keeps and not holder.is_busy("beat") and holder.book.fenced_by is None:
                holder.beat()
                self.world.finish(f"{name}.beat")

    def a_holder_acts(self) -> None:
        everybody = [*self.world.holders.values(), *self.world.zombies]
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
        """Mostly one that may be collected; current ones, and those long gone, too."""
        stones = self.world.tombstones()
        if stones and not self.choose.seldom(0.25):
            return self.choose.pick(stones)
        return self.choose.pick(sorted(self.world.stores.sizes))

    def _any_cost(self) -> PinCost:
        return self.choose.pick((PinCost.CHEAP, PinCost.CHEAP, PinCost.EXPENSIVE))

    def a_command_comes(self) -> None:
        world = self.world
        span_id = self.choose.pick(SPANS)
        prune = self.choose.seldom(0.1)
        command: AnyCommand = world.pruning(span_id) if prune else world.rewriting(span_id)
        self._commands.append(command)
        world.command(self._a_worker(), command)

    def a_command_comes_again(self) -> None:
        self.world.command(self._a_worker(), self.choose.pick(self._commands), redelivered=True)

    def a_worker_dies(self) -> None:
        self.world.crash_worker(self._a_worker())

    def _a_worker(self) -> str:
        return self.choose.pick(("w1", "w2"))

    def a_collector_dies(self) -> None:
        self.world.kill(self.choose.pick([actor for actor in COLLECTORS if actor not in self._idle()]))

    def a_holder_is_replaced(self) -> None:
        name = self.choose.pick(sorted(self.world.holders))
        self.world.restart_holder(name, zombie=self.choose.seldom(0.25))

    def the_registry_is_lost(self) -> None:
        self.losses -= 1
        if self.choose.seldom(0.25):
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
