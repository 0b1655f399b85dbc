"""The NATS adapter, as far as it can be tested without a server."""

import asyncio

import pytest
from nats.aio.client import Client
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import SlowConsumerError

from sexton.holder.adapters.connection import Connection
from sexton.holder.adapters.inbox import MAX_WAITING, NatsMailbox
from sexton.holder.adapters.nats import _check_stored
from sexton.holder.log import logger
from sexton.holder.ports import ConnectionEvent, Letter
from sexton.schemas.errors import MalformedMessage, PayloadTooLarge, SextonError, Unavailable
from tests.support.waiting import deadline


@pytest.mark.parametrize(
    "ack",
    [
        b'{"stream":"SEXTON_COMMANDS","seq":7}',
        b'{"stream":"SEXTON_COMMANDS","seq":7,"duplicate":true}',
        b'{"stream":"SEXTON_COMMANDS","domain":"hub","seq":7}',
    ],
)
def test_what_jetstream_has_stored_is_stored(ack: bytes) -> None:
    """C26: a duplicate was delivered before: that is no failure."""
    _check_stored(ack, b"body")


@pytest.mark.parametrize(
    ("ack", "error"),
    [
        (b'{"error":{"code":503,"err_code":10077,"description":"maximum messages exceeded"}}', Unavailable),
        (b'{"error":{"code":400,"err_code":10054,"description":"message size exceeds"}}', PayloadTooLarge),
        (b'{"error":"odd"}', Unavailable),
        (b"", MalformedMessage),
        (b"not json", MalformedMessage),
        (b"[]", MalformedMessage),
        (b"7", MalformedMessage),
        (b"{}", MalformedMessage),
        (b'{"stream":"S"}', MalformedMessage),
    ],
)
def test_what_jetstream_has_not_stored_is_an_error(ack: bytes, error: type[SextonError]) -> None:
    """C19: only its own acknowledgement says that a command is stored."""
    with pytest.raises(error):
        _check_stored(ack, b"body")


async def test_dropped_messages_are_told() -> None:
    """A slow consumer loses messages: the follower is told to look for itself."""
    told: list[ConnectionEvent] = []
    failed = Connection(told.append, logger())._callbacks()["error_cb"]
    subscription = Subscription(Client(), subject="sexton.epoch.notes")
    await failed(SlowConsumerError(subject=subscription.subject, reply="", sid=1, sub=subscription))
    await failed(NatsError("odd"))
    assert [ConnectionEvent.DROPPED] == told


async def test_a_mailbox_is_bounded() -> None:
    """What does not fit is left out; the part that is missing is noticed by its number."""
    mailbox = NatsMailbox(lambda _: "address")
    for i in range(MAX_WAITING + 5):
        mailbox.deliver(Letter("address", b"%d" % i))
    mailbox.deliver(Unavailable("the connection was lost"))
    letters = [await mailbox.receive() for _ in range(MAX_WAITING)]
    assert b"%d" % (MAX_WAITING - 1) == letters[-1].data
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await mailbox.receive()


async def test_waiting_for_a_connection_ends_when_it_is_closed() -> None:
    """No spinning, no hanging: `ready` waits in turns of its own, and is told."""
    connection = Connection(lambda _: None, logger())
    waiting = [asyncio.create_task(connection.ready()) for _ in range(3)]
    await asyncio.sleep(0)
    await connection.close()
    async with deadline(5, "the end of the waiting"):
        results = await asyncio.gather(*waiting, return_exceptions=True)
    assert all(isinstance(result, Unavailable) for result in results)
