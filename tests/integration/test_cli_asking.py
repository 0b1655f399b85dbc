"""How operators' commands ask: what a reply may be, and what is said when it is none."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton.core.answer import error_part
from sexton.schemas import subjects
from sexton.schemas.base import Message
from sexton.schemas.errors import Fenced, MalformedMessage, PeerError, SextonError, Unavailable
from sexton.schemas.leases import LeaseInfo
from sexton.schemas.ops import HoldersPart, OpsRequest, OpsVerb
from sexton.worker.cli.asking import Operator
from sexton.worker.embedded import NatsServer
from sexton.worker.settings.connections import ConnectionSettings
from tests.support.waiting import deadline


def part(context_id: str, index: int, *, last: bool) -> HoldersPart:
    lease = LeaseInfo(holder_id=f"h{index}", incarnation=1, expires_in_ms=1, beat_ms_ago=0, pins=0)
    return HoldersPart(context_id=context_id, index=index, last=last, holders=(lease,))


Answer = Callable[[str, list[Message | bytes]], Awaitable[None]]


@pytest.fixture
async def answering(nats_url: str) -> AsyncIterator[Answer]:
    """Stands for a worker: answers `holders` with what the test says."""
    client: Client = await nats.connect(nats_url)

    async def answer(context_id: str, replies: list[Message | bytes]) -> None:
        async def on_request(message: Msg) -> None:
            for reply in replies:
                await client.publish(message.reply, reply if isinstance(reply, bytes) else reply.wire())

        await client.subscribe(subjects.ops(context_id, OpsVerb.HOLDERS), cb=on_request)
        await client.flush()

    yield answer
    await client.close()


async def ask(nats_url: str, context_id: str, **options: Any) -> list[HoldersPart]:
    async with deadline(10, "an answer"), Operator(ConnectionSettings(nats_url=nats_url)) as operator:
        request = OpsRequest(context_id=context_id)
        return await operator.ask(OpsVerb.HOLDERS, request, HoldersPart, **options)


async def test_a_reply_in_parts_is_put_together(nats_url: str, context_id: str, answering: Answer) -> None:
    """Up to the one that says it is the last."""
    await answering(context_id, [part(context_id, 0, last=False), part(context_id, 1, last=True)])

    parts = await ask(nats_url, context_id)

    assert ["h0", "h1"] == [lease.holder_id for part in parts for lease in part.holders]


async def test_several_questions_share_a_connection(
    nats_url: str, context_id: str, answering: Answer
) -> None:
    """Each gets its own reply, also after one that failed."""
    await answering(context_id, [part(context_id, 0, last=True)])

    async with Operator(ConnectionSettings(nats_url=nats_url)) as operator:
        request = OpsRequest(context_id=context_id)
        for _ in range(2):
            assert 1 == len(await operator.ask(OpsVerb.HOLDERS, request, HoldersPart))
            with pytest.raises(Unavailable, match="no worker is there to answer pins"):
                await operator.ask(OpsVerb.PINS, request, HoldersPart)


async def test_an_error_is_raised_as_it_was_sent(nats_url: str, context_id: str, answering: Answer) -> None:
    """With its class and fields, also behind other parts."""
    error = error_part(context_id, Fenced("another one", incarnation=7))
    await answering(context_id, [part(context_id, 0, last=False), error])

    with pytest.raises(Fenced, match="another one") as caught:
        await ask(nats_url, context_id)

    assert 7 == caught.value.fields["incarnation"]


@pytest.mark.parametrize("failures", [1, 3, 4])
async def test_a_store_that_does_not_answer_is_asked_again(
    nats_url: str, context_id: str, failures: int
) -> None:
    """A few times; then the error stands."""
    client = await nats.connect(nats_url)
    asked = 0

    async def on_request(message: Msg) -> None:
        nonlocal asked
        asked += 1
        failed = error_part(context_id, Unavailable("registry.observe: ConnectionError"))
        answer: Message = failed if asked <= failures else part(context_id, 0, last=True)
        await client.publish(message.reply, answer.wire())

    await client.subscribe(subjects.ops(context_id, OpsVerb.HOLDERS), cb=on_request)
    await client.flush()

    if failures <= 3:
        assert 1 == len(await ask(nats_url, context_id))
    else:
        with pytest.raises(Unavailable, match=r"registry\.observe"):
            await ask(nats_url, context_id)
    assert min(failures + 1, 4) == asked
    await client.close()


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        (lambda c: [part(c, 1, last=True)], PeerError),
        (lambda c: [part(c, 0, last=False), part(c, 2, last=True)], PeerError),
        (lambda c: [b""], MalformedMessage),
        (lambda c: [b"\xff not json"], MalformedMessage),
        (lambda c: [b"[]"], MalformedMessage),
    ],
    ids=["first missing", "gap", "empty", "not JSON", "another shape"],
)
async def test_a_reply_that_breaks_the_contract_is_the_peers_error(
    nats_url: str,
    context_id: str,
    answering: Answer,
    replies: Callable[[str], list[Message | bytes]],
    error: type[SextonError],
) -> None:
    """Never half an answer."""
    await answering(context_id, replies(context_id))

    with pytest.raises(error):
        await ask(nats_url, context_id)


@pytest.mark.parametrize("first", [True, False], ids=["nothing", "only a part"])
async def test_a_service_that_falls_silent_is_not_waited_for_without_end(
    nats_url: str, context_id: str, answering: Answer, first: bool
) -> None:
    """The error says for how long it was waited."""
    await answering(context_id, [part(context_id, 0, last=False)] if first else [])

    with pytest.raises(Unavailable, match=r"no answer to holders within 0\.2 s"):
        await ask(nats_url, context_id, silence_s=0.2)


async def test_a_server_that_goes_away_is_noticed(own_nats: NatsServer, context_id: str) -> None:
    """Long before the silence is over: nothing can come any more."""
    client = await nats.connect(own_nats.url, allow_reconnect=False)

    async def on_request(_: Msg) -> None:
        await own_nats.kill()

    await client.subscribe(subjects.ops(context_id, OpsVerb.HOLDERS), cb=on_request)
    await client.flush()

    with pytest.raises(Unavailable, match="no answer to holders"):
        await ask(own_nats.url, context_id)
    await client.close()


async def test_a_frozen_server_is_given_up(own_nats: NatsServer) -> None:
    """It takes the connection, and says nothing."""
    await own_nats.pause()

    with pytest.raises(Unavailable, match="NATS cannot be reached"):
        async with deadline(10, "the end of it"), Operator(ConnectionSettings(nats_url=own_nats.url)):
            pass
