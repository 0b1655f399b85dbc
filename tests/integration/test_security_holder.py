"""A holder that is refused something says so at once, at the call that waits for it (and not as silence)."""

import os
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats
import pytest
import pytest_asyncio

from sexton.holder import (
    Context,
    Holder,
    HolderSettings,
    InvalidInput,
    NatsTransport,
    PermissionRefused,
    Unavailable,
)
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.secure_kit.keys import new_key
from tests.support.waiting import deadline, eventually
from tests.worker_kit.service import settings

AT_ONCE_S = 2.0
"""Far below any time-out of these holders."""

PATIENT: dict[str, Any] = {
    "rpc_timeout_s": 20.0,
    "ack_timeout_s": 20.0,
    "outcome_timeout_s": 20.0,
    "sync_interval_s": 0.2,
    "backoff_s": 0.05,
    "lease_ttl_s": 3.0,
}
ALL = ["sexton.cmd.Ctx.*", "sexton.rpc.Ctx.*"]
HEARD = ["sexton.epoch.Ctx", "_INBOX.me.>"]


def users(publish: list[str], subscribe: list[str], password: str = "right") -> str:
    """A server's configuration: somebody who may do everything, and the holder."""
    may = f"permissions: {{ publish: {publish!r}, subscribe: {subscribe!r} }}".replace("'", '"')
    return f"""authorization {{ users: [
        {{ user: "all", password: "all" }}
        {{ user: "me", password: "{password}", {may} }}
    ] }}"""


@pytest_asyncio.fixture
async def servers(tmp_path: Path) -> AsyncIterator[EmbeddedServers]:
    """Servers where the holder may do what a holder does; and a worker."""
    found = EmbeddedServers(tmp_path / "servers")
    found.nats.extra_config = users(ALL, HEARD)
    async with found:
        yield found


def worker(servers: EmbeddedServers) -> Worker:
    return Worker(settings(servers, nats_user="all", nats_password="all"))


def holder(servers: EmbeddedServers, password: str = "right", **more: Any) -> Holder:
    return Holder.connect(
        servers.nats_url,
        settings=HolderSettings(**PATIENT | more),
        user="me",
        password=password,
        inbox_prefix="_INBOX.me",
        reconnect_time_wait=0.05,
    )


async def may(servers: EmbeddedServers, publish: list[str], subscribe: list[str], **more: Any) -> None:
    """Changes what the holder may do. The server is another one then, and all connect again."""
    servers.nats.extra_config = users(publish, subscribe, **more)
    await servers.nats.restart()


async def refused(context: Context, operation: str, subject: str) -> None:
    """Whatever is served from memory is refused, with the reason."""

    async def attempt() -> PermissionRefused | None:
        try:
            await context.render()
        except PermissionRefused as e:
            return e
        except Unavailable:
            pass
        return None

    error = await eventually(attempt, within_s=10, what="a refusal")
    assert error is not None
    assert operation == error.fields["operation"]
    assert error.fields["subject"].startswith(subject)


async def test_wrong_credentials_are_told_at_once(servers: EmbeddedServers) -> None:
    """No trying until the time is over."""
    with pytest.raises(PermissionRefused, match="authorization violation"):
        async with deadline(AT_ONCE_S, "the refusal"), holder(servers, "wrong", connect_timeout_s=60.0):
            pass


async def test_an_inbox_that_may_not_be_heard(servers: EmbeddedServers) -> None:
    """Without its prefix the holder would wait for each answer until its time is over."""
    await may(servers, ALL, ["sexton.epoch.Ctx", "_INBOX.other.>"])
    with pytest.raises(PermissionRefused) as caught:
        async with deadline(AT_ONCE_S, "the refusal"), holder(servers):
            pass
    assert "subscribe" == caught.value.fields["operation"]


