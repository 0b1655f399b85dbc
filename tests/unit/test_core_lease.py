"""A holder's side of its lease: what it claims, what is proven, and what it says next."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sexton.core.collection import Version
from sexton.core.lease import PinBook
from sexton.core.pins import EMPTY_DIGEST, pins_digest
from sexton.core.registry import RegistryState
from sexton.schemas.errors import LeaseLost
from sexton.schemas.leases import (
    GrantedPin,
    HeartbeatRequest,
    HolderRequest,
    LeaseReply,
    Pin,
    PinCost,
    PinRefusal,
    RefusedPin,
)
from sexton.schemas.rpc import Head
from sexton.schemas.span import SpanState

A, B, C = ("l0:a", 1), ("l0:b", 1), ("l0:c", 1)
TTL_S = 10.0
HEAD = Head(revision=1, epoch=0, chain="")


def pin(version: Version, cost: PinCost = PinCost.CHEAP) -> Pin:
    return Pin(span_id=version[0], version=version[1], cost=cost)


def granted(*versions: Version) -> tuple[GrantedPin, ...]:
    return tuple(GrantedPin(span_id=s, version=v, state=SpanState.LIVE) for s, v in versions)


def refused(*versions: Version) -> tuple[RefusedPin, ...]:
    return tuple(RefusedPin(span_id=s, version=v, reason=PinRefusal.COLLECTING) for s, v in versions)


def reply(to: HolderRequest, **more: Any) -> LeaseReply:
    fields = {"context_id": "ctx", "head": HEAD, "operation": to.operation}
    return LeaseReply(**(fields | more))


def book(*versions: Version, at: float = 0.0) -> PinBook:
    """A book with a lease that was sent for at `at`, and proven pins."""
    made = PinBook("ctx", "h1", 1, int(TTL_S * 1000))
    beat(made, at)
    if versions:
        request = made.ask([pin(version) for version in versions])
        made.on_pins(reply(request, granted=granted(*versions)))
    return made


def beat(made: PinBook, sent_at: float, **more: Any) -> HeartbeatRequest:
    """A heartbeat that is answered; what is announced is granted unless it says otherwise."""
    request = made.heartbeat(sent_at)
    announced = [(p.span_id, p.version) for p in request.pins or ()]
    made.on_heartbeat(request, reply(request, **({"granted": granted(*announced)} | more)), sent_at)
    return request


def proven(made: PinBook, now: float) -> set[Version]:
    return {version for version in (A, B, C) if made.is_proven(version, now)}


# --- the lease ---------------------------------------------------------------------------------------------


def test_there_is_no_lease_before_the_first_answer() -> None:
    made = PinBook("ctx", "h1", 3, 10_000)
    assert not made.is_good(-math.inf)
    assert made.must_beat
    request = made.heartbeat(0.0)
    assert not made.is_good(0.0)
    assert (True, (), 1, 3, 10_000) == (
        request.register_new,
        request.pins,
        request.operation,
        request.incarnation,
        request.ttl_ms,
    )
    assert EMPTY_DIGEST == request.digest


def test_a_lease_counts_from_when_the_heartbeat_was_sent() -> None:
    """I4: the registry counts from when it came. The answer may have taken most of a lease."""
    made = PinBook("ctx", "h1", 1, 10_000)
    request = made.heartbeat(100.0)
    made.on_heartbeat(request, reply(request), sent_at=100.0)
    assert made.is_good(109.999)
    assert not made.is_good(110.0)
    assert not made.must_beat


def test_renewals_only_extend() -> None:
    """C96: answers may come in another order than heartbeats were sent."""
    made = book(A)
    second, third = made.heartbeat(4.0), made.heartbeat(5.0)
    made.on_heartbeat(third, reply(third), sent_at=5.0)
    made.on_heartbeat(second, reply(second), sent_at=4.0)
    assert made.is_good(14.999)


def test_a_heartbeat_that_the_registry_does_not_agree_with_renews_nothing() -> None:
    """I4: it has lost a pin of ours, and a collector waits no longer than the lease that we had then."""
    made = book(A)
    beat(made, 8.0, announce=True)
    assert {A} == proven(made, 9.999)
    assert not made.is_good(10.0)
    assert made.must_beat


def test_a_plain_heartbeat_is_no_operation_and_announces_nothing() -> None:
    made = book(A)
    first, second = made.heartbeat(1.0), made.heartbeat(2.0)
    assert first.pins is None
    assert not first.register_new
    assert first.operation == second.operation
    assert pins_digest([pin(A)]) == first.digest


def test_past_its_end_everything_is_unproven_until_it_is_announced_and_granted() -> None:
    """C98: a holder that was paused registers, and pins again, before it counts on anything."""
    made = book(A, B)
    assert {A, B} == proven(made, 9.0)
    assert set() == proven(made, 10.0)
    assert [A, B] == made.unproven(10.0)
    request = made.heartbeat(60.0)
    assert request.register_new
    assert {A, B} == {(p.span_id, p.version) for p in request.pins or ()}
    assert set() == proven(made, 60.0)
    made.on_heartbeat(request, reply(request, granted=granted(A), refused=refused(B)), sent_at=60.0)
    assert {A} == proven(made, 61.0)
    assert [] == made.unproven(61.0)


def test_a_lease_that_the_registry_lost_is_begun_anew() -> None:
    made = book(A)
    made.on_lease_lost()
    assert set() == proven(made, 1.0)
    assert made.must_beat
    request = beat(made, 1.0)
    assert request.register_new
    assert (pin(A),) == request.pins
    assert {A} == proven(made, 2.0)


def test_a_reply_across_the_end_of_the_lease_finds_the_pins_as_they_were() -> None:
    """The registry renewed in time, and agreed: the lease never lapsed there."""
    made = book(A)
    request = made.heartbeat(9.0)
    assert set() == proven(made, 11.0)
    made.on_heartbeat(request, reply(request), sent_at=9.0)
    assert {A} == proven(made, 11.0)


def test_fenced_is_the_end() -> None:
    made = book(A)
    made.on_fenced(7)
    assert 7 == made.fenced_by
    assert set() == proven(made, 0.0)
    assert () == made.claims()
    assert not made.is_good(0.0)


def test_leaving_gives_up_all() -> None:
    made = book(A)
    before = made.heartbeat(1.0).operation
    request = made.leave()
    assert request.leave
    assert before + 1 == request.operation
    assert () == made.claims()
    assert EMPTY_DIGEST == request.digest


# --- pins --------------------------------------------------------------------------------------------------


def test_a_pin_is_claimed_when_it_is_asked_for_and_proven_when_it_is_granted() -> None:
    """The digest covers it from the first moment on: `pending-in-digest` of the checked model."""
    made = book(A)
    request = made.ask([pin(B, PinCost.EXPENSIVE)])
    assert (pin(B, PinCost.EXPENSIVE),) == request.pins
    assert {pin(A), pin(B, PinCost.EXPENSIVE)} == set(made.claims())
    wanted = pins_digest([pin(A), pin(B, PinCost.EXPENSIVE)])
    assert wanted == request.digest == made.heartbeat(1.0).digest
    assert [B] == made.unproven(1.0)
    assert () == made.on_pins(reply(request, granted=granted(B)))
    assert {A, B} == proven(made, 1.0)


def test_what_is_not_claimed_is_not_proven() -> None:
    made = book(A)
    assert not made.is_proven(("l0:a", 2), 1.0)
    request = made.ask([pin(B)])
    made.on_pins(reply(request, granted=granted(B, C)))
    assert {A, B} == proven(made, 1.0)


def test_a_refused_pin_is_claimed_no_more_and_the_rest_is_announced() -> None:
    """The registry has forgotten its digest over it."""
    made = book(A)
    request = made.ask([pin(B), pin(C)])
    lost = made.on_pins(reply(request, granted=granted(C), refused=refused(B)))
    assert [B] == [(p.span_id, p.version) for p in lost]
    assert {A, C} == proven(made, 1.0)
    assert made.must_beat
    announced = beat(made, 1.0)
    assert {A, C} == {(p.span_id, p.version) for p in announced.pins or ()}
    assert not announced.register_new
    assert not made.must_beat


def test_a_pin_that_is_proven_stays_so_while_its_cost_changes() -> None:
    made = book(A)
    request = made.ask([pin(A, PinCost.IMMOVABLE)])
    assert {A} == proven(made, 1.0)
    assert pins_digest([pin(A, PinCost.IMMOVABLE)]) == request.digest
    made.on_no_answer()
    assert {A} == proven(made, 1.0)
    assert (pin(A, PinCost.IMMOVABLE),) == beat(made, 2.0).pins


def test_operations_are_numbered_one_by_one() -> None:
    """A gap would tell the registry that it has lost something."""
    made = PinBook("ctx", "h1", 1, 10_000)
    numbers = [
        made.heartbeat(0.0).operation,
        made.ask([pin(A)]).operation,
        made.ask([pin(A), pin(B)]).operation,
    ]
    request = made.let_go([A])
    assert request is not None
    numbers.append(request.operation)
    made.on_no_answer()
    numbers.append(made.heartbeat(0.0).operation)
    numbers.append(made.leave().operation)
    assert [1, 2, 3, 4, 5, 6] == numbers


def test_letting_go_ends_the_claim_at_once_and_again_is_nothing() -> None:
    """C108: a release that is cancelled on its way leaks nothing past the next announcement."""
    made = book(A, B)
    request = made.let_go([A, C])
    assert request is not None
    assert [A] == [(v.span_id, v.version) for v in request.versions]
    assert pins_digest([pin(B)]) == request.digest
    assert {B} == proven(made, 1.0)
    assert made.let_go([A, C]) is None
    made.on_no_answer()
    assert (pin(B),) == beat(made, 1.0).pins


def test_after_a_lost_answer_the_whole_set_is_announced() -> None:
    """It may have been done or not; a heartbeat that says all there is makes that one."""
    made = book(A)
    made.ask([pin(B)])
    made.on_no_answer()
    assert made.must_beat
    assert [B] == made.unproven(1.0)
    request = beat(made, 1.0)
    assert {A, B} == {(p.span_id, p.version) for p in request.pins or ()}
    assert {A, B} == proven(made, 2.0)
    assert not made.must_beat


def test_the_registry_may_ask_for_the_whole_set() -> None:
    made = book(A)
    beat(made, 1.0, announce=True)
    assert {A} == proven(made, 1.0), "the lease of before still counts"
    assert (pin(A),) == beat(made, 2.0).pins
    assert not made.must_beat


def test_an_announcement_that_was_overtaken_is_made_again() -> None:
    """A pin was asked for while it was on its way: it was not of the whole set."""
    made = book(A)
    made.on_no_answer()
    request = made.heartbeat(1.0)
    asked = made.ask([pin(B)])
    made.on_heartbeat(request, reply(request, granted=granted(A)), sent_at=1.0)
    assert made.must_beat
    made.on_pins(reply(asked, granted=granted(B)))
    assert {A, B} == proven(made, 2.0)


def test_an_announcement_without_an_answer_is_made_again() -> None:
    made = book(A)
    made.on_no_answer()
    first, second = made.heartbeat(1.0), made.heartbeat(2.0)
    assert first.operation + 1 == second.operation
    assert first.pins == second.pins
    assert made.must_beat


@pytest.mark.parametrize("way", ["granted", "refused"])
def test_an_answer_about_an_earlier_claim_says_nothing_of_this_one(way: str) -> None:
    """C93: a pin is asked for, let go of and asked for again; the first answer comes last."""
    made = book()
    first = made.ask([pin(A)])
    made.let_go([A])
    second = made.ask([pin(A)])
    late = reply(first, granted=granted(A)) if way == "granted" else reply(first, refused=refused(A))
    assert () == made.on_pins(late)
    assert [A] == made.unproven(1.0)
    made.on_pins(reply(second, granted=granted(A)))
    assert {A} == proven(made, 1.0)


def test_a_pin_that_overtook_another_is_answered_by_its_own_number() -> None:
    """The registry knows a newer operation: nothing was pinned, and the holder announces."""
    made = book(A)
    request = made.ask([pin(B)])
    made.on_pins(reply(request, announce=True))
    assert [B] == made.unproven(1.0)
    assert made.must_beat


# --- with a registry on the other side ---------------------------------------------------------------------


class Talk:
    """A book and a registry, on one clock. Grants whatever is pinned."""

    def __init__(self) -> None:
        self.now = 100.0
        self.registry = RegistryState("g1", 0)
        self.book = PinBook("ctx", "h1", 1, int(TTL_S * 1000))

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def beat(self) -> None:
        request = self.book.heartbeat(self.now)
        try:
            operation, announce = self.registry.beat(request, self.now_ms())
        except LeaseLost:
            self.book.on_lease_lost()
            return
        taken = request.pins if operation == request.operation else None
        answer = reply(request, operation=operation, announce=announce, granted=granted(*_names(taken or ())))
        self.book.on_heartbeat(request, answer, self.now)

    def pin(self, *versions: Version) -> None:
        request = self.book.ask([pin(version) for version in versions])
        self.registry.pin(request, self.now_ms())
        self.book.on_pins(reply(request, granted=granted(*versions)))

    def settle(self) -> None:
        for _ in range(3):
            if self.book.must_beat:
                self.beat()
        assert not self.book.must_beat

    def held(self) -> set[Version]:
        return {version for version in (A, B, C) if self.registry.live(version, self.now_ms())}


def _names(pins: Iterable[Pin]) -> list[Version]:
    return [(p.span_id, p.version) for p in pins]


def lose_all(talk: Talk) -> None:
    talk.registry = RegistryState("g2", talk.now_ms())


def expire(talk: Talk) -> None:
    talk.now += 2 * TTL_S


def lose_a_pin(talk: Talk) -> None:
    older = talk.registry.copy()
    talk.pin(C)
    talk.registry = older


def lose_a_release(talk: Talk) -> None:
    older = talk.registry.copy()
    talk.book.let_go([A])
    talk.registry = older


def answer_lost(talk: Talk) -> None:
    talk.registry.pin(talk.book.ask([pin(C)]), talk.now_ms())
    talk.book.on_no_answer()


def request_lost(talk: Talk) -> None:
    talk.book.ask([pin(C)])
    talk.book.on_no_answer()


@pytest.mark.parametrize(
    "happen",
    [lose_all, expire, lose_a_pin, lose_a_release, answer_lost, request_lost],
    ids=lambda f: f.__name__,
)
def test_whatever_was_lost_both_sides_come_to_agree(happen: Callable[[Talk], None]) -> None:
    """Within a few heartbeats, and what is proven then is held there."""
    talk = Talk()
    talk.beat()
    talk.pin(A)
    talk.pin(B)
    happen(talk)
    talk.beat()
    talk.settle()
    assert set(_names(talk.book.claims())) == talk.held()
    assert [] == talk.book.unproven(talk.now)


def test_a_process_that_comes_after_another_takes_only_its_own() -> None:
    talk = Talk()
    talk.beat()
    talk.pin(A)
    talk.book = PinBook("ctx", "h1", 2, int(TTL_S * 1000))
    talk.settle()
    assert set() == talk.held()


# --- what is being changed ---------------------------------------------------------------------------------


def test_an_announced_pin_without_an_answer_is_announced_again() -> None:
    """Decision 0022: it is being changed at that moment. The lease lives, and so do the others."""
    made = book()
    made.ask([pin(A, PinCost.IMMOVABLE), pin(B)])
    made.on_no_answer()
    beat(made, 1.0, granted=granted(B))
    assert {B} == proven(made, 1.0)
    assert made.is_good(1.0)
    assert made.must_beat
    assert [A] == made.unproven(1.0)
    request = beat(made, 2.0)
    assert {A, B} == {(p.span_id, p.version) for p in request.pins or ()}
    assert {A, B} == proven(made, 2.0)
    assert not made.must_beat


def test_a_pin_is_proven_for_the_cost_it_was_granted_with() -> None:
    """A cheap pin that is asked for as an immovable one is safe from collection, and no more yet."""
    made = book(A)
    raised = made.ask([pin(A, PinCost.IMMOVABLE)])
    assert made.is_proven(A, 1.0)
    assert not made.is_proven(A, 1.0, PinCost.IMMOVABLE)
    assert [A] == made.unproven(1.0)
    made.on_pins(reply(raised, granted=granted(A)))
    assert made.is_proven(A, 1.0, PinCost.IMMOVABLE)
    lowered = made.ask([pin(A, PinCost.EXPENSIVE)])
    assert made.is_proven(A, 1.0, PinCost.EXPENSIVE)
    assert not made.is_proven(A, 1.0, PinCost.IMMOVABLE)
    made.on_pins(reply(lowered, granted=granted(A)))
    assert [] == made.unproven(1.0)


def test_a_late_grant_of_a_cheaper_pin_proves_no_dearer_one() -> None:
    """It answers an operation from before."""
    made = book()
    cheap = made.ask([pin(A)])
    made.ask([pin(A, PinCost.IMMOVABLE)])
    made.on_pins(reply(cheap, granted=granted(A)))
    assert made.is_proven(A, 1.0)
    assert not made.is_proven(A, 1.0, PinCost.IMMOVABLE)
