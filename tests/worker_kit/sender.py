"""The commanding side, on a plain NATS client: publishes commands, hears outcomes, asks, reads the log."""

import asyncio
import base64
import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import nats
import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js.api import RawStreamMsg

from sexton.core.apply import apply
from sexton.core.tree import ContextTree
from sexton.schemas import subjects
from sexton.schemas.base import Message
from sexton.schemas.codec import AnyCommand, AnyOutcome, AnyRecord, decode_outcome, decode_record
from sexton.schemas.dead import DEAD_LETTER_HEADER, DeadLetter
from sexton.schemas.ids import Level
from sexton.schemas.outcome import REPLY_HEADER, Committed, Rejected
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import FetchRequest, SyncRequest, Verb
from sexton.worker.adapters.nats_log import NatsLog
from tests.core_kit.audit import audit
from tests.support.waiting import deadline, eventually

_WITHIN_S: Final = 15.0


class Sender:
    """One client of the service. It hears every outcome there is."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.js = client.jetstream(timeout=_WITHIN_S)
        self.outcomes: dict[tuple[str, str], list[AnyOutcome]] = {}
        self.order: list[AnyOutcome] = []

    async def publish(
        self,
        command: AnyCommand | bytes,
        *,
        subject: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> int:
        """Publishes a command, or any bytes; gives its sequence in the command stream."""
        if isinstance(command, bytes):
            assert subject is not None, "bytes do not say where they belong"
            data = command
        else:
            data = command.wire()
            subject = subject or subjects.command(command.context_id, command.kind)
        ack = await self.js.publish(subject, data, headers=dict(headers) if headers else None)
        return ack.seq

    async def ask(
        self, command: AnyCommand | bytes, *, subject: str | None = None, within_s: float = _WITHIN_S
    ) -> AnyOutcome:
        """Publishes a command and waits for the outcome in an inbox of its own."""
        inbox = self.client.new_inbox()
        heard = await self.client.subscribe(inbox)
        try:
            await self.publish(command, subject=subject, headers={REPLY_HEADER: inbox})
            async with deadline(within_s, "the outcome"):
                message: Msg = await heard.next_msg(timeout=None)
                return decode_outcome(message.data)
        finally:
            await heard.unsubscribe()

    async def commit(self, command: AnyCommand, *, within_s: float = _WITHIN_S) -> Committed:
        """As `ask`, for a command that must be committed."""
        outcome = await self.ask(command, within_s=within_s)
        assert isinstance(outcome, Committed), outcome
        return outcome

    async def refused(self, command: AnyCommand | bytes, *, subject: str | None = None) -> Rejected:
        """As `ask`, for a command that must be rejected."""
        outcome = await self.ask(command, subject=subject)
        assert isinstance(outcome, Rejected), outcome
        return outcome

    async def outcome_of(self, context_id: str, event_id: str, *, within_s: float = _WITHIN_S) -> AnyOutcome:
        """The first outcome of a command that was published before."""
        heard = await eventually(
            lambda: self.outcomes.get((context_id, event_id)),
            within_s=within_s,
            what=f"an outcome of {event_id}",
        )
        assert heard is not None
        return heard[0]

    # --- asking ------------------------------------------------------------------------------------------

    async def rpc(
        self, verb: Verb, request: Message | bytes, *, context_id: str, within_s: float = _WITHIN_S
    ) -> list[dict[str, Any]]:
        """Asks a worker; gives the parts of the answer as JSON."""
        inbox = self.client.new_inbox()
        heard = await self.client.subscribe(inbox)
        data = request if isinstance(request, bytes) else request.wire()
        parts: list[dict[str, Any]] = []
        try:
            await self.client.publish(subjects.rpc(context_id, verb), data, reply=inbox)
            async with deadline(within_s, f"the answer to {verb.value}"):
                while not parts or not parts[-1]["last"]:
                    message: Msg = await heard.next_msg(timeout=None)
                    parts.append(_json(message.data))
        finally:
            await heard.unsubscribe()
        assert list(range(len(parts))) == [part["index"] for part in parts]
        return parts

    async def fetch(self, pointer: Pointer, **more: Any) -> tuple[dict[str, Any], bytes]:
        """The answer's description, or the error, and the bytes."""
        request = FetchRequest(context_id=pointer.context_id, pointer=pointer, **more)
        parts = await self.rpc(Verb.FETCH, request, context_id=pointer.context_id)
        if parts[0]["status"] == "error":
            return parts[0], b""
        data = b"".join(base64.urlsafe_b64decode(part["data"]) for part in parts)
        answer: dict[str, Any] = parts[0]["answer"]
        return answer, data

    async def sync(self, context_id: str, **more: Any) -> list[dict[str, Any]]:
        """The parts of the answer to `sync`."""
        return await self.rpc(Verb.SYNC, SyncRequest(context_id=context_id, **more), context_id=context_id)

    # --- what is in the streams -----------------------------------------------------------------------------

    async def records(self, context_id: str) -> list[AnyRecord]:
        """All records of a context, from the log itself."""
        reader = NatsLog(self.client, _WITHIN_S)
        head = await reader.head(context_id)
        if head is None:
            return []
        return [decode_record(entry.data) async for entry in reader.read(context_id, 0, head.sequence)]

    async def tree(self, context_id: str) -> ContextTree:
        """The context as the log says, checked against the rules."""
        tree = ContextTree.empty(context_id)
        for record in await self.records(context_id):
            tree = apply(tree, record)
        audit(tree)
        return tree

    async def dead_letters(self) -> list[tuple[DeadLetter, bytes]]:
        """All dead letters, with what each one was."""
        state = (await self.js.stream_info(subjects.STREAM_DEAD)).state
        letters: list[tuple[DeadLetter, bytes]] = []
        if not state.messages:
            return letters
        for sequence in range(state.first_seq, state.last_seq + 1):
            found: RawStreamMsg = await self.js.get_msg(subjects.STREAM_DEAD, sequence)
            header = (found.headers or {})[DEAD_LETTER_HEADER]
            letters.append((DeadLetter.model_validate_json(header), found.data or b""))
        return letters

    async def waiting(self, stream: str = subjects.STREAM_COMMANDS) -> int:
        """How many messages of a work queue nobody has finished with."""
        return (await self.js.stream_info(stream)).state.messages

    async def until_idle(self, within_s: float = _WITHIN_S) -> None:
        """Waits until no command is left."""
        for stream in (subjects.STREAM_COMMANDS, subjects.STREAM_SUMMARISE):
            await eventually(
                lambda stream=stream: self.waiting(stream),  # type: ignore[misc]
                until=lambda left: left == 0,
                within_s=within_s,
                what=f"an empty {stream}",
            )

    async def _hear(self, message: Msg) -> None:
        outcome = decode_outcome(message.data)
        assert outcome.context_id is not None
        assert outcome.event_id is not None
        self.order.append(outcome)
        self.outcomes.setdefault((outcome.context_id, outcome.event_id), []).append(outcome)