@pytest.mark.parametrize(
    ("publish", "subscribe", "operation", "subject"),
    [
        (ALL, ["_INBOX.me.>"], "subscribe", "sexton.epoch.Ctx"),
        (["sexton.cmd.Ctx.*"], HEARD, "publish", "sexton.rpc.Ctx.sync"),
    ],
)
async def test_a_context_that_may_not_be_followed(
    servers: EmbeddedServers, publish: list[str], subscribe: list[str], operation: str, subject: str
) -> None:
    """Opening it raises, with what was refused, in the case it was written in."""
    await may(servers, publish, subscribe)
    async with worker(servers), holder(servers) as me, deadline(AT_ONCE_S, "the refusal"):
        with pytest.raises(PermissionRefused) as caught:
            await me.open("Ctx")
    assert {"operation": operation, "subject": subject} == caught.value.fields


async def test_a_command_that_may_not_be_sent(servers: EmbeddedServers) -> None:
    """It raises at once, and is not sent again; what is permitted goes on."""
    await may(servers, ["sexton.cmd.Ctx.append", "sexton.rpc.Ctx.*"], HEARD)
    async with worker(servers), holder(servers) as me:
        context = await me.open("Ctx")
        span = (await context.append("Some words.")).spans[0].span_id
        async with deadline(AT_ONCE_S, "the refusal"):
            with pytest.raises(PermissionRefused) as caught:
                await context.prune(span)
        assert "sexton.cmd.Ctx.prune" == caught.value.fields["subject"]
        assert "Some words." == await context.render()


async def test_a_request_that_may_not_be_sent(servers: EmbeddedServers) -> None:
    """A pin is refused at once, and the context stays usable."""
    verbs = [f"sexton.rpc.Ctx.{verb}" for verb in ("sync", "fetch", "heartbeat")]
    await may(servers, ["sexton.cmd.Ctx.*", *verbs], HEARD)
    async with worker(servers), holder(servers) as me:
        context = await me.open("Ctx")
        span = (await context.append("Some words.")).spans[0].span_id
        async with deadline(AT_ONCE_S, "the refusal"):
            with pytest.raises(PermissionRefused) as caught:
                async with context.pin(span):
                    pass
        assert "sexton.rpc.Ctx.pin" == caught.value.fields["subject"]
        assert "Some words." == await context.render()


@pytest.mark.parametrize(
    ("publish", "subscribe", "operation", "subject"),
    [
        (ALL, ["_INBOX.me.>"], "subscribe", "sexton.epoch.Ctx"),
        (["sexton.cmd.Ctx.*"], HEARD, "publish", "sexton.rpc.Ctx."),
    ],
)
async def test_a_permission_that_is_taken_away(
    servers: EmbeddedServers, publish: list[str], subscribe: list[str], operation: str, subject: str
) -> None:
    """Nothing is served from memory any more, however fresh it is; and it is again, once it is permitted."""
    async with worker(servers), holder(servers) as me:
        context = await me.open("Ctx")
        await context.append("Some words.")
        assert "Some words." == await context.render()
        bumps = context.bumps()
        await may(servers, publish, subscribe)
        await refused(context, operation, subject)
        async with deadline(10, "the end of the reader's wait"):
            with pytest.raises(PermissionRefused):
                await anext(bumps)
        await may(servers, ALL, HEARD)

        async def rendered() -> str:
            try:
                return await context.render()
            except Exception as e:  # noqa: BLE001 - whatever it is, it ends
                return type(e).__name__

        await eventually(rendered, until=lambda text: text == "Some words.", within_s=15)


async def test_a_permission_that_is_taken_away_from_a_connection_that_stands(
    servers: EmbeddedServers,
) -> None:
    """The server is told of it while it runs, and drops the subscription: nobody connects anew."""
    async with worker(servers), holder(servers) as me:
        context = await me.open("Ctx")
        await context.append("Some words.")
        assert "Some words." == await context.render()
        config = servers.nats.data_dir / "nats-server.conf"
        before = config.read_text().partition("authorization")[0]
        config.write_text(before + users(ALL, ["_INBOX.me.>"]))
        os.kill(servers.nats.pid, signal.SIGHUP)
        await refused(context, "subscribe", "sexton.epoch.Ctx")


