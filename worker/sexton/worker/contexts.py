"""Trees in memory: loaded from snapshot and log tail, kept fresh by the broadcast, bounded.

A tree here may lag behind the log; it is never ahead of it and never wrong about what it has applied. A
commit does not need it to be fresh, since the compare-and-swap notices; whoever needs the head asks for
`refresh`. All of this may be dropped at any moment.

What costs in proportion to a context (reading its log or its snapshot, and storing one) is done in steps,
with a turn of the event loop after each.
"""

import asyncio
import hashlib
import struct
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
from pydantic_core import from_json

from sexton.core.apply import apply
from sexton.core.snapshot import Restoration, steps
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyRecord, decode, decode_record
from sexton.schemas.errors import (
    LineageError,
    MalformedMessage,
    PeerError,
    RevisionGap,
    UnsupportedSchema,
)
from sexton.schemas.rpc import Snapshot
from sexton.worker.pace import Pace
from sexton.worker.ports import Entry, HotStore, Log

log: Final = structlog.get_logger("sexton.contexts")

_TAIL_RECORDS: Final = 256
_TAIL_BYTES: Final = 256 * 1024
_SEQUENCE: Final = struct.Struct(">Q")
_END: Final = b"end"
"""The last line of a stored snapshot, whose pieces are a line each: one that was cut off lacks it."""
_STEP_BYTES: Final = 16 * 1024
"""Of records that are decoded and applied in one turn of the loop, unless a single one has more."""
_SPANS_PER_RECORD: Final = 8
"""A snapshot of a long context is stored less often: once for every so many of its spans, at most."""


@dataclass(frozen=True, slots=True)
class Known:
    """A tree, and the stream sequence of the last record that it has applied; 0 for none."""

    tree: ContextTree
    sequence: int = 0


@dataclass(slots=True)
class _Tail:
    """The latest records as they are in the log, for holders that lag a little."""

    entries: deque[tuple[int, bytes]] = field(default_factory=deque)
    size_bytes: int = 0

    def add(self, revision: int, data: bytes) -> None:
        if self.entries:
            last, _ = self.entries[-1]
            if revision <= last:
                # The broadcast was quicker than whoever read it from the log.
                return
            if revision > last + 1:
                self.entries.clear()
                self.size_bytes = 0
        self.entries.append((revision, data))
        self.size_bytes += len(data)
        while len(self.entries) > _TAIL_RECORDS or self.size_bytes > _TAIL_BYTES:
            self.size_bytes -= len(self.entries.popleft()[1])


@dataclass(slots=True)
class _Cached:
    known: Known
    tail: _Tail
    snapshot_revision: int
    head_digest: bytes = b""
    """Digest of the last record's stored bytes, if they were seen: to know it again without decoding it."""
    behind: bool = False
    """A broadcast was missed: the next use reads the log."""


