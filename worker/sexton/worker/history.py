"""The records of a context since a revision, from the log itself: for readers whom a snapshot does not help.

The log is read by stream sequences, which are not dense within a context; a reader knows revisions, which
are. Both grow together, so the place is found by bisection.
"""

from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final

from pydantic_core import from_json

from sexton.schemas.errors import LineageError
from sexton.schemas.limits import CHUNK_BYTES, SYNC_TAIL_RECORDS
from sexton.worker.contexts import Known
from sexton.worker.ports import Entry, Log

RECORDS: Final = SYNC_TAIL_RECORDS
"""Of one answer, at most."""
SIZE_BYTES: Final = CHUNK_BYTES
"""Of the records of one answer together, unless a single one has more."""


@dataclass(frozen=True, slots=True)
class Found:
    """What the log has of what was asked for."""

    records: list[tuple[dict[str, Any], int]]
    """The first ones, dense, as they are in the log, with the size of each in bytes."""
    kept_from: int | None = None
    """Set if the first one is not kept any more: the oldest revision that is."""


class History:
    """Reads records by revision."""

    def __init__(self, log_store: Log) -> None:
        self._log = log_store

    async def since(self, known: Known, revision: int) -> Found:
        """The first records after `revision`, which must lie before the head that is `known`.

        Bounded by `RECORDS` and `SIZE_BYTES`: who wants more asks on.

        Raises:
            Unavailable: the log did not answer.
            LineageError: the log has changed under the reading, or holds what is no record.
        """
        context_id, wanted = known.tree.context_id, revision + 1
        start, first = await self._place(known, wanted)
        if first > wanted:
            return Found([], kept_from=first)
        records: list[tuple[dict[str, Any], int]] = []
        size_bytes = 0
        async with aclosing(self._log.read(context_id, start, known.sequence, limit=RECORDS)) as entries:
            async for entry in entries:
                size_bytes += len(entry.data)
                if records and size_bytes > SIZE_BYTES:
                    break
                records.append((_checked(context_id, entry, wanted + len(records)), len(entry.data)))
        return Found(records)

    async def _place(self, known: Known, wanted: int) -> tuple[int, int]:
        """A sequence after which the record of revision `wanted` comes next, and its revision.

        If that record is gone, the revision is that of the first one kept.
        """
        low, high = 0, known.sequence - 1
        at = 0
        while True:
            entry = await self._next(known, at)
            found = _revision(known.tree.context_id, entry)
            if found > known.tree.revision:
                raise LineageError(f"the log of {known.tree.context_id} goes back from revision {found}")
            if found == wanted or (at == 0 and found > wanted):
                return at, found
            if found == wanted - 1:
                return entry.sequence, wanted
            if found < wanted:
                low = entry.sequence
            else:
                high = at - 1
            if low > high:
                raise LineageError(f"the log of {known.tree.context_id} has no revision {wanted}")
            at = (low + high) // 2

    async def _next(self, known: Known, after: int) -> Entry:
        async with aclosing(self._log.read(known.tree.context_id, after, known.sequence, limit=1)) as entries:
            async for entry in entries:
                return entry
        raise LineageError(f"the log of {known.tree.context_id} ends before its head")


def _revision(context_id: str, entry: Entry) -> int:
    return int(_raw(context_id, entry)["revision"])


def _checked(context_id: str, entry: Entry, revision: int) -> dict[str, Any]:
    raw = _raw(context_id, entry)
    if raw["revision"] != revision:
        raise LineageError(f"the log of {context_id} has no revision {revision} where it belongs")
    return raw


def _raw(context_id: str, entry: Entry) -> dict[str, Any]:
    """The record as it is, also of a kind unknown here: its reader may know it."""
    try:
        raw = from_json(entry.data)
    except ValueError:
        raw = None
    if not isinstance(raw, dict) or not isinstance(raw.get("revision"), int):
        raise LineageError(f"the log of {context_id} holds what is no record, at {entry.sequence}")
    return raw
