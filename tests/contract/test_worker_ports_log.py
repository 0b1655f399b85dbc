"""The contract of the log: on NATS, and on the one in memory that the unit tests stand on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from nats.aio.client import Client

from sexton.schemas import subjects
from sexton.schemas.errors import PayloadTooLarge, Unavailable
from sexton.worker.adapters.nats_client import HardenedClient
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.embedded import NatsServer
from sexton.worker.ports import Entry, Log, LostRaceError
from sexton.worker.provision import streams
from sexton.worker.settings import Settings
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import pub, publish_raw
from tests.worker_kit.stores import MemoryLog


@asynccontextmanager
async def connected(server: NatsServer) -> AsyncIterator[Client]:
    """A client as the worker's: nothing is buffered for a server that is away."""
    client = HardenedClient()
    options: dict[str, Any] = {"pending_size": 0, "max_reconnect_attempts": -1, "reconnect_time_wait": 0.05}
    await client.connect(server.url, **options)
    try:
        yield client
    finally:
        await client.close()


async def make_stream(client: Client) -> None:
    config = next(s for s in streams(Settings()) if s.name == subjects.STREAM_LOG)
    await client.jetstream().add_stream(config)


@pytest.fixture(params=["memory", "nats"])
async def log(request: pytest.FixtureRequest, own_nats: NatsServer) -> AsyncIterator[Log]:
    if request.param == "memory":
        yield MemoryLog()
        return
    async with connected(own_nats) as client:
        await make_stream(client)
        yield NatsLog(client, 2.0)


async def read(log: Log, context_id: str = "ctx", after: int = 0, upto: int | None = None) -> list[Entry]:
    head = await log.head(context_id)
    end = upto if upto is not None else head.sequence if head is not None else 0
    return [entry async for entry in log.read(context_id, after, end)]


async def filled(log: Log, count: int, context_id: str = "ctx") -> list[int]:
    """Sequences of `count` records, committed one after the other."""
    head = await log.head(context_id)
    at, found = head.sequence if head is not None else 0, list[int]()
    for i in range(count):
        at = await log.append(context_id, f"r{i}".encode(), at)
        found.append(at)
    return found


async def test_an_empty_context_has_no_head(log: Log) -> None:
    """Nor anything to read."""
    assert await log.head("ctx") is None
    assert [] == await read(log)
    assert [] == [context async for batch in log.contexts() for context in batch]


async def test_the_first_record_expects_zero(log: Log) -> None:
    """Zero means: there must be none."""
    sequence = await log.append("ctx", b"first", 0)
    assert Entry(sequence, b"first") == await log.head("ctx")
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"second", 0)


async def test_records_come_back_in_order_byte_for_byte(log: Log) -> None:
    """Whatever is between them: contexts share the stream's sequence."""
    data = b'{"x":"\xc3\xa9\\u0000"}'
    one = await log.append("ctx", data, 0)
    await filled(log, 3, "other")
    two = await log.append("ctx", data + b" ", one)
    assert [Entry(one, data), Entry(two, data + b" ")] == await read(log)
    assert two > one
    assert 3 == len(await read(log, "other"))


async def test_ranges_are_after_and_up_to(log: Log) -> None:
    """Half open at the left: `after` is what is known already."""
    found = await filled(log, 6)
    assert found[2:4] == [entry.sequence for entry in await read(log, after=found[1], upto=found[3])]
    assert [] == await read(log, after=found[-1])


@pytest.mark.parametrize("limit", [1, 3, 300])
async def test_no_more_than_the_limit_is_read(log: Log, limit: int) -> None:
    """The first ones of the range; also more than one batch of them, and records of others between."""
    found = await filled(log, 2)
    await filled(log, 2, "other")
    found += await filled(log, 310)
    head = found[-1]
    entries = [entry async for entry in log.read("ctx", found[0], head, limit=limit)]
    assert found[1 : 1 + limit] == [entry.sequence for entry in entries]


@pytest.mark.parametrize("expected", ["stale", "zero", "ahead"])
async def test_a_stale_expectation_loses_and_stores_nothing(log: Log, expected: str) -> None:
    """The compare-and-swap is per context."""
    found = await filled(log, 2)
    await filled(log, 1, "other")
    wrong = {"stale": found[0], "zero": 0, "ahead": found[1] + 100}[expected]
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"lost", wrong)
    assert found == [entry.sequence for entry in await read(log)]
    await log.append("ctx", b"won", found[1])


