"""The contract of a holder's transport: the same cases in memory, and over NATS with a worker behind it."""

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sexton.holder.ports import BumpHandler, Mailbox, Transport
from sexton.schemas.codec import AnyOutcome, decode, decode_outcome, decode_record
from sexton.schemas.commands import Append, CommandKind
from sexton.schemas.errors import PayloadTooLarge, Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.limits import CHUNK_BYTES, MAX_PAYLOAD_BYTES
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import (
    FetchPart,
    FetchRequest,
    PutReply,
    PutRequest,
    RpcError,
    SyncPart,
    SyncRequest,
    Verb,
)
from sexton.schemas.span import Claim, NewSpan
from sexton.worker.embedded import EmbeddedServers
from tests.holder_kit.benches import Bench, memory_bench, nats_bench
from tests.support.waiting import deadline, eventually

WITHIN_S = 15.0


@pytest.fixture(params=["memory", "nats"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    if request.param == "memory":
        async with memory_bench() as bench:
            yield bench
        return
    async with EmbeddedServers(tmp_path / "servers") as servers, nats_bench(servers) as bench:
        yield bench


@asynccontextmanager
async def opened(bench: Bench) -> AsyncIterator[Transport]:
    transport = bench.transport()
    await transport.open()
    try:
        yield transport
    finally:
        await transport.close()


def append(context_id: str, event_id: str = "e", content: str = "Ship on Friday.") -> Append:
    return Append(context_id=context_id, event_id=event_id, spans=(NewSpan(content=content, name="plan"),))


async def submitted(transport: Transport, mailbox: Mailbox, command: Append) -> AnyOutcome:
    """Submits to a new address, and gives the outcome that comes there."""
    address = mailbox.address()
    async with deadline(WITHIN_S, "the outcome"):
        await transport.submit(command.context_id, command.kind, command.wire(), address)
        letter = await mailbox.receive()
    assert address == letter.address
    return decode_outcome(letter.data)


async def answered(transport: Transport, context_id: str, verb: Verb, body: bytes) -> bytes:
    """The first part of an answer."""
    async with transport.mailbox() as mailbox, deadline(WITHIN_S, "the answer"):
        await transport.ask(context_id, verb, body, mailbox.address())
        return (await mailbox.receive()).data


async def test_a_command_is_stored_and_its_outcome_arrives(bench: Bench, context_id: str) -> None:
    """`submit` returns when it is stored; the outcome comes to the address."""
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        outcome = await submitted(transport, mailbox, append(context_id))
        assert isinstance(outcome, Committed)
        assert ("e", 1, "l0:plan") == (outcome.event_id, outcome.revision, outcome.spans[0].span_id)


async def test_the_same_command_again_has_the_same_outcome(bench: Bench, context_id: str) -> None:
    """C24, C26: stored for the second time is stored; the outcome is that of the first commit."""
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        first = await submitted(transport, mailbox, append(context_id))
        again = await submitted(transport, mailbox, append(context_id))
        assert first == again
        other = await submitted(transport, mailbox, append(context_id, content="another body"))
        assert isinstance(other, Rejected)
        assert RejectionCode.EVENT_ID_REUSED is other.code


async def test_a_command_that_cannot_be_right_is_rejected_and_not_lost(bench: Bench, context_id: str) -> None:
    """The transport carries it; the service says what is wrong."""
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        body = b'{"event_id": "e", "kind": "append"}'
        async with deadline(WITHIN_S, "the outcome"):
            await transport.submit(context_id, CommandKind.APPEND, body, mailbox.address())
            outcome = decode_outcome((await mailbox.receive()).data)
        assert isinstance(outcome, Rejected)
        assert ("e", RejectionCode.INVALID) == (outcome.event_id, outcome.code)


async def test_a_request_is_answered(bench: Bench, context_id: str) -> None:
    """One part, the last one, about that context."""
    async with opened(bench) as transport:
        part = decode(
            SyncPart,
            await answered(transport, context_id, Verb.SYNC, SyncRequest(context_id=context_id).wire()),
        )
        assert (context_id, 0, True, 0) == (part.context_id, part.index, part.last, part.head.revision)


async def test_a_refusal_is_an_answer(bench: Bench, context_id: str) -> None:
    """An error part, with a code."""
    pointer = Pointer(
        context_id=context_id,
        span_id="l0:none",
        level=Level.L0_VERBATIM,
        version=1,
        offset=0,
        length=1,
        content_hash="sha256:" + "0" * 64,
        epoch=0,
    )
    request = FetchRequest(context_id=context_id, pointer=pointer)
    async with opened(bench) as transport:
        error = decode(RpcError, await answered(transport, context_id, Verb.FETCH, request.wire()))
        assert ("unreachable", True) == (error.code, error.fields["maybe_behind"])


async def test_the_parts_of_an_answer_come_in_order(bench: Bench, context_id: str) -> None:
    """C68: a large span, in parts with dense numbers; together they are its bytes."""
    content = "0123456789abcdef" * (CHUNK_BYTES // 8)
    chunk = content.encode()[:CHUNK_BYTES]
    claim = Claim(
        digest="sha256:" + hashlib.sha256(content.encode()).hexdigest(),
        size_bytes=len(content),
        chunk_bytes=CHUNK_BYTES,
    )
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        for index in range(claim.chunks):
            put = PutRequest(context_id=context_id, claim=claim, index=index, data=chunk)
            reply = decode(PutReply, await answered(transport, context_id, Verb.PUT, put.wire()))
            assert reply.last
        command = append(context_id).model_copy(update={"spans": (NewSpan(claim=claim, name="plan"),)})
        assert isinstance(await submitted(transport, mailbox, command), Committed)

        pointer = Pointer(
            context_id=context_id,
            span_id="l0:plan",
            level=Level.L0_VERBATIM,
            version=1,
            offset=0,
            length=len(content),
            content_hash=claim.digest,
            epoch=0,
        )
        request = FetchRequest(context_id=context_id, pointer=pointer)
        parts: list[FetchPart] = []
        async with transport.mailbox() as answers, deadline(WITHIN_S, "all parts"):
            await transport.ask(context_id, Verb.FETCH, request.wire(), answers.address())
            while not parts or not parts[-1].last:
                parts.append(decode(FetchPart, (await answers.receive()).data))
        assert len(parts) > 1
        assert list(range(len(parts))) == [part.index for part in parts]
        assert content.encode() == b"".join(part.data for part in parts)


async def test_the_addresses_of_a_mailbox_are_told_apart(bench: Bench, context_id: str) -> None:
    """Two tries of one exchange: each letter says which it answers."""
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        body = SyncRequest(context_id=context_id).wire()
        addresses = [mailbox.address(), mailbox.address()]
        assert addresses[0] != addresses[1]
        async with deadline(WITHIN_S, "both answers"):
            for address in addresses:
                await transport.ask(context_id, Verb.SYNC, body, address)
            letters = [await mailbox.receive() for _ in addresses]
        assert set(addresses) == {letter.address for letter in letters}


async def test_mailboxes_do_not_get_each_others_letters(bench: Bench, context_id: str) -> None:
    """Fifty exchanges at once over one inbox."""
    async with opened(bench) as transport:

        async def exchange(i: int) -> str:
            name = f"{context_id[:40]}_{i}"
            data = await answered(transport, name, Verb.SYNC, SyncRequest(context_id=name).wire())
            return decode(SyncPart, data).context_id

        async with deadline(WITHIN_S, "all exchanges"):
            names = await asyncio.gather(*(exchange(i) for i in range(50)))
        assert [f"{context_id[:40]}_{i}" for i in range(50)] == names


async def test_what_comes_after_an_exchange_is_dropped(bench: Bench, context_id: str) -> None:
    """A late answer to a closed mailbox disturbs nobody."""
    body = SyncRequest(context_id=context_id).wire()
    async with opened(bench) as transport:
        async with transport.mailbox() as mailbox:
            await transport.ask(context_id, Verb.SYNC, body, mailbox.address())
        decode(SyncPart, await answered(transport, context_id, Verb.SYNC, body))


async def test_who_follows_hears_every_record(bench: Bench, context_id: str) -> None:
    """C90: what is committed after `follow` has returned is announced, in order, to each follower."""
    heard: list[list[int]] = [[], []]

    def hearing(revisions: list[int]) -> BumpHandler:
        return lambda data: revisions.append(decode_record(data).revision)

    async with opened(bench) as transport, opened(bench) as other, transport.mailbox() as mailbox:
        for one, revisions in zip((transport, other), heard, strict=True):
            await one.follow(context_id, hearing(revisions))
        for i in range(10):
            command = append(context_id, f"e{i}").model_copy(update={"spans": (NewSpan(content="x"),)})
            await submitted(transport, mailbox, command)
        await eventually(lambda: heard, until=lambda seen: seen == [list(range(1, 11))] * 2)


async def test_who_does_not_follow_any_more_hears_nothing(bench: Bench, context_id: str) -> None:
    """Another context's records are not heard either; closing twice is fine."""
    heard: list[bytes] = []
    kept: list[bytes] = []
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        gone = await transport.follow(context_id, heard.append)
        await transport.follow(context_id, kept.append)
        await transport.follow("elsewhere", heard.append)
        await gone.close()
        await gone.close()
        await submitted(transport, mailbox, append(context_id))
        await eventually(lambda: len(kept), until=lambda count: count == 1)
        assert [] == heard


async def test_nobody_there_is_said_at_once(bench: Bench, context_id: str) -> None:
    """Without a worker a request finds nobody; a command is stored all the same."""
    async with opened(bench) as transport:
        await bench.stop_workers()
        with pytest.raises(Unavailable, match="no service"):
            await answered(transport, context_id, Verb.SYNC, SyncRequest(context_id=context_id).wire())
        command = append(context_id)
        async with transport.mailbox() as mailbox, deadline(WITHIN_S, "the acknowledgement"):
            await transport.submit(context_id, command.kind, command.wire(), mailbox.address())


async def test_what_is_too_large_is_not_sent(bench: Bench, context_id: str) -> None:
    """Said before it is sent: a server would end the connection. What comes next passes."""
    body = b"x" * (MAX_PAYLOAD_BYTES + 1)
    async with opened(bench) as transport, transport.mailbox() as mailbox:
        with pytest.raises(PayloadTooLarge):
            await transport.ask(context_id, Verb.SYNC, body, mailbox.address())
        with pytest.raises(PayloadTooLarge):
            await transport.submit(context_id, CommandKind.APPEND, body, mailbox.address())
        await answered(transport, context_id, Verb.SYNC, SyncRequest(context_id=context_id).wire())


async def test_what_is_not_open_or_closed_says_so(bench: Bench, context_id: str) -> None:
    """Before `open` and after `close`, everything is unavailable; closing twice is fine."""
    transport = bench.transport()
    for closed in (False, True):
        with pytest.raises(Unavailable):
            await transport.ready()
        with pytest.raises(Unavailable):
            transport.mailbox()
        with pytest.raises(Unavailable):
            await transport.ask(context_id, Verb.SYNC, b"{}", "nowhere")
        with pytest.raises(Unavailable):
            await transport.submit(context_id, CommandKind.APPEND, b"{}", "nowhere")
        with pytest.raises(Unavailable):
            await transport.follow(context_id, lambda _: None)
        if not closed:
            await transport.open()
            await transport.ready()
        await transport.close()
        await transport.close()


async def test_closing_ends_the_waiting(bench: Bench) -> None:
    """Who waits for a letter is told that none will come."""
    transport = bench.transport()
    await transport.open()
    async with transport.mailbox() as mailbox:
        mailbox.address()
        waiting = asyncio.create_task(mailbox.receive())
        await asyncio.sleep(0)
        await transport.close()
        async with deadline(WITHIN_S, "the end of the waiting"):
            with pytest.raises(Unavailable):
                await waiting
