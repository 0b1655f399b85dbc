"""A worker is killed with SIGKILL at every point of a command's way; another one carries the command out.

The rows of the table of crash points in the protocol's documentation. One process is stopped at all of the
points at once, each in a context and a lane of its own, and killed there; a second worker takes over; then
each test looks at one context.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Final

import pytest
import pytest_asyncio

from sexton.schemas.codec import AnyCommand, AnyRecord
from sexton.schemas.outcome import Committed
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf, prune, rewrite, view_ids
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, pointer_to, sending
from tests.worker_kit.service import partition_of, ready, serving, start_worker

REDELIVERED_S: Final = 10.0
"""Within seconds: an ack wait of one second, and room for a busy machine."""

LANES: Final = 16
THIRD: Final = "the third one"

ROWS: Final = [
    ("append", "before the bytes", False),
    ("append", "after the bytes", False),
    ("append", "before the record", False),
    ("append", "after the record", True),
    ("append", "after the hot bytes", True),
    ("append", "before the outcome", True),
    ("append", "after the outcome", True),
    ("compact", "after the record", True),
    ("rewrite", "after the record", True),
    ("prune", "after the record", True),
    ("ask", "after the deferral", False),
    ("ask", "after the summary", None),
]
"""The kind of command, where the worker dies, and whether the command is committed by then. A summary that
was sent is a command of its own: the dying worker may have carried it out or not."""


def command(kind: str, context_id: str) -> AnyCommand:
    """The command of a row; `ask` is a compaction without a summary."""
    made: dict[str, AnyCommand] = {
        "append": append("go", leaf("c", THIRD), context_id=context_id),
        "compact": compact("go", "l0:a", "l0:b", context_id=context_id),
        "ask": compact("go", "l0:a", "l0:b", summary=None, context_id=context_id),
        "rewrite": rewrite("go", "l0:a", "other bytes").model_copy(update={"context_id": context_id}),
        "prune": prune("go", "l0:a").model_copy(update={"context_id": context_id}),
    }
    return made[kind]


def _named() -> dict[tuple[str, str], str]:
    """A context for each row, no two in one lane: a command that hangs holds up its lane."""
    names: dict[tuple[str, str], str] = {}
    taken = {partition_of("letter", LANES)}
    for kind, point, _ in ROWS:
        stem = f"{kind}-{point.replace(' ', '-')}"
        name = next(n for i in itertools.count() if partition_of(n := f"{stem}-{i}", LANES) not in taken)
        taken.add(partition_of(name, LANES))
        names[kind, point] = name
    return names


CONTEXTS: Final = _named()


@dataclass
class Aftermath:
    """What there was when the worker was killed, and a service that has recovered since."""

    sender: Sender
    records: dict[str, list[AnyRecord]] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)
    letters_before: int = 0


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def aftermath(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Aftermath]:
    """Stops a worker at every row's point, kills it, and starts another one."""
    folder = tmp_path_factory.mktemp("crash")
    programs = Programs(folder / "programs")
    try:
        async with EmbeddedServers(folder / "servers") as servers, sending(servers.nats_url) as sender:
            async with serving(servers, partitions=LANES):
                for context_id in CONTEXTS.values():
                    first, second = leaf("a", "first leaf " * 9), leaf("b", "second leaf " * 9)
                    await sender.commit(append("fill", first, second, context_id=context_id))
            found = Aftermath(sender)
            await _kill(servers, programs, found)
            async with serving(servers, partitions=LANES):
                yield found
    finally:
        programs.kill_all()


async def _kill(servers: EmbeddedServers, programs: Programs, found: Aftermath) -> None:
    sender = found.sender
    stop_at = {name: point for (_, point), name in CONTEXTS.items()} | {"letter": "before the dead letter"}
    worker = start_worker(programs, servers, stop_at=stop_at, partitions=LANES)
    await ready(worker)
    for (kind, _), name in CONTEXTS.items():
        await sender.publish(command(kind, name))
    await sender.publish(b"no command", subject="sexton.cmd.letter.append")
    async with deadline(30, "all to come to their points"):
        for name, point in stop_at.items():
            await worker.line(f"^at {point} in {name}$", within_s=30)
    for name in CONTEXTS.values():
        found.records[name] = await sender.records(name)
        if (name, "go") in sender.outcomes:
            found.told.add(name)
    found.letters_before = len(await sender.dead_letters())
    worker.kill()


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(("kind", "point", "committed"), ROWS)
async def test_killed_with_sigkill(
    aftermath: Aftermath, kind: str, point: str, committed: bool | None
) -> None:
    """I7, I8, C04, C08, C19, C27: one effect, told as the first one was; success only after the commit."""
    sender, name = aftermath.sender, CONTEXTS[kind, point]
    if committed is not None:
        assert committed == (2 == len(aftermath.records[name]))
        assert (name in aftermath.told) == (point == "after the outcome")
    outcome = await sender.outcome_of(name, "go", within_s=REDELIVERED_S)
    assert isinstance(outcome, Committed), outcome
    await sender.until_idle()
    records = await sender.records(name)
    assert ["fill", "go"] == [record.event_id for record in records]
    assert records[: len(aftermath.records[name])] == aftermath.records[name], "what was committed stays"
    assert 2 == outcome.revision == (await sender.tree(name)).revision
    assert outcome == await sender.commit(command(kind, name))
    assert {2} == {told.revision for told in sender.outcomes[name, "go"]}


