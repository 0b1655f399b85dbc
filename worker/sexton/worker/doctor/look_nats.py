"""Looking at NATS: the server, the streams, the consumers, and what this user may do. Changes nothing."""

import asyncio
import json
import re
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import nats.errors
import nats.js.errors
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, ConsumerInfo, StreamInfo

from sexton.schemas import subjects
from sexton.schemas.errors import InvalidInput, SextonError, Unavailable
from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.adapters.nats_client import HardenedClient
from sexton.worker.adapters.nats_options import nats_options
from sexton.worker.doctor import judge_nats as judge
from sexton.worker.doctor.findings import Finding, ok, unknown
from sexton.worker.doctor.judge_clocks import judge_clock
from sexton.worker.doctor.probe import CONTEXT
from sexton.worker.pairing import log_seen
from sexton.worker.provision import (
    consumer_differences,
    consumers,
    payload_needed_bytes,
    stream_differences,
    streams,
)
from sexton.worker.settings import Settings

_PAGER: Final = "pager"
_NEVER: Final = str(2**52)
"""A sequence that no subject has: a publish that expects it is refused by the stream, and changes nothing."""
_REFUSED: Final = re.compile(r"permissions violation for (.+)", re.IGNORECASE | re.DOTALL)
_CLOSE_S: Final = 2.0


async def look_at_nats(settings: Settings, monitor: str | None) -> AsyncIterator[Finding]:
    """Connects as a worker would, and looks.

    Args:
        settings: as a worker has them.
        monitor: address of the server's monitoring port, `http://host:8222`, if there is one.

    Raises:
        Unavailable: NATS or its JetStream does not answer.
        InvalidInput: an address that is none.
    """
    refused: list[str] = []
    said: list[str] = []

    async def on_error(error: Exception) -> None:
        if (found := _REFUSED.search(str(error))) is not None:
            refused.append(found[1].strip())
        elif words := str(error).strip():
            said.append(words[:_SHOWN])

    client = HardenedClient()
    try:
        async with asyncio.timeout(settings.io_timeout_s):
            await client.connect(
                settings.nats_servers,
                name="sexton-doctor",
                **nats_options(settings) | {"allow_reconnect": False, "max_reconnect_attempts": 1},
                error_cb=on_error,
            )
            began = time.perf_counter()
            await client.flush()
        yield ok("nats.connection", f"answers in {1000 * (time.perf_counter() - began):.1f} ms")
        js = client.jetstream(timeout=settings.io_timeout_s)
        async for finding in _look(client, js, settings):
            yield finding
        config, why_not = await _monitored(monitor, settings.io_timeout_s)
        yield judge.judge_sync(config, replicas=settings.replicas, why_not=why_not)
        await _try_all(client, settings.io_timeout_s)
        yield judge.judge_permissions(refused)
    except nats.js.errors.APIError as e:
        raise Unavailable(f"JetStream refused: {e.description or type(e).__name__}") from e
    except nats.errors.Error as e:
        raise Unavailable(f"NATS: {type(e).__name__}{_and(said, refused)}") from e
    except TimeoutError as e:
        raise Unavailable(f"NATS, or its JetStream, did not answer{_and(said, refused)}") from e
    except OSError as e:
        raise Unavailable(f"NATS cannot be reached: {type(e).__name__}") from e
    finally:
        with suppress(TimeoutError, OSError, nats.errors.Error):
            async with asyncio.timeout(_CLOSE_S):
                await client.close()


async def _look(client: HardenedClient, js: JetStreamContext, settings: Settings) -> AsyncIterator[Finding]:
    meant_streams, meant_consumers = streams(settings), list(consumers(settings))
    infos = {str(meant.name): await _stream(js, str(meant.name)) for meant in meant_streams}
    log = infos[subjects.STREAM_LOG]
    for finding in judge.judge_server(
        str(client.connected_server_version).strip("<>").removeprefix("nats server v"),
        client.max_payload,
        payload_needed_bytes(settings),
        in_cluster=bool(log and log.cluster and log.cluster.name),
        replicas=settings.replicas,
    ):
        yield finding
    seen_consumers = [await _seen_consumer(js, *pair) for pair in meant_consumers]
    seen_streams = [
        judge.StreamSeen(
            name=str(meant.name),
            differences=None if info is None else stream_differences(meant, info.config),
        )
        for meant, info in ((meant, infos[str(meant.name)]) for meant in meant_streams)
    ]
    if log is not None:
        yield await _pairing(log, settings)
    for finding in judge.judge_streams(seen_streams, seen_consumers):
        yield finding
    if all(info is not None for info in infos.values()):
        dead = infos[subjects.STREAM_DEAD]
        for finding in judge.judge_work(
            [seen for seen in seen_consumers if seen.name.startswith(subjects.STREAM_COMMANDS)],
            await _pager(js),
            dead.state.messages if dead is not None else 0,
        ):
            yield finding
        yield await _clock(client, settings.io_timeout_s)


