"""The records of a context as an async iterator: in order, each once, none skipped.

There is no queue to overflow. A reader is a position in the log; it reads from the records that the holder
keeps anyway, and asks the service for those that fell out of memory before it came to them. When neither
has them, it raises `BumpsMissed` instead of going on behind a hole.
"""

from contextlib import AbstractContextManager
from typing import Final, Literal, Self

from sexton.core.hash import chain
from sexton.holder.errors import BumpsMissed, HolderClosed
from sexton.holder.follow import Follower
from sexton.holder.spans import TRACER
from sexton.schemas.codec import AnyRecord, decode_record
from sexton.schemas.errors import InvalidInput, MalformedMessage
from sexton.schemas.rpc import SyncRequest
from sexton.tracing import Span

_EPOCH: Final = "sexton.epoch.{context_id}"


class Bumps:
    """Every record of one context from a revision on. The iteration ends when the context is closed."""

    def __init__(self, follower: Follower, from_revision: int | None) -> None:
        if from_revision is not None and from_revision < 1:
            raise InvalidInput("revisions count from 1", field="from_revision")
        self._follower = follower
        self._lineage = follower.lineage
        self._next = follower.tree.revision + 1 if from_revision is None else from_revision
        self._chain = follower.tree.chain if from_revision is None else None
        """The chain of the record before the next one, as far as it was seen."""
        self._fetched: dict[int, AnyRecord] = {}

    @property
    def next_revision(self) -> int:
        """The revision of the record that comes next."""
        return self._next

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyRecord:
        """The next record.

        Raises:
            BumpsMissed: it cannot be had any more, or the log has another history now.
            TransientError, PeerError: it had to be asked for, and was not given. Iterate on to try again.
        """
        while True:
            try:
                await self._follower.until(lambda: self._moved or self._follower.tree.revision >= self._next)
            except HolderClosed:
                raise StopAsyncIteration from None
            if self._moved:
                raise self._missed("lineage")
            record = self._follower.recent(self._next) or self._fetched.pop(self._next, None)
            if record is None:
                await self._fetch()
                continue
            if self._chain is not None and record.chain != chain(self._chain, record):
                raise self._missed("lineage")
            self._next, self._chain = record.revision + 1, record.chain
            return record

    def handling(self, record: AnyRecord) -> AbstractContextManager[Span]:
        """A span around what the program does because of a record: `with bumps.handling(record): ...`.

        It continues the trace of the commit, if the record came as a bump. If the program has a span of its
        own around it, it is under that one, and linked to the commit. Without tracing it is nothing.
        """
        return TRACER.handle(
            "sexton.bump.handle",
            _EPOCH,
            self._follower.causes.of(record.revision),
            context_id=record.context_id,
            kind=record.kind.value,
            revision=record.revision,
            epoch=record.epoch,
        )

    @property
    def _moved(self) -> bool:
        return self._follower.lineage != self._lineage

    async def _fetch(self) -> None:
        """Gets the next records from the service, which gives a bounded number of them at a time."""
        request = SyncRequest(
            context_id=self._follower.context_id,
            revision=self._next - 1,
            chain=self._chain or "",
            records_only=True,
        )
        parts = await self._follower.calls.sync(request)
        if any(part.snapshot is not None or part.kept_from is not None for part in parts):
            raise self._missed("behind", parts[0].kept_from)
        if parts[0].head.revision < self._next:
            raise self._missed("lineage")
        records = [decode_record(raw) for part in parts for raw in part.records]
        if [r.revision for r in records] != list(range(self._next, self._next + len(records))):
            raise MalformedMessage("the records of an answer to sync are not dense")
        if not records:
            raise MalformedMessage("an answer to sync without the records it must hold")
        self._fetched = {record.revision: record for record in records}

    def _missed(self, reason: Literal["behind", "lineage"], kept_from: int | None = None) -> BumpsMissed:
        begins = "" if kept_from is None else f"; the log begins at {kept_from}"
        return BumpsMissed(
            f"record {self._next} of {self._follower.context_id} cannot be had any more: {reason}{begins}",
            next_revision=self._next,
            reason=reason,
            kept_from=kept_from,
        )
