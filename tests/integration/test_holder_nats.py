"""A holder on real servers: outages, silence, poison, permissions, and a worker that comes and goes."""

import asyncio
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client

import sexton.holder
from sexton.holder import (
    Bumps,
    BumpsMissed,
    Context,
    Holder,
    HolderSettings,
    NatsTransport,
    OutcomeUnknown,
    PermissionRefused,
    StaleSpanError,
    Unavailable,
    Unconfirmed,
)
from sexton.schemas import subjects
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers, NatsServer
from tests.holder_kit.proxy import proxy
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.service import settings as worker_settings
from tests.worker_kit.service import start_worker

QUICK = HolderSettings(
    staleness_bound_s=1.0,
    sync_interval_s=0.3,
    rpc_timeout_s=0.3,
    rpc_tries=2,
    backoff_s=0.02,
    lease_ttl_s=1.0,
)
"""Bounds short enough to be waited for."""

PATIENT = HolderSettings(outcome_timeout_s=1.0, ack_timeout_s=2.0, command_tries=10, lease_ttl_s=1.0)
"""A holder that waits out an outage of some seconds."""


@pytest.fixture
async def served(own_servers: EmbeddedServers) -> AsyncIterator[EmbeddedServers]:
    """Servers of this test's own, with a worker."""
    async with Worker(worker_settings(own_servers)):
        yield own_servers


@asynccontextmanager
async def opened(url: str, context_id: str, settings: HolderSettings = PATIENT) -> AsyncIterator[Context]:
    async with deadline(60, "the test"), Holder.connect(url, settings=settings) as holder:
        yield await holder.open(context_id)


async def leaf(context: Context, text: str = "Ship on Friday.") -> str:
    return (await context.append(text)).spans[0].span_id


async def read_or_told(bumps: Bumps, count: int) -> list[int]:
    """The revisions that a reader got, and those that it was told it would not get."""
    first, seen = bumps.next_revision, list[int]()
    told: int | None = None
    try:
        while len(seen) < count:
            seen.append((await anext(bumps)).revision)
    except BumpsMissed as missed:
        told = missed.fields["next_revision"]
    assert told in (None, first + len(seen))
    return [*seen, *range(first + len(seen), first + count)]


# --- outages -----------------------------------------------------------------------------------------


async def test_a_restart_of_the_server_is_lived_through(served: EmbeddedServers, context_id: str) -> None:
    """C91: the subscription is back, what was missed is known, and commands go on."""
    async with opened(served.nats_url, context_id) as one, opened(served.nats_url, context_id) as other:
        span_id = await leaf(one)
        await served.nats.restart()
        await one.rewrite(span_id, "Ship on Monday.")
        await eventually(lambda: other.head.revision, until=lambda revision: revision == 2, within_s=20)
        await one.rewrite(span_id, "Ship on Tuesday.")
        await eventually(lambda: other.head.revision, until=lambda revision: revision == 3, within_s=20)
        assert "Ship on Tuesday." == await other.render()


async def test_a_command_in_an_outage_waits_for_its_end(served: EmbeddedServers, context_id: str) -> None:
    """I8: sent when the server is back, once."""
    async with opened(served.nats_url, context_id) as context:
        await served.nats.stop()
        appending = asyncio.create_task(context.append("Ship on Friday."))
        await asyncio.sleep(0)
        await served.nats.start()
        assert 1 == (await appending).revision
        assert "Ship on Friday." == await context.render()


async def test_a_long_outage_is_an_error_and_not_a_hang(served: EmbeddedServers, context_id: str) -> None:
    """Reads and commands end in typed errors; closing does not hang; nothing is sent afterwards."""
    async with deadline(60, "the test"):
        async with Holder.connect(served.nats_url, settings=QUICK) as holder:
            context = await holder.open(context_id)
            pointer = await context.mint(await leaf(context))
            await served.nats.stop()
            with pytest.raises(Unavailable):
                await context.resolve(pointer, consistency="latest")
            await eventually(lambda: context.confirmed_age_s, until=lambda age_s: age_s > 1.0)
            with pytest.raises(Unconfirmed):
                await context.resolve(pointer)
        await served.nats.start()
        async with Holder.connect(served.nats_url, settings=HolderSettings(rpc_tries=20)) as holder:
            # The worker comes back by itself, a little later than the server.
            assert 1 == (await holder.open(context_id)).head.revision


