"""The worker's ports in memory, behind gates. What they hold outlives every worker."""

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from sexton.core.apply import apply
from sexton.core.collection import Version
from sexton.core.decide import Blob
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyRecord, decode_record
from sexton.schemas.errors import LeafLost, SextonError, Unavailable
from sexton.schemas.records import Appended, Collected, Compacted, Rewritten
from sexton.schemas.span import Identity, SpanState
from sexton.worker.ports import Entry, LostRaceError, StoredBlob
from tests.sim.gates import ACTOR, Gates, Way
from tests.sim.memory_registry import MemoryRegistry

CONTEXT: Final = "ctx"

Key = tuple[str, int, str]
"""Of a version's bytes: span, version, hash."""

NEVER_LATE: Final = (Way.THROUGH, Way.LOST, Way.UNANSWERED)
READ: Final = (Way.THROUGH, Way.LOST)


@dataclass
class Stores:
    """The log with the tree that it comes to, and the bytes. Judges every change at the moment it is made."""

    entries: list[Entry] = field(default_factory=list)
    records: list[AnyRecord] = field(default_factory=list)
    tree: ContextTree = field(default_factory=lambda: ContextTree.empty(CONTEXT))
    now_ms: int = 1_700_000_000_000
    """The cold store's own clock."""
    blobs: dict[Key, bytes] = field(default_factory=dict)
    written_ms: dict[Key, int] = field(default_factory=dict)
    sizes: dict[Version, int] = field(default_factory=dict)
    """Of every version that was ever committed."""
    violations: list[str] = field(default_factory=list)
    sending: Callable[[], Callable[[AnyRecord], None]] = lambda: lambda record: None
    """Called when a record is sent; what it gives is called before the record is stored."""

    def append(
        self, data: bytes, expected: int, before: Callable[[AnyRecord], None] = lambda record: None
    ) -> int:
        if (self.entries[-1].sequence if self.entries else 0) != expected:
            raise LostRaceError(CONTEXT)
        record = decode_record(data)
        before(record)
        try:
            self.tree = apply(self.tree, record)
        except SextonError as e:
            self.violations.append(f"the log contradicts itself: {e}")
        for identity in named_in(record):
            self.sizes[identity.span_id, identity.version] = identity.size_bytes
            if _key(identity) not in self.blobs:
                self.violations.append(
                    f"{identity.span_id}@{identity.version} is committed without its bytes"
                )
        self.entries.append(Entry(expected + 3, data))
        self.records.append(record)
        return expected + 3

    def write(self, blob: Blob) -> None:
        self.blobs[_key(blob)], self.written_ms[_key(blob)] = blob.data, self.now_ms

    def delete(self, identity: Identity) -> None:
        version = (identity.span_id, identity.version)
        stone, node = self.tree.tombstones.get(version), self.tree.nodes.get(identity.span_id)
        if stone is not None and stone.state is not SpanState.CONDEMNED:
            self.violations.append(f"{version} is deleted while it is {stone.state.value}")
        if stone is None and node is not None and node.identity == identity and node.state in _CURRENT:
            self.violations.append(f"{version} is deleted while it is current")
        self.blobs.pop(_key(identity), None)

    def delete_key(self, name: str) -> None:
        """As for an orphan: no record may name it."""
        for key in [key for key in self.blobs if _name(key) == name]:
            if key in self.kept():
                self.violations.append(f"{key} is swept as an orphan, and is none")
            del self.blobs[key]

    def stored(self) -> list[StoredBlob]:
        return [
            StoredBlob(
                key=_name(key),
                modified=datetime.fromtimestamp(self.written_ms[key] / 1000, UTC),
                size_bytes=len(data),
                context_id=CONTEXT,
                version=key[:2],
                content_hash=key[2],
            )
            for key, data in self.blobs.items()
        ]

    def has_bytes(self, version: Version) -> bool:
        """Whether the committed bytes of a version are there."""
        return any(key[:2] == version for key in self.blobs)

    def kept(self) -> dict[Key, int]:
        """What must be in the cold store, with sizes: current, covered, and tombstones not yet condemned."""
        nodes = [node.identity for node in self.tree.nodes.values() if node.state in _CURRENT]
        stones = [stone.identity for stone in self.tree.tombstones.values()]
        return {_key(identity): identity.size_bytes for identity in (*nodes, *stones)}

    @property
    def freed_bytes(self) -> int:
        """What the log says was freed."""
        return sum(record.size_freed_bytes for record in self.records if isinstance(record, Collected))


_CURRENT: Final = (SpanState.LIVE, SpanState.COVERED)


def _key(of: Identity | Blob) -> Key:
    return (of.span_id, of.version, of.content_hash)