async def test_credentials_that_are_taken_away(servers: EmbeddedServers) -> None:
    """The holder cannot connect any more: it says why, and serves nothing."""
    async with worker(servers), holder(servers) as me:
        context = await me.open("Ctx")
        await context.append("Some words.")
        await may(servers, ALL, HEARD, password="another")
        await refused(context, "connect", "")
        with pytest.raises(PermissionRefused):
            await context.append("More.")


async def test_a_connection_of_the_callers_own(servers: EmbeddedServers) -> None:
    """Its errors go to whoever made it. The holder looks at the last one, and is told within a moment."""
    await may(servers, ["sexton.cmd.Ctx.append", "sexton.rpc.Ctx.*"], HEARD)

    async def heard(_: Exception) -> None:
        pass

    client = await nats.connect(
        servers.nats_url, user="me", password="right", inbox_prefix="_INBOX.me", error_cb=heard
    )
    try:
        transport = NatsTransport(client)
        async with worker(servers), Holder(transport, settings=HolderSettings(**PATIENT)) as me:
            context = await me.open("Ctx")
            span = (await context.append("Some words.")).spans[0].span_id
            async with deadline(AT_ONCE_S, "the refusal"):
                with pytest.raises(PermissionRefused):
                    await context.prune(span)
    finally:
        await client.close()


# --- options that cannot be -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    ["", "nats://", "http://127.0.0.1", "nats://[::1", "nats://h:0", "nats://h:x", "nats://u:S3CRET@h:x"],
)
def test_an_address_that_is_none(url: str) -> None:
    """It is a typed error at once, which does not repeat a password."""
    with pytest.raises(InvalidInput) as caught:
        Holder.connect(url)
    assert "servers" == caught.value.fields["field"]
    assert "S3CRET" not in str(caught.value)


def wrong_options(folder: Path) -> dict[str, dict[str, Any]]:
    other = folder / "other"
    other.write_text("S3CRET\n")
    return {
        "no such option": {"user_credential": "x"},
        "no such file": {"user_credentials": str(folder / "none")},
        "a folder": {"user_credentials": str(folder)},
        "no credentials": {"user_credentials": str(other)},
        "no seed": {"nkeys_seed": str(other)},
        "not a seed": {"nkeys_seed_str": "S3CRET"},
        "an account's seed": {"nkeys_seed_str": new_key(0).seed},
        "no context": {"tls": True},
        "no inbox": {"inbox_prefix": "sexton.log"},
        "a wildcard": {"inbox_prefix": "_INBOX.>"},
    }


WRONG = ("no such option", "no such file", "a folder", "no credentials", "no seed", "not a seed")


@pytest.mark.parametrize("which", [*WRONG, "an account's seed", "no context", "no inbox", "a wildcard"])
def test_an_option_that_cannot_be(tmp_path: Path, which: str) -> None:
    """Each is a typed error, before anything is connected."""
    options = wrong_options(tmp_path)[which]
    with pytest.raises(InvalidInput) as caught:
        Holder.connect("nats://127.0.0.1:4222", **options)
    assert next(iter(options)) == caught.value.fields["field"]
    assert "S3CRET" not in str(caught.value)


def test_valid_options_are_taken(tmp_path: Path) -> None:
    """A seed, in a file or not; a context for TLS; an inbox of one's own."""
    key = new_key()
    Holder.connect("nats://127.0.0.1", nkeys_seed=key.seed_file(tmp_path), tls=ssl.create_default_context())
    Holder.connect(["127.0.0.1:4222", "tls://h"], nkeys_seed_str=key.seed, inbox_prefix=b"_INBOX.me")
