"""I4 and I5, by a search that shrinks what it finds: hypothesis moves the world of the simulator."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sexton.schemas.leases import PinCost
from tests.sim.effort import PATIENCE, search
from tests.sim.gates import Way
from tests.sim.holder import SimHolder
from tests.sim.world import QUIET_MS, TTL_MS, World

NUMBER = st.integers(min_value=0, max_value=30)
"""Chooses among whatever there is at that step."""
WAYS = st.sampled_from([Way.THROUGH] * 12 + list(Way))
NAMES = st.sampled_from(["h1", "h1", "h2"])
HOUR_MS = 3_600_000


class CollectionMachine(RuleBasedStateMachine):
    """One context with a tombstone, two workers that sweep it, two holders."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.__enter__()
        self.skewed = False

    @initialize()
    def begin(self) -> None:
        self.world.append("a", "b")
        for name in ("h1", "h2"):
            self.world.registered(name)
        self.world.rewrite("l0:a")
        self.world.replicate()

    def holder(self, name: str) -> SimHolder:
        return self.world.holders[name]

    # --- what may happen ---

    @precondition(lambda self: self.world.gates.waiting)
    @rule(number=NUMBER, steps=st.sampled_from([1, 1, 2, 20]), way=WAYS)
    def somebody_goes_on(self, number: int, steps: int, way: Way) -> None:
        gates = self.world.gates
        actor = gates.waiting[number % len(gates.waiting)].actor
        for _ in range(steps):
            if waiting := gates.of(actor):
                self.world.let(waiting[0], way if way in waiting[0].ways else Way.THROUGH)
                way = Way.THROUGH

    @precondition(lambda self: self.world.gates.ghosts)
    @rule(number=NUMBER)
    def what_was_given_up_happens(self, number: int) -> None:
        ghosts = self.world.gates.ghosts
        self.world.gates.haunt(ghosts[number % len(ghosts)])

    @rule(name=NAMES, at_once=st.booleans())
    def a_holder_beats(self, name: str, at_once: bool) -> None:
        holder = self.holder(name)
        if holder.book.fenced_by is None and not holder.is_busy("beat"):
            holder.beat()
            if at_once:
                self.world.finish(f"{name}.beat")

    @rule(name=NAMES, number=NUMBER, cost=st.sampled_from(PinCost), tries=st.sampled_from([1, 1, 2]))
    def a_holder_pins(self, name: str, number: int, cost: PinCost, tries: int) -> None:
        holder = self.holder(name)
        versions = [*self.world.tombstones(), *sorted(self.world.stores.sizes)]
        if holder.book.fenced_by is None and not holder.is_busy("op"):
            holder.pin(versions[number % len(versions)], cost=cost, tries=tries)

    @rule(name=NAMES, number=NUMBER, tries=st.sampled_from([1, 1, 2]))
    def a_holder_lets_go(self, name: str, number: int, tries: int) -> None:
        holder = self.holder(name)
        claims = [(pin.span_id, pin.version) for pin in holder.book.claims()]
        if claims and not holder.is_busy("op"):
            holder.let_go(claims[number % len(claims)], tries=tries)

    @rule(name=NAMES, number=NUMBER)
    def a_holder_gives_up(self, name: str, number: int) -> None:
        holder = self.holder(name)
        if asking := list(holder.asking):
            holder.give_up(asking[number % len(asking)])

    @rule(name=NAMES, zombie=st.booleans())
    def a_holder_is_replaced(self, name: str, zombie: bool) -> None:
        self.world.restart_holder(name, zombie=zombie)

    @rule(actor=st.sampled_from(["c1", "c1", "c2"]), at_once=st.booleans())
    def a_sweep_begins(self, actor: str, at_once: bool) -> None:
        if not self.world.gates.of(actor):
            self.world.sweep(actor)
            if at_once:
                self.world.finish(actor)

    @rule(actor=st.sampled_from(["c1", "c2"]))
    def a_collector_dies(self, actor: str) -> None:
        self.world.kill(actor)

    @rule(name=st.sampled_from(["w1", "w2"]))
    def a_worker_dies(self, name: str) -> None:
        self.world.crash_worker(name)

    @rule(span_id=st.sampled_from(["l0:a", "l0:a", "l0:b"]), worker=st.sampled_from(["w1", "w2"]))
    def a_rewrite_comes(self, span_id: str, worker: str) -> None:
        if len(self.world.stores.sizes) < 10:
            self.world.command(worker, self.world.rewriting(span_id))

    @rule(ms=st.sampled_from([1, QUIET_MS + 1, TTL_MS // 2, TTL_MS - 1_000, TTL_MS + 1]))
    def time_passes(self, ms: int) -> None:
        self.world.elapse(ms)

    @rule()
    def a_copy_is_made(self) -> None:
        self.world.replicate()

    @rule(number=NUMBER, skew_ms=st.sampled_from([0, 0, HOUR_MS, -HOUR_MS]))
    def an_older_copy_takes_over(self, number: int, skew_ms: int) -> None:
        copies = self.world.copies
        self.skewed = self.skewed or skew_ms != self.world.skew_ms
        self.world.fail_over(copies[number % len(copies)], skew_ms=skew_ms)

    @rule()
    def the_registry_is_emptied(self) -> None:
        self.world.flush()

    # --- what must hold ---

    @invariant()
    def i4_nothing_held_is_deleted(self) -> None:
        self.world.look()
        self.world.assert_sound()

    def teardown(self) -> None:
        """I5: all is collected once it is quiet."""
        try:
            if not self.world.stores.violations and self.world.stores.records:
                self.world.calm_down()
                self.world.release_all()
                if self.skewed:
                    self.world.sweep("c1")
                    self.world.finish("c1")
                    self.world.elapse(300_000)
                self.world.collect_all()
                self.world.assert_sound()
                self.world.assert_all_freed()
        finally:
            self.world.__exit__(None, None, None)


CollectionMachine.TestCase.settings = search(150, 5_000, steps=50)
TestCollection = PATIENCE(CollectionMachine.TestCase)
