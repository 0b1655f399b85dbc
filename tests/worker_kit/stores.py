"""The worker's ports in memory, and a committer put together on them.

They keep the ports' contracts (`tests/contract/test_worker_ports_log.py` runs the log through the same tests
as NATS). Each call yields to the loop once, so that a test can stop or cancel at every one of them.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from obstore.store import MemoryStore

from sexton.core.apply import apply
from sexton.core.decide import Blob
from sexton.core.hash import body_digest
from sexton.core.pins import NO_PINS, Pins
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, AnyOutcome, AnyRecord, decode_record
from sexton.schemas.errors import Unavailable
from sexton.schemas.span import Identity
from sexton.worker.adapters.cold import ObjectColdStore
from sexton.worker.commit import Committer, Deferred, Done
from sexton.worker.contexts import Contexts, Known
from sexton.worker.holdings import Held
from sexton.worker.ports import ColdStore, Entry, HotStore, Log, LostRaceError
from tests.core_kit.audit import audit
from tests.core_kit.build import CONTEXT


class MemoryLog:
    """`Log` in memory: one list of entries per context, one sequence over all of them."""

    def __init__(self, first_sequence: int = 1) -> None:
        self.entries: dict[str, list[Entry]] = {}
        self.heads_read = 0
        self._next = first_sequence

    async def head(self, context_id: str) -> Entry | None:
        await asyncio.sleep(0)
        self.heads_read += 1
        entries = self.entries.get(context_id)
        return entries[-1] if entries else None

    async def read(
        self, context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        found = [e for e in self.entries.get(context_id, ()) if after < e.sequence <= upto]
        for entry in found[:limit]:
            await asyncio.sleep(0)
            yield entry

    async def contexts(self) -> AsyncIterator[list[str]]:
        await asyncio.sleep(0)
        yield sorted(self.entries)

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        await asyncio.sleep(0)
        entries = self.entries.setdefault(context_id, [])
        if (entries[-1].sequence if entries else 0) != expected:
            raise LostRaceError(context_id)
        entries.append(Entry(self._next, data))
        self._next += 1
        return self._next - 1


class MemoryHot:
    """`HotStore` in memory."""

    def __init__(self) -> None:
        self.blobs: dict[tuple[str, str, int], bytes] = {}
        self.snapshots: dict[str, bytes] = {}

    async def put(self, context_id: str, blobs: Sequence[Blob]) -> None:
        await asyncio.sleep(0)
        self.blobs.update({(context_id, blob.span_id, blob.version): blob.data for blob in blobs})

    async def get(self, context_id: str, identity: Identity) -> bytes | None:
        await asyncio.sleep(0)
        return self.blobs.get((context_id, identity.span_id, identity.version))

    async def drop(self, context_id: str, identities: Sequence[Identity]) -> None:
        await asyncio.sleep(0)
        for identity in identities:
            self.blobs.pop((context_id, identity.span_id, identity.version), None)

    async def put_snapshot(self, context_id: str, data: bytes) -> None:
        await asyncio.sleep(0)
        self.snapshots[context_id] = data

    async def get_snapshot(self, context_id: str) -> bytes | None:
        await asyncio.sleep(0)
        return self.snapshots.get(context_id)


@dataclass
class FixedHoldings:
    """Stands for the registry: the pins are what the test says."""

    pins: Pins = field(default_factory=lambda: NO_PINS)

    is_fresh = True
    """Of what was read: its record may be sent."""

    def change(self, command: AnyCommand) -> "FixedHoldings":
        return self

    async def read(self, known: Known) -> Held:
        await asyncio.sleep(0)
        return Held(self.pins, whole=True)

    def sending(self, known: Known) -> None: ...

    def stored(self) -> None: ...

    def over(self, known: Known | None = None) -> None: ...


class Faulty:
    """A port with a fault at a chosen call: each `await` of a method is a point before it and one after.

    `hit` is called with the name of each point, such as `cold.write:before`, and may raise.
    """

    def __init__(self, port: object, name: str, hit: Callable[[str], None]) -> None:
        self._port = port
        self._name = name
        self._hit = hit

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._port, method)
        if method in ("read", "contexts") and not isinstance(self._port, ObjectColdStore):
            return call

        async def wrapped(*args: Any, **kwargs: Any) -> Any:
            self._hit(f"{self._name}.{method}:before")
            result = await call(*args, **kwargs)
            self._hit(f"{self._name}.{method}:after")
            return result

        return wrapped


@dataclass
class World:
    """What outlives a worker: the log, the stores. Workers come and go over it."""

    log: Log = field(default_factory=MemoryLog)
    cold: ColdStore = field(default_factory=lambda: ObjectColdStore(MemoryStore(), 5.0))
    hot: HotStore = field(default_factory=MemoryHot)
    pins: Pins = field(default_factory=lambda: NO_PINS)

    def contexts(
        self, *, spawn: Callable[[Coroutine[Any, Any, None]], object] = asyncio.create_task, **more: Any
    ) -> Contexts:
        """A worker's trees."""
        limits: dict[str, Any] = {"max_contexts": 100, "max_spans": 100_000, "snapshot_every": 200}
        return Contexts(self.log, self.hot, **(limits | more), spawn=spawn)

    def committer(self, contexts: Contexts | None = None, *, attempts: int = 16) -> Committer:
        """A worker's commit, with nothing in memory unless `contexts` is given."""
        holdings: Any = FixedHoldings(self.pins)
        return Committer(
            self.log,
            self.cold,
            self.hot,
            contexts or self.contexts(),
            holdings,
            attempts=attempts,
            confirm_after_s=3600,
        )

    def with_faults(self, hit: Callable[[str], None]) -> "World":
        """The same stores behind faults."""
        log: Any = Faulty(self.log, "log", hit)
        cold: Any = Faulty(self.cold, "cold", hit)
        hot: Any = Faulty(self.hot, "hot", hit)
        return World(log, cold, hot, self.pins)

    async def outcome(self, command: AnyCommand, *, redelivered: bool = False) -> AnyOutcome:
        """What a fresh worker makes of a command."""
        done = await carry_out(self.committer(), command, redelivered=redelivered)
        assert isinstance(done, Done), done
        return done.outcome

    async def records(self, context_id: str = CONTEXT) -> list[AnyRecord]:
        """All records, from the log itself."""
        head = await self.log.head(context_id)
        if head is None:
            return []
        return [decode_record(entry.data) async for entry in self.log.read(context_id, 0, head.sequence)]

    async def tree(self, context_id: str = CONTEXT) -> ContextTree:
        """The context as the log says, checked against the rules; every version's bytes are in the store."""
        tree = ContextTree.empty(context_id)
        for record in await self.records(context_id):
            tree = apply(tree, record)
        audit(tree)
        for node in tree.nodes.values():
            assert node.size_bytes == await self.cold.size_bytes(context_id, node.identity), node.span_id
        return tree


async def carry_out(
    committer: Committer, command: AnyCommand, *, redelivered: bool = False
) -> Done | Deferred:
    """Hands a command to a committer as the handler does."""
    return await committer.carry_out(command, body_digest(command.wire()), redelivered=redelivered)


def unavailable_at(point: str) -> Callable[[str], None]:
    """A fault: the outage of one port at one point, once."""
    hits = iter([point])

    def hit(name: str) -> None:
        nonlocal hits
        if name == point and next(hits, None) is not None:
            raise Unavailable(f"a fault at {name}")

    return hit
