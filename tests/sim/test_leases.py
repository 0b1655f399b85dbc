"""What the worker answers to holders, and what a commit must know of them."""

from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

from sexton.core.pins import pins_digest
from sexton.schemas.commands import Append
from sexton.schemas.errors import Fenced, InvalidInput, LeaseLost, SextonError, Unavailable
from sexton.schemas.leases import (
    HeartbeatRequest,
    LeaseReply,
    Pin,
    PinCost,
    PinRefusal,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.records import Rewritten
from sexton.schemas.span import NewSpan, SpanState, SpanVersion, Strategy
from tests.sim.gates import Way
from tests.sim.ports import CONTEXT
from tests.sim.world import QUIET_MS, TTL_MS, World

T = TypeVar("T")

OLD, CURRENT = ("l0:a", 1), ("l0:a", 2)


def asked(world: World, call: Coroutine[Any, Any, T], *faults: str) -> T:
    """What a worker answers, with an outage at each of `faults`; raises what it raises."""
    found: list[T | SextonError] = []

    async def ask() -> None:
        try:
            found.append(await call)
        except SextonError as e:
            found.append(e)

    world.workers["w1"].start(ask(), "asked")
    world.loop.settle()
    while waiting := world.gates.of("asked"):
        world.let(waiting[0], Way.LOST if waiting[0].label in faults else Way.THROUGH)
    [answer] = found
    if isinstance(answer, SextonError):
        raise answer
    return answer


def fields(operation: int, *pins: Pin, incarnation: int = 1) -> dict[str, Any]:
    return {
        "context_id": CONTEXT,
        "holder_id": "h1",
        "incarnation": incarnation,
        "operation": operation,
        "digest": pins_digest(pins),
    }


def pin(version: tuple[str, int], cost: PinCost = PinCost.CHEAP) -> Pin:
    return Pin(span_id=version[0], version=version[1], cost=cost)


def beat(world: World, operation: int, *pins: Pin, faults: tuple[str, ...] = (), **more: Any) -> LeaseReply:
    request = HeartbeatRequest(**(fields(operation, *pins) | {"ttl_ms": TTL_MS} | more))
    return asked(world, world.workers["w1"].leases.heartbeat(request), *faults)


def pinned(world: World, operation: int, *pins: Pin, faults: tuple[str, ...] = (), **more: Any) -> LeaseReply:
    request = PinRequest(**fields(operation, *pins, **more), pins=pins)
    return asked(world, world.workers["w1"].leases.pin(request), *faults)


def held(world: World) -> set[tuple[str, int]]:
    found = world.loop.run(world.registry.held(CONTEXT))
    return {(info.span_id, info.version) for info in found}


def begin(world: World) -> None:
    """A tombstone, and a lease without pins."""
    world.append("a", "b")
    world.rewrite("l0:a")
    beat(world, 1, register_new=True, pins=())


def test_a_heartbeat_brings_the_head_of_the_log() -> None:
    with World() as world:
        begin(world)
        world.rewrite("l0:b")
        reply = beat(world, 1)
        assert world.stores.tree.head == reply.head
        assert (1, False, (), ()) == (reply.operation, reply.announce, reply.granted, reply.refused)


def test_a_pin_is_granted_with_what_the_version_is() -> None:
    with World() as world:
        begin(world)
        reply = pinned(world, 2, pin(OLD), pin(CURRENT, PinCost.IMMOVABLE))
        assert {(1, SpanState.TOMBSTONE), (2, SpanState.LIVE)} == {
            (p.version, p.state) for p in reply.granted
        }
        assert {OLD, CURRENT} == held(world)
        assert (2, False) == (reply.operation, reply.announce)


def test_the_registry_is_written_before_the_log_is_read() -> None:
    """I4: for a pin, and for an announcement. One of the two always sees the other."""
    with World() as world:
        begin(world)
        before = len(world.gates.trace)
        pinned(world, 2, pin(OLD))
        beat(world, 3, pin(OLD), pins=(pin(OLD),))
        labels = [line.removeprefix("asked: ") for line in world.gates.trace[before:]]
        assert ["registry.pin", "log.head", "registry.beat", "log.head"] == labels


@pytest.mark.parametrize(
    ("version", "reason"), [(("l0:stranger", 1), PinRefusal.UNKNOWN), (("l0:a", 3), PinRefusal.UNKNOWN)]
)
def test_a_pin_of_what_is_not_there_is_refused_and_nothing_stays_of_it(
    version: tuple[str, int], reason: PinRefusal
) -> None:
    with World() as world:
        begin(world)
        reply = pinned(world, 2, pin(version), pin(CURRENT))
        assert [(*version, reason)] == [(p.span_id, p.version, p.reason) for p in reply.refused]
        assert [CURRENT] == [(p.span_id, p.version) for p in reply.granted]
        assert {CURRENT} == held(world)
        assert beat(world, 2, pin(CURRENT)).announce, "it is to say what it has"


@pytest.mark.parametrize("until", ["registry.observe", "cold.delete"])
def test_a_pin_of_what_is_being_collected_is_refused(until: str) -> None:
    """C99, I4."""
    with World() as world:
        begin(world)
        world.sweep("c1")
        world.finish("c1")
        world.elapse(QUIET_MS + 1)
        beat(world, 1)
        world.sweep("c1")
        world.run("c1", "log.append:collecting")
        world.step("c1")
        world.run("c1", until)
        reply = pinned(world, 2, pin(OLD))
        assert [PinRefusal.COLLECTING] == [p.reason for p in reply.refused]
        assert world.stores.tree.nodes["l0:a"].current == reply.refused[0].current
        world.finish("c1")
        assert [PinRefusal.COLLECTED] == [p.reason for p in pinned(world, 3, pin(OLD)).refused]
        assert set() == held(world)


def test_an_announcement_that_comes_too_late_grants_nothing() -> None:
    """C93, I4: what it names is not registered by it."""
    with World() as world:
        begin(world)
        pinned(world, 3, pin(CURRENT))
        reply = beat(world, 2, pin(OLD), pins=(pin(OLD),))
        assert ((), True, 3) == (reply.granted, reply.announce, reply.operation)
        assert {CURRENT} == held(world)


def test_a_pin_that_comes_too_late_grants_nothing() -> None:
    with World() as world:
        begin(world)
        pinned(world, 3, pin(CURRENT))
        reply = pinned(world, 2, pin(OLD))
        assert ((), True) == (reply.granted, reply.announce)
        assert {CURRENT} == held(world)


def test_a_release_lets_go_and_a_late_one_says_so() -> None:
    with World() as world:
        begin(world)
        pinned(world, 2, pin(OLD), pin(CURRENT))
        versions = (SpanVersion(span_id="l0:a", version=1), SpanVersion(span_id="l0:stranger", version=9))
        leases = world.workers["w1"].leases
        reply = asked(world, leases.release(ReleaseRequest(**fields(3, pin(CURRENT)), versions=versions)))
        assert not reply.announce
        assert {CURRENT} == held(world)
        late = ReleaseRequest(**fields(1), versions=(SpanVersion(span_id="l0:a", version=2),))
        assert asked(world, leases.release(late)).announce
        assert {CURRENT} == held(world)


def test_a_lease_that_is_longer_than_allowed_is_refused_and_changes_nothing() -> None:
    """What a collector waits for after a loss rests on it."""
    with World() as world:
        world.append("a")
        with pytest.raises(InvalidInput) as refusal:
            beat(world, 1, register_new=True, pins=(), ttl_ms=TTL_MS + 1)
        assert ("ttl_ms", TTL_MS) == (refusal.value.fields["field"], refusal.value.fields["limit"])
        assert [] == world.loop.run(world.registry.holders(CONTEXT))


def test_without_a_lease_and_behind_a_fence_nothing_is_done() -> None:
    with World() as world:
        world.append("a")
        with pytest.raises(LeaseLost):
            pinned(world, 1, pin(OLD))
        with pytest.raises(LeaseLost):
            beat(world, 1)
        beat(world, 1, register_new=True, pins=(), incarnation=2)
        with pytest.raises(Fenced):
            pinned(world, 1, pin(OLD))
        assert set() == held(world)


@pytest.mark.parametrize("label", ["registry.pin", "log.head", "registry.withdraw"])
def test_without_an_answer_of_log_or_registry_nothing_is_granted(label: str) -> None:
    """I9: the holder hears of an outage, and will announce what it claims."""
    with World() as world:
        begin(world)
        with pytest.raises(Unavailable):
            pinned(world, 2, pin(OLD), pin(("l0:stranger", 1)), faults=(label,))
        announced = beat(world, 3, pin(OLD), pins=(pin(OLD),))
        assert [OLD] == [(p.span_id, p.version) for p in announced.granted]
        assert not announced.announce
        assert {OLD} == held(world)


# --- what a commit asks for --------------------------------------------------------------------------------


def test_a_context_is_noted_before_it_has_a_tombstone() -> None:
    """I5: no crash between the two can lose it."""
    with World() as world:
        world.append("a")
        command = world.rewriting("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "cold.write")
        assert {CONTEXT} == set(world.registry.snapshot().noted)
        assert 1 == len(world.stores.records)


def test_an_append_notes_nothing_and_says_when_a_context_is_born() -> None:
    """A registry that is as old as the context has lost nothing of it: it need not hold back."""
    with World() as world:
        world.append("a")
        assert set() == set(world.registry.snapshot().noted)
        assert 0 == world.loop.run(world.registry.observe(CONTEXT, [], mark=False)).began_ms
        before = len(world.gates.trace)
        world.append("b")
        assert not any("registry" in line for line in world.gates.trace[before:])


def test_a_birth_is_not_told_to_a_registry_that_was_lost_meanwhile() -> None:
    """I4: the generation is read first, and the log after."""
    with World() as world:
        first = Append(context_id=CONTEXT, event_id="first", spans=(NewSpan(name="a", content="a"),))
        world.command("w1", first)
        world.run("first", "registry.born")
        world.flush()
        world.finish("first")
        assert 0 < world.loop.run(world.registry.observe(CONTEXT, [], mark=False)).began_ms


@pytest.mark.parametrize(
    ("cost", "strategy"),
    [
        (None, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.CHEAP, Strategy.INVALIDATE_AND_REKEY),
        (PinCost.EXPENSIVE, Strategy.COPY_ON_REWRITE),
    ],
)
def test_live_pins_decide_what_becomes_of_the_old_version(cost: PinCost | None, strategy: Strategy) -> None:
    with World() as world:
        begin(world)
        if cost is not None:
            pinned(world, 2, pin(CURRENT, cost))
        world.rewrite("l0:a")
        record = world.stores.records[-1]
        assert isinstance(record, Rewritten)
        assert strategy is record.strategy


def test_what_is_immovable_is_not_rewritten_while_its_holder_lives() -> None:
    with World() as world:
        begin(world)
        pinned(world, 2, pin(CURRENT, PinCost.IMMOVABLE))
        before = len(world.stores.records)
        world.rewrite("l0:a")
        assert before == len(world.stores.records)
        world.elapse(TTL_MS)
        world.rewrite("l0:a")
        assert before + 1 == len(world.stores.records)


def test_after_a_loss_a_rewrite_keeps_the_old_version_readable() -> None:
    """Unknown is not zero: some holder may have an expensive artifact of it. Not for ever."""
    with World() as world:
        begin(world)
        world.flush()
        world.rewrite("l0:a")
        kept = world.stores.records[-1]
        world.elapse(TTL_MS)
        world.rewrite("l0:a")
        rekeyed = world.stores.records[-1]
        assert isinstance(kept, Rewritten)
        assert isinstance(rekeyed, Rewritten)
        assert Strategy.COPY_ON_REWRITE is kept.strategy
        assert Strategy.INVALIDATE_AND_REKEY is rekeyed.strategy


def test_without_an_answer_of_the_registry_nothing_is_decided() -> None:
    """I9."""
    with World() as world:
        begin(world)
        command = world.rewriting("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "registry.live", "registry.note")
        before = len(world.stores.records)
        for waiting in world.gates.of(command.event_id):
            world.let(waiting, Way.LOST)
        world.finish(command.event_id)
        assert before == len(world.stores.records)
