"""What the worker needs of the outside, each with what it may raise. Adapters are in `adapters/`.

No foreign exception crosses a port: an outage is `Unavailable`, whatever library noticed it.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sexton.core.decide import Blob
from sexton.schemas.ids import Level
from sexton.schemas.span import Identity


class LostRaceError(Exception):
    """Another record was committed first, or the publish itself may or may not have been: read the head."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One stored log record."""

    sequence: int
    """Of the stream; grows, with gaps, within one context."""
    data: bytes


class Log(Protocol):
    """The log: the truth. One subject per context."""

    async def head(self, context_id: str) -> Entry | None:
        """The last record, read from the leader; None if there is none. Raises `Unavailable`."""
        ...

    def read(self, context_id: str, after: int, upto: int) -> AsyncIterator[Entry]:
        """Records with `after` < sequence <= `upto`, in order. Raises `Unavailable`."""
        ...

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        """Commits a record if the context's last sequence is `expected`; 0 for none. Gives its sequence.

        Raises:
            LostRaceError: it was not, or no answer came.
            Unavailable: there is no connection; nothing was sent.
        """
        ...


class ColdStore(Protocol):
    """The only copy of bytes that counts. Keys are never shared between versions."""

    async def write(self, context_id: str, blob: Blob) -> None:
        """Stores bytes and reads them back. Raises `Unavailable`, also if they read back differently."""
        ...

    async def read(
        self, context_id: str, identity: Identity, offset: int = 0, length: int | None = None
    ) -> bytes:
        """A range of a version's bytes, unverified; all of them without `length`.

        Raises:
            LeafLost: the store answered that it has none.
            LeafCorrupt: what is there is shorter than the range.
            Unavailable: the store did not answer.
        """
        ...

    async def size_bytes(self, context_id: str, identity: Identity) -> int | None:
        """Size of a version's bytes; None if there are none. Raises `Unavailable`."""
        ...

    async def write_chunk(self, context_id: str, digest: str, index: int, data: bytes) -> None:
        """Keeps one chunk of a claim. Raises `Unavailable`."""
        ...

    async def read_chunk(self, context_id: str, digest: str, index: int) -> bytes | None:
        """One chunk of a claim; None if there is none. Raises `Unavailable`."""
        ...

    async def delete_chunks(self, context_id: str, digest: str, chunks: int) -> None:
        """Drops the chunks of a claim that has been committed. Raises `Unavailable`."""
        ...


class HotStore(Protocol):
    """What may be lost: hot bytes and snapshots. A miss and an outage look the same to the caller."""

    async def put(self, context_id: str, blobs: Sequence[Blob]) -> None:
        """Keeps new bytes for a while. Never raises: what is lost here is read from the cold store."""
        ...

    async def get(self, context_id: str, identity: Identity) -> bytes | None:
        """A version's bytes, unverified; None if they are not there, or the store is not."""
        ...

    async def put_snapshot(self, context_id: str, data: bytes) -> None:
        """Keeps a snapshot. Never raises."""
        ...

    async def get_snapshot(self, context_id: str) -> bytes | None:
        """The snapshot kept; None if there is none, or the store does not answer."""
        ...


class Summariser(Protocol):
    """Makes a summary. May take as long as it must; the caller sets the time-out."""

    async def __call__(self, sources: Sequence[str], level: Level, size_bytes: int) -> str:
        """A summary of `sources`, for a span of `level`, smaller than their `size_bytes` together.

        Raises:
            Exception: anything; nothing is committed then, and it is tried again.
        """
        ...