def _name(key: Key) -> str:
    return f"{key[0]}/{key[1]}/{key[2]}"


def named_in(record: AnyRecord) -> Iterator[Identity]:
    """The versions that a record brings into being."""
    match record:
        case Appended():
            yield from record.spans
        case Compacted():
            yield record.summary
        case Rewritten():
            yield record.after


class GatedLog:
    """`Log`, behind gates."""

    def __init__(self, stores: Stores, gates: Gates) -> None:
        self._stores = stores
        self._gates = gates

    async def head(self, context_id: str) -> Entry | None:
        entries = self._stores.entries
        return await self._gates.call("log.head", lambda: entries[-1] if entries else None, _down, READ)

    async def read(
        self, context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        def found() -> list[Entry]:
            return [entry for entry in self._stores.entries if after < entry.sequence <= upto][:limit]

        for entry in await self._gates.call("log.read", found, _down, READ):
            yield entry

    async def contexts(self) -> AsyncIterator[list[str]]:
        yield [CONTEXT]

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        kind, before = decode_record(data).kind.value, self._stores.sending()
        return await self._gates.call(
            f"log.append:{kind}",
            lambda: self._stores.append(data, expected, before),
            lambda: LostRaceError(context_id),
        )


class GatedCold:
    """`ColdStore`, behind gates. A write is read back by itself."""

    def __init__(self, stores: Stores, gates: Gates) -> None:
        self._stores = stores
        self._gates = gates

    async def write(self, context_id: str, blob: Blob) -> None:
        await self._gates.call("cold.write", lambda: self._stores.write(blob), _down, NEVER_LATE)

    async def read(
        self, context_id: str, identity: Identity, offset: int = 0, length: int | None = None
    ) -> bytes:
        def effect() -> bytes:
            data = self._stores.blobs.get(_key(identity))
            if data is None:
                raise LeafLost(f"{identity.span_id} is not there")
            return data[offset : None if length is None else offset + length]

        return await self._gates.call("cold.read", effect, _down, READ)

    async def size_bytes(self, context_id: str, identity: Identity) -> int | None:
        def effect() -> int | None:
            data = self._stores.blobs.get(_key(identity))
            return None if data is None else len(data)

        return await self._gates.call("cold.size", effect, _down, READ)

    async def delete(self, context_id: str, identity: Identity) -> None:
        await self._gates.call("cold.delete", lambda: self._stores.delete(identity), _down)

    async def stored(self) -> AsyncIterator[StoredBlob]:
        for blob in await self._gates.call("cold.list", self._stores.stored, _down, READ):
            yield blob

    async def name(self) -> str | None:
        raise NotImplementedError("nothing is provisioned here")

    async def set_name(self, name: str) -> str:
        raise NotImplementedError("nothing is provisioned here")

    def expect(self, name: str) -> None:
        raise NotImplementedError("nothing is provisioned here")

    async def confirm(self) -> None:
        """It is always the one that is expected."""

    async def clock(self, token: str) -> datetime:
        def effect() -> datetime:
            return datetime.fromtimestamp(self._stores.now_ms / 1000, UTC)

        return await self._gates.call("cold.clock", effect, _down, READ)

    async def delete_key(self, key: str) -> None:
        await self._gates.call("cold.delete_key", lambda: self._stores.delete_key(key), _down)


class GatedRegistry:
    """`Registry` and `SweepIndex`, behind gates."""

    def __init__(self, registry: MemoryRegistry, gates: Gates, called: Callable[[str], None]) -> None:
        self._registry = registry
        self._gates = gates
        self._called = called
        """Told of each call, in the actor's name, at the moment of its effect."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        method: Callable[..., Coroutine[Any, Any, Any]] = getattr(self._registry, name)

        async def gated(*args: Any, **kwargs: Any) -> Any:
            actor = ACTOR.get()

            def effect() -> Any:
                self._called(f"{actor}: {name}")
                return _at_once(method(*args, **kwargs))

            return await self._gates.call(f"registry.{name}", effect, _down)

        return gated


class NoHot:
    """`HotStore` that keeps nothing: all of it may be lost at any moment."""

    async def put(self, context_id: str, blobs: Sequence[Blob]) -> None: ...

    async def get(self, context_id: str, identity: Identity) -> bytes | None:
        return None

    async def drop(self, context_id: str, identities: Sequence[Identity]) -> None: ...

    async def put_snapshot(self, context_id: str, data: bytes) -> None: ...

    async def get_snapshot(self, context_id: str) -> bytes | None:
        return None


def _down() -> Exception:
    return Unavailable("no answer")


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of what does not wait: one script, one moment."""
    try:
        work.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waits")
