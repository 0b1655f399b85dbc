"""The pager against a real receiver: a page arrives, once per incident, however that behaves (I9)."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from sexton.core.incidents import acknowledge
from sexton.schemas import subjects
from sexton.schemas.failure import FailureReason, HardFailureRecord
from sexton.schemas.incidents import IncidentStatus, PageKind
from sexton.worker.embedded import NatsServer
from sexton.worker.pager.incidents import Incidents
from tests.pager_kit.receiver import (
    Answer,
    Receiver,
    after,
    broken,
    cut_off,
    drip,
    never,
    no_answer,
    receiving,
)
from tests.pager_kit.scene import Clock, Scene, letter, over, paging, record, scene
from tests.support.waiting import eventually

HOUR_S = 3600.0
ANOTHER = record("another")


@pytest.fixture
async def at(own_nats: NatsServer) -> AsyncIterator[Scene]:
    """Streams of this test's own."""
    async with scene(own_nats.url) as found:
        yield found


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


async def quiet(at: Scene, receiver: Receiver) -> None:
    """All is acknowledged, and a page that is sent after it is all that comes."""
    await at.until_done()
    before = len(receiver.accepted)
    await at.failed(ANOTHER)
    pages = await receiver.until(before + 1)
    assert ANOTHER.span_id in pages[-1].title
    assert before + 1 == len(pages)


# --- it arrives, once --------------------------------------------------------------------------------


