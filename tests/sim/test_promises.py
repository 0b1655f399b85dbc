"""A granted pin keeps its promise while a command is under way (decision 0022): rows, orders, guards.

The schedules stop a command between its reading of the pins and its record, and pin what is about to change.
"""

from collections.abc import Callable
from random import Random
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from sexton.core.registry import CHANGING_MS
from sexton.schemas.codec import AnyCommand
from sexton.schemas.leases import PinCost
from sexton.schemas.span import SpanState, Strategy
from sexton.worker.holdings import FRESH_S
from sexton.worker.leases import WAITS_S
from tests.sim import switches
from tests.sim.effort import PATIENCE, effort, search
from tests.sim.gates import Way
from tests.sim.world import World

A: Final = ("l0:a", 1)
"""Current, and about to change."""
B: Final = ("l0:b", 1)

Make = Callable[[World], AnyCommand]
COMMANDS: Final[dict[str, Make]] = {
    "rewritten": lambda world: world.rewriting("l0:a"),
    "pruned": lambda world: world.pruning("l0:a"),
    "compacted": lambda world: world.compacting("l0:a", "l0:b"),
}
EACH: Final = pytest.mark.parametrize("kind", COMMANDS)
LEFT: Final = {
    "rewritten": SpanState.TOMBSTONE,
    "pruned": SpanState.TOMBSTONE,
    "compacted": SpanState.COVERED,
}


def begin(world: World, *, holder: bool = True) -> None:
    """Two leaves, and a holder with a good lease."""
    world.append("a", "b")
    if holder:
        world.registered("h1")


def reading(world: World, kind: str) -> str:
    """A command that has read the pins, and waits to send its record. Gives its actor."""
    command = COMMANDS[kind](world)
    world.command("w1", command)
    world.run(command.event_id, f"log.append:{kind}")
    return command.event_id


def refused(world: World, kind: str) -> bool:
    """Whether the last thing said is that a command was rejected as immovable."""
    revision = world.stores.tree.revision
    command = COMMANDS[kind](world)
    world.command("w2", command)
    world.finish(command.event_id)
    return world.stores.tree.revision == revision and any(
        "immovable" in line for line in world.gates.trace[-8:]
    )


def proven(world: World, cost: PinCost = PinCost.IMMOVABLE) -> bool:
    holder = world.holders["h1"]
    return holder.book.is_proven(A, holder._now_s(), cost)


def sound(world: World) -> bool:
    """No promise was broken, and in the end all is as it should be."""
    world.assert_sound()
    world.calm_down()
    world.release_all()
    world.collect_all()
    world.assert_sound()
    world.assert_all_freed()
    return True


# --- each row ----------------------------------------------------------------------------------------------


@EACH
def test_a_pin_before_the_reading_stops_the_command(kind: str) -> None:
    """The decision knows of it."""
    with World() as world:
        begin(world)
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.finish("h1.op")
        assert proven(world)
        assert refused(world, kind)
        assert sound(world)


@EACH
def test_a_pin_amid_a_command_waits_for_it(kind: str) -> None:
    """Not granted while the record may come; then the answer tells what is left of the version."""
    with World() as world:
        begin(world)
        command = reading(world, kind)
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        assert not proven(world)
        world.finish(command)
        world.step("h1.op")
        assert not proven(world)
        world.finish("h1.op")
        assert proven(world)
        state = world.stores.tree.nodes["l0:a"].state
        stone = world.stores.tree.tombstones.get(A)
        assert LEFT[kind] is (stone.state if stone is not None else state)
        assert sound(world)


@EACH
def test_a_pin_amid_a_command_that_is_rejected_is_granted(kind: str) -> None:
    """Another one's pin stops it; its note is cleared; the next command is stopped by both."""
    with World() as world:
        begin(world)
        other = world.registered("h2")
        other.pin(A, cost=PinCost.IMMOVABLE)
        world.finish("h2.op")
        command = COMMANDS[kind](world)
        world.command("w1", command)
        world.run(command.event_id, "registry.change")
        world.step(command.event_id)
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        world.finish(command.event_id)
        world.finish("h1.op")
        assert proven(world)
        assert refused(world, kind)
        assert sound(world)