async def test_a_frozen_server_is_noticed_within_the_bound(served: EmbeddedServers, context_id: str) -> None:
    """C89: the connection stands and nothing answers. After it, the holder goes on by itself."""
    async with opened(served.nats_url, context_id, QUICK) as context:
        pointer = await context.mint(await leaf(context))
        assert "Ship on Friday." == (await context.resolve(pointer)).quote()
        await served.nats.pause()
        try:
            await eventually(lambda: context.confirmed_age_s, until=lambda age_s: age_s > 1.0)
            with pytest.raises(Unconfirmed):
                await context.resolve(pointer)
        finally:
            await served.nats.resume()
        await eventually(lambda: context.confirmed_age_s, until=lambda age_s: age_s < 1.0, within_s=20)
        assert "Ship on Friday." == (await context.resolve(pointer)).quote()


async def test_closing_on_a_frozen_server_does_not_hang(served: EmbeddedServers, context_id: str) -> None:
    """Its end does not depend on anybody's answer."""
    async with AsyncExitStack() as stack:
        holder = await stack.enter_async_context(Holder.connect(served.nats_url, settings=QUICK))
        await leaf(await holder.open(context_id))
        await served.nats.pause()
        try:
            async with deadline(10, "closing"):
                await holder.close()
        finally:
            await served.nats.resume()


@pytest.mark.parametrize("how", ["stalled", "cut"])
async def test_a_hundred_bumps_missed(served: EmbeddedServers, context_id: str, how: str) -> None:
    """I6: cut off for a hundred changes, with and without being told: converges, and never served stale."""
    async with (
        proxy(served.nats.port) as wire,
        opened(served.nats_url, context_id) as one,
        opened(wire.url, context_id, QUICK) as other,
    ):
        span_id = await leaf(one, "version 1")
        await other.sync()
        pointer = await other.mint(span_id)
        bumps = other.bumps()
        wire.stall()
        if how == "cut":
            wire.cut()
        for version in range(2, 102):
            await one.rewrite(span_id, f"version {version}")
        assert 1 == other.head.revision
        await eventually(lambda: other.confirmed_age_s, until=lambda age_s: age_s > 1.0)
        with pytest.raises(Unconfirmed):
            await other.resolve(pointer)
        wire.mend()
        await eventually(lambda: other.head, until=lambda head: head == one.head, within_s=30)
        with pytest.raises(StaleSpanError) as caught:
            await other.resolve(pointer)
        assert 101 == caught.value.current.version
        async with deadline(10, "every record"):
            assert list(range(2, 102)) == await read_or_told(bumps, 100)


async def test_no_server_is_said_in_time() -> None:
    """With the reason, and nothing left behind."""
    settings = HolderSettings(connect_timeout_s=0.3)
    async with deadline(10, "the refusal"):
        with pytest.raises(Unavailable, match=r"no connection to NATS within 0\.3 s"):
            async with Holder.connect("nats://127.0.0.1:1", settings=settings):
                raise AssertionError("entered")


async def test_no_worker_is_said_in_time(own_servers: EmbeddedServers, context_id: str) -> None:
    """A server alone serves nothing."""
    async with deadline(10, "the refusal"), Holder.connect(own_servers.nats_url, settings=QUICK) as holder:
        with pytest.raises(Unavailable, match="no service"):
            await holder.open(context_id)


# --- a worker that comes and goes --------------------------------------------------------------------


async def test_a_worker_killed_between_commit_and_ack(
    own_servers: EmbeddedServers, context_id: str, programs: Programs
) -> None:
    """C08, C19, I8: the caller waits; the next worker says what became of it; one effect."""
    first = start_worker(programs, own_servers, stop_at={context_id: "after the record"})
    await first.line("worker.ready", stream="stderr", within_s=30)
    async with opened(own_servers.nats_url, context_id) as context:
        appending = asyncio.create_task(context.append("once"))
        await first.line("at after the record")
        first.kill()
        async with Worker(worker_settings(own_servers)):
            assert 1 == (await appending).revision
            assert (1, 1) == ((await context.sync()).revision, context.tree.view_count)


# --- who else is on the wire -------------------------------------------------------------------------


async def test_poison_on_its_subjects_does_not_stop_it(served: EmbeddedServers, context_id: str) -> None:
    """Headers that are no UTF-8, nonsense, somebody else's record: the holder hears the next bump."""
    async with opened(served.nats_url, context_id) as one, opened(served.nats_url, context_id) as other:
        span_id = await leaf(one)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.nats.port)
        subject = subjects.epoch(context_id).encode()
        header = b"NATS/1.0\r\nBad: \xff\xfe\r\n\r\n"
        writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n')
        writer.write(b"HPUB %s %d %d\r\n%s%s\r\n" % (subject, len(header), len(header) + 2, header, b"{}"))
        for junk in (b"", b"{", b"\xff\xff", b'{"kind":"appended"}', b"x" * 100_000):
            writer.write(b"PUB %s %d\r\n%s\r\n" % (subject, len(junk), junk))
        writer.write(b"PING\r\n")
        await writer.drain()
        async with deadline(10, "the server's answer"):
            await reader.readuntil(b"PONG")
        writer.close()
        await one.rewrite(span_id, "Ship on Monday.")
        await eventually(lambda: other.head.revision, until=lambda revision: revision == 2)
        assert 0 == other.lineage


