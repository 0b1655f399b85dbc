"""What a program takes in through FastStream's broker: whether it still comes, and how it ends."""

import asyncio
from collections.abc import Sequence

from faststream.nats import NatsBroker
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from sexton.worker.adapters.lanes import Lane
from sexton.worker.adapters.nats_client import HardenedClient
from sexton.worker.health import Check, Health
from sexton.worker.health.checks import OK
from sexton.worker.settings import Settings

_STILL_S = 30.0
"""A pull loop that has not moved for so long has ended or hangs; it moves every second."""


def add_intake_checks(
    health: Health, broker: NatsBroker, clients: Sequence[Client], settings: Settings, *streams: str
) -> None:
    """Adds what is to be asked of the broker, and of the other connections.

    Args:
        health: what the checks are added to.
        broker: it need not have started yet.
        clients: the other connections.
        settings: say how long a pull may be unanswered.
        streams: those whose pulls must be answered for the program to be ready.
    """

    async def connected() -> Check:
        own = _connection(broker)
        if own is not None and all(client.is_connected for client in (own, *clients)):
            return OK
        return Check.failed("not connected to NATS")

    async def answered() -> Check:
        asked = [lane for lane in _lanes(broker) if lane.stream in streams]
        silent = [lane for lane in asked if not _lately(lane, settings.ready_pull_s)]
        if asked and not silent:
            return OK
        if not asked:
            return Check.failed("nothing is pulled yet")
        others = f", and of {len(silent) - 1} more" if len(silent) > 1 else ""
        ever = any(lane.unanswered_s() is not None for lane in silent)
        since = f"for {settings.ready_pull_s:g} s" if ever else "yet"
        return Check.failed(f"no pull of {silent[0].name}{others} was answered {since}")

    def moving() -> Check:
        still = [lane for lane in _lanes(broker) if lane.still_s() > _STILL_S]
        return Check.failed(f"the pull loop of {still[0].name} does not move") if still else OK

    health.add_live("intake", moving)
    health.add_ready("broker", connected)
    health.add_ready("pulls", answered)


async def end_intake(broker: NatsBroker) -> int:
    """Takes nothing more, and gives back what was fetched and not begun; what was begun goes on.

    Gives the number of messages given back. Does not raise, and waits for no server that is away.
    """
    client = _connection(broker)
    if client is None:
        return 0
    lanes = client.lanes
    for lane in lanes:
        lane.end()
    heard = [getattr(subscriber, "subscription", None) for subscriber in broker.subscribers]
    requests = [found for found in heard if isinstance(found, Subscription)]
    await client.end_interest([*(lane.subscription for lane in lanes), *requests])
    return sum(await asyncio.gather(*(lane.give_back() for lane in lanes)))


def _connection(broker: NatsBroker) -> HardenedClient | None:
    """The broker's connection, once there is one."""
    found = broker._connection  # noqa: SLF001 - FastStream has no other way
    return found if isinstance(found, HardenedClient) else None


def _lanes(broker: NatsBroker) -> list[Lane]:
    client = _connection(broker)
    return [] if client is None else client.lanes


def _lately(lane: Lane, within_s: float) -> bool:
    unanswered_s = lane.unanswered_s()
    return unanswered_s is not None and unanswered_s <= within_s
