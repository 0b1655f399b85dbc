"""Traces over real servers: from a holder's command through the commit to another holder's callback."""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import nats
import pytest
from nats.aio.msg import Msg
from opentelemetry import trace

from sexton.holder import Context, Holder, HolderSettings, LeafLost, Unreachable
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import REPLY_HEADER, Committed
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append
from tests.pager_kit.receiver import receiving
from tests.pager_kit.scene import paging
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.tracing_kit import Seen, attributes, id_of, is_under, linked, looking, trace_of
from tests.worker_kit.sender import Sender, hpub, publish_raw, sending
from tests.worker_kit.service import cold_folder, settings

CANARY = "canary-5f1e"
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
DOCS = Path(__file__).parents[2] / "docs" / "tracing.md"
USER = trace.get_tracer("a program")


@pytest.fixture
def seen() -> Iterator[Seen]:
    with looking() as seen:
        yield seen


@asynccontextmanager
async def two_holders(servers: EmbeddedServers, **more: Any) -> AsyncIterator[tuple[Context, Context]]:
    """A traced worker, and the same context in two holders."""
    async with (
        deadline(60, "the test"),
        Worker(settings(servers, **({"tracing": True} | more))),
        Holder.connect(servers.nats_url, name="one") as one,
        Holder.connect(servers.nats_url, name="two") as two,
    ):
        yield await one.open("ctx"), await two.open("ctx")


@asynccontextmanager
async def heard(url: str, subject: str) -> AsyncIterator[list[Msg]]:
    """The messages on a subject."""
    messages: list[Msg] = []

    async def take(message: Msg) -> None:
        messages.append(message)

    client = await nats.connect(url)
    await client.subscribe(subject, cb=take)
    await client.flush()
    try:
        yield messages
    finally:
        await client.close()


async def test_one_trace_leads_from_a_command_to_another_holders_callback(
    own_servers: EmbeddedServers, seen: Seen
) -> None:
    """Each span is under the one that caused it, and what a message caused is linked to it, too."""
    async with two_holders(own_servers) as (mine, other):
        span_id = (await mine.append("first words")).spans[0].span_id
        words = other.derived(span_id, lambda text: text.split(), name="words")
        await words.use()
        bumps = other.bumps()
        seen.clear()

        done = await mine.rewrite(span_id, "other words")
        record = await anext(bumps)
        with bumps.handling(record):
            pass
        assert ["other", "words"] == await words.use()

        command = await seen.comes("sexton.command")
        handle = await seen.comes("sexton.handle")
        commit = await seen.comes("sexton.commit")
        publish = await seen.comes("sexton.publish")
        applied = await seen.come("sexton.bump", 2)
        mine_to_do = [*applied, await seen.comes("sexton.bump.handle"), await seen.comes("sexton.derive")]
        fetches = await seen.come("sexton.rpc.fetch", 2)

    assert command.parent is None
    assert is_under(handle, command)
    assert [id_of(command)] == linked(handle)
    assert is_under(seen.named("sexton.decide")[0], handle)
    assert is_under(commit, handle)
    for name in ("sexton.cold.write", "sexton.publish", "sexton.project"):
        assert is_under(seen.named(name)[0], commit)
    for span in mine_to_do:
        assert is_under(span, publish)
        assert [id_of(publish)] == linked(span)
    assert is_under(next(span for span in fetches if span.kind.name == "CLIENT"), mine_to_do[-1])
    assert {trace_of(command)} == {trace_of(span) for span in seen.all()}
    assert ["PRODUCER", "CONSUMER", "PRODUCER", "CONSUMER", "CONSUMER"] == [
        span.kind.name for span in (command, handle, publish, applied[0], mine_to_do[2])
    ]
    told = attributes(command)
    assert ("ctx", "rewrite", "committed", done.revision, done.epoch) == tuple(
        told[name] for name in ("context_id", "kind", "outcome", "revision", "epoch")
    )
    assert told["event_id"] == attributes(handle)["event_id"]
    assert 1 == attributes(handle)["deliveries"]


