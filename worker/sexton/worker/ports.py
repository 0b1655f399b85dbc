"""What the worker needs of the outside, each with what it may raise. Adapters are in `adapters/`.

No foreign exception crosses a port: an outage is `Unavailable`, whatever library noticed it.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from sexton.core.collection import Version
from sexton.core.decide import Blob
from sexton.core.pins import Pins
from sexton.core.registry import Changing
from sexton.core.sweep import Observation
from sexton.schemas.errors import Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.leases import (
    HeartbeatRequest,
    HolderRequest,
    LeaseInfo,
    PinInfo,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import Claim, Identity, SpanVersion


class RegistryUnavailable(Unavailable):
    """Redis did not answer. Who holds what is unknown, and unknown is not zero."""


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

    def read(
        self, context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """Records with `after` < sequence <= `upto`, in order; the first `limit` of them, if that is given.

        Raises `Unavailable`.
        """
        ...

    def contexts(self) -> AsyncIterator[list[str]]:
        """All contexts that have records, in batches. Raises `Unavailable`."""
        ...

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        """Commits a record if the context's last sequence is `expected`; 0 for none. Gives its sequence.

        Raises:
            LostRaceError: it was not, or no answer came.
            PayloadTooLarge: the log takes no record of this size.
            Unavailable: there is no connection; nothing was sent.
        """
        ...


@dataclass(frozen=True, slots=True)
class StoredBlob:
    """An object of the cold store, as its key says."""

    key: str
    modified: datetime
    """On the store's clock."""
    size_bytes: int
    context_id: str | None = None
    """None: not a key that this program makes."""
    version: Version | None = None
    """None: a chunk of a claim."""
    content_hash: str | None = None


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

    async def delete(self, context_id: str, identity: Identity) -> None:
        """Deletes a version's bytes; no error if there are none. Raises `Unavailable`."""
        ...

    def stored(self) -> AsyncIterator[StoredBlob]:
        """All objects, in no order. Raises `Unavailable`."""
        ...

    async def name(self) -> str | None:
        """The name that it and its log carry; None if it has none, or is not there."""
        ...

    async def set_name(self, name: str) -> str:
        """Names it, unless it is named. Returns the name that it has now."""
        ...

    def expect(self, name: str) -> None:
        """From now on, only the store of that name counts: any other is an outage."""
        ...

    async def confirm(self) -> None:
        """Asks whether it is the one that is expected. Raises `Unavailable` if it is not."""
        ...

    async def clock(self, token: str) -> datetime:
        """The store's own time, as it stamps a new object. Raises `Unavailable`."""
        ...

    async def delete_key(self, key: str) -> None:
        """Deletes one object; no error if it is gone. Raises `Unavailable`."""
        ...

    async def write_chunk(self, context_id: str, claim: Claim, index: int, data: bytes) -> None:
        """Keeps one chunk of a claim, apart from those of any other upload. Raises `Unavailable`."""
        ...

    async def read_chunk(self, context_id: str, claim: Claim, index: int) -> bytes | None:
        """One chunk of a claim; None if there is none. Raises `Unavailable`."""
        ...

    async def delete_chunks(self, context_id: str, claim: Claim) -> None:
        """Drops all chunks of a claim. Raises `Unavailable`."""
        ...


@dataclass(frozen=True, slots=True)
class Beat:
    """What the registry says to a heartbeat."""

    operation: int
    """The last operation of the holder that it knows."""
    announce: bool
    """It knows another set of pins than the holder claims."""
    changing: Changing = field(default_factory=dict)
    """What is about to change, of the pins that were announced and taken in."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What the registry says to a pin."""

    taken: bool
    """False: the operation is older than one already known."""
    changing: Changing = field(default_factory=dict)
    """What is about to change, of the versions pinned. Not to be granted before these notes are gone."""


@dataclass(frozen=True, slots=True)
class LivePins:
    """What live holders pin, as far as the registry knows."""

    pins: Pins
    age_ms: int
    """How long the registry has been whole. Younger than a lease, it may not know of every holder yet."""