async def test_a_loss_is_paged_with_what_an_operator_needs(at: Scene, receiver: Receiver) -> None:
    """What, where, how often, and the command that says more."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(component="worker.fetch"))
        (page,) = await receiver.until(1)
        await quiet(at, receiver)
    assert ("Sexton: lost bytes: ctx l0:a version 1", "failure") == (page.title, page.kind)
    for words in ("context: ctx", "span: l0:a version 1", "11 bytes", "seen: once", "worker.fetch"):
        assert words in page.message
    assert f"sexton failures {record().fingerprint[7:19]}" in page.message


TROUBLE: dict[str, tuple[Answer, int]] = {
    "500": (broken, 3),
    "200 and cut off": (cut_off, 2),
    "no answer": (no_answer, 2),
}


@pytest.mark.parametrize("trouble", TROUBLE)
async def test_what_is_not_accepted_is_sent_again_under_the_same_id(
    at: Scene, receiver: Receiver, trouble: str
) -> None:
    """I9: as often as it takes. An answer that is cut off may have said anything."""
    answer, times = TROUBLE[trouble]
    receiver.answers.extend([answer] * times)
    async with paging(at.nats_url, receiver.url):
        await at.failed(record())
        await receiver.until(1)
        sent = list(receiver.received)
        await quiet(at, receiver)
    assert times + 1 == len(sent)
    assert 1 == len({page.page_id for page in sent})


async def test_a_receiver_that_is_down_for_a_while_gets_the_page_when_it_is_back(
    at: Scene, receiver: Receiver
) -> None:
    """I9: attempts do not end, and the record is not acknowledged before."""
    await receiver.down()
    async with paging(at.nats_url, receiver.url):
        await at.failed(record())
        await at.until_incident(record(), lambda i: i.page and i.page.attempts >= 3, "three attempts")
        assert 1 == (await at.consumer()).num_ack_pending
        await receiver.up()
        await receiver.until(1)
        await quiet(at, receiver)


async def test_a_slow_receiver_gets_the_page_once(at: Scene, receiver: Receiver) -> None:
    """The record is held meanwhile, and the server is told so: it is not delivered again."""
    slowly = asyncio.Event()
    receiver.answers.append(after(slowly))
    beats: asyncio.Queue[bytes] = asyncio.Queue()
    heard = await at.client.subscribe(f"$JS.ACK.{subjects.STREAM_FAILURES}.pager.>")
    async with paging(at.nats_url, receiver.url, pager_ack_wait_s=0.6):
        await at.failed(record())
        # A beat is sent every third of the ack wait: so many take twice as long as the ack wait.
        while beats.qsize() < 6:
            message = await heard.next_msg(20)
            assert b"+WPI" == message.data
            beats.put_nowait(message.data)
        info = await at.consumer()
        assert (1, 0) == (info.num_ack_pending, info.num_redelivered)
        assert (1, 0) == (len(receiver.received), len(receiver.accepted))
        slowly.set()
        await receiver.until(1)
        await quiet(at, receiver)


@pytest.mark.parametrize("answer", [never, drip])
async def test_a_receiver_that_never_ends_its_answer_is_given_up_for_another_attempt(
    at: Scene, receiver: Receiver, answer: Answer
) -> None:
    """An attempt is bounded; attempts are not."""
    receiver.answers.append(answer)
    async with paging(at.nats_url, receiver.url, pager_attempt_s=0.3):
        await at.failed(record())
        await receiver.until(1)
        await quiet(at, receiver)
    assert 2 + 1 == len(receiver.received)


async def test_an_address_that_is_broken_does_not_keep_the_page_from_another(
    at: Scene, receiver: Receiver
) -> None:
    """One that accepts it is enough to acknowledge; the other is tried until it does, the first not again."""
    async with receiving() as ill, paging(at.nats_url, ill.url, receiver.url):
        ill.usual = broken
        await at.failed(record())
        await receiver.until(1)
        await at.until_done()
        await ill.until_arrived(3)
        assert 1 == len(receiver.received)
        kept = await at.incident(record())
        assert kept is not None
        assert kept.page is not None
        assert ("json-2",) == kept.page.accepted_by
        ill.answers.clear()
        ill.usual = after(_set())
        (late,) = await ill.until(1)
        assert receiver.received[0].page_id == late.page_id
        await at.until_incident(record(), lambda i: i.page is None, "the end of the page")
        assert 1 == len(receiver.received)


async def test_an_address_that_hangs_does_not_hold_up_another(at: Scene, receiver: Receiver) -> None:
    """With as many pages as are sent at once: each attempt has a thread of its own."""
    async with receiving() as ill, paging(at.nats_url, ill.url, receiver.url, pager_attempt_s=60.0):
        ill.usual = never
        await at.failed(*(record(name) for name in "abcdefgh"))
        await receiver.until(8)
        await at.until_done()
        assert [] == ill.accepted


def _set() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


async def test_two_pagers_send_one_page(at: Scene, receiver: Receiver) -> None:
    """As in a rolling update: a page belongs to whoever claims it first, while it is under way and after."""
    slowly = asyncio.Event()
    receiver.usual = after(slowly)
    pages = [record(name) for name in "abcdefgh"]
    async with paging(at.nats_url, receiver.url) as one, paging(at.nats_url, receiver.url) as other:
        await at.failed(*pages)
        await receiver.until_arrived(8)
        for pager in (one, other):
            await pager._pages.turn()
            claimed = [pager._incidents.get(about.fingerprint) for about in pages]
            assert all(incident and incident.page for incident in claimed), "it knows of all of them"
            await pager._pages.turn()
        slowly.set()
        await receiver.until(8)
        await quiet(at, receiver)
    assert 9 == len(receiver.received) == len({page.page_id for page in receiver.received})


# --- groups ------------------------------------------------------------------------------------------


async def test_repeats_are_one_page_with_a_count(at: Scene, receiver: Receiver) -> None:
    """Also those that stand in line behind records that wait for their page."""
    await receiver.down()
    async with paging(at.nats_url, receiver.url, pager_lanes=2):
        await at.failed(record(), record())
        await eventually(at.consumer, until=lambda info: info.num_ack_pending == 2, what="full lanes")
        await at.until_incident(record(), lambda i: i.count == 2, "a count of those")
        await at.failed(*[record()] * 7, record(observations=11), record("b"), record("c"))
        await at.until_incident(record(), lambda i: i.count == 20, "a count of all")
        await at.until_incident(record("c"), lambda i: i.page is not None, "what came last")
        assert 2 == (await at.consumer()).num_ack_pending
        await receiver.up()
        pages = await receiver.until(3)
        await at.until_done()
        await at.failed(*[record()] * 30)
        await quiet(at, receiver)
        kept = await at.incident(record())
    assert {"l0:a": 20, "l0:b": 1, "l0:c": 1} == {page.title.split()[4]: page.count for page in pages}
    assert kept is not None
    assert 50 == kept.count


async def test_other_bytes_are_another_incident(at: Scene, receiver: Receiver) -> None:
    """Lost and damaged are two things to do something about."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(), record(reason=FailureReason.CORRUPT))
        pages = await receiver.until(2)
        await quiet(at, receiver)
    assert {"Sexton: lost bytes: ctx l0:a version 1", "Sexton: damaged bytes: ctx l0:a version 1"} == {
        page.title for page in pages
    }


# --- while it lasts, and when it is over ----------------------------------------------------------------


