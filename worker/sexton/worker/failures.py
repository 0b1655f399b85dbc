"""Hard failures, reported: what is proven lost, damaged or stuck goes to `SEXTON_FAILURES`; so does its end.

Reporting is the second thing that happens. The caller has its error already, and gets it whether or not the
failure can be recorded; so nothing here raises, everything runs in the background, and all of it is bounded.

Repeats that come soon share a record. What is open is known from the stream itself, so that any worker that
finds the bytes again can say so.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton import tracing
from sexton.core import hash as hashing
from sexton.core.collection import Version
from sexton.core.incidents import failure_fingerprint
from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.errors import HardFailure, PeerError, Unavailable
from sexton.schemas.failure import FailureKind, FailureReason, HardFailureRecord
from sexton.schemas.span import Identity
from sexton.worker.adapters.nats_stream import OUTAGES, read_stream, unavailable
from sexton.worker.cancelling import cancelled
from sexton.worker.ports import ColdStore

log: Final = structlog.get_logger("sexton.failures")

MAX_REPORTING: Final = 1000
"""Failures being reported at once, by one worker. When more come, the rest is in the log only."""
MAX_OPEN: Final = 100_000
"""Open failures that a worker keeps in mind. Beyond that, an end is for an operator to state."""

LONGEST_REPEAT_S: Final = 600.0
"""What lasts is recorded less and less often, and at least so often."""

BYTES: Final = frozenset({FailureReason.LOST, FailureReason.CORRUPT})
"""What is over once the whole bytes are found."""


class Failures(Protocol):
    """Where failures are reported. No method blocks or raises."""

    def observed(
        self,
        context_id: str,
        identity: Identity,
        reason: FailureReason,
        *,
        component: str,
        found: Mapping[str, Any] | None = None,
    ) -> None:
        """A failure was proven. `found_hash` and `found_size_bytes` in `found`: what is there instead."""
        ...

    def served(self, context_id: str, identity: Identity) -> None:
        """Good bytes of a version came from the cold store; not necessarily all of them."""
        ...

    def over(
        self, context_id: str, version: Version, reasons: frozenset[FailureReason], *, component: str
    ) -> None:
        """Whatever is open about a version, for one of `reasons`, is so no more."""
        ...

    def open(self, context_id: str) -> Mapping[Version, frozenset[FailureReason]]:
        """What is open about a context, as far as this worker knows."""
        ...


class Unreported:
    """`Failures` for whoever has no stream to report to."""

    def observed(self, *_: Any, **__: Any) -> None:
        """See `Failures`."""

    def served(self, *_: Any) -> None:
        """See `Failures`."""

    def over(self, *_: Any, **__: Any) -> None:
        """See `Failures`."""

    def open(self, context_id: str) -> Mapping[Version, frozenset[FailureReason]]:  # noqa: ARG002
        """See `Failures`."""
        return {}


class FailureStream:
    """The stream of hard failures."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._js = client.jetstream(timeout=timeout_s)
        self._timeout_s = timeout_s

    async def add(self, record: HardFailureRecord, message_id: str) -> None:
        """Stores a record; twice under one `message_id`, soon, is once. Raises `Unavailable`."""
        subject = subjects.failure(record.context_id)
        try:
            headers = {"Nats-Msg-Id": message_id, **tracing.headers()}
            await self._js.publish(subject, record.wire(), headers=headers)
        except OUTAGES as e:
            raise unavailable(subjects.STREAM_FAILURES, e) from None

    async def each(self, use: Callable[[bytes], None]) -> None:
        """Hands over all records there are, in order. Raises `Unavailable`."""
        reading = read_stream(self._js, subjects.STREAM_FAILURES, 0, timeout_s=self._timeout_s)
        async for messages in reading:
            for message in messages:
                use(message.data)