@asynccontextmanager
async def sending(url: str) -> AsyncIterator[Sender]:
    """A commanding side, connected, and listening to all outcomes."""
    client = await nats.connect(
        url, max_reconnect_attempts=-1, reconnect_time_wait=0.05, error_cb=_ignored, name="test-sender"
    )
    try:
        sender = Sender(client)
        await client.subscribe("sexton.outcome.>", cb=sender._hear)
        await client.flush()
        yield sender
    finally:
        await client.close()


async def publish_until_stored(sender: Sender, command: AnyCommand, within_s: float = _WITHIN_S) -> None:
    """Publishes a command as an agent would during an outage: again, until the server has it."""
    async with deadline(within_s, f"storing {command.event_id}"):
        while True:
            try:
                async with asyncio.timeout(1):
                    await sender.publish(command)
            except (nats.errors.Error, TimeoutError, OSError):
                await asyncio.sleep(0.05)
            else:
                return


def pointer_to(
    content: str,
    span_id: str,
    *,
    context_id: str = "ctx",
    offset: int = 0,
    length: int | None = None,
    level: Level = Level.L0_VERBATIM,
    **more: Any,
) -> Pointer:
    """A pointer to a part of a leaf's bytes, made from what the test knows of them."""
    data = content.encode()
    size = len(data) - offset if length is None else length
    part = data[offset : offset + size]
    fields: dict[str, Any] = {
        "context_id": context_id,
        "span_id": span_id,
        "level": level,
        "version": 1,
        "offset": offset,
        "length": size,
        "content_hash": "sha256:" + hashlib.sha256(part).hexdigest(),
        "epoch": 0,
    }
    return Pointer(**(fields | more))


def hpub(subject: bytes, headers: bytes, body: bytes) -> bytes:
    """A publish with headers, as it is on the wire: for what no client would send."""
    sizes = f"{len(headers)} {len(headers) + len(body)}".encode()
    return b"HPUB " + subject + b" " + sizes + b"\r\n" + headers + body + b"\r\n"


def pub(subject: bytes, body: bytes, reply: bytes = b"") -> bytes:
    """A publish, as it is on the wire."""
    middle = b" " + reply + b" " if reply else b" "
    return b"PUB " + subject + middle + str(len(body)).encode() + b"\r\n" + body + b"\r\n"


async def publish_raw(port: int, data: bytes) -> bytes:
    """Writes protocol bytes past every client's checks; gives the server's answer to them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        async with deadline(5, "a raw publish"):
            await reader.readline()
            options = b'{"verbose":false,"pedantic":false,"headers":true,"protocol":1}'
            writer.write(b"CONNECT " + options + b"\r\n" + data + b"PING\r\n")
            await writer.drain()
            answer = b"INFO"
            while answer.startswith(b"INFO"):
                answer = await reader.readline()
            return answer
    finally:
        writer.close()


def event_ids(records: Sequence[AnyRecord]) -> list[str]:
    """Their event ids, in order."""
    return [record.event_id for record in records]


async def _ignored(_: Exception) -> None:
    """An outage is what the test is about."""


def _json(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(data)
    return found
