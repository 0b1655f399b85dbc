"""A worker that is killed or frozen between its reading of the pins and its record (decision 0022)."""

import asyncio
import signal
from collections.abc import Callable
from typing import Final

import pytest

from sexton.core.pins import PinCost
from sexton.holder import Context, Unavailable
from sexton.holder.pins import Pinned, PinScope
from sexton.schemas.commands import Append, Rewrite
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.schemas.span import NewSpan, Text
from sexton.worker.embedded import EmbeddedServers
from tests.leases_kit.servers import BY_HAND, holding, pins
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.notes import brief_notes
from tests.worker_kit.sender import sending
from tests.worker_kit.service import ready, serving, start_worker

CHANGING_MS: Final = 3_000
"""How long notes stand here: a third of the product's time, so that nobody waits for long."""
A: Final = "l0:a"
APPEND: Final = Append(context_id="ctx", event_id="e0", spans=(NewSpan(name="a", content="the bytes of a"),))
REWRITE: Final = Rewrite(context_id="ctx", event_id="e1", span_id=A, base_version=1, text=Text(content="new"))


async def insisted(pin: Callable[[], PinScope]) -> Pinned:
    """Pins, and asks again while the service is unavailable: as long as a note of a dead worker stands."""
    async with deadline(30, "a granted pin"):
        while True:
            try:
                return await pin().__aenter__()
            except Unavailable:
                continue


def pin(context: Context) -> PinScope:
    return context.pin(A, version=1, cost=PinCost.IMMOVABLE)


async def test_a_killed_command_does_not_bind_anybody_for_long(
    own_servers: EmbeddedServers, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its note runs out and the pin is granted; the next delivery of the command is stopped by it."""
    brief_notes(CHANGING_MS, monkeypatch.setattr)
    more = {**BY_HAND, "partitions": 1, "lease_ttl_max_s": 10.0}
    async with serving(own_servers, **more) as (_, sender):
        await sender.commit(APPEND)
    killed = start_worker(
        programs, own_servers, stop_at={"ctx": "before the record"}, changing_ms=CHANGING_MS, **more
    )
    await ready(killed)
    async with (
        sending(own_servers.nats_url) as sender,
        holding(own_servers, "ctx", lease_ttl_s=10.0) as context,
    ):
        await sender.publish(REWRITE)
        await killed.line("^at before the record in ctx$", within_s=20)
        pinning = asyncio.create_task(insisted(lambda: pin(context)))
        await eventually(lambda: pins(sender, "ctx"), until=lambda held: (A, 1) in held, what="the pin")
        assert not pinning.done()
        killed.kill()
        async with serving(own_servers, **more):
            outcome = await sender.outcome_of("ctx", "e1", within_s=20)
            assert isinstance(outcome, Rejected), outcome
            assert RejectionCode.IMMOVABLE is outcome.code
            assert (await pinning).proven
            assert 1 == len(await sender.records("ctx"))


async def test_a_frozen_command_reads_the_pins_again(
    own_servers: EmbeddedServers, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGSTOP between its bytes and its record, beyond its note's time; a pin is granted meanwhile."""
    brief_notes(CHANGING_MS, monkeypatch.setattr)
    more = {**BY_HAND, "partitions": 1, "lease_ttl_max_s": 10.0, "ack_wait_s": 60.0}
    async with serving(own_servers, **more) as (_, sender):
        await sender.commit(APPEND)
    frozen = start_worker(
        programs,
        own_servers,
        stop_at={"ctx": "after the bytes"},
        freeze=True,
        changing_ms=CHANGING_MS,
        **more,
    )
    await ready(frozen)
    async with sending(own_servers.nats_url) as sender:
        await sender.publish(REWRITE)
        await frozen.line("^at after the bytes in ctx$", within_s=20)
        async with (
            serving(own_servers, **more) as (_, asked),
            holding(own_servers, "ctx", lease_ttl_s=10.0, rpc_timeout_s=2.0, rpc_tries=6) as context,
        ):
            pinned = await insisted(lambda: pin(context))
            assert pinned.proven
            frozen.send_signal(signal.SIGCONT)
            outcome = await asked.outcome_of("ctx", "e1", within_s=20)
            assert isinstance(outcome, Rejected), outcome
            assert RejectionCode.IMMOVABLE is outcome.code
            assert 1 == len(await sender.records("ctx"))
            assert pinned.proven
            assert "commit.reads_pins_again" in frozen.stderr