@dataclass(slots=True)
class _Reporting:
    record: HardFailureRecord
    count: int = 1
    first: bool = True
    """The first record of it is not stored yet."""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Whose turn it is to record. What was noticed before its end must not be recorded after it."""


class FailureReports:
    """`Failures` on the stream."""

    def __init__(
        self,
        stream: FailureStream,
        cold: ColdStore,
        *,
        every_s: float,
        attempts: int,
        delay_s: float,
        delay_max_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        new_id: Callable[[], str],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._stream = stream
        self._cold = cold
        self._every_s = every_s
        self._attempts = attempts
        self._delay_s = delay_s
        self._delay_max_s = delay_max_s
        self._spawn = spawn
        self._new_id = new_id
        self._sleep = sleep
        self._reporting: dict[str, _Reporting] = {}
        self._ending: set[str] = set()
        self._proving: set[tuple[str, Version]] = set()
        self._done = asyncio.Event()
        self._open: dict[str, dict[Version, dict[str, HardFailureRecord]]] = {}
        self._open_count = 0

    # --- what is noticed ---------------------------------------------------------------------------------

    def observed(
        self,
        context_id: str,
        identity: Identity,
        reason: FailureReason,
        *,
        component: str,
        found: Mapping[str, Any] | None = None,
    ) -> None:
        """See `Failures`."""
        record = HardFailureRecord(
            fingerprint=failure_fingerprint(reason, context_id, identity),
            reason=reason,
            context_id=context_id,
            span_id=identity.span_id,
            version=identity.version,
            content_hash=identity.content_hash,
            size_bytes=identity.size_bytes,
            component=component,
            **_known(found),
        )
        reporting = self._reporting.get(record.fingerprint)
        if reporting is not None:
            reporting.record = record
            reporting.count += 1
        elif len(self._reporting) < MAX_REPORTING:
            self._reporting[record.fingerprint] = _Reporting(record)
            self._spawn(self._report(record.fingerprint))
        else:
            log.error("failures.too_many", context_id=context_id, span_id=identity.span_id, reason=reason)

    def served(self, context_id: str, identity: Identity) -> None:
        """See `Failures`."""
        version = (identity.span_id, identity.version)
        wanted = self._open.get(context_id, {}).get(version)
        if wanted and (context_id, version) not in self._proving:
            self._proving.add((context_id, version))
            self._spawn(self._prove(context_id, identity))

    def over(
        self, context_id: str, version: Version, reasons: frozenset[FailureReason], *, component: str
    ) -> None:
        """See `Failures`."""
        for record in list(self._open.get(context_id, {}).get(version, {}).values()):
            if record.reason in reasons and record.fingerprint not in self._ending:
                self._ending.add(record.fingerprint)
                self._spawn(self._end(record, component))

    # --- what is open ------------------------------------------------------------------------------------

    def open(self, context_id: str) -> Mapping[Version, frozenset[FailureReason]]:
        """See `Failures`."""
        return {
            version: frozenset(record.reason for record in records.values())
            for version, records in self._open.get(context_id, {}).items()
        }

    async def on_record(self, message: Msg) -> None:
        """Takes in what any worker records: the callback of a subscription to `sexton.failure.*`."""
        self._hear(message.data)

    async def load(self) -> None:
        """Learns what is open, from the stream. Tries for as long as it takes; cancel it to end it."""
        delay_s = self._delay_s
        while not cancelled():
            try:
                await self._stream.each(self._hear)
            except Unavailable as e:
                log.warning("failures.not_loaded", reason=e.message, delay_s=delay_s)
                await self._sleep(delay_s)
                delay_s = min(2 * delay_s, self._delay_max_s)
            else:
                log.info("failures.loaded", open=self._open_count)
                return

    def _hear(self, data: bytes) -> None:
        try:
            record = decode(HardFailureRecord, data)
        except PeerError as e:
            # It is for the pager to make a dead letter of it.
            log.warning("failures.unreadable", reason=e.code)
            return
        versions = self._open.get(record.context_id, {})
        version = (record.span_id, record.version)
        if record.kind is FailureKind.RESOLVED:
            reporting = self._reporting.get(record.fingerprint)
            # At an end of our own that was done already, and what counts since is news.
            if reporting is not None and record.fingerprint not in self._ending:
                reporting.count = 0
            records = versions.get(version, {})
            if records.pop(record.fingerprint, None) is not None:
                self._open_count -= 1
            if not records:
                versions.pop(version, None)
            if not versions:
                self._open.pop(record.context_id, None)
            return
        if record.fingerprint not in versions.get(version, {}):
            if self._open_count >= MAX_OPEN:
                log.error("failures.too_many_open", open=self._open_count)
                return
            self._open_count += 1
        self._open.setdefault(record.context_id, {}).setdefault(version, {})[record.fingerprint] = record

    async def drain(self, within_s: float) -> None:
        """Waits until what was noticed is recorded, but not for long: the program ends. Does not raise."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while self._unrecorded():
                    self._done.clear()
                    await self._done.wait()
        if left := self._unrecorded():
            log.error("failures.not_recorded_at_the_end", failures=left)

    def _unrecorded(self) -> int:
        return len(self._ending) + sum(reporting.first for reporting in self._reporting.values())

    # --- in the background -------------------------------------------------------------------------------

    async def _report(self, fingerprint: str) -> None:
        """Records a failure at once, and then its repeats together, for as long as there are any."""
        reporting = self._reporting[fingerprint]
        every_s = self._every_s
        try:
            while reporting.count and not cancelled():
                async with reporting.turn:
                    count, reporting.count = reporting.count, 0
                    if count:
                        several = {"observations": count} if count > 1 else {}
                        await self._add(reporting.record.model_copy(update=several))
                reporting.first = False
                self._done.set()
                await self._sleep(every_s)
                every_s = min(2 * every_s, max(self._every_s, LONGEST_REPEAT_S))
        finally:
            del self._reporting[fingerprint]
            self._done.set()

    async def _end(self, record: HardFailureRecord, component: str) -> None:
        change = {"kind": FailureKind.RESOLVED, "component": component, "observations": None}
        reporting = self._reporting.get(record.fingerprint)
        try:
            async with contextlib.nullcontext() if reporting is None else reporting.turn:
                if reporting is not None:
                    reporting.count = 0
                await self._add(record.model_copy(update=change))
        finally:
            self._ending.discard(record.fingerprint)
            self._done.set()

    async def _prove(self, context_id: str, identity: Identity) -> None:
        """Reads the whole version: a part of it may be good while another part is not."""
        version = (identity.span_id, identity.version)
        try:
            data = await self._cold.read(context_id, identity)
            if hashing.content_hash(identity.level, data) == identity.content_hash:
                self.over(context_id, version, BYTES, component="worker.fetch")
        except (HardFailure, Unavailable) as e:
            log.info("failures.still_open", context_id=context_id, span_id=identity.span_id, reason=e.code)
        finally:
            self._proving.discard((context_id, version))

    async def _add(self, record: HardFailureRecord) -> None:
        """Stores a record, with a bounded number of tries. If that cannot be done, the log says so."""
        told = {
            "reason": record.reason.value,
            "kind": (record.kind or FailureKind.OBSERVED).value,
            "context_id": record.context_id,
            "span_id": record.span_id,
            "version": record.version,
            "fingerprint": record.fingerprint,
        }
        message_id = f"{record.fingerprint}.{self._new_id()}"
        delay_s = self._delay_s
        for attempt in range(1, self._attempts + 1):
            if cancelled():
                break
            try:
                await self._stream.add(record, message_id)
            except Unavailable as e:
                log.warning("failures.try_failed", attempt=attempt, error=e.message, **told)
                if attempt < self._attempts:
                    await self._sleep(delay_s)
                    delay_s = min(2 * delay_s, self._delay_max_s)
            else:
                log.info("failures.recorded", **told)
                return
        log.error("failures.not_recorded", attempts=self._attempts, **told)


def _known(found: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: (found or {}).get(name) for name in ("found_hash", "found_size_bytes")}