def test_a_pin_after_the_note_is_cleared_sees_the_record() -> None:
    """The head is read after that."""
    with World() as world:
        begin(world)
        world.finish(reading(world, "rewritten"))
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "log.head")
        world.finish("h1.op")
        assert "sleep" not in world.story()
        assert sound(world)


def test_a_version_that_is_not_current_is_not_waited_for() -> None:
    """It cannot change any more. The note stands: the worker died after its record."""
    with World() as world:
        begin(world)
        command = reading(world, "rewritten")
        world.step(command)
        world.crash_worker("w1")
        for name in ("w1", "w2"):
            world.workers[name].start(_fresh(world, name), "look")
            world.loop.settle()
            world.finish("look")
        world.holders["h1"].pin(A, cost=PinCost.EXPENSIVE)
        world.finish("h1.op")
        assert "sleep" not in world.story()
        assert proven(world, PinCost.EXPENSIVE)
        assert sound(world)


async def _fresh(world: World, name: str) -> None:
    await world.workers[name].contexts.refresh("ctx")


def test_a_cheap_pin_does_not_wait() -> None:
    """No command asks for it. One that becomes expensive does, and is no more than cheap until then."""
    with World() as world:
        begin(world)
        command = reading(world, "rewritten")
        holder = world.holders["h1"]
        holder.pin(A)
        world.finish("h1.op")
        assert "sleep" not in world.story()
        assert proven(world, PinCost.CHEAP)
        holder.pin(A, cost=PinCost.EXPENSIVE)
        world.run("h1.op", "sleep")
        assert (True, False) == (proven(world, PinCost.CHEAP), proven(world, PinCost.EXPENSIVE))
        world.finish(command)
        world.finish("h1.op")
        assert proven(world, PinCost.EXPENSIVE)
        assert sound(world)


def test_a_pin_that_has_waited_long_is_unavailable_and_may_be_asked_for_again() -> None:
    """Under the same number; and a command that comes in between is stopped by it."""
    with World() as world:
        begin(world)
        command = reading(world, "rewritten")
        holder = world.holders["h1"]
        holder.pin(A, cost=PinCost.IMMOVABLE, tries=2)
        for _ in WAITS_S:
            world.run("h1.op", "sleep")
            world.step("h1.op")
        world.run("h1.op", "net.reply")
        assert not proven(world)
        world.kill(command)
        world.elapse(CHANGING_MS - 1_000)
        holder.beat()
        world.finish("h1.beat")
        world.elapse(1_000)
        world.finish("h1.op")
        assert proven(world)
        assert not holder.book.must_beat
        assert refused(world, "rewritten")
        assert sound(world)


def test_an_announced_set_waits_and_the_lease_lives() -> None:
    """What is still open has no answer, neither yes nor no: the holder announces again, and is granted."""
    with World() as world:
        begin(world, holder=False)
        holder = world.start_holder("h1")
        command = reading(world, "rewritten")
        holder.pin(A, B, cost=PinCost.IMMOVABLE)
        world.finish("h1.op")  # no lease yet
        holder.beat()
        for _ in WAITS_S:
            world.run("h1.beat", "sleep")
            world.step("h1.beat")
        world.finish("h1.beat")
        now = holder._now_s()
        assert holder.book.is_good(now)
        assert (False, True) == tuple(holder.book.is_proven(v, now, PinCost.IMMOVABLE) for v in (A, B))
        assert holder.book.must_beat
        world.finish(command)
        holder.beat()
        world.finish("h1.beat")
        assert proven(world)
        assert not holder.book.must_beat
        assert sound(world)


def test_a_lost_race_reads_the_pins_again() -> None:
    """An append was quicker; a pin that came since is known to the second decision."""
    with World() as world:
        begin(world)
        command = reading(world, "rewritten")
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        world.append("c")
        world.finish(command)
        assert 1 == world.stores.tree.nodes["l0:a"].version
        world.finish("h1.op")
        assert proven(world)
        assert sound(world)


