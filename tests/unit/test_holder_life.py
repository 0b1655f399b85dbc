"""The life of a holder: opening, closing, and being cancelled anywhere in between."""

import asyncio
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sexton.core.plan import Policy
from sexton.holder import (
    Context,
    Holder,
    HolderClosed,
    HolderSettings,
    InvalidInput,
    NatsTransport,
    OutcomeUnknown,
    TooManyContexts,
    Unavailable,
)
from sexton.holder.testing import MemoryService, MemoryTransport
from sexton.schemas.ids import Level
from tests.holder_kit import CONTEXT, LEAVES, Rig, make_settings, rig
from tests.support.waiting import deadline


async def test_a_context_opened_twice_is_the_same() -> None:
    """Also when both are opened at once."""
    async with rig() as r:
        one, two = await r.run(asyncio.gather(r.holder.open("other"), r.holder.open("other")))
        assert one is two
        assert r.context is await r.run(r.holder.open(CONTEXT))
        assert 2 == r.transport.follows


async def test_contexts_are_independent() -> None:
    """C10, C80: the same name and text in two contexts; each has its own log and its own bytes."""
    async with rig() as r:
        other = await r.run(r.holder.open("other"))
        await r.run(r.context.append("same", name="a"))
        await r.run(other.append("same", name="a"))
        await r.run(other.rewrite("l0:a", "other now"))
        assert ("same", "other now") == (await r.run(r.context.render()), await r.run(other.render()))
        assert (1, 2) == (r.context.head.revision, other.head.revision)


async def test_a_closed_context_says_so_and_can_be_opened_anew() -> None:
    """Every use is a typed error; closing twice is fine."""
    async with rig() as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        derived = r.context.derived(span_id, len)
        for _ in range(2):
            await r.run(r.context.close())
        assert r.context.closed
        for use in (
            r.context.resolve(pointer),
            r.context.resolve(pointer, consistency="latest"),
            r.context.mint(span_id),
            r.context.render(),
            r.context.append("x"),
            r.context.sync(),
            derived.use(),
        ):
            with pytest.raises(HolderClosed):
                await r.run(use)
        fresh = await r.run(r.holder.open(CONTEXT))
        assert fresh is not r.context
        assert 1 == fresh.tree.revision


async def test_a_closed_holder_opens_nothing() -> None:
    """Nor one that was never entered, and none is entered twice."""
    holder = Holder(MemoryTransport(MemoryService()))
    with pytest.raises(HolderClosed, match="not entered"):
        await holder.open(CONTEXT)
    async with holder:
        with pytest.raises(HolderClosed, match="entered once"):
            await holder.__aenter__()
    for _ in range(2):
        await holder.close()
    with pytest.raises(HolderClosed, match="is closed"):
        await holder.open(CONTEXT)


@pytest.mark.parametrize("name", ["", "a.b", "a*", "a>", "a b", "é", "x" * 65, "x" * 10_000])
async def test_a_name_that_could_escape_is_refused(name: str) -> None:
    """A context id stands in subjects, a holder's name too."""
    async with rig() as r:
        with pytest.raises(InvalidInput):
            await r.run(r.holder.open(name))
    with pytest.raises(InvalidInput):
        Holder(MemoryTransport(MemoryService()), name=name)


async def test_closing_in_an_outage_does_not_hang() -> None:
    """Real time, a dead connection, three contexts: bounded by one time-out, not by one for each."""
    transport = MemoryTransport(MemoryService())
    settings = HolderSettings(rpc_timeout_s=0.05)
    async with deadline(5, "closing in an outage"), Holder(transport, settings=settings) as holder:
        for name in "abc":
            await holder.open(name)
        transport.disconnect()


async def test_no_task_is_left_behind() -> None:
    """Everything that runs in the background is owned, and ends with its owner."""
    before = asyncio.all_tasks()
    async with rig() as r:
        await r.leaves()
        assert asyncio.all_tasks() > before
    assert before == asyncio.all_tasks()


async def test_a_waiting_command_ends_with_its_caller_and_not_before() -> None:
    """Closing the holder does not pretend to know the outcome of a command that is on its way."""
    async with rig() as r:
        r.transport.outcomes.hold()
        appending = asyncio.create_task(r.context.append("x"))
        await r.clock.rest()
        await r.run(r.holder.close())
        with pytest.raises((HolderClosed, Unavailable, OutcomeUnknown)):
            await r.run(appending)


async def test_a_transport_that_is_not_open_is_unavailable() -> None:
    """A typed error, not an attribute that is missing."""
    transport = NatsTransport.to("nats://127.0.0.1:1")
    with pytest.raises(Unavailable):
        await transport.ready()
    with pytest.raises(Unavailable):
        transport.mailbox()
    await transport.close()


# --- cancellation ------------------------------------------------------------------------------------