async def test_a_programs_own_span_keeps_its_children_and_gets_the_link(
    own_servers: EmbeddedServers, seen: Seen
) -> None:
    """A command is under it; what it does because of a bump is under it, and linked to the commit."""
    async with two_holders(own_servers) as (mine, other):
        bumps = other.bumps()
        with USER.start_as_current_span("asking"):
            await mine.append("words")
        record = await anext(bumps)
        with USER.start_as_current_span("watching"), bumps.handling(record):
            pass
        handling = await seen.comes("sexton.bump.handle")

    assert is_under(seen.named("sexton.command")[0], seen.named("asking")[0])
    assert is_under(handling, seen.named("watching")[0])
    assert [id_of(seen.named("sexton.publish")[0])] == linked(handling)


async def test_a_summary_that_is_made_elsewhere_stays_in_the_trace(
    own_servers: EmbeddedServers, seen: Seen
) -> None:
    """Deferred, summarised, sent again and committed."""
    async with two_holders(own_servers) as (mine, _):
        sources = [(await mine.append("many words " * 20)).spans[0].span_id for _ in range(2)]
        seen.clear()
        await mine.compact(sources)
        await seen.come("sexton.bump", 2)

    asked = next(span for span in seen.named("sexton.command") if span.parent is None)
    again = next(span for span in seen.named("sexton.command") if span.parent is not None)
    deferring, committing = seen.named("sexton.handle")
    summarise = seen.named("sexton.summarise")[0]
    assert is_under(deferring, asked)
    assert is_under(seen.named("sexton.defer")[0], deferring)
    assert is_under(summarise, seen.named("sexton.defer")[0])
    assert is_under(seen.named("sexton.summariser")[0], summarise)
    assert is_under(again, summarise)
    assert is_under(committing, again)
    assert ["deferred", "committed"] == [attributes(span)["outcome"] for span in (deferring, committing)]
    assert {trace_of(asked)} == {trace_of(span) for span in seen.all()}


async def test_a_request_and_its_answer_are_a_pair(own_servers: EmbeddedServers, seen: Seen) -> None:
    """Client and server; what holders ask every few seconds by themselves begins no trace."""
    async with two_holders(own_servers) as (mine, other):
        span_id = (await mine.append("words")).spans[0].span_id
        seen.clear()
        with USER.start_as_current_span("reading") as reading:
            await other.sync()
            pointer = await other.mint(span_id)
            async with other.pin(span_id):
                await other.resolve(pointer, consistency="latest")
        server = await seen.come("sexton.rpc.release", 2)
        assert [] == seen.named("sexton.rpc.heartbeat")

    for name in ("sexton.rpc.fetch", "sexton.rpc.pin", "sexton.rpc.release", "sexton.rpc.sync"):
        pair = {span.kind.name: span for span in seen.named(name)}
        assert {"CLIENT", "SERVER"} == pair.keys(), name
        assert is_under(pair["SERVER"], pair["CLIENT"])
        assert trace_of(pair["CLIENT"]) == reading.get_span_context().trace_id
    assert {"ctx"} == {attributes(span)["context_id"] for span in server}


