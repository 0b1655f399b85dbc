"""Whole contexts as answers to `sync`: made once for all who ask at one head, and never in one go.

A snapshot costs in proportion to its context. So it is made in steps, with a turn of the event loop after
each, and those who ask at the same head share one. Its first parts are on their way while the last ones are
made: whoever waits hears something soon, however long the context is. A task of its own makes it, so that an
asker who gives up and asks again finds it further on, not begun anew.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Final

import structlog

from sexton.core.answer import snapshot_steps
from sexton.core.tree import ContextTree
from sexton.schemas.errors import Unavailable
from sexton.worker.pace import Pace

log: Final = structlog.get_logger("sexton.snapshots")

AT_ONCE: Final = 2
"""Snapshots in the making. Each takes one step per turn of the loop, so this bounds what a turn takes."""


class _Snapshot:
    """The parts of one snapshot, as far as they are made."""

    def __init__(self, tree: ContextTree) -> None:
        self.tree = tree
        self.parts: list[bytes] = []
        self.size_bytes = 0
        self.begun = self.ended = self.whole = False
        self._changed = asyncio.Event()

    def add(self, part: bytes) -> None:
        self.parts.append(part)
        self.size_bytes += len(part)
        self._notify()

    def end(self, *, whole: bool) -> None:
        self.ended, self.whole = True, whole
        self._notify()

    async def read(self) -> AsyncIterator[bytes]:
        """The parts, each as soon as it is made. Raises `Unavailable` if the last one never is."""
        at = 0
        while True:
            changed = self._changed
            if at < len(self.parts):
                yield self.parts[at]
                at += 1
            elif not self.ended:
                await changed.wait()
            elif self.whole:
                return
            else:
                raise Unavailable("the snapshot was not finished", context_id=self.tree.context_id)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Snapshots:
    """The snapshots that are being made, and the latest of each context as far as there is room."""

    def __init__(self, *, max_bytes: int, spawn: Callable[[Coroutine[Any, Any, None]], object]) -> None:
        self._max_bytes = max_bytes
        self._spawn = spawn
        self._latest: OrderedDict[str, _Snapshot] = OrderedDict()
        self._size_bytes = 0
        """Of those that are finished."""
        self._room = asyncio.Semaphore(AT_ONCE)

    def parts(self, tree: ContextTree) -> AsyncIterator[bytes]:
        """The parts of the answer to `sync` that hold all of `tree`, or of a later state, on the wire.

        `tree` must be the latest head that was read: who waits for a snapshot that is not begun yet gets it
        as well.
        The iteration raises `Unavailable` if the worker ends before it does.
        """
        found = self._latest.get(tree.context_id)
        if found is not None and not found.begun:
            found.tree = tree
        elif found is None or found.tree.chain != tree.chain or (found.ended and not found.whole):
            self._drop(tree.context_id)
            found = self._latest[tree.context_id] = _Snapshot(tree)
            self._spawn(self._make(found))
        self._latest.move_to_end(tree.context_id)
        return found.read()

    async def _make(self, snapshot: _Snapshot) -> None:
        whole = False
        try:
            async with self._room:
                snapshot.begun = True
                pace = Pace()
                for part in snapshot_steps(snapshot.tree):
                    if part is not None:
                        snapshot.add(part.wire())
                    await pace.step_done()
                whole = True
        finally:
            snapshot.end(whole=whole)
            self._finished(snapshot)

    def _finished(self, snapshot: _Snapshot) -> None:
        context_id = snapshot.tree.context_id
        log.info(
            "snapshots.made", context_id=context_id, size_bytes=snapshot.size_bytes, whole=snapshot.whole
        )
        if self._latest.get(context_id) is not snapshot:
            return
        self._size_bytes += snapshot.size_bytes
        finished = [name for name, held in self._latest.items() if held.ended]
        for name in finished:
            if self._size_bytes <= self._max_bytes:
                break
            self._drop(name)

    def _drop(self, context_id: str) -> None:
        """Whoever reads it keeps it for as long."""
        dropped = self._latest.pop(context_id, None)
        if dropped is not None and dropped.ended:
            self._size_bytes -= dropped.size_bytes