async def test_a_given_connection_stays_its_owners(served: EmbeddedServers, context_id: str) -> None:
    """It is used and not closed, and what the holder subscribed to is gone from it."""
    client = await nats.connect(served.nats_url)
    try:
        for leaves in (2, 4):
            async with deadline(30, "the test"), Holder(NatsTransport(client), settings=PATIENT) as holder:
                context = await holder.open(context_id)
                await leaf(context)
                await served.nats.restart()
                await leaf(context)
                assert leaves == context.head.revision
            assert client.is_connected
            assert {} == client._subs
    finally:
        await client.close()


async def test_a_given_connection_that_is_closed_is_noticed(served: EmbeddedServers, context_id: str) -> None:
    """Its owner closes it: everything is unavailable from then on, and closing the holder is fine."""
    client = Client()
    await client.connect(served.nats_url)
    async with deadline(30, "the test"), Holder(NatsTransport(client), settings=QUICK) as holder:
        context = await holder.open(context_id)
        pointer = await context.mint(await leaf(context))
        await client.close()
        with pytest.raises(Unavailable):
            await context.resolve(pointer, consistency="latest")
        with pytest.raises((Unavailable, OutcomeUnknown)):
            await context.append("too late")
    with pytest.raises(Unavailable, match="not connected"):
        async with Holder(NatsTransport(client)):
            raise AssertionError("entered")


def _users(context_id: str) -> str:
    return f"""
authorization {{
  users = [
    {{ user: "worker", password: "w" }}
    {{ user: "holder", password: "h", permissions: {{
        publish: ["sexton.cmd.{context_id}.*", "sexton.rpc.{context_id}.*"]
        subscribe: ["sexton.epoch.{context_id}", "_INBOX.>"]
    }} }}
  ]
}}
"""


@pytest.fixture
async def guarded(tmp_path: Path, context_id: str) -> AsyncIterator[NatsServer]:
    """A server with users: a holder may do what the protocol asks of it on one context, and no more."""
    async with NatsServer(tmp_path / "guarded", extra_config=_users(context_id)) as server:
        yield server


async def test_permissions_fence_a_holder_to_its_contexts(
    guarded: NatsServer, own_servers: EmbeddedServers, context_id: str
) -> None:
    """Plain subjects are enough for all of it; another context is out of reach, and said to be."""
    config = worker_settings(own_servers, nats_url=guarded.url.replace("//", "//worker:w@"))
    url = guarded.url.replace("//", "//holder:h@")
    async with Worker(config), deadline(60, "the test"), Holder.connect(url, settings=QUICK) as holder:
        context = await holder.open(context_id)
        span_id = await leaf(context)
        await context.rewrite(span_id, "Ship on Monday.")
        await leaf(context, "x" * 600_000)
        assert "Ship on Monday." == (await context.resolve(await context.mint(span_id))).quote()
        with pytest.raises(PermissionRefused, match=r"sexton\.epoch\.elsewhere"):
            await holder.open("elsewhere")


async def test_a_wrong_password_is_said_in_time(guarded: NatsServer) -> None:
    """With the server's own reason."""
    url = guarded.url.replace("//", "//holder:wrong@")
    settings = HolderSettings(connect_timeout_s=0.5)
    async with deadline(10, "the refusal"):
        with pytest.raises(PermissionRefused, match="authorization violation"):
            async with Holder.connect(url, settings=settings):
                raise AssertionError("entered")


# --- what is shipped ---------------------------------------------------------------------------------


async def test_the_example_works_as_it_stands(
    served: EmbeddedServers, programs: Programs, tmp_path: Path
) -> None:
    """The docstring of `sexton.holder`, as a program of its own."""
    text = sexton.holder.__doc__ or ""
    code = "\n".join(line[4:] for line in re.findall(r"^(?:    .*)?$", text, re.MULTILINE))
    script = tmp_path / "example.py"
    script.write_text(code.replace("nats://127.0.0.1:4222", served.nats_url), encoding="utf-8")
    program = programs.start(sys.executable, str(script), name="example")
    assert 0 == await program.exit_code(within_s=60), program.report()
    lines = program.stdout.splitlines()
    assert ["Friday", "5", "now at version 2", "5", "Ship on Monday, tell everyone."] == lines