async def test_what_runs_on_leaves_the_span_that_it_was_started_in(
    own_servers: EmbeddedServers, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats and bumps are nothing that the opening of a context has done."""
    quick = HolderSettings(lease_ttl_s=1.0, sync_interval_s=0.1)
    async with (
        deadline(60, "the test"),
        Worker(settings(own_servers, tracing=True)) as worker,
        Holder.connect(own_servers.nats_url, settings=quick) as holder,
    ):
        asked: list[Any] = []
        answer = worker._rpc.parts
        with USER.start_as_current_span("opening"):
            context = await holder.open("ctx")

            async def count(verb: Any, *more: Any) -> Any:
                asked.append(verb.value)
                return await answer(verb, *more)

            monkeypatch.setattr(worker._rpc, "parts", count)
            seen.clear()
            await eventually(lambda: asked.count("sync"), until=lambda count: count >= 3, what="syncs")
            await eventually(lambda: asked.count("heartbeat"), what="a heartbeat")
            async with sending(own_servers.nats_url) as sender:
                await sender.commit(append("e", "x"))
            assert context.context_id == "ctx"
        assert [] == [span for span in seen.all() if span.name.startswith("sexton.rpc.")]


async def test_a_redelivered_command_stays_in_its_trace(
    own_servers: EmbeddedServers, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span for each delivery, with its number; one that failed says with which code, not in what words."""
    async with Worker(settings(own_servers, tracing=True)) as worker:
        carry_out = worker._handler._committer.carry_out
        failures = [Unavailable(f"down, says {CANARY}"), ValueError(f"a bug, with {CANARY}")]

        async def at_first_not(*args: Any, **more: Any) -> Any:
            if failures:
                raise failures.pop(0)
            return await carry_out(*args, **more)

        monkeypatch.setattr(worker._handler._committer, "carry_out", at_first_not)
        async with Holder.connect(own_servers.nats_url) as holder:
            await (await holder.open("ctx")).append("words")
        command = await seen.comes("sexton.command")
        deliveries = await seen.come("sexton.handle", 3)

    assert [1, 2, 3] == [attributes(span)["deliveries"] for span in deliveries]
    assert all(is_under(span, command) for span in deliveries)
    assert ["unavailable", "ValueError", None] == [
        (span.attributes or {}).get("error.type") for span in deliveries
    ]
    assert ["ERROR", "ERROR", "UNSET"] == [span.status.status_code.name for span in deliveries]
    assert CANARY not in "".join(span.to_json() for span in seen.all())


async def test_a_command_that_is_sent_again_is_one_span(own_servers: EmbeddedServers, seen: Seen) -> None:
    """It is one message; each try after the first is an event of the span."""
    quick = HolderSettings(outcome_timeout_s=0.3, ack_timeout_s=2.0, command_tries=40, backoff_s=0.02)
    async with (
        deadline(60, "the test"),
        Holder.connect(own_servers.nats_url, settings=quick) as holder,
        heard(own_servers.nats_url, "sexton.cmd.ctx.append") as sent,
    ):
        async with Worker(settings(own_servers, tracing=True)):
            context = await holder.open("ctx")
        asking = asyncio.create_task(context.append("words"))
        await eventually(lambda: len(sent), until=lambda count: count >= 2, within_s=20, what="a second try")
        async with Worker(settings(own_servers, tracing=True)):
            await asking
            command = await seen.comes("sexton.command")

    assert "sexton.retry" == command.events[0].name
    assert 1 == len({(message.headers or {})["traceparent"] for message in sent})


async def test_who_is_not_sampled_is_recorded_nowhere(own_servers: EmbeddedServers, seen: Seen) -> None:
    """The decision of whoever began the trace travels with it."""
    async with (
        two_holders(own_servers) as (mine, other),
        heard(own_servers.nats_url, "sexton.epoch.ctx") as raw,
    ):
        bumps = other.bumps()
        seen.sampled = False
        await mine.append("words")
        seen.sampled = True
        with bumps.handling(await anext(bumps)):
            pass
        (message,) = await eventually(lambda: raw, what="the bump")

    assert 0 == int((message.headers or {})["traceparent"][-2:], 16) & 1
    assert [] == [span.name for span in seen.all()]


async def test_a_record_that_was_asked_for_has_no_trace(own_servers: EmbeddedServers, seen: Seen) -> None:
    """It came by `sync` and not as a bump: what is done for it begins a trace of its own."""
    async with two_holders(own_servers) as (mine, _):
        await mine.append("words")
        async with Holder.connect(own_servers.nats_url) as late:
            bumps = (await late.open("ctx")).bumps(1)
            with bumps.handling(await anext(bumps)):
                pass
        handling = await seen.comes("sexton.bump.handle")

    assert handling.parent is None
    assert [] == linked(handling)


HOSTILE = {
    "not UTF-8": b"traceparent: \xff\xfe\xfd\r\n",
    "10 KB": b"traceparent: 00-" + b"a" * 10_240 + b"\r\n",
    "many": f"traceparent: {PARENT}\r\n".encode() * 500 + b"traceparent: x\r\n",
    "no ids": b"traceparent: 00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01\r\n",
    "capitals": b"traceparent: " + PARENT.upper().encode() + b"\r\n",
    "empty": b"traceparent: \r\n",
    "another version": b"traceparent: ff" + PARENT[2:].encode() + b"\r\n",
    "a subject": b"traceparent: sexton.log.ctx\r\n",
    "only a state": b"tracestate: a=b\r\n",
}


@pytest.mark.parametrize("case", HOSTILE)
async def test_a_hostile_header_changes_nothing_but_the_trace(
    own_servers: EmbeddedServers, seen: Seen, case: str
) -> None:
    """The command is carried out and answered to the inbox that it names; its trace begins at the worker."""
    async with deadline(60, "the test"), Worker(settings(own_servers, tracing=True)):
        async with sending(own_servers.nats_url) as sender:
            outcome = await _answer_to_raw(own_servers, sender, HOSTILE[case])
        handle = await seen.comes("sexton.handle")

    assert isinstance(outcome, Committed)
    assert handle.parent is None
    assert [] == linked(handle)


async def test_a_hostile_state_costs_the_state_alone(own_servers: EmbeddedServers, seen: Seen) -> None:
    """The trace goes on without what is too long, or no text."""
    for number, state in enumerate((b"a=" + b"x" * 10_240, b"a=\xff\xfe", b"a=\x01")):
        async with deadline(60, "the test"), Worker(settings(own_servers, tracing=True)):
            seen.clear()
            async with (
                sending(own_servers.nats_url) as sender,
                heard(own_servers.nats_url, "sexton.epoch.ctx") as raw,
            ):
                header = f"traceparent: {PARENT}\r\n".encode() + b"tracestate: " + state + b"\r\n"
                assert isinstance(await _answer_to_raw(own_servers, sender, header, number), Committed)
                (message,) = await eventually(lambda: raw, what="the bump")
            handle = await seen.comes("sexton.handle")
        assert handle.parent is not None
        assert PARENT.split("-")[2] == f"{handle.parent.span_id:016x}"
        assert "tracestate" not in (message.headers or {})


async def _answer_to_raw(servers: EmbeddedServers, sender: Sender, header: bytes, number: int = 0) -> Any:
    """The outcome of an append that is published with a header as it is."""
    command = append(f"e{number}", f"x{number}")
    inbox = sender.client.new_inbox()
    answers = await sender.client.subscribe(inbox)
    await sender.client.flush()
    block = b"NATS/1.0\r\n" + header + f"{REPLY_HEADER}: {inbox}\r\n\r\n".encode()
    await publish_raw(servers.nats.port, hpub(b"sexton.cmd.ctx.append", block, command.wire()))
    await answers.next_msg(timeout=15)
    return await sender.outcome_of("ctx", f"e{number}")


async def test_no_span_holds_content_or_a_secret(own_servers: EmbeddedServers, seen: Seen) -> None:
    """Over a whole life: committed, summarised, rejected, stale, unreachable, malformed."""
    async with two_holders(own_servers) as (mine, other), sending(own_servers.nats_url) as sender:
        sources = [(await mine.append(f"{CANARY} " * 20, role=CANARY)).spans[0].span_id for _ in range(3)]
        pointer = await other.mint(sources[0])
        await other.resolve(pointer)
        await other.derived(sources[0], lambda text: text.split()).use()
        await mine.rewrite(sources[0], f"{CANARY} again")
        await mine.compact(sources[1:])
        with pytest.raises(Unreachable):
            await other.mint("l0:nobody")
        await sender.publish(f'{{"{CANARY}":'.encode(), subject="sexton.cmd.ctx.append")
        await sender.publish(b"{}", subject=f"sexton.cmd.ctx.{CANARY}")
        await eventually(
            lambda: [span for span in seen.all() if "error.type" in (span.attributes or {})],
            until=lambda failed: len(failed) >= 2,
            what="two that could not be read",
        )

    told = "".join(span.to_json() for span in seen.all())
    assert "sexton.summarise" in told
    assert CANARY not in told


async def test_a_worker_that_is_not_traced_adds_no_header(own_servers: EmbeddedServers, seen: Seen) -> None:
    """Not even where the command has one. The holder's own spans are its program's affair."""
    async with (
        two_holders(own_servers, tracing=False) as (mine, _),
        heard(own_servers.nats_url, "sexton.cmd.ctx.*") as commands,
        heard(own_servers.nats_url, "sexton.epoch.ctx") as bumps,
        heard(own_servers.nats_url, "sexton.outcome.ctx.*") as outcomes,
    ):
        await mine.append("words")
        await eventually(lambda: commands and bumps and outcomes, what="the messages")

    assert "traceparent" in (commands[0].headers or {})
    assert "traceparent" not in (bumps[0].headers or {})
    assert outcomes[0].headers is None
    assert [] == [span.name for span in seen.all() if span.name in ("sexton.handle", "sexton.publish")]


BLOCKED = """
import asyncio, sys
sys.modules["opentelemetry"] = None
from sexton import tracing
from sexton.holder import Holder
from sexton.worker.app import Worker
from sexton.worker.settings import Settings
import nats

async def main():
    heard = []
    async def take(message):
        heard.append(message)
    async with Worker(Settings()), Holder.connect(Settings().nats_url) as holder:
        client = await nats.connect(Settings().nats_url)
        for subject in ("sexton.cmd.ctx.*", "sexton.epoch.ctx", "sexton.rpc.ctx.*", "sexton.outcome.ctx.*"):
            await client.subscribe(subject, cb=take)
        await client.flush()
        context = await holder.open("ctx")
        bumps = context.bumps()
        span_id = (await context.append("words")).spans[0].span_id
        with bumps.handling(await anext(bumps)) as span:
            span.set(anything=1)
        print(await context.derived(span_id, len).use())
        await client.flush()
        await client.close()
    traced = [message.subject for message in heard if "traceparent" in (message.headers or {})]
    print("available", tracing.AVAILABLE, "traced", traced, "heard", len(heard) > 3)

asyncio.run(main())
"""


async def test_without_opentelemetry_everything_works_and_no_header_is_added(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """Worker, holder, a bump that is handled and an artifact that is built."""
    env = {
        "SEXTON_NATS_URL": own_servers.nats_url,
        "SEXTON_REDIS_URL": own_servers.redis_url,
        "SEXTON_COLD_URL": "memory:///",
    }
    program = programs.python("-c", BLOCKED, env=env)
    assert 0 == await program.exit_code(within_s=60), program.report()
    lines = program.stdout.splitlines()
    assert "5" in lines
    assert "available False traced [] heard True" == lines[-1]


async def test_every_span_and_attribute_is_in_the_docs(own_servers: EmbeddedServers, seen: Seen) -> None:
    """And no name holds an id."""
    async with two_holders(own_servers) as (mine, other):
        bumps = other.bumps()
        sources = [(await mine.append("many words " * 20)).spans[0].span_id for _ in range(2)]
        with bumps.handling(await anext(bumps)):
            pass
        await other.resolve(await other.mint(sources[0]))
        await other.derived(sources[0], len).use()
        await mine.compact(sources)
        await seen.come("sexton.summarise")
    documented = set(re.findall(r"`([a-z._]+)`", DOCS.read_text()))

    ours = {span.name for span in seen.all()}
    keys = {key for span in seen.all() for key in span.attributes or {}}

    assert set() == {re.sub(r"^sexton\.(rpc|ops)\..*", r"sexton.\1", name) for name in ours} - documented
    assert set() == keys - documented


async def test_a_failure_that_pages_is_in_the_trace_of_what_noticed_it(
    own_servers: EmbeddedServers, seen: Seen
) -> None:
    """From the fetch that found nothing, through the record, to the page."""
    async with two_holders(own_servers, hot_max_bytes=0) as (mine, other), receiving() as receiver:
        await mine.append("words", name="a")
        pointer = await other.mint("l0:a")
        [blob] = [path for path in (cold_folder(own_servers) / "blobs").rglob("*") if path.is_file()]
        blob.unlink()
        seen.clear()
        async with paging(own_servers.nats_url, receiver.url, tracing=True):
            with pytest.raises(LeafLost):
                await other.resolve(pointer, consistency="latest")
            await receiver.until(1)
            page = await seen.comes("sexton.page")
        [client, server] = sorted(seen.named("sexton.rpc.fetch"), key=lambda span: span.kind.name)

    assert is_under(server, client)
    assert is_under(page, server)
    assert [id_of(server)] == linked(page)
    assert "lost" == attributes(server)["error"]