async def test_it_pages_again_after_the_set_time_while_it_lasts(at: Scene, receiver: Receiver) -> None:
    """With the count by then; and no more once somebody has acknowledged it."""
    clock = Clock()
    async with paging(at.nats_url, receiver.url, clock=clock, pager_repeat_s=HOUR_S) as pager:
        await at.failed(record())
        await receiver.until(1)
        await at.failed(record(), record())
        await at.until_incident(record(), lambda i: i.count == 3, "the repeats")
        clock.forward(HOUR_S - 1)
        await pager._pages.turn()
        assert not pager._pages._sending
        clock.forward(1)
        _, again = await receiver.until(2)
        assert ("Sexton: still open: lost bytes: ctx l0:a version 1", 3) == (again.title, again.count)
        await at.until_incident(record(), lambda i: i.told is PageKind.REPEATED, "what came of it")
        clock.forward(HOUR_S)
        await receiver.until(3)
        await quiet(at, receiver)
    assert 4 == len({page.page_id for page in receiver.accepted})


async def test_the_end_is_told_once(at: Scene, receiver: Receiver) -> None:
    """I9: to whoever was paged. Then it is quiet, and another loss is another incident, counted anew."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(), record())
        await receiver.until(1)
        await at.failed(over(), over())
        _, end = await receiver.until(2)
        assert ("Sexton: resolved: lost bytes: ctx l0:a version 1", "success") == (end.title, end.kind)
        await at.until_done()
        await at.failed(record())
        *_, anew = await receiver.until(3)
        assert ("Sexton: lost bytes: ctx l0:a version 1", 1) == (anew.title, anew.count)
        await quiet(at, receiver)
    assert len(receiver.received) == len({page.page_id for page in receiver.received})


async def test_an_end_before_the_first_page_got_through_is_told_after_it(
    at: Scene, receiver: Receiver
) -> None:
    """I9: a loss that was proven pages an operator, also if the bytes came back meanwhile."""
    await at.failed(record(), record(), over())
    async with paging(at.nats_url, receiver.url):
        first, then = await receiver.until(2)
        await quiet(at, receiver)
    assert ("failure", 2, "success") == (first.kind, first.count, then.kind)


async def test_the_end_of_what_nobody_knows_of_is_no_page(at: Scene, receiver: Receiver) -> None:
    """Several workers may find the bytes again."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(over())
        await quiet(at, receiver)


# --- other reasons to page ---------------------------------------------------------------------------


async def test_dead_letters_page_by_stream_and_reason(at: Scene, receiver: Receiver) -> None:
    """I7: one page for many of a sort. What was in them is not in it."""
    await at.buried(letter(), b"C0NTENT")
    await at.buried(letter(sequence=8), b"C0NTENT")
    await at.buried(letter(reason="exhausted"), b"C0NTENT")
    async with paging(at.nats_url, receiver.url):
        pages = await receiver.until(2)
        await at.until_done(subjects.STREAM_DEAD)
        await quiet(at, receiver)
    assert {
        ("Sexton: dead letters: SEXTON_COMMANDS, malformed", 2),
        ("Sexton: dead letters: SEXTON_COMMANDS, exhausted", 1),
    } == {(page.title, page.count) for page in pages}
    assert all("C0NTENT" not in page.message for page in receiver.received)


async def test_dead_letters_do_not_page_where_that_is_not_wanted(at: Scene, receiver: Receiver) -> None:
    """It is a setting."""
    await at.buried(letter())
    async with paging(at.nats_url, receiver.url, pager_dead_letters=False):
        await quiet(at, receiver)


async def test_a_dead_letter_with_a_broken_header_pages_all_the_same(at: Scene, receiver: Receiver) -> None:
    """And what is in the header does not get into the page."""
    await at.js.publish(
        subjects.dead_letter("X"), b"", headers={"Sexton-Dead-Letter": '{"reason": "\\u001b[31m'}
    )
    async with paging(at.nats_url, receiver.url):
        (page,) = await receiver.until(1)
        await at.until_done(subjects.STREAM_DEAD)
    assert "Sexton: dead letters: SEXTON_DEAD, unreadable" == page.title


