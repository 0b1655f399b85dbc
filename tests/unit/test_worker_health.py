"""Health: what makes a program alive, ready and started."""

import asyncio

from sexton.schemas.errors import Unavailable
from sexton.worker.health import Check, Health, Phase
from sexton.worker.health.probes import Probed
from sexton.worker.health.refusals import PUBLISH_FOR_S
from tests.support.waiting import deadline


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


async def answers() -> Check:
    return Check(ok=True)


def serving(clock: Clock) -> Health:
    health = Health(clock=clock)
    health.add_ready("broker", answers)
    health.started()
    return health


async def test_not_ready_and_not_started_at_first() -> None:
    """A program that still starts says so, and asks nobody."""
    health = Health()
    health.add_ready("broker", lambda: asyncio.sleep(3600, Check(ok=True)))
    async with deadline(5):
        expected = {"status": "unavailable", "checks": {"phase": {"ok": False, "reason": "starting"}}}
        assert expected == (await health.ready()).to_json()
        assert expected == (await health.startup()).to_json()
        assert (await health.live()).ok


async def test_ready_when_started_and_all_checks_hold() -> None:
    """Every check is named in the answer."""
    report = await serving(Clock()).ready()
    assert report.ok
    assert list(report.checks) == ["phase", "broker", "permissions"]


async def test_one_check_that_fails_makes_it_unready() -> None:
    """Its reason is in the answer; the others are there too."""

    async def down() -> Check:
        return Check.failed("no answer")

    health = serving(Clock())
    health.add_ready("registry", down)
    report = await health.ready()
    assert not report.ok
    assert {"ok": False, "reason": "no answer"} == report.to_json()["checks"]["registry"]
    assert (await health.live()).ok


async def test_a_program_that_ends_is_alive_and_started_but_not_ready() -> None:
    """Nothing may be sent to it any more, and nothing should kill it."""
    health = serving(Clock())
    health.stopping()
    health.started()
    assert Phase.STOPPING is health.phase
    assert Check.failed("stopping") == (await health.ready()).checks["phase"]
    assert (await health.live()).ok
    assert (await health.startup()).ok


async def test_a_live_check_that_fails() -> None:
    """A part that has ended by itself is a reason to be started anew."""
    health = serving(Clock())
    health.add_live("intake", lambda: Check.failed("a loop ended"))
    report = await health.live()
    assert not report.ok
    assert {"event_loop": True, "intake": False} == {name: c.ok for name, c in report.checks.items()}


async def test_a_refused_subscription_stands_until_the_connection_is_made_anew() -> None:
    """It is refused once only, and is dead from then on."""
    clock = Clock()
    health = serving(clock)
    health.refused("subscribe", "sexton.epoch.*")
    clock.now += 10 * PUBLISH_FOR_S
    check = (await health.ready()).checks["permissions"]
    assert Check.failed("NATS refuses: subscribe sexton.epoch.*") == check
    health.reconnected()
    assert (await health.ready()).ok


async def test_a_refused_publish_stands_for_a_while() -> None:
    """It is refused each time; a reconnect alone does not mend it."""
    clock = Clock()
    health = serving(clock)
    health.refused("publish", "sexton.log.c")
    health.refused("publish", "sexton.outcome.c.e")
    health.reconnected()
    check = (await health.ready()).checks["permissions"]
    assert Check.failed("NATS refuses: publish sexton.outcome.c.e, and 1 more") == check
    clock.now += PUBLISH_FOR_S
    assert (await health.ready()).ok


async def test_refusals_are_bounded_and_shown_in_one_line() -> None:
    """A peer may choose the subject that this program publishes to."""
    health = serving(Clock())
    for number in range(1000):
        health.refused("publish", f"a.{number}")
    health.refused("publish", "line\nbreak" + "x" * 1000)
    reason = (await health.ready()).checks["permissions"].reason
    assert reason is not None
    assert "\n" not in reason
    assert len(reason) < 200
    assert reason.endswith("and 63 more")
    health.refused("subscribe", "_INBOX.secret.token")
    assert "_INBOX.>" in str((await health.ready()).checks["permissions"].reason)


async def test_a_probe_asks_once_for_all_who_want_to_know() -> None:
    """However often the route is asked, the server is asked once a second, and one question at a time."""
    clock, asked, answer = Clock(), 0, asyncio.Event()

    async def ask() -> None:
        nonlocal asked
        asked += 1
        await answer.wait()

    probe = Probed(ask, clock)
    async with deadline(5):
        several = [asyncio.create_task(probe()) for _ in range(5)]
        await asyncio.sleep(0)
        answer.set()
        assert [Check(ok=True)] * 5 == await asyncio.gather(*several)
        await probe()
        assert asked == 1
        clock.now += 1
        await probe()
        assert asked == 2


async def test_a_probe_waits_no_longer_than_its_bound() -> None:
    """A server that is frozen is down."""
    probe = Probed(lambda: asyncio.sleep(3600), Clock(), within_s=0.01)
    async with deadline(5):
        assert Check.failed("no answer within 0.01 s") == await probe()


async def test_a_probe_tells_the_error_without_its_cause() -> None:
    """What a library says may hold an address and a password."""

    async def ask() -> None:
        raise Unavailable("registry.ping: ConnectionError", operation="ping") from OSError("redis://:pw@host")

    assert Check.failed("registry.ping: ConnectionError") == await Probed(ask, Clock())()


async def test_who_gives_up_on_a_probe_takes_it_from_nobody() -> None:
    """A client that hangs up does not cancel the question of the others."""
    answer = asyncio.Event()
    probe = Probed(answer.wait, Clock())
    async with deadline(5):
        first, second = asyncio.create_task(probe()), asyncio.create_task(probe())
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        answer.set()
        assert (await second).ok
