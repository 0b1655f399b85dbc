"""Requests whose replies come in parts, some of which do not come."""

import asyncio
from collections.abc import Callable

import pytest

from sexton.core.answer import error_part
from sexton.core.pins import EMPTY_DIGEST, pins_digest
from sexton.holder.calls import Calls
from sexton.holder.log import logger
from sexton.holder.runtime import Runtime
from sexton.holder.testing import ManualClock, MemoryService, MemoryTransport
from sexton.schemas.commands import Append
from sexton.schemas.errors import MalformedMessage, PeerError, Unavailable, Unreachable
from sexton.schemas.ids import Level
from sexton.schemas.leases import MAX_PINS, HeartbeatRequest, Pin, PinRequest
from sexton.schemas.limits import CHUNK_BYTES
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import FetchRequest, SyncRequest, Verb
from sexton.schemas.span import NewSpan
from tests.holder_kit import CONTEXT, make_settings

BIG = "0123456789abcdef" * (CHUNK_BYTES // 4)
"""Four parts."""


class Rig:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.service = MemoryService()
        self.transport = MemoryTransport(self.service, clock=self.clock)
        runtime = Runtime(
            holder_id="h",
            incarnation=1,
            transport=self.transport,
            clock=self.clock,
            settings=make_settings(),
            log=logger(),
        )
        self.calls = Calls(runtime)
        append = Append(context_id=CONTEXT, event_id="e", spans=(NewSpan(name="big", content=BIG),))
        self.service.carry_out(CONTEXT, append.kind, append.wire())
        node = self.service.tree(CONTEXT).nodes["l0:big"]
        pointer = Pointer(
            context_id=CONTEXT,
            span_id="l0:big",
            level=Level.L0_VERBATIM,
            version=1,
            offset=0,
            length=node.size_bytes,
            content_hash=node.content_hash,
            epoch=0,
        )
        self.request = FetchRequest(context_id=CONTEXT, pointer=pointer)

    async def fetch(self) -> bytes:
        _, data = await self.clock.run(self.calls.fetch(self.request))
        return data


@pytest.fixture
async def rig() -> Rig:
    rig = Rig()
    await rig.transport.open()
    return rig


async def test_parts_make_a_whole(rig: Rig) -> None:
    """A reply of four parts, asked for once."""
    assert BIG.encode() == await rig.fetch()
    assert (4, 1) == (rig.transport.parts.passed, rig.service.asked[Verb.FETCH])


@pytest.mark.parametrize("lost", [1, 2, 3, 4, 5])
async def test_lost_parts_are_asked_for_again(rig: Rig, lost: int) -> None:
    """Whichever part is lost, the first or the last: the reply is asked for anew, as a whole."""
    rig.transport.parts.lose(lost)
    assert BIG.encode() == await rig.fetch()
    assert 1 + (lost + 3) // 4 == rig.service.asked[Verb.FETCH]


async def test_a_lost_part_in_the_middle_is_noticed_at_once(rig: Rig) -> None:
    """The next part's number says so; no time-out is waited for."""

    def without_the_second(parts: list[Callable[[], None]]) -> list[Callable[[], None]]:
        return [parts[0], *parts[2:]]

    began = rig.clock.monotonic()
    rig.transport.parts.hold()
    fetching = asyncio.create_task(rig.calls.fetch(rig.request))
    await rig.clock.rest()
    rig.transport.parts.release(without_the_second)
    _, data = await rig.clock.run(fetching)
    assert BIG.encode() == data
    assert rig.clock.monotonic() - began < 1


async def test_doubled_parts_are_taken_once(rig: Rig) -> None:
    """A part that comes twice is no reason to ask again."""
    rig.transport.parts.repeat()
    assert BIG.encode() == await rig.fetch()
    assert 1 == rig.service.asked[Verb.FETCH]


async def test_silence_ends_in_unavailable(rig: Rig) -> None:
    """As many tries as the settings say, then a typed error that says what was asked."""
    rig.transport.requests.lose()
    with pytest.raises(Unavailable, match="fetch on notes: no whole reply in 3 tries") as caught:
        await rig.fetch()
    assert "fetch" == caught.value.fields["verb"]
    assert 3 == rig.transport.requests.lost


async def test_nobody_there_is_noticed_without_waiting(rig: Rig) -> None:
    """Without a worker the server says so at once."""
    rig.transport.stop_workers()
    began = rig.clock.monotonic()
    with pytest.raises(Unavailable, match="no service"):
        await rig.fetch()
    assert rig.clock.monotonic() - began < 1  # only the waits between tries


async def test_an_outage_is_waited_out(rig: Rig) -> None:
    """Each try waits for the connection, within its time."""
    rig.transport.disconnect()
    fetching = asyncio.create_task(rig.calls.fetch(rig.request))
    await rig.clock.advance(3)
    rig.transport.reconnect()
    _, data = await rig.clock.run(fetching)
    assert BIG.encode() == data


async def test_the_services_refusal_is_final(rig: Rig) -> None:
    """An error of the service is its answer; nothing is asked again."""
    stale = rig.request.pointer.model_copy(update={"span_id": "l0:none"})
    with pytest.raises(Unreachable) as caught:
        await rig.clock.run(rig.calls.fetch(rig.request.model_copy(update={"pointer": stale})))
    assert caught.value.fields["maybe_behind"] is True
    assert 1 == rig.service.asked[Verb.FETCH]


async def test_an_outage_of_the_store_is_the_services_word(rig: Rig) -> None:
    """The service has waited already; the holder does not wait as many times again."""
    rig.service.cold_down = True
    with pytest.raises(Unavailable, match="store"):
        await rig.fetch()
    assert 1 == rig.service.asked[Verb.FETCH]


async def test_a_pin_amid_a_change_is_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decision 0022: unchanged, under the same number; in the end, the service's word is in the error."""
    asked: list[bytes] = []
    changing = error_part(CONTEXT, Unavailable("l0:big version 1 is being changed", changing=True)).wire()

    def answer(context_id: str, verb: Verb, body: bytes) -> list[bytes]:
        asked.append(body)
        return [changing]

    monkeypatch.setattr(rig.service, "answer", answer)
    request = PinRequest(
        context_id=CONTEXT,
        holder_id="h",
        incarnation=1,
        operation=7,
        digest=EMPTY_DIGEST,
        pins=(Pin(span_id="l0:big", version=1),),
    )
    with pytest.raises(Unavailable, match="is being changed"):
        await rig.clock.run(rig.calls.pin(request))
    assert [request.wire()] * 3 == asked


async def test_a_pin_in_an_outage_is_not_asked_for_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the registry: the service has waited for it, as for the store."""
    asked: list[bytes] = []
    down = error_part(CONTEXT, Unavailable("registry.pin: ConnectionError", operation="pin")).wire()

    def answer(context_id: str, verb: Verb, body: bytes) -> list[bytes]:
        asked.append(body)
        return [down]

    monkeypatch.setattr(rig.service, "answer", answer)
    request = PinRequest(
        context_id=CONTEXT,
        holder_id="h",
        incarnation=1,
        operation=7,
        digest=EMPTY_DIGEST,
        pins=(Pin(span_id="l0:big", version=1),),
    )
    with pytest.raises(Unavailable, match="ConnectionError"):
        await rig.clock.run(rig.calls.pin(request))
    assert 1 == len(asked)


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ([b"{}"], MalformedMessage),
        ([b"not json"], MalformedMessage),
        ([b'{"context_id":"other","head":{"revision":0,"epoch":0,"chain":""}}'], PeerError),
    ],
    ids=["empty", "no json", "another context"],
)
async def test_a_reply_that_is_none_is_the_peers_error(
    rig: Rig, replies: list[bytes], error: type[PeerError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not asked for again: a broken peer stays broken."""
    monkeypatch.setattr(rig.service, "answer", lambda *_: replies)
    with pytest.raises(error):
        await rig.clock.run(rig.calls.sync(SyncRequest(context_id=CONTEXT)))


async def test_a_fetch_that_does_not_say_what_it_is_is_refused(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes without an answer are nothing."""
    monkeypatch.setattr(rig.service, "answer", lambda *_: [b'{"context_id":"notes","data":"YWJj"}'])
    with pytest.raises(MalformedMessage, match="does not say what it is"):
        await rig.fetch()


async def test_an_endless_reply_is_ended(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on everything: a peer that never says `last` is broken."""
    monkeypatch.setattr("sexton.holder.calls.MAX_PARTS", 3)
    with pytest.raises(PeerError, match="more than 3 parts"):
        await rig.fetch()


@pytest.mark.parametrize("verb", [Verb.HEARTBEAT, Verb.PIN])
async def test_what_becomes_of_very_many_pins_is_heard_whole(rig: Rig, verb: Verb) -> None:
    """A holder that slept past its lease announces all it has: however many are refused, it hears of each."""
    pins = tuple(Pin(span_id="l0:big", version=version) for version in range(1, MAX_PINS + 1))
    about = {"context_id": CONTEXT, "holder_id": "h", "incarnation": 1, "operation": 1}
    new = HeartbeatRequest(**about, digest=pins_digest(pins), ttl_ms=9000, register_new=True, pins=pins)
    reply = await rig.clock.run(rig.calls.heartbeat(new))
    if verb is Verb.PIN:
        again = PinRequest(**{**about, "operation": 2}, digest=pins_digest(pins), pins=pins)
        reply = await rig.clock.run(rig.calls.pin(again))
    assert [1] == [pin.version for pin in reply.granted]
    assert list(range(2, MAX_PINS + 1)) == [pin.version for pin in reply.refused]
    assert rig.transport.parts.passed > 1 + (verb is Verb.PIN)