async def _pairing(log: StreamInfo, settings: Settings) -> Finding:
    """Whether the cold store is the one of this log."""
    try:
        name = await ObjectColdStore(open_store(settings.cold_url), settings.io_timeout_s).name()
    except SextonError as e:
        return unknown("cold.pairing", e.message, "see the finding about the cold store")
    return judge.judge_pairing(log_seen(log), name)


async def _stream(js: JetStreamContext, name: str) -> StreamInfo | None:
    try:
        return await js.stream_info(name)
    except nats.js.errors.NotFoundError:
        return None


async def _consumer(js: JetStreamContext, stream: str, name: str) -> ConsumerInfo | None:
    try:
        info: ConsumerInfo = await js.consumer_info(stream, name)
    except nats.js.errors.NotFoundError:
        return None
    return info


async def _seen_consumer(js: JetStreamContext, stream: str, meant: ConsumerConfig) -> judge.StreamSeen:
    name = str(meant.durable_name)
    info = await _consumer(js, stream, name)
    return _seen(f"{stream}.{name}", info, meant)


def _seen(name: str, info: ConsumerInfo | None, meant: ConsumerConfig | None) -> judge.StreamSeen:
    if info is None:
        return judge.StreamSeen(name=name, differences=None)
    return judge.StreamSeen(
        name=name,
        differences={} if meant is None else consumer_differences(meant, info.config),
        last=(info.num_pending or 0) + (info.num_ack_pending or 0),
        pulls=info.num_waiting or 0,
    )


async def _pager(js: JetStreamContext) -> judge.StreamSeen | None:
    info = await _consumer(js, subjects.STREAM_FAILURES, _PAGER)
    return None if info is None else _seen(_PAGER, info, None)


async def _clock(client: HardenedClient, timeout_s: float) -> Finding:
    """The server says the time with a stream's state; nats-py leaves it out."""
    before = time.time()
    reply = await client.request(f"$JS.API.STREAM.INFO.{subjects.STREAM_LOG}", b"", timeout=timeout_s)
    after = time.time()
    told = datetime.fromisoformat(json.loads(reply.data)["ts"]).astimezone(UTC).timestamp()
    return judge_clock("nats", told - (before + after) / 2, (after - before) / 2)


async def _try_all(client: HardenedClient, timeout_s: float) -> None:
    """Publishes and subscribes wherever a worker does, so that nothing comes of it but a refusal.

    The server answers a refusal at once and in order: when the last ping is answered, all are known.
    """
    nowhere = f"{client.new_inbox()}"
    expecting = {"Nats-Expected-Last-Subject-Sequence": _NEVER}
    for stored in (
        subjects.log(CONTEXT),
        subjects.summarise(CONTEXT),
        # Not a failure: workers hear those whether the stream takes them or not.
        subjects.dead_letter(subjects.STREAM_COMMANDS),
    ):
        await client.publish(stored, b"", reply=nowhere, headers=expecting)
    for plain in (
        subjects.outcome(CONTEXT, CONTEXT),
        f"_INBOX.{CONTEXT}.1",
        # Of a consumer that there is not.
        f"$JS.API.CONSUMER.MSG.NEXT.{subjects.STREAM_COMMANDS}.{CONTEXT}",
        f"$JS.ACK.{subjects.STREAM_COMMANDS}.{CONTEXT}.1.1.1.1.0",
    ):
        await client.publish(plain, b"")
    heard = [
        subjects.EPOCHS,
        subjects.FAILURES,
        "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*",
        "$JS.EVENT.ADVISORY.STREAM.DELETED.*",
        nowhere,
        *(subjects.rpc_all(verb) for verb in Verb),
        *(subjects.ops_all(verb) for verb in OpsVerb),
    ]
    listening = [await client.subscribe(subject, cb=_ignore) for subject in heard]
    await client.flush(timeout_s)
    for subscription in listening:
        await subscription.unsubscribe()


async def _ignore(_: Any) -> None:
    pass


async def _monitored(address: str | None, timeout_s: float) -> tuple[dict[str, Any] | None, str]:
    """`jetstream.config` of the server's `/varz`, and why there is none."""
    if address is None:
        return None, "no monitoring address was given"
    if urlsplit(address).scheme not in ("http", "https"):
        raise InvalidInput("--nats-monitor is no http address", field="nats_monitor")

    def get() -> Any:
        url = f"{address.rstrip('/')}/varz"
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - http, checked above
            return json.loads(response.read(_LARGEST_BYTES))

    try:
        told = await asyncio.to_thread(get)
        return dict(told["jetstream"]["config"]), ""
    except (OSError, ValueError, KeyError, TypeError, urllib.error.URLError) as e:
        return None, f"the monitoring port did not tell ({type(e).__name__})"


_LARGEST_BYTES: Final = 4 * 1024 * 1024


_SHOWN: Final = 120


def _and(said: Sequence[str], refused: Sequence[str]) -> str:
    heard = f"; it said: {said[-1]}" if said else ""
    return heard + (f"; not permitted: {', '.join(refused[:3])}" if refused else "")