class Contexts:
    """The worker's view of all contexts."""

    def __init__(
        self,
        log_store: Log,
        hot: HotStore,
        *,
        max_contexts: int,
        max_spans: int,
        snapshot_every: int,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._log = log_store
        self._hot = hot
        self._max_contexts = max_contexts
        self._max_spans = max_spans
        self._snapshot_every = snapshot_every
        self._spawn = spawn
        self._cached: OrderedDict[str, _Cached] = OrderedDict()
        self._spans = 0
        # Each lives as long as somebody waits for it.
        self._loading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._snapshotting: set[str] = set()

    async def get(self, context_id: str) -> Known:
        """The context as this process knows it; read from the log if it does not. Raises `Unavailable`."""
        cached = self._cached.get(context_id)
        if cached is not None and not cached.behind:
            self._cached.move_to_end(context_id)
            return cached.known
        return await self.refresh(context_id)

    async def refresh(self, context_id: str) -> Known:
        """The context at the head of the log, as the leader says. One round trip if nothing is missing.

        Raises:
            Unavailable: the log did not answer.
            UnsupportedSchema: the log holds records that a newer worker wrote.
            LineageError: the log contradicts itself.
        """
        lock = self._loading.setdefault(context_id, asyncio.Lock())
        async with lock:
            head = await self._log.head(context_id)
            return await self._caught_up(context_id, head)

    def committed(self, before: Known, record: AnyRecord, data: bytes, sequence: int) -> Known:
        """Takes in a record that this process has committed on `before`."""
        cached = self._cached.get(before.tree.context_id)
        if cached is not None and cached.known.sequence == sequence:
            # The broadcast was quicker than the answer.
            return cached.known
        known = Known(apply(before.tree, record), sequence)
        self._keep(known, [(record.revision, data)])
        return known

    def on_broadcast(self, context_id: str, sequence: int, previous: int, data: bytes) -> None:
        """Takes in a broadcast record if it is the next one of a tree in memory.

        Anything that does not fit is not an error here: the next use reads the log.
        """
        cached = self._cached.get(context_id)
        if cached is None or sequence <= cached.known.sequence:
            return
        if previous != cached.known.sequence:
            cached.behind = True
            return
        try:
            record = decode_record(data)
            tree = apply(cached.known.tree, record)
        except (MalformedMessage, UnsupportedSchema, RevisionGap, LineageError) as e:
            log.warning("contexts.dropped", context_id=context_id, reason=e.code)
            self._drop(context_id)
            return
        self._keep(Known(tree, sequence), [(record.revision, data)])

    def holds(self, context_id: str) -> bool:
        """Whether the tree is in memory."""
        return context_id in self._cached

    def cool(self, context_id: str) -> None:
        """Makes a tree the first to go when there is no more room, unless it is used again before."""
        if context_id in self._cached:
            self._cached.move_to_end(context_id, last=False)

    def forget_all(self) -> None:
        """Drops all trees: after a reconnect, the log there may be another one."""
        self._cached.clear()
        self._spans = 0

    def tail(self, context_id: str, after_revision: int) -> list[tuple[dict[str, Any], int]] | None:
        """The records after a revision, as in the log, with their sizes; None if not all are at hand."""
        cached = self._cached.get(context_id)
        if cached is None:
            return None
        wanted = [data for revision, data in cached.tail.entries if revision > after_revision]
        if len(wanted) != cached.known.tree.revision - after_revision:
            return None
        return [(from_json(data), len(data)) for data in wanted]

    async def _caught_up(self, context_id: str, head: Entry | None) -> Known:
        if head is None:
            if self._drop(context_id):
                log.warning("contexts.log_vanished", context_id=context_id)
            return Known(ContextTree.empty(context_id))
        cached = self._cached.get(context_id)
        base = cached.known if cached is not None else await self._snapshot(context_id)
        if base is not None and base.sequence <= head.sequence:
            try:
                return await self._followed(base, head)
            except (LineageError, RevisionGap) as e:
                log.warning("contexts.other_lineage", context_id=context_id, reason=str(e))
        self._drop(context_id)
        return await self._followed(Known(ContextTree.empty(context_id)), head)

    async def _followed(self, base: Known, head: Entry) -> Known:
        """`base` brought to `head`. Raises `LineageError` if the log does not continue `base`."""
        tree, sequence, fresh = base.tree, base.sequence, list[tuple[int, bytes]]()
        if sequence < head.sequence:
            step_bytes, pace = 0, Pace()
            try:
                async for entry in self._log.read(tree.context_id, sequence, head.sequence):
                    record = decode_record(entry.data)
                    tree = apply(tree, record)
                    sequence = entry.sequence
                    fresh.append((record.revision, entry.data))
                    step_bytes += len(entry.data)
                    if step_bytes >= _STEP_BYTES:
                        step_bytes = 0
                        await pace.step_done()
            except BaseException:
                # Whoever asked may have run out of time, or the log may have stopped answering. The next
                # one goes on from here, or a long log could never be read at all.
                if fresh:
                    self._keep(Known(tree, sequence), fresh, behind=True)
                raise
        elif not self._is_seen(head, tree.context_id) and decode_record(head.data).chain != tree.chain:
            raise LineageError(f"the log of {tree.context_id} was recreated")
        known = Known(tree, sequence)
        self._keep(known, fresh)
        self._note_seen(head, tree.context_id)
        return known

    def _is_seen(self, head: Entry, context_id: str) -> bool:
        """Whether this very record is the last one of the tree in memory."""
        cached = self._cached.get(context_id)
        return (
            cached is not None
            and cached.known.sequence == head.sequence
            and cached.head_digest == _digest(head.data)
        )

    def _note_seen(self, head: Entry, context_id: str) -> None:
        cached = self._cached.get(context_id)
        if cached is not None and cached.known.sequence == head.sequence:
            cached.head_digest = _digest(head.data)

    def _keep(self, known: Known, fresh: list[tuple[int, bytes]], *, behind: bool = False) -> None:
        """Keeps the newer of what is in memory and `known`; `behind` says that the log has more."""
        context_id = known.tree.context_id
        cached = self._cached.get(context_id)
        if cached is None:
            cached = _Cached(known, _Tail(), known.tree.revision - len(fresh))
            self._cached[context_id] = cached
            self._spans += len(known.tree.nodes)
            cached.head_digest = _digest(fresh[-1][1]) if fresh else b""
        elif known.sequence > cached.known.sequence:
            self._spans += len(known.tree.nodes) - len(cached.known.tree.nodes)
            cached.known = known
            cached.head_digest = _digest(fresh[-1][1]) if fresh else b""
        else:
            if known.sequence == cached.known.sequence:
                cached.behind = behind
            return
        cached.behind = behind
        for revision, data in fresh:
            cached.tail.add(revision, data)
        self._cached.move_to_end(context_id)
        while len(self._cached) > 1 and (
            len(self._cached) > self._max_contexts or self._spans > self._max_spans
        ):
            self._drop(next(iter(self._cached)))
        every = max(self._snapshot_every, len(known.tree.nodes) // _SPANS_PER_RECORD)
        if known.tree.revision - cached.snapshot_revision >= every:
            self._start_snapshot(context_id, cached)

    def _drop(self, context_id: str) -> bool:
        cached = self._cached.pop(context_id, None)
        if cached is not None:
            self._spans -= len(cached.known.tree.nodes)
        return cached is not None

    def _start_snapshot(self, context_id: str, cached: _Cached) -> None:
        """Beside the commit, never on its path: it costs in proportion to the context."""
        if context_id in self._snapshotting:
            return
        self._snapshotting.add(context_id)
        cached.snapshot_revision = cached.known.tree.revision
        self._spawn(self._store_snapshot(cached.known))

    async def _store_snapshot(self, known: Known) -> None:
        try:
            data = await packed(known)
            await self._hot.put_snapshot(known.tree.context_id, data)
        finally:
            self._snapshotting.discard(known.tree.context_id)

    async def _snapshot(self, context_id: str) -> Known | None:
        data = await self._hot.get_snapshot(context_id)
        if data is None:
            return None
        try:
            (sequence,) = _SEQUENCE.unpack_from(data)
            tree = await unpacked(data)
        except (struct.error, ValueError, PeerError) as e:
            log.warning("contexts.snapshot_unusable", context_id=context_id, reason=type(e).__name__)
            return None
        if tree.context_id != context_id or tree.events is None:
            log.warning("contexts.snapshot_unusable", context_id=context_id, reason="other content")
            return None
        return Known(tree, sequence)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


async def packed(known: Known) -> bytes:
    """A snapshot with events as it is stored: a sequence, and a line for each piece."""
    lines: list[bytes] = []
    pace = Pace()
    for piece in steps(known.tree, with_events=True):
        if piece is not None:
            lines.append(piece.wire())
        await pace.step_done()
    return _SEQUENCE.pack(known.sequence) + b"\n".join([*lines, _END])


async def unpacked(data: bytes) -> ContextTree:
    """The tree of a stored snapshot. Raises `ValueError` if it was cut off, and as `decode`."""
    *lines, end = data[_SEQUENCE.size :].split(b"\n")
    if end != _END:
        raise ValueError("the stored snapshot has no end")
    restoration, pace = Restoration(), Pace()
    for line in lines:
        restoration.add(decode(Snapshot, line))
        await pace.step_done()
    return restoration.tree()