@pytest.mark.parametrize(
    ("kind", "gate"),
    [(kind, gate) for kind in COMMANDS for gate in ("cold.write", "registry.change") if kind != "pruned"]
    + [("pruned", "registry.change")],
)
def test_a_command_that_was_frozen_reads_the_pins_again(kind: str, gate: str) -> None:
    """Its note has run out, and a pin was granted."""
    with World() as world:
        begin(world)
        frozen(world, kind, gate)
        assert proven(world)
        assert sound(world)


def frozen(world: World, kind: str, gate: str = "cold.write") -> None:
    """A command that is frozen at a gate, for longer than its note stands, while a pin comes."""
    command = COMMANDS[kind](world)
    world.command("w1", command)
    world.run(command.event_id, gate)
    if gate == "registry.change":
        world.step(command.event_id)
    world.elapse(CHANGING_MS - 1_000)
    world.holders["h1"].beat()
    world.finish("h1.beat")
    world.elapse(1_000)
    world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
    world.finish("h1.op")
    world.finish(command.event_id)


def test_bytes_that_take_long_are_not_written_again() -> None:
    """Or a slow store could keep a command from ever being committed."""
    with World() as world:
        begin(world)
        command = world.rewriting("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "cold.write")
        world.elapse(int(FRESH_S * 1000) + 1)
        world.finish(command.event_id)
        assert 2 == world.stores.tree.nodes["l0:a"].version
        said = world.story().splitlines()
        assert 1 == said.count(f"{command.event_id}: cold.write")
        assert 2 == said.count(f"{command.event_id}: registry.change")
        assert sound(world)


def test_a_killed_command_leaves_a_note_that_runs_out() -> None:
    """Then the pin is granted, and stops the next delivery."""
    with World() as world:
        begin(world)
        reading(world, "rewritten")
        world.crash_worker("w1")
        holder = world.holders["h1"]
        holder.pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        world.elapse(CHANGING_MS - 1)
        world.step("h1.op")
        world.run("h1.op", "sleep")
        assert not proven(world)
        world.elapse(1)
        world.finish("h1.op")
        holder.beat()
        world.finish("h1.beat")
        assert proven(world)
        assert refused(world, "rewritten")
        assert sound(world)


def test_a_note_that_cannot_be_cleared_runs_out() -> None:
    """The registry is down when the command is through: rejected, in this case."""
    with World() as world:
        begin(world)
        other = world.registered("h2")
        other.pin(A, cost=PinCost.IMMOVABLE)
        world.finish("h2.op")
        command = world.pruning("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "registry.changed")
        world.let(world.gates.of(command.event_id)[0], Way.LOST)
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        world.elapse(CHANGING_MS - 1)
        world.holders["h1"].beat()
        world.finish("h1.beat")
        world.elapse(1)
        world.finish("h1.op")
        assert proven(world)
        assert sound(world)


def test_a_record_that_is_sent_and_unanswered_keeps_its_note() -> None:
    """The next decision refuses, for the pin that came meanwhile; the record arrives all the same."""
    with World() as world:
        begin(world)
        late(world)
        assert 2 == world.stores.tree.nodes["l0:a"].version
        assert sound(world)


def late(world: World) -> None:
    """A record that is on its way when its sender gives up."""
    command = reading(world, "rewritten")
    world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE, tries=2)
    world.run("h1.op", "sleep")
    world.let(world.gates.of(command)[0], Way.LATE)
    world.finish(command)
    world.finish("h1.op")
    world.gates.haunt(world.gates.ghosts[0])


def test_two_deliveries_clear_each_its_own_note() -> None:
    """The first one is frozen; the second one is through. The pin waits for the first."""
    with World() as world:
        begin(world)
        other = world.registered("h2")
        first = reading(world, "rewritten")
        other.pin(A, cost=PinCost.IMMOVABLE)
        world.run("h2.op", "sleep")
        assert refused(world, "rewritten")
        world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
        world.run("h1.op", "sleep")
        world.finish(first)
        assert not proven(world)
        assert 2 == world.stores.tree.nodes["l0:a"].version
        assert sound(world)


def test_a_copy_is_kept_for_an_expensive_pin_that_came_before() -> None:
    """And not for one that has to wait: it is told that the version is superseded."""
    with World() as world:
        begin(world)
        world.holders["h1"].pin(A, cost=PinCost.EXPENSIVE)
        world.finish("h1.op")
        world.rewrite("l0:a")
        stone = world.stores.tree.tombstones[A]
        assert Strategy.COPY_ON_REWRITE is stone.strategy
        assert sound(world)


# --- each guard --------------------------------------------------------------------------------------------


def amid(world: World) -> None:
    """A pin comes between the reading and the record."""
    command = reading(world, "rewritten")
    world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
    for _ in range(20):
        if not (waiting := world.gates.of("h1.op")) or waiting[0].label == "sleep":
            break
        world.step("h1.op")
    world.finish(command)


def waits_on(world: World) -> None:
    """A pin reads the head, and then sees a note go."""
    other = world.registered("h2")
    other.pin(A, cost=PinCost.CHEAP)
    world.finish("h2.op")
    command = reading(world, "rewritten")
    world.holders["h1"].pin(A, cost=PinCost.IMMOVABLE)
    world.run("h1.op", "sleep")
    world.finish("h1.op")
    world.finish(command)


GUARDS: Final[dict[str, tuple[Callable[[switches.Patch], None], Callable[[World], None]]]] = {
    "note": (switches.no_notes, amid),
    "wait": (switches.no_waiting, amid),
    "renewal": (switches.no_renewal, lambda world: frozen(world, "rewritten")),
    "sent": (switches.cleared_while_sent, late),
    "order": (switches.log_before_the_wait, waits_on),
}


@pytest.mark.parametrize("name", GUARDS)
def test_without_its_guard_a_promise_is_broken(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its schedule, for want of this one guard; and with it, not."""
    off, schedule = GUARDS[name]
    with World() as world:
        begin(world)
        schedule(world)
        assert sound(world)
    off(monkeypatch)
    with World() as world:
        begin(world)
        schedule(world)
        assert any(what.startswith("promise") for what in world.stores.violations), world.story()


# --- a search ----------------------------------------------------------------------------------------------


SPANS: Final = st.sampled_from(["l0:a", "l0:a", "l0:a", "l0:b", "l0:c"])
NAMES: Final = st.sampled_from(["h1", "h2"])
NUMBER: Final = st.integers(0, 30)
WAYS: Final = st.sampled_from([Way.THROUGH] * 8 + list(Way))
STEPS: Final = st.sampled_from([3, 3, 3, 4, 0, 1, 2, 5])
"""Of a command that comes: after three, a rewrite is about to send its record."""


class ChangingMachine(RuleBasedStateMachine):
    """Commands of all kinds on what is current, and pins that stop them, in any order of their steps."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.world.__enter__()

    @initialize()
    def begin(self) -> None:
        self.world.append("a", "b", "c")
        for name in ("h1", "h2"):
            self.world.registered(name)
        self.world.replicate()

    @rule(
        name=NAMES,
        span_id=SPANS,
        cost=st.sampled_from([PinCost.IMMOVABLE, PinCost.IMMOVABLE, PinCost.EXPENSIVE, PinCost.CHEAP]),
        tries=st.sampled_from([1, 2]),
        at_once=st.sampled_from([True, True, False]),
    )
    def a_holder_pins(self, name: str, span_id: str, cost: PinCost, tries: int, at_once: bool) -> None:
        holder, node = self.world.holders[name], self.world.stores.tree.nodes[span_id]
        if not holder.is_busy("op"):
            if not holder.book.is_good(holder._now_s()):
                self.a_holder_beats(name, at_once=True)
            holder.pin((span_id, node.version), cost=cost, tries=tries)
            if at_once:
                self.world.finish(f"{name}.op")

    @rule(name=NAMES, number=NUMBER)
    def a_holder_lets_go(self, name: str, number: int) -> None:
        holder = self.world.holders[name]
        claims = [(pin.span_id, pin.version) for pin in holder.book.claims()]
        if claims and not holder.is_busy("op"):
            holder.let_go(claims[number % len(claims)])

    @rule(name=NAMES, at_once=st.booleans())
    def a_holder_beats(self, name: str, at_once: bool) -> None:
        holder = self.world.holders[name]
        if not holder.is_busy("beat"):
            holder.beat()
            if at_once:
                self.world.finish(f"{name}.beat")

    @rule(span_id=SPANS, worker=st.sampled_from(["w1", "w2"]), steps=STEPS)
    def a_rewrite_comes(self, span_id: str, worker: str, steps: int) -> None:
        self.comes(worker, self.world.rewriting(span_id), steps)

    @rule(kind=st.sampled_from(["compact", "prune"]), steps=STEPS, chance=st.integers(0, 3))
    def something_leaves(self, kind: str, steps: int, chance: int) -> None:
        if chance == 0:
            two = kind == "compact"
            command = self.world.compacting("l0:b", "l0:c") if two else self.world.pruning("l0:c")
            self.comes("w1", command, steps)

    @rule()
    def an_append_comes(self) -> None:
        if len(self.world.stores.sizes) < 12:
            self.world.append(f"x{len(self.world.stores.sizes)}")

    @precondition(lambda self: self.world.gates.waiting)
    @rule(number=NUMBER, steps=st.sampled_from([1, 2, 20]), way=WAYS)
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

    @rule(
        ms=st.sampled_from([1_000, int(FRESH_S * 1000), CHANGING_MS - 1_000, CHANGING_MS + 1]),
        chance=st.integers(0, 2),
    )
    def time_passes(self, ms: int, chance: int) -> None:
        self.world.elapse(ms if chance == 0 else 1)

    @rule(what=st.sampled_from(["worker", "copy", "older", "emptied"]), chance=st.integers(0, 5))
    def something_breaks(self, what: str, chance: int) -> None:
        if chance == 0:
            match what:
                case "worker":
                    self.world.crash_worker("w1")
                case "copy":
                    self.world.replicate()
                case "older":
                    self.world.fail_over()
                case "emptied":
                    self.world.flush()

    @invariant()
    def every_promise_is_kept(self) -> None:
        self.world.look()
        self.world.assert_sound()

    def comes(self, worker: str, command: AnyCommand, steps: int) -> None:
        if len(self.world.stores.sizes) < 12:
            self.world.command(worker, command)
            for _ in range(steps):
                if waiting := self.world.gates.of(command.event_id):
                    self.world.let(waiting[0])

    def teardown(self) -> None:
        self.world.__exit__(None, None, None)


ChangingMachine.TestCase.settings = search(150, 5_000, steps=40)
TestChanging = PATIENCE(ChangingMachine.TestCase)


def broken(seed: int) -> bool:
    """Whether a run at random, most of it pins and commands at once, breaks a promise."""
    random = Random(seed)
    machine = ChangingMachine()
    world = machine.world
    try:
        machine.begin()
        for _ in range(40):
            name, span_id = random.choice(["h1", "h2"]), random.choice(["l0:a", "l0:b"])
            match random.choice("pprrrgggglbt"):
                case "p":
                    cost = random.choice([PinCost.IMMOVABLE, PinCost.EXPENSIVE])
                    machine.a_holder_pins(name, span_id, cost, 1, at_once=random.random() < 0.5)
                case "r":
                    machine.a_rewrite_comes(span_id, random.choice(["w1", "w2"]), random.randrange(5))
                case "g" if world.gates.waiting:
                    machine.somebody_goes_on(random.randrange(30), random.choice([1, 2, 20]), Way.THROUGH)
                case "l":
                    machine.a_holder_lets_go(name, random.randrange(5))
                case "b":
                    machine.a_holder_beats(name, at_once=True)
                case "t":
                    world.elapse(1_000)
        return any(what.startswith("promise") for what in world.stores.violations)
    finally:
        machine.teardown()


def test_no_run_at_random_breaks_a_promise() -> None:
    """With all guards."""
    assert [] == [seed for seed in range(effort(150, 10_000)) if broken(seed)]


@pytest.mark.parametrize("name", ["note", "wait"])
def test_without_a_guard_a_run_at_random_breaks_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that knows of no guard."""
    GUARDS[name][0](monkeypatch)
    assert any(broken(seed) for seed in range(150))
