"""The log on JetStream."""

import asyncio
import json
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton import tracing
from sexton.schemas import subjects
from sexton.schemas.errors import PayloadTooLarge, Unavailable
from sexton.worker.adapters.nats_client import RefusedError
from sexton.worker.ports import Entry, LostRaceError

_EXPECTED_SEQUENCE: Final = "Nats-Expected-Last-Subject-Sequence"
_SEQUENCE: Final = "Nats-Sequence"
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})
"""One server says 10071 to a stale sequence; a replicated stream may say 10164 while a racer is in flight.
Both are also what a retry of a publish that did arrive gets, so neither says that it did not."""

_BATCH: Final = 256
_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Of one batch, unless a single record has more: what is read of a long log lies in memory at once."""
_ENVELOPE_BYTES: Final = 4096
"""Headers count against the server's limit, and so does what is around a record in a reply to `sync`."""
_STATUS: Final = "Status"
_END_OF_BATCH: Final = "204"
_NO_MESSAGE: Final = "404"


class NatsLog:
    """`Log` on the stream `SEXTON_LOG`.

    The client must have been made with `pending_size=0`: a publish that waits in a buffer while the
    connection is away would arrive long after its caller gave up.
    """

    def __init__(
        self, client: Client, timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._js = client.jetstream(timeout=timeout_s)
        self._clock = clock
        self._refused: tuple[str, float] | None = None
        """Why the stream took no record, and when, if that was the last answer."""

    async def answers(self) -> None:
        """Returns if the stream is there, and took the record that it was last given.

        Raises:
            Unavailable: it is not there, has no leader, does not answer, or refused a record a moment ago, as
                a full server does.
        """
        if self._refused is not None and self._clock() - self._refused[1] < _REFUSAL_STANDS_S:
            raise Unavailable(self._refused[0], stream=subjects.STREAM_LOG)
        try:
            await self._js.stream_info(subjects.STREAM_LOG)
        except nats.js.errors.NotFoundError:
            raise Unavailable("the log stream does not exist", stream=subjects.STREAM_LOG) from None
        except _OUTAGES as e:
            raise _unavailable("log.info", e) from None

    async def head(self, context_id: str) -> Entry | None:
        """See `Log.head`. A leader read: a direct get may be answered by a follower that lags."""
        try:
            found = await self._js.get_msg(subjects.STREAM_LOG, subject=subjects.log(context_id))
        except nats.js.errors.NotFoundError as e:
            if e.err_code == _STREAM_NOT_FOUND:
                raise Unavailable("the log stream does not exist", stream=subjects.STREAM_LOG) from None
            return None
        except _OUTAGES as e:
            raise _unavailable("log.head", e) from None
        return Entry(found.seq or 0, found.data or b"")

    async def read(
        self, context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """See `Log.read`. Batches of direct gets: `upto` comes from the leader, so a lag is noticed."""
        at, left = after, limit if limit is not None else sys.maxsize
        stalls = 0
        while at < upto and left:
            batch = await self._batch(context_id, at, min(left, _BATCH))
            for entry in batch:
                if entry.sequence > upto:
                    return
                yield entry
                at = entry.sequence
            left -= len(batch)
            stalls = 0 if batch else stalls + 1
            if stalls >= _MAX_STALLS:
                raise Unavailable(f"the log of {context_id} ends at {at}, its leader says {upto}")
            if stalls:
                # A follower that lags catches up within its own heartbeat.
                await asyncio.sleep(_STALL_S * stalls)

    async def contexts(self) -> AsyncIterator[list[str]]:
        """See `Log.contexts`. The server answers with at most some 100,000 subjects at a time."""
        offset = 0
        while True:
            request = json.dumps({"subjects_filter": subjects.LOGS, "offset": offset}).encode()
            try:
                reply = await self._client.request(
                    f"$JS.API.STREAM.INFO.{subjects.STREAM_LOG}", request, timeout=self._timeout_s
                )
            except _OUTAGES as e:
                raise _unavailable("log.contexts", e) from None
            answer = json.loads(reply.data)
            if "error" in answer:
                raise Unavailable(f"log.contexts: {answer['error'].get('description')}")
            found = list(answer["state"].get("subjects") or {})
            if not found:
                return
            yield [subjects.context_of(subject) for subject in found]
            offset += len(found)
            if offset >= answer.get("total", 0):
                return

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        """See `Log.append`."""
        if not self._client.is_connected:
            raise Unavailable("not connected to NATS")
        limit = self._client.max_payload - _ENVELOPE_BYTES
        if len(data) > limit:
            raise PayloadTooLarge(
                f"the record has {len(data)} bytes, at most {limit} fit", limit=limit, actual=len(data)
            )
        try:
            ack = await self._js.publish(
                subjects.log(context_id),
                data,
                # The stream passes them on to whoever hears the bump.
                headers={_EXPECTED_SEQUENCE: str(expected), **tracing.headers()},
            )
        except (nats.errors.OutboundBufferLimitError, RefusedError) as e:
            raise _unavailable("log.append", e) from None
        except nats.js.errors.APIError as e:
            if e.err_code in _WRONG_SEQUENCE or e.err_code is None:
                raise LostRaceError(context_id) from None
            error = _unavailable("log.append", e)
            self._refused = error.message, self._clock()
            raise error from None
        except _OUTAGES:
            # It may be stored, on its way, or lost: only the head of the log can say.
            raise LostRaceError(context_id) from None
        self._refused = None
        return ack.seq

    async def _batch(self, context_id: str, after: int, most: int) -> list[Entry]:
        request = {
            "seq": after + 1,
            "next_by_subj": subjects.log(context_id),
            "batch": most,
            "max_bytes": _BATCH_BYTES,
        }
        inbox = self._client.new_inbox()
        entries: list[Entry] = []
        try:
            subscription = await self._client.subscribe(inbox)
            try:
                await self._client.publish(
                    f"$JS.API.DIRECT.GET.{subjects.STREAM_LOG}", json.dumps(request).encode(), reply=inbox
                )
                while (entry := _entry(await subscription.next_msg(self._timeout_s))) is not None:
                    entries.append(entry)
            finally:
                with suppress(nats.errors.Error):
                    await subscription.unsubscribe()
        except _OUTAGES as e:
            raise _unavailable("log.read", e) from None
        return entries


_STREAM_NOT_FOUND: Final = 10059
_REFUSAL_STANDS_S: Final = 60.0
_MAX_STALLS: Final = 5
_STALL_S: Final = 0.05
_OUTAGES: Final = (nats.errors.Error, asyncio.TimeoutError, OSError)


def _entry(message: Msg) -> Entry | None:
    headers = message.headers or {}
    status = headers.get(_STATUS)
    if status in (_END_OF_BATCH, _NO_MESSAGE):
        return None
    if status is not None:
        raise Unavailable(f"direct get answered {status} {headers.get('Description', '')}".strip())
    return Entry(int(headers[_SEQUENCE]), message.data)


def _unavailable(what: str, error: Exception) -> Unavailable:
    return Unavailable(f"{what}: {type(error).__name__}: {error}", operation=what)
