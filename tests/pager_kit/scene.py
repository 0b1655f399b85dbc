"""A NATS server with the pager's streams, records published to it, and pagers over it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import nats
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import ConsumerInfo, RawStreamMsg
from pydantic import SecretStr

from sexton.core.incidents import failure_fingerprint
from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.dead import DEAD_LETTER_HEADER, DeadLetter
from sexton.schemas.failure import FailureKind, FailureReason, HardFailureRecord
from sexton.schemas.ids import Level
from sexton.schemas.incidents import Incident
from sexton.schemas.span import Identity
from sexton.worker.pager.app import Pager
from sexton.worker.pager.incidents import DURABLE
from sexton.worker.provision import ensure, failure_streams
from sexton.worker.settings import Settings
from tests.support.processes import Program, Programs
from tests.support.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
CONTEXT: Final = "ctx"


def identity(name: str = "a", version: int = 1) -> Identity:
    return Identity(
        span_id=f"l0:{name}",
        version=version,
        level=Level.L0_VERBATIM,
        content_hash="sha256:" + 64 * "a",
        size_bytes=11,
    )


def record(name: str = "a", reason: FailureReason = FailureReason.LOST, **more: Any) -> HardFailureRecord:
    """A failure of the leaf `l0:NAME`."""
    about = identity(name)
    fields: dict[str, Any] = {
        "fingerprint": failure_fingerprint(reason, CONTEXT, about),
        "reason": reason,
        "context_id": CONTEXT,
        "span_id": about.span_id,
        "version": about.version,
        "content_hash": about.content_hash,
        "size_bytes": about.size_bytes,
        "component": "test",
    }
    return HardFailureRecord(**(fields | more))


def over(name: str = "a", reason: FailureReason = FailureReason.LOST) -> HardFailureRecord:
    """The end of it."""
    return record(name, reason, kind=FailureKind.RESOLVED)


def letter(
    reason: str = "malformed", sequence: int = 7, stream: str = subjects.STREAM_COMMANDS
) -> DeadLetter:
    return DeadLetter(
        subject="sexton.part.0.ctx.append",
        reason=reason,
        message="not a message",
        stream=stream,
        stream_sequence=sequence,
        deliveries=1,
    )


class Scene:
    """The streams, seen from the side of a worker that publishes and of an operator who looks."""

    def __init__(self, client: Client, nats_url: str) -> None:
        self.client = client
        self.nats_url = nats_url
        self.js = client.jetstream(timeout=10)

    async def failed(self, *records: HardFailureRecord) -> int:
        """Records failures; gives the last one's sequence."""
        sequence = 0
        for one in records:
            sequence = (await self.js.publish(subjects.failure(one.context_id), one.wire())).seq
        return sequence

    async def buried(self, about: DeadLetter, payload: bytes = b"what came") -> None:
        """Leaves a dead letter."""
        headers = {DEAD_LETTER_HEADER: about.model_dump_json(exclude_none=True)}
        await self.js.publish(subjects.dead_letter(about.stream), payload, headers=headers)

    async def incident(self, about: HardFailureRecord) -> Incident | None:
        """What is kept about a failure."""
        try:
            found: RawStreamMsg = await self.js.get_msg(
                subjects.STREAM_INCIDENTS, subject=subjects.incident(about.fingerprint)
            )
        except nats.js.errors.NotFoundError:
            return None
        return decode(Incident, found.data or b"")

    async def until_incident(self, about: HardFailureRecord, satisfied: Any, what: str) -> Incident:
        """Waits until what is kept about a failure is as it should be."""
        found: Incident | None = await eventually(
            lambda: self.incident(about), until=lambda i: i and satisfied(i), within_s=20, what=what
        )
        assert found is not None
        return found

    async def consumer(self, stream: str = subjects.STREAM_FAILURES) -> ConsumerInfo:
        """The pager's consumer, as the server sees it."""
        found: ConsumerInfo = await self.js.consumer_info(stream, DURABLE)
        return found

    async def until_done(self, stream: str = subjects.STREAM_FAILURES) -> None:
        """Waits until every record is acknowledged."""
        await eventually(
            lambda: self.consumer(stream),
            until=lambda info: not (info.num_pending or info.num_ack_pending),
            within_s=20,
            what="the acknowledgement of all records",
        )


@asynccontextmanager
async def scene(nats_url: str) -> AsyncIterator[Scene]:
    """The streams, made as a worker makes them, and a connection."""
    client = await nats.connect(nats_url)
    try:
        await ensure(client.jetstream(timeout=10), failure_streams(Settings()), ())
        yield Scene(client, nats_url)
    finally:
        await client.close()


def settings(nats_url: str, *urls: str, **more: Any) -> Settings:
    """Settings for a test: everything is quick, and nothing repeats unless it is asked for."""
    fields: dict[str, Any] = {
        "nats_url": nats_url,
        "pager_urls": SecretStr(" ".join(urls)),
        "pager_ack_wait_s": 1.0,
        "pager_attempt_s": 5.0,
        "pager_poll_s": 0.05,
        "pager_retry_first_s": 0.02,
        "pager_retry_max_s": 0.2,
        "pager_lanes": 4,
        "retry_delay_s": 0.02,
        "io_timeout_s": 2.0,
        "grace_s": 2.0,
    }
    return Settings(**(fields | more))


@asynccontextmanager
async def paging(nats_url: str, *urls: str, clock: Any = None, **more: Any) -> AsyncIterator[Pager]:
    """A pager in this process."""
    clocked = {} if clock is None else {"clock_ms": clock}
    async with Pager(settings(nats_url, *urls, **more), **clocked) as pager:
        yield pager


def environment(config: Settings) -> Mapping[str, str]:
    """The same as variables, for a process."""
    return {
        f"SEXTON_{name.upper()}": str(value)
        for name, value in config.model_dump(exclude_defaults=True).items()
        if name != "pager_urls"
    } | {"SEXTON_PAGER_URLS": config.pager_urls.get_secret_value()}


def start_pager(programs: Programs, nats_url: str, *urls: str, **more: Any) -> Program:
    """A pager as a program of its own: the installed command."""
    return programs.sexton("pager", env=environment(settings(nats_url, *urls, **more)))


async def ready(pager: Program) -> None:
    """Waits until it pages."""
    await pager.line("pager.ready", stream="stderr", within_s=30)


class Clock:
    """A clock that goes only where it is put."""

    def __init__(self) -> None:
        self.now_ms = 1_790_000_000_000

    def __call__(self) -> int:
        return self.now_ms

    def forward(self, seconds: float) -> None:
        self.now_ms += round(seconds * 1000)


def events(program: Program) -> list[dict[str, Any]]:
    """The program's log."""
    return [json.loads(line) for line in program.stderr.splitlines() if line.startswith("{")]