def operations(context: Context, span_id: str, sources: list[str]) -> dict[str, Callable[[], Awaitable[Any]]]:
    """Everything that can be cancelled in the middle. Each may be done again."""
    derived = context.derived(span_id, str.upper)

    async def resolve() -> None:
        await context.resolve(await context.mint(span_id, offset=1, length=3))

    async def latest() -> None:
        await context.resolve(await context.mint(span_id), consistency="latest")

    async def compact_to() -> None:
        async def summarise(texts: object, level: Level) -> str:
            return "s"

        policy = Policy(fan_in=2, keep_tail_bytes=0, keep_tail_spans=0, min_run_bytes=1)
        await context.compact_to(1, policy=policy, summarise=summarise)

    return {
        "append": lambda: context.append("appended"),
        "long append": lambda: context.append("x" * 600_000),
        "rewrite": lambda: context.rewrite(span_id, "Ship on Monday."),
        "compact": lambda: context.compact(sources, "s"),
        "prune": lambda: context.prune(span_id),
        "sync": context.sync,
        "resolve": resolve,
        "latest": latest,
        "render": context.render,
        "derived": derived.use,
        "compact_to": compact_to,
        "bumps": lambda: anext(context.bumps(from_revision=1)),
    }


NAMES = [
    "append", "long append", "rewrite", "compact", "prune", "sync", "resolve", "latest", "render", "derived",
    "compact_to", "bumps",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
async def test_cancelled_at_every_step_it_stays_consistent(name: str) -> None:
    """C15: cancelled after each number of steps: nothing half done, and the holder goes on working."""
    for steps in range(40):
        async with rig(fetches_in_flight=2) as r:
            sources = await r.leaves("a long first leaf", "a long second leaf")
            span_id = await r.leaf()
            operation = operations(r.context, span_id, sources)[name]
            task = asyncio.ensure_future(operation())
            for _ in range(steps):
                await asyncio.sleep(0)
            done = task.done()
            task.cancel()
            await asyncio.wait([task])
            if not done:
                assert task.cancelled()
            await still_works(r)
        if done:
            return
    raise AssertionError("it never got to its end")


async def still_works(r: Rig) -> None:
    """The holder knows what the service knows, and reads and writes."""
    await r.clock.rest()
    await r.run(r.context.sync())
    here, there = r.context.tree, r.service.tree(CONTEXT)
    assert (here.head, dict(here.nodes)) == (there.head, dict(there.nodes))
    pointer = await r.run(r.context.mint(await r.leaf("still works")))
    assert "still works" == (await r.run(r.context.resolve(pointer))).quote()
    assert (await r.run(r.context.render())).endswith("still works")
    assert 0 == len(r.transport._mailboxes)


async def test_cancelled_while_opening() -> None:
    """C15: nothing is left of it, and it can be opened again."""
    for steps in range(20):
        async with rig() as r:
            task = asyncio.ensure_future(r.holder.open("other"))
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            assert 0 == (await r.run(r.holder.open("other"))).tree.revision


# --- what is shipped ---------------------------------------------------------------------------------


def example() -> str:
    """The example in the docstring of `sexton.holder`."""
    import sexton.holder

    text = sexton.holder.__doc__ or ""
    return "\n".join(line[4:] for line in re.findall(r"^(?:    .*)?$", text, re.MULTILINE))


async def test_the_example_in_the_docstring_works(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says what it prints; in memory here, on real servers in the integration tests."""
    code, _, _ = example().rpartition("asyncio.run")
    service = MemoryService()
    monkeypatch.setattr(Holder, "connect", lambda _: Holder(MemoryTransport(service)))
    namespace: dict[str, Any] = {}
    exec(compile(code, "example", "exec"), namespace)
    await namespace["main"]("nats://unused")
    assert [
        "Friday",
        "5",
        "now at version 2",
        "5",
        "Ship on Monday, tell everyone.",
    ] == capsys.readouterr().out.splitlines()
    said = re.findall(r"print\(.*# (.*)$", code, re.MULTILINE)
    assert "Friday" in said
    assert "now at version 2" in said


def test_an_embedding_program_gets_nothing_on_stdout() -> None:
    """A holder in a program that has not set up structlog: stdout is the program's data, and its alone."""
    code = f"""
import asyncio
from sexton.holder import Holder
from sexton.holder.testing import MemoryService, MemoryTransport

async def main():
    async with Holder(MemoryTransport(MemoryService())) as holder:
        context = await holder.open("notes")
        for text in {LEAVES!r}:
            await context.append(text)
        context._follower._on_bump(b"nonsense")
asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert "" == done.stdout
    assert "holder.malformed_bump" in done.stderr


def test_settings_are_values() -> None:
    """Two holders with the same settings have equal ones."""
    assert make_settings() == make_settings()


async def test_a_holder_opens_so_many_contexts_and_no_more() -> None:
    """One too many is an error at once, which opens nothing; one that is closed makes room."""
    async with rig(max_contexts=2) as r:
        second = await r.run(r.holder.open("second"))
        follows = r.transport.follows
        with pytest.raises(TooManyContexts) as caught:
            await r.run(r.holder.open("third"))
        assert 2 == caught.value.fields["limit"]
        assert follows == r.transport.follows
        assert second is await r.run(r.holder.open("second"))
        await r.run(second.close())
        await r.run(r.holder.open("third"))
