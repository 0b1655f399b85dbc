"""Holders that are killed or stopped, as processes of their own: their bytes come free, and they notice."""

import asyncio
import json
import signal
from typing import Any

import pytest

from sexton.core.pins import PinCost
from sexton.holder import Context, StaleSpanError
from sexton.schemas.outcome import Committed
from sexton.schemas.span import NewSpan
from sexton.worker import metrics
from sexton.worker.embedded import EmbeddedServers
from tests.leases_kit.servers import (
    QUICK,
    history,
    holding,
    pins,
    start_holder,
    stored,
    tombstones,
    until_collected,
)
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import serving

MANY = 1000
AT_ONCE = 50


async def fill(context: Context, count: int) -> None:
    """Leaves `s0`, `s1` … of the text `span 0`, `span 1` … The last record of the log is a small one."""
    spans = [NewSpan(name=f"s{i}", content=f"span {i}") for i in range(count)]
    await context.append(spans[:-1])
    await context.append(spans[-1:])


async def rewrite_all(context: Context, count: int) -> None:
    """Rewrites every leaf, some at a time."""
    for start in range(0, count, AT_ONCE):
        part = range(start, min(start + AT_ONCE, count))
        for outcome in await asyncio.gather(*(context.rewrite(f"l0:s{i}", f"other {i}") for i in part)):
            assert isinstance(outcome, Committed)


async def asked(sender: Sender, name: str, what: str) -> dict[str, Any]:
    """What a holder program answers. It may be stopped when it is asked."""
    async with deadline(20, f"the answer of {name}"):
        reply = await sender.client.request(f"test.{name}", what.encode(), timeout=20)
        said: dict[str, Any] = json.loads(reply.data)
        return said


@pytest.mark.slow
async def test_the_bytes_of_a_killed_holder_come_free(
    own_servers: EmbeddedServers, programs: Programs, context_id: str
) -> None:
    """C95, I4, I5: pins on a thousand versions, all rewritten since: kept while it lives; after SIGKILL they
    come free, in the log and in the store, once its lease and the quiet time are over.
    """
    times = QUICK | {"lease_ttl_max_s": 3.0, "sweep_interval_s": 1.0}
    async with serving(own_servers, **times) as (_, sender), holding(own_servers, context_id) as context:
        await fill(context, MANY)
        program = start_holder(programs, own_servers, context_id, ttl_s=3.0, cost=PinCost.EXPENSIVE)
        await program.line(f"^pinned {MANY}$", within_s=60)
        await rewrite_all(context, MANY)
        old = {(f"l0:s{i}", 1) for i in range(MANY)}
        assert old == set(await pins(sender, context_id))
        assert old == set(await tombstones(sender, context_id))
        assert 2 * MANY == len(stored(own_servers, context_id))
        before = metrics.COLLECTED._value.get()
        program.kill()
        # Not by asking: a thousand tombstones are a long answer.
        await eventually(
            lambda: metrics.COLLECTED._value.get() - before,
            until=lambda count: count == MANY,
            within_s=30,
            what="the collection of all",
        )
        gone = await history(sender, context_id)
        assert old == gone.collected
        assert 0 == len(gone.tree.tombstones)
        assert {f"s{i}/2" for i in range(MANY)} == stored(own_servers, context_id)
        assert sum(len(f"span {i}") for i in range(MANY)) == gone.freed_bytes
        assert {} == await pins(sender, context_id)


async def test_a_stopped_holder_notices_before_it_serves(
    own_servers: EmbeddedServers, programs: Programs, context_id: str
) -> None:
    """C98: SIGSTOP past the lease, then SIGCONT with a question waiting.

    If nothing has changed, it has registered and holds its pins again by the time it answers. If what it held
    was collected meanwhile, it says so, although the bytes are in its memory and its head is fresh enough.
    """
    async with serving(own_servers, **QUICK) as (_, sender), holding(own_servers, context_id) as context:
        await fill(context, 3)
        pointer = await context.mint("l0:s0")
        program = start_holder(programs, own_servers, context_id, ttl_s=1.0, cost=PinCost.EXPENSIVE)
        await program.line("^pinned 3$")
        assert {"text": "span 0", "proven": 2} == await asked(sender, program_name(programs), "quote")

        program.send_signal(signal.SIGSTOP)
        await eventually(lambda: pins(sender, context_id), until=lambda held: not held, within_s=15)
        question = asyncio.create_task(asked(sender, program_name(programs), "quote"))
        await sender.client.flush()
        program.send_signal(signal.SIGCONT)
        assert {"text": "span 0", "proven": 2} == await question
        assert 3 == len(await pins(sender, context_id))

        # Readable in the lease's protection, also for the holder itself.
        await rewrite_all(context, 3)
        assert {"text": "span 0", "proven": 2} == await asked(sender, program_name(programs), "quote")
        program.send_signal(signal.SIGSTOP)
        await until_collected(sender, context_id, {(f"l0:s{i}", 1) for i in range(3)})
        question = asyncio.create_task(asked(sender, program_name(programs), "quote"))
        await sender.client.flush()
        program.send_signal(signal.SIGCONT)
        assert {"error": StaleSpanError.code, "proven": 0} == await question
        assert {"text": "OTHER 2", "proven": 0} == await asked(sender, program_name(programs), "use")
        await eventually(lambda: pins(sender, context_id), until=lambda held: [("l0:s2", 2)] == list(held))
        assert pointer.version == 1


def program_name(programs: Programs) -> str:
    """Of the holder that was started last."""
    return programs.started[-1].name.rsplit("-", 1)[0]