async def test_of_many_racers_one_wins(log: Log) -> None:
    """C06: and the others are told, all at once."""
    [at] = await filled(log, 1)
    results = await asyncio.gather(
        *(log.append("ctx", f"racer {i}".encode(), at) for i in range(20)), return_exceptions=True
    )
    assert 1 == sum(isinstance(result, int) for result in results)
    assert 19 == sum(isinstance(result, LostRaceError) for result in results)
    assert 2 == len(await read(log))


async def test_all_contexts_are_listed(log: Log) -> None:
    """Each once."""
    for name in ("a", "b", "B", "c-_9"):
        await filled(log, 2, name)
    assert ["B", "a", "b", "c-_9"] == sorted([c async for batch in log.contexts() for c in batch])


# --- NATS alone --------------------------------------------------------------------------------------


@pytest.fixture
async def client(own_nats: NatsServer) -> AsyncIterator[Client]:
    async with connected(own_nats) as client:
        await make_stream(client)
        yield client


@pytest.fixture
def nats_log(client: Client) -> NatsLog:
    return NatsLog(client, 2.0)


async def test_a_log_of_many_batches_is_read_whole(nats_log: NatsLog, client: Client) -> None:
    """More than one direct get returns, with other contexts' records between."""
    js, at = client.jetstream(), 0
    for i in range(600):
        await client.publish(subjects.log("other"), b"x")
        if i % 100 == 0:
            await client.flush()
        ack = await js.publish(subjects.log("ctx"), str(i).encode())
        at = ack.seq
    entries = [entry async for entry in nats_log.read("ctx", 0, at)]
    assert [str(i).encode() for i in range(600)] == [entry.data for entry in entries]


async def test_large_records_are_read(nats_log: NatsLog) -> None:
    """A batch is bounded by bytes as well: what does not fit comes with the next one."""
    at = 0
    for i in range(8):
        at = await nats_log.append("ctx", bytes([i]) * 900_000, at)
    assert list(range(8)) == [entry.data[0] for entry in await read(nats_log)]


async def test_a_record_over_the_server_s_limit_costs_no_connection(
    nats_log: NatsLog, client: Client
) -> None:
    """Typed, and before it is sent: the server would end the connection, and the command would come again."""
    limits: set[int] = set()
    for size in (client.max_payload + 1, client.max_payload, client.max_payload - 100):
        with pytest.raises(PayloadTooLarge) as caught:
            await nats_log.append("ctx", b"x" * size, 0)
        assert size == caught.value.fields["actual"]
        limits.add(caught.value.fields["limit"])
    assert client.is_connected
    await nats_log.append("ctx", b"x" * limits.pop(), 0)
    assert 0 == client.stats["reconnects"]


async def test_a_missing_stream_is_unavailable(client: Client, nats_log: NatsLog) -> None:
    """I9: not an empty context."""
    await nats_log.append("ctx", b"x", 0)
    await client.jetstream().delete_stream(subjects.STREAM_LOG)
    with pytest.raises(Unavailable, match="does not exist"):
        await nats_log.head("ctx")
    with pytest.raises(Unavailable):
        [entry async for entry in nats_log.read("ctx", 0, 5)]
    with pytest.raises(LostRaceError):
        await nats_log.append("ctx", b"x", 1)


@pytest.mark.parametrize("what", ["head", "read", "contexts"])
@pytest.mark.parametrize("how", ["stopped", "frozen"])
async def test_an_outage_is_unavailable(own_nats: NatsServer, client: Client, what: str, how: str) -> None:
    """C111: within the time-out, whatever the library calls it."""
    log = NatsLog(client, 0.1)
    await log.append("ctx", b"x", 0)
    await (own_nats.stop() if how == "stopped" else own_nats.pause())

    async def called() -> None:
        if what == "head":
            await log.head("ctx")
        elif what == "read":
            [entry async for entry in log.read("ctx", 0, 9)]
        else:
            [batch async for batch in log.contexts()]

    async with deadline(10, what):
        with pytest.raises(Unavailable):
            await called()
    if how == "frozen":
        await own_nats.resume()