async def test_a_stuck_collection_pages(at: Scene, receiver: Receiver) -> None:
    """And a reason that this pager does not know yet."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(reason=FailureReason.STUCK), record("b", FailureReason("haunted")))
        pages = await receiver.until(2)
    assert {"Sexton: stuck collection: ctx l0:a version 1", "Sexton: haunted: ctx l0:b version 1"} == {
        page.title for page in pages
    }


async def test_a_record_that_is_none_becomes_a_dead_letter_and_pages_as_one(
    at: Scene, receiver: Receiver
) -> None:
    """It holds nobody up."""
    await at.js.publish(subjects.failure("ctx"), b"C0NTENT")
    async with paging(at.nats_url, receiver.url):
        (page,) = await receiver.until(1)
        await at.until_done(subjects.STREAM_DEAD)
        await quiet(at, receiver)
    assert "Sexton: dead letters: SEXTON_FAILURES, malformed" == page.title
    assert "C0NTENT" not in page.message


# --- when NATS is not well -----------------------------------------------------------------------------


async def test_a_nats_that_restarts_loses_no_page(own_nats: NatsServer, receiver: Receiver) -> None:
    """What was recorded before is paged after."""
    await receiver.down()
    async with scene(own_nats.url) as at, paging(own_nats.url, receiver.url):
        await at.failed(record())
        await at.until_incident(record(), lambda i: i.page is not None, "the incident")
        port = own_nats.port
        await own_nats.stop()
        await own_nats.start()
        assert port == own_nats.port
        await receiver.up()
        await receiver.until(1)
        await eventually(lambda: at.client.is_connected)
        await quiet(at, receiver)


async def test_a_consumer_that_is_deleted_is_made_again(at: Scene, receiver: Receiver) -> None:
    """It begins at the beginning; what was paged is not paged again."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(), record("b"), over("b"))
        await receiver.until(3)
        await at.until_done()
        await at.js.delete_consumer(subjects.STREAM_FAILURES, "pager")
        await eventually(lambda: _exists(at), what="the consumer")
        await quiet(at, receiver)


async def test_a_stream_that_is_made_anew_is_followed_from_its_beginning(
    at: Scene, receiver: Receiver
) -> None:
    """Its sequences are those of old records. They count all the same."""
    async with paging(at.nats_url, receiver.url):
        await at.failed(record(), record(), record())
        await receiver.until(1)
        await at.until_done()
        await at.js.delete_stream(subjects.STREAM_FAILURES)
        await eventually(lambda: _exists(at), what="the stream")
        await at.failed(record(), record("b"))
        await receiver.until(2)
        await at.until_incident(record(), lambda i: i.count == 4, "the new record")


async def test_a_record_counts_before_it_is_acknowledged_whatever_else_was_read(
    at: Scene, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I9: of a stream that was made anew, a record may come before it is noticed that it was."""

    async def nothing_new(*_: object) -> None:
        pass

    monkeypatch.setattr(Incidents, "catch_up", nothing_new)
    async with paging(at.nats_url, receiver.url):
        await at.failed(record())
        await receiver.until(1)
        await quiet(at, receiver)


async def test_what_is_kept_and_cannot_be_read_is_begun_anew(at: Scene, receiver: Receiver) -> None:
    """It is paged once more, which is better than never; and it holds up nobody."""
    await at.js.publish(subjects.incident(record().fingerprint), b"no incident")
    async with paging(at.nats_url, receiver.url):
        await at.failed(record())
        await receiver.until(1)
        await quiet(at, receiver)


async def _exists(at: Scene) -> bool:
    try:
        await at.consumer()
    except Exception:  # noqa: BLE001 - whatever it is, it is not there yet
        return False
    return True


# --- operators ---------------------------------------------------------------------------------------


async def test_an_acknowledged_incident_pages_no_more_and_its_end_is_told(
    at: Scene, receiver: Receiver
) -> None:
    """Written by another process, and seen by the pager."""
    clock = Clock()
    about: HardFailureRecord = record()
    async with paging(at.nats_url, receiver.url, clock=clock, pager_repeat_s=HOUR_S) as pager:
        await at.failed(about)
        await receiver.until(1)
        async with scene(at.nats_url) as other:
            await _acknowledge(other, about)
        clock.forward(2 * HOUR_S)
        await pager._pages.turn()
        assert not pager._pages._sending
        await at.failed(about)
        await at.until_incident(about, lambda i: i.count == 2, "a repeat")
        await pager._pages.turn()
        assert not pager._pages._sending
        await at.failed(over())
        _, end = await receiver.until(2)
    assert "success" == end.kind


async def _acknowledge(at: Scene, about: HardFailureRecord) -> None:
    known = Incidents(at.client, 5.0)
    await known.load()
    written = await known.update(about.fingerprint, lambda now: now and acknowledge(now, 1))
    assert written is not None
    assert IncidentStatus.ACKNOWLEDGED is written.status