class Registry(Protocol):
    """Who is alive and what they hold: leases, pins, marks. Loses everything at any moment.

    Every method raises `Unavailable` if the registry does not answer: unknown is not zero. Those on a
    holder's behalf raise `Fenced` if a newer process of its id has registered, and `LeaseLost` if it has no
    good lease.
    """

    async def beat(self, request: HeartbeatRequest) -> Beat:
        """Renews a lease; it is only ever extended. May begin one, end it, or take in a whole set."""
        ...

    async def pin(self, request: PinRequest) -> Taken:
        """Adds pins, unless the operation is older than one already known. Raises `TooManyPins`."""
        ...

    async def release(self, request: ReleaseRequest) -> bool:
        """Drops pins; False if the operation is older than one already known."""
        ...

    async def withdraw(self, request: HolderRequest, versions: Sequence[SpanVersion]) -> None:
        """Takes back pins that the log has refused, if `request` is still the holder's last operation."""
        ...

    async def live(self, context_id: str, versions: Sequence[Version]) -> LivePins:
        """The live pins on versions."""
        ...

    async def change(self, context_id: str, versions: Sequence[Version], token: str) -> LivePins:
        """The live pins on versions, and a note, at the same instant, that these are about to change.

        It stands for `CHANGING_MS` of the registry's clock; the same token again renews it.
        """
        ...

    async def changed(self, context_id: str, token: str) -> None:
        """Clears a note: the command is through."""
        ...

    async def standing(self, context_id: str, tokens: Iterable[str]) -> frozenset[str]:
        """Those of some notes that still stand."""
        ...

    async def observe(self, context_id: str, versions: Sequence[Version], *, mark: bool) -> Observation:
        """What a sweep looks at, at one instant; with `mark`, unpinned versions get a mark."""
        ...

    async def generation(self, context_id: str) -> str:
        """Names the registry's generation, which changes whenever it may have lost something."""
        ...

    async def born(self, context_id: str, generation: str) -> None:
        """Says that the context had no record at some moment after `generation` was read.

        Nothing can have been pinned before, so the registry need not wait for holders it may have lost.
        """
        ...

    async def unmark(self, context_id: str, versions: Sequence[Version]) -> None:
        """Forgets the marks of versions that are collected."""
        ...

    async def holders(self, context_id: str) -> list[LeaseInfo]:
        """All leases."""
        ...

    async def held(self, context_id: str) -> list[PinInfo]:
        """All live pins."""
        ...


class SweepIndex(Protocol):
    """Contexts that may have tombstones, and locks on shards of them. Every method raises `Unavailable`."""

    async def note(self, context_ids: Sequence[str]) -> None:
        """Notes contexts, before a record that makes a tombstone there is committed."""
        ...

    async def drop(self, context_id: str) -> None:
        """Drops a context in which a sweep found none, unless it was noted lately."""
        ...

    async def contexts(self, shard: int, limit: int) -> list[str]:
        """Contexts of a shard, those swept longest ago first."""
        ...

    async def complete(self) -> bool:
        """Whether the index has noted every context since the registry began."""
        ...

    async def set_complete(self) -> None:
        """Says that it has."""
        ...

    async def lock(self, shard: int, token: str, for_s: float) -> bool:
        """Takes or renews the lock on a shard; False if another has it. A convenience, no fence."""
        ...

    async def unlock(self, shard: int, token: str) -> None:
        """Gives the lock back if it is still ours."""
        ...


class HotStore(Protocol):
    """What may be lost: hot bytes and snapshots. A miss and an outage look the same to the caller."""

    async def put(self, context_id: str, blobs: Sequence[Blob]) -> None:
        """Keeps new bytes for a while. Never raises: what is lost here is read from the cold store."""
        ...

    async def get(self, context_id: str, identity: Identity) -> bytes | None:
        """A version's bytes, unverified; None if they are not there, or the store is not."""
        ...

    async def drop(self, context_id: str, identities: Sequence[Identity]) -> None:
        """Forgets bytes. Never raises: what stays is never asked for again, and expires."""
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
