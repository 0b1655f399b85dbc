"""A worker is killed with SIGKILL between any two steps of a collector; the next sweeps finish what it began.

One process hangs in a sweep of each context at a point of its own, and is killed there. Then another worker
sweeps; each test looks at one context.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest
import pytest_asyncio

from sexton.schemas import subjects
from sexton.schemas.commands import Rewrite
from sexton.schemas.ops import OpsRequest, OpsVerb
from sexton.schemas.records import Collected, Collecting, CollectionBase, Condemned
from sexton.schemas.span import Text
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, leaf
from tests.leases_kit.servers import (
    BY_HAND,
    QUICK,
    start_collector,
    stored,
    sweep,
    tombstones,
    until_collected,
)
from tests.leases_kit.worker_program import POINTS
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, sending
from tests.worker_kit.service import ready, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

OLD = {("l0:a", 1), ("l0:b", 1), ("l0:c", 1)}

DONE: dict[str, tuple[type[CollectionBase], ...]] = {
    "before-collecting": (),
    "after-collecting": (Collecting,),
    "before-condemned": (Collecting,),
    "after-condemned": (Collecting, Condemned),
    "amid-the-deletes": (Collecting, Condemned),
    "before-collected": (Collecting, Condemned),
    "after-collected": (Collecting, Condemned, Collected),
    "after-the-marks": (),
}
"""By context: the records that the dying worker leaves."""

ALL: tuple[type[CollectionBase], ...] = (Collecting, Condemned, Collected)


@dataclass
class Aftermath:
    """Servers whose worker has died, and who sweeps now."""

    servers: EmbeddedServers
    sender: Sender


async def fill(sender: Sender, context_id: str) -> None:
    """Three leaves, each rewritten once."""
    await sender.commit(append("fill", "a", "b", "c", context_id=context_id))
    for name in "abc":
        await sender.commit(
            Rewrite(
                context_id=context_id,
                event_id=f"rewrite-{name}",
                span_id=f"l0:{name}",
                base_version=1,
                text=Text(content=f"new {name}"),
            )
        )


async def hang_everywhere(worker: Program, sender: Sender) -> None:
    """Has the worker sweep every context, until each sweep hangs."""
    for context_id in POINTS:
        await fill(sender, context_id)
        if context_id != "after-the-marks":
            await sweep(sender, context_id)
            await eventually(
                lambda context_id=context_id: tombstones(sender, context_id),  # type: ignore[misc]
                until=lambda stones: {"announce"} == {stone.step for stone in stones.values()},
                what="the end of the quiet time",
            )
    for context_id in POINTS:
        request = OpsRequest(context_id=context_id).wire()
        inbox = sender.client.new_inbox()
        await sender.client.publish(subjects.ops(context_id, OpsVerb.SWEEP), request, reply=inbox)
    async with deadline(30, "the worker at all points"):
        for context_id in POINTS:
            await worker.line(f"^at {context_id}$", within_s=30)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def aftermath(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Aftermath]:
    """One worker has died at all the points; another one sweeps, every now and then."""
    folder = tmp_path_factory.mktemp("collector-killed")
    programs = Programs(folder / "programs")
    try:
        async with EmbeddedServers(folder / "servers") as servers, sending(servers.nats_url) as sender:
            worker = start_collector(programs, servers, **BY_HAND)
            await ready(worker)
            await hang_everywhere(worker, sender)
            worker.kill()
            async with serving(servers, **QUICK):
                yield Aftermath(servers, sender)
    finally:
        programs.kill_all()


@pytest.mark.parametrize("point", POINTS)
async def test_a_collector_that_died_is_finished(aftermath: Aftermath, point: str) -> None:
    """I5, I8: whatever it left, all three versions are collected, each once, and nothing else is touched.
    What was announced is announced anew, by another attempt; what was condemned is finished as it is.
    """
    found = await until_collected(aftermath.sender, point, OLD)
    steps = [record for record in found.records if isinstance(record, CollectionBase)]
    kinds = tuple(type(record) for record in steps)
    left = DONE[point]
    again = ALL if left in ((), (Collecting,)) else ALL[len(left) :]
    assert left + again == kinds
    attempts = [record.attempt for record in steps if isinstance(record, Collecting)]
    assert len(attempts) == len(set(attempts))
    assert 3 * len(leaf("a").content or "") == found.freed_bytes
    assert {"a/2", "b/2", "c/2"} == stored(aftermath.servers, point)
    assert {} == dict(found.tree.tombstones)
