"""Incidents in the stream `SEXTON_INCIDENTS`: the latest state of each, and every change a compare-and-swap.

All of them are in memory, too. That is a copy: what is written decides, and whoever loses a race reads again.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import nats.errors
import nats.js.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton.core.incidents import Report, fold, of_failure, of_letter
from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.dead import DEAD_LETTER_HEADER, DeadLetter
from sexton.schemas.errors import PeerError, Unavailable
from sexton.schemas.failure import HardFailureRecord
from sexton.schemas.incidents import Incident
from sexton.worker.adapters.nats_client import RefusedError
from sexton.worker.adapters.nats_stream import OUTAGES, last_sequence, read_stream, unavailable
from sexton.worker.ports import LostRaceError

log: Final = structlog.get_logger("sexton.pager")

Change = Callable[[Incident | None], Incident | None]
"""From an incident as it is to what it should be; the same one, or None, if nothing is to change. May be
called again, on what another process has written meanwhile."""

DURABLE: Final = "pager"
"""Name of the pager's consumer, on each of its streams."""

_EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})
_RACES: Final = 16
_UNREADABLE: Final = "unreadable"


@dataclass(frozen=True, slots=True)
class _Stored:
    """What is in the stream; without an incident if it cannot be read: then it is begun anew, and paged."""

    incident: Incident | None
    sequence: int


