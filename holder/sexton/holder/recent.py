"""The latest records of a context, for readers of bumps and to tell a repeat from another history."""

from collections import deque

from sexton.schemas.codec import AnyRecord
from sexton.schemas.records import Appended, CollectionBase, Compacted


class RecentRecords:
    """A dense run of records that ends at the tree's revision. Bounded by the spans they name."""

    def __init__(self, max_spans: int) -> None:
        self._max_spans = max_spans
        self._records: deque[AnyRecord] = deque()
        self._spans = 0

    def add(self, record: AnyRecord) -> None:
        """Takes the next record; the oldest make room."""
        self._records.append(record)
        self._spans += _weight(record)
        while self._spans > self._max_spans and len(self._records) > 1:
            self._spans -= _weight(self._records.popleft())

    def clear(self) -> None:
        """Forgets all: what comes next does not follow on what was."""
        self._records.clear()
        self._spans = 0

    def at(self, revision: int) -> AnyRecord | None:
        """The record of this revision, if it is among them."""
        if not self._records:
            return None
        index = revision - self._records[0].revision
        return self._records[index] if 0 <= index < len(self._records) else None


def _weight(record: AnyRecord) -> int:
    match record:
        case Appended():
            return len(record.spans)
        case Compacted():
            return 1 + len(record.sources)
        case CollectionBase():
            return len(record.versions)
        case _:
            return 1