async def test_a_publish_to_a_frozen_server_may_have_been_stored(
    own_nats: NatsServer, client: Client
) -> None:
    """I8: no answer is a lost race: only the head can say. Here it arrives when the server goes on."""
    log = NatsLog(client, 0.1)
    at = await log.append("ctx", b"first", 0)
    await own_nats.pause()
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"ghost", at)
    await own_nats.resume()
    head = await eventually(
        lambda: NatsLog(client, 2.0).head("ctx"), until=lambda e: e and e.data == b"ghost"
    )
    assert head is not None
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"again", at)


async def test_large_records_are_read_in_batches_of_bounded_size(client: Client) -> None:
    """More than a batch may hold in bytes: all are read, and no batch holds them all at once."""
    log, at = NatsLog(client, 5.0), 0
    data = [bytes([65 + i]) * 700_000 for i in range(12)]
    for record in data:
        at = await log.append("ctx", record, at)
    assert data == [entry.data for entry in await read(log)]
    assert 6 >= len(await log._batch("ctx", 0, 256))


async def test_a_publish_without_a_connection_is_never_sent_later(
    own_nats: NatsServer, client: Client
) -> None:
    """I8: no ghost write: what was given up on does not wait in a buffer until the server is back."""
    log = NatsLog(client, 0.2)
    at = await log.append("ctx", b"first", 0)
    await own_nats.stop()
    await eventually(lambda: not client.is_connected)
    with pytest.raises(Unavailable):
        await log.append("ctx", b"ghost", at)
    await own_nats.start()
    await eventually(lambda: client.is_connected)
    await client.flush()
    assert at == await _sequence(log)
    await log.append("ctx", b"second", at)


async def test_a_connection_closes_in_order_while_its_server_is_away(
    own_nats: NatsServer, client: Client
) -> None:
    """Also with something left to send, which cannot be sent any more."""
    await own_nats.stop()
    await eventually(lambda: not client.is_connected)
    await client.subscribe("waits.for.the.server")
    async with deadline(5, "the end"):
        await client.close()
    assert client.is_closed


async def _sequence(log: NatsLog) -> int:
    async def answered() -> Entry | None:
        with suppress(Unavailable):  # JetStream may take longer to be back than the connection
            return await log.head("ctx")
        return None

    head = await eventually(answered)
    assert head is not None
    return head.sequence


async def test_a_success_that_is_answered_as_a_lost_race_is_seen_at_the_head(client: Client) -> None:
    """C26: a publish that was sent twice by the network: stored, and answered with 10071."""
    log = NatsLog(client, 2.0)
    at = await log.append("ctx", b"first", 0)
    headers = {"Nats-Expected-Last-Subject-Sequence": str(at)}
    await client.jetstream().publish(subjects.log("ctx"), b"mine", headers=headers)
    with pytest.raises(LostRaceError):
        await log.append("ctx", b"mine", at)
    head = await log.head("ctx")
    assert head is not None
    assert b"mine" == head.data


async def test_a_stream_that_is_full_is_unavailable(client: Client) -> None:
    """I9: an operator's limit refuses what it cannot hold, and is no lost race."""
    js = client.jetstream()
    config = (await js.stream_info(subjects.STREAM_LOG)).config
    config.max_bytes = 400
    await js.update_stream(config)
    log = NatsLog(client, 2.0)
    at = await log.append("ctx", b"x" * 50, 0)
    with pytest.raises(Unavailable):
        await log.append("ctx", b"x" * 500, at)


async def test_a_reading_client_survives_what_anybody_may_publish(
    own_nats: NatsServer, client: Client
) -> None:
    """A subject that is no UTF-8 must not end the read loop, nor an unknown error the connection."""
    heard: list[str] = []

    async def hear(message: Any) -> None:
        heard.append(message.subject)

    await client.subscribe("sexton.epoch.*", cb=hear)
    await client.flush()
    await publish_raw(own_nats.port, pub(b"sexton.epoch.\xff\xfe", b"x") + pub(b"sexton.epoch.ok", b"x"))
    assert "sexton.epoch.ok" == (await eventually(lambda: heard, until=lambda found: len(found) == 2))[1]
    before = client.stats["reconnects"]
    # Longer than the server's control line: it ends the connection.
    await client.publish("sexton." + "x" * 5000, b"x")
    await eventually(lambda: client.is_connected and client.stats["reconnects"] > before)
    await client.flush()