class Incidents:
    """All incidents."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._js = client.jetstream(timeout=timeout_s)
        self._timeout_s = timeout_s
        self._stored: dict[str, _Stored] = {}
        self._read_upto = 0
        self._folded: dict[str, int] = {}
        self._folding = asyncio.Lock()
        self._writing = asyncio.Lock()
        self._changed = asyncio.Condition()

    def get(self, fingerprint: str) -> Incident | None:
        """One of them, as this process knows it."""
        found = self._stored.get(fingerprint)
        return None if found is None else found.incident

    def __iter__(self) -> Iterator[Incident]:
        return (stored.incident for stored in list(self._stored.values()) if stored.incident is not None)

    async def load(self) -> None:
        """Reads what others have written since, which may be all of them. Raises `Unavailable`."""
        stream = subjects.STREAM_INCIDENTS
        async with self._writing:
            last = await last_sequence(self._js, stream)
            if last == self._read_upto:
                return
            found: dict[str, _Stored] = {}
            async for messages in read_stream(self._js, stream, 0, timeout_s=self._timeout_s):
                for message in messages:
                    fingerprint = _ALGORITHM + message.subject.rpartition(".")[2]
                    found[fingerprint] = _read(message.data, message.metadata.sequence.stream)
            self._stored = found
            self._read_upto = last
        await self.tell()

    async def update(self, fingerprint: str, change: Change) -> Incident | None:
        """Makes a change, on what is there by then. Gives what was written; None if nothing was.

        Raises:
            Unavailable: NATS did not answer. The change may have been made; making it again must do no harm.
        """
        async with self._writing:
            written = await self._update(fingerprint, change)
        if written is not None:
            await self.tell()
        return written

    async def catch_up(self, stream: str, upto: int | None = None, *, write: bool = True) -> None:
        """Folds the records of a stream that are not folded yet, in their order.

        Args:
            stream: of failures or of dead letters.
            upto: there is nothing to do if this one is folded. None: look where the stream ends.
            write: whether what comes of it is kept. Without, it is only looked at, in this process.

        Raises:
            Unavailable: NATS did not answer. What was folded stays.
        """
        async with self._folding:
            behind = self._folded.get(stream, 0)
            if upto is not None and upto <= behind:
                return
            last = await last_sequence(self._js, stream)
            if last < behind:
                log.warning("pager.stream_made_anew", stream=stream)
                behind = 0
            if last == behind:
                return
            async for messages in read_stream(self._js, stream, behind, timeout_s=self._timeout_s):
                reports = [r for message in messages if (r := report_of(message)) is not None]
                await self._fold(reports, write=write)
                self._folded[stream] = messages[-1].metadata.sequence.stream

    async def take(self, report: Report) -> None:
        """Folds one record, if it is not. Raises `Unavailable`."""
        await self._fold([report], write=True)

    async def start(self, stream: str) -> None:
        """Takes the records that the pager has acknowledged for folded. Raises `Unavailable`."""
        try:
            floor = (await self._js.consumer_info(stream, DURABLE)).ack_floor
        except nats.js.errors.NotFoundError:
            return
        except OUTAGES as e:
            raise unavailable(stream, e) from None
        self._folded[stream] = 0 if floor is None else floor.stream_seq

    async def wait_until(self, satisfied: Callable[[], bool]) -> None:
        """Waits for a change that satisfies."""
        async with self._changed:
            await self._changed.wait_for(satisfied)

    async def tell(self) -> None:
        """Lets those that wait look again."""
        async with self._changed:
            self._changed.notify_all()

    async def _fold(self, reports: Sequence[Report], *, write: bool) -> None:
        by_fingerprint: dict[str, list[Report]] = {}
        for report in reports:
            by_fingerprint.setdefault(report.fingerprint, []).append(report)
        for fingerprint, several in by_fingerprint.items():

            def change(incident: Incident | None, several: list[Report] = several) -> Incident | None:
                for report in several:
                    incident = fold(incident, report)
                return incident

            if write:
                await self.update(fingerprint, change)
                continue
            before = self._stored.get(fingerprint)
            after = change(None if before is None else before.incident)
            if after is not None:
                self._stored[fingerprint] = _Stored(after, 0 if before is None else before.sequence)

    async def _update(self, fingerprint: str, change: Change) -> Incident | None:
        for _ in range(_RACES):
            before = self._stored.get(fingerprint)
            incident = None if before is None else before.incident
            wanted = change(incident)
            if wanted is None or wanted == incident:
                return None
            try:
                sequence = await self._put(wanted, 0 if before is None else before.sequence)
            except LostRaceError:
                await self._reload(fingerprint)
                continue
            self._stored[fingerprint] = _Stored(wanted, sequence)
            if sequence == self._read_upto + 1:
                # Nobody else has written in between.
                self._read_upto = sequence
            return wanted
        raise Unavailable(f"lost {_RACES} races for an incident", operation=subjects.STREAM_INCIDENTS)

    async def _put(self, incident: Incident, expected: int) -> int:
        subject = subjects.incident(incident.fingerprint)
        try:
            ack = await self._js.publish(subject, incident.wire(), headers={_EXPECTED: str(expected)})
        except nats.js.errors.APIError as e:
            if e.err_code in _WRONG_SEQUENCE:
                raise LostRaceError(incident.fingerprint) from None
            raise unavailable(subjects.STREAM_INCIDENTS, e) from None
        except (nats.errors.OutboundBufferLimitError, RefusedError) as e:
            raise unavailable(subjects.STREAM_INCIDENTS, e) from None
        except OUTAGES:
            # It may be stored or lost: what is there says.
            raise LostRaceError(incident.fingerprint) from None
        return ack.seq

    async def _reload(self, fingerprint: str) -> None:
        subject = subjects.incident(fingerprint)
        try:
            found = await self._js.get_msg(subjects.STREAM_INCIDENTS, subject=subject)
        except nats.js.errors.NotFoundError as e:
            if e.err_code == _STREAM_NOT_FOUND:
                raise unavailable(subjects.STREAM_INCIDENTS, e) from None
            self._stored.pop(fingerprint, None)
            return
        except OUTAGES as e:
            raise unavailable(subjects.STREAM_INCIDENTS, e) from None
        self._stored[fingerprint] = _read(found.data or b"", found.seq or 0)


_STREAM_NOT_FOUND: Final = 10059
_ALGORITHM: Final = "sha256:"


def report_of(message: Msg) -> Report | None:
    """A stored message as a report; None if it is not readable. Its handler makes a dead letter of that."""
    at = {
        "sequence": message.metadata.sequence.stream,
        "stored_ms": int(message.metadata.timestamp.timestamp() * 1000),
    }
    if message.metadata.stream == subjects.STREAM_DEAD:
        return of_letter(_letter(message), **at)
    try:
        return of_failure(decode(HardFailureRecord, message.data), **at)
    except PeerError as e:
        log.warning("pager.unreadable", reason=e.code, sequence=at["sequence"])
        return None


def _letter(message: Msg) -> DeadLetter:
    """What is known of a dead letter. One whose header is broken is one all the same."""
    try:
        return decode(
            DeadLetter, (message.headers or {}).get(DEAD_LETTER_HEADER, "").encode(errors="replace")
        )
    except PeerError:
        return DeadLetter(
            subject=message.subject,
            reason=_UNREADABLE,
            message="",
            stream=message.metadata.stream,
            stream_sequence=message.metadata.sequence.stream,
            deliveries=1,
        )


def _read(data: bytes, sequence: int) -> _Stored:
    try:
        return _Stored(decode(Incident, data), sequence)
    except PeerError as e:
        log.error("pager.incident_unreadable", reason=e.code, sequence=sequence)  # noqa: TRY400
        return _Stored(None, sequence)