@pytest.mark.parametrize(
    ("kind", "view"),
    [
        ("append", ["l0:a", "l0:b", "l0:c"]),
        ("compact", ["l1:go"]),
        ("rewrite", ["l0:a", "l0:b"]),
        ("prune", ["l0:b"]),
    ],
)
async def test_killed_between_the_commit_and_the_ack_leaves_a_whole_view(
    aftermath: Aftermath, kind: str, view: list[str]
) -> None:
    """C18, C20: every span once, as after one command."""
    name = CONTEXTS[kind, "after the record"]
    await aftermath.sender.outcome_of(name, "go", within_s=REDELIVERED_S)
    assert view == view_ids(await aftermath.sender.tree(name))


@pytest.mark.parametrize("point", [point for kind, point, _ in ROWS if kind == "append"])
async def test_the_bytes_are_there_wherever_it_was_killed(aftermath: Aftermath, point: str) -> None:
    """I1, C66: the leaf's own bytes, from whichever store has them."""
    name = CONTEXTS["append", point]
    await aftermath.sender.outcome_of(name, "go", within_s=REDELIVERED_S)
    answer, data = await aftermath.sender.fetch(pointer_to(THIRD, "l0:c", context_id=name))
    assert THIRD.encode() == data, answer


async def test_killed_before_a_dead_letter_is_stored(aftermath: Aftermath) -> None:
    """I7: the message is among the dead letters or still to come; never in neither, and there once."""
    assert 0 == aftermath.letters_before
    await eventually(aftermath.sender.dead_letters, within_s=REDELIVERED_S)
    await aftermath.sender.until_idle()
    assert [b"no command"] == [data for _, data in await aftermath.sender.dead_letters()]


# --- with others beside it ---------------------------------------------------------------------------


@pytest.mark.asyncio
async def test_of_two_workers_one_is_killed(own_servers: EmbeddedServers, programs: Programs) -> None:
    """C27: the one that is left has the message within seconds, and the commands behind it, in order."""
    stuck = start_worker(programs, own_servers, stop_at={"ctx": "after the record"}, partitions=1)
    await ready(stuck)
    async with sending(own_servers.nats_url) as sender:
        for i in range(10):
            await sender.publish(append(f"e{i}", f"n{i}"))
        await stuck.line("^at after the record in ctx$", within_s=20)
        async with serving(own_servers, partitions=1):
            assert 1 == len(await sender.records("ctx")), "the lane waits for the one that holds it"
            stuck.kill()
            await sender.outcome_of("ctx", "e9", within_s=REDELIVERED_S)
        expected = [f"e{i}" for i in range(10)]
        assert expected == [record.event_id for record in await sender.records("ctx")]
        assert expected == [outcome.event_id for outcome in sender.order]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_workers_killed_again_and_again_lose_nothing(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """I7, I8: one worker after the other is killed at no chosen moment, while commands keep coming."""
    published: list[int] = []
    enough = asyncio.Event()
    async with sending(own_servers.nats_url) as sender, deadline(100, "three kills"):
        workers = [start_worker(programs, own_servers) for _ in range(4)]
        await ready(*workers)

        async def publish() -> None:
            while not enough.is_set():
                number = len(published)
                await sender.publish(append(f"e{number}", f"n{number}", context_id=f"c{number % 5}"))
                published.append(number)
                await asyncio.sleep(0.005)

        publishing = asyncio.create_task(publish())

        async def twenty_more() -> None:
            wanted = len(sender.outcomes) + 20
            await eventually(lambda: len(sender.outcomes), until=lambda n: n >= wanted, within_s=20)

        for worker in workers[:3]:
            await twenty_more()
            worker.kill()
        await twenty_more()
        enough.set()
        await publishing
        await sender.until_idle(within_s=30)
        for context in range(5):
            expected = [f"e{number}" for number in published if number % 5 == context]
            assert expected == [record.event_id for record in await sender.records(f"c{context}")]
            await sender.tree(f"c{context}")
