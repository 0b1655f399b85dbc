"""The pager is killed with SIGKILL at every turn; no page is lost, and none is a new one (I9).

What it knows is in NATS, and nowhere else: there is no Redis in these tests.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Final

import pytest

from sexton.core.incidents import acknowledge
from sexton.schemas.incidents import IncidentStatus, PageKind
from sexton.worker.embedded import NatsServer
from sexton.worker.pager.incidents import Incidents
from tests.pager_kit.receiver import Answer, Receiver, never, ok, receiving
from tests.pager_kit.scene import Scene, over, record, scene, start_pager
from tests.support.processes import Program, Programs


@pytest.fixture
async def at(own_nats: NatsServer) -> AsyncIterator[Scene]:
    async with scene(own_nats.url) as found:
        yield found


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


def killing(program: Program, answer: Answer) -> Answer:
    """Kills the pager when its page has arrived, and then answers it."""

    async def at_once(writer: asyncio.StreamWriter) -> None:
        program.kill()
        await answer(writer)

    return at_once


ATTEMPT_S: Final = 2.0
"""So long a page that was claimed by a pager that is dead is left alone."""


async def test_killed_while_a_page_is_on_its_way(programs: Programs, at: Scene, receiver: Receiver) -> None:
    """Before it was accepted, and before that was written down: the same page again, with all that counts."""
    await at.failed(record(), record(), record())
    for answer in (never, ok):
        pager = start_pager(programs, at.nats_url, receiver.url, pager_attempt_s=ATTEMPT_S)
        receiver.answers.append(killing(pager, answer))
        await pager.exit_code(within_s=30)
        assert (await at.consumer()).num_ack_pending, "the record waits for its page"
        await at.failed(record())

    start_pager(programs, at.nats_url, receiver.url, pager_attempt_s=ATTEMPT_S)
    await receiver.until(1)
    await at.until_done()

    # On a busy machine the last one may need another attempt.
    assert [3, 4, 5] == list(dict.fromkeys(page.count for page in receiver.received))
    assert 1 == len({page.page_id for page in receiver.received})


async def test_killed_while_the_receiver_is_down(programs: Programs, at: Scene, receiver: Receiver) -> None:
    """Each incident is paged once, with its count; so is the end of one; what is acknowledged is not."""
    await receiver.down()
    pager = start_pager(programs, at.nats_url, receiver.url)
    await at.failed(record("a"), record("b"), record("a"), record("c"), record("known"))
    await at.until_incident(record("known"), lambda i: i.page and i.page.attempts >= 2, "two attempts")
    known = Incidents(at.client, 5.0)
    await known.load()
    await known.update(record("known").fingerprint, lambda now: now and acknowledge(now, 1))
    pager.kill()
    await at.failed(record("a"), over("b"), record("known"))
    await receiver.up()

    start_pager(programs, at.nats_url, receiver.url)
    pages = await receiver.until(4)
    await at.until_done()

    assert 4 == len(receiver.received)
    told = {(page.title.split()[-3], page.kind, page.count) for page in pages}
    paged = {("l0:a", "failure", 3), ("l0:b", "failure", 1), ("l0:c", "failure", 1)}
    assert paged | {("l0:b", "success", 1)} == told
    kept = await at.incident(record("known"))
    assert kept is not None
    assert (IncidentStatus.ACKNOWLEDGED, 2) == (kept.status, kept.count)


async def test_killed_again_and_again(programs: Programs, at: Scene, receiver: Receiver) -> None:
    """Twelve incidents, and a kill at every fifth page: whatever arrives twice has one id."""
    names = [f"n{i}" for i in range(12)]
    await at.failed(*(record(name) for name in names for _ in range(2)))
    options = {"pager_parallel": 2, "pager_attempt_s": ATTEMPT_S}
    for _ in range(2):
        pager = start_pager(programs, at.nats_url, receiver.url, **options)
        receiver.answers.extend([ok, ok, ok, ok, killing(pager, ok)])
        await pager.exit_code(within_s=30)
        receiver.answers.clear()

    start_pager(programs, at.nats_url, receiver.url, **options)
    await at.until_done()

    by_id = Counter(page.page_id for page in receiver.received)
    assert {f"l0:{name}" for name in names} == {page.title.split()[-3] for page in receiver.accepted}
    assert 12 == len(by_id)
    assert all(page.count == 2 for page in receiver.received)
    # At a kill, two pages at most are on their way.
    assert sum(by_id.values()) <= 12 + 2 * 2
    for name in names:
        kept = await at.incident(record(name))
        assert kept is not None
        assert (PageKind.OPENED, 2, None) == (kept.told, kept.count, kept.page)
