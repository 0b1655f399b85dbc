"""Reads a context's bytes and compares them with what was committed.

What is lost or damaged is read a second time before it is called so, and is reported. So is the end of it:
the bytes are whole again, or nobody needs them any more.
"""

import asyncio
import heapq
from collections.abc import Iterator, Sequence
from typing import Final

from sexton.core import hash as hashing
from sexton.core.tree import ContextTree, Node, Tombstone
from sexton.schemas.errors import HardFailure, Unavailable
from sexton.schemas.failure import FailureReason
from sexton.schemas.ops import Damage, VerifyPart, VerifyRequest
from sexton.schemas.span import Identity, SpanState
from sexton.worker import metrics
from sexton.worker.contexts import Contexts
from sexton.worker.failures import BYTES, Failures, Unreported
from sexton.worker.pace import Pace
from sexton.worker.ports import ColdStore

_PARALLEL: Final = 16
_PIECE_BYTES: Final = 64 * 1024 * 1024
"""Read at a time, unless a single version has more. Memory is bounded by this."""
_ANSWER_BYTES: Final = 4 * _PIECE_BYTES
"""Read for one answer, so that whoever asked hears something in time."""
_STEP_VERSIONS: Final = 1024
"""Versions looked at in one go."""
_CURRENT: Final = frozenset({SpanState.LIVE, SpanState.COVERED})
_SUPERSEDED: Final = frozenset({SpanState.TOMBSTONE, SpanState.COLLECTING})
_COMPONENT: Final = "worker.verify"


async def kept(tree: ContextTree) -> dict[str, Node | Tombstone]:
    """Every version whose bytes must be there, by `span_id@version`: current, covered, and tombstones."""
    found: dict[str, Node | Tombstone] = {}
    pace = Pace()
    # A pruned span's bytes are its tombstone's.
    for looked_at, node in enumerate(tree.nodes.values(), 1):
        if node.state in _CURRENT:
            found[_name(node.span_id, node.version)] = node
        if looked_at % _STEP_VERSIONS == 0:
            await pace.step_done()
    for looked_at, stone in enumerate(tree.tombstones.values(), 1):
        if stone.state in _SUPERSEDED:
            found[_name(stone.identity.span_id, stone.identity.version)] = stone
        if looked_at % _STEP_VERSIONS == 0:
            await pace.step_done()
    return found


class Verifier:
    """Walks a context's bytes, a piece at a time."""

    def __init__(self, contexts: Contexts, cold: ColdStore, failures: Failures | None = None) -> None:
        self._contexts = contexts
        self._cold = cold
        self._failures = failures or Unreported()

    async def verify(self, request: VerifyRequest) -> VerifyPart:
        """Checks presence, length and hash of the next versions. Raises `Unavailable`.

        A version that was collected while it was being read is not reported.
        """
        # Asked for before the head is: what is open then is about versions that the tree knows.
        was_open = self._failures.open(request.context_id)
        known = await self._contexts.refresh(request.context_id)
        versions = await kept(known.tree)
        rest = [name for name in versions if name > request.after]
        names = heapq.nsmallest(request.limit, rest)
        batch = next(_pieces([versions[name].identity for name in names], request.limit, _ANSWER_BYTES), [])
        damaged: list[Damage] = []
        for piece in _pieces(batch, _PARALLEL, _PIECE_BYTES):
            found = await asyncio.gather(*(self._damage(request.context_id, identity) for identity in piece))
            damaged += [damage for damage in found if damage is not None]
        if damaged:
            now = await kept((await self._contexts.refresh(request.context_id)).tree)
            damaged = [damage for damage in damaged if _name(damage.span_id, damage.version) in now]
        self._report(request.context_id, damaged)
        checked = {(i.span_id, i.version) for i in batch} - {(d.span_id, d.version) for d in damaged}
        for version in was_open:
            if version in checked or _name(*version) not in versions:
                self._failures.over(request.context_id, version, BYTES, component=_COMPONENT)
        return VerifyPart(
            context_id=request.context_id,
            head=known.tree.head,
            checked=len(batch),
            size_checked_bytes=sum(identity.size_bytes for identity in batch),
            damaged=tuple(damaged),
            next=names[len(batch) - 1] if len(rest) > len(batch) else None,
            total=len(versions),
        )

    def _report(self, context_id: str, damaged: list[Damage]) -> None:
        for damage in damaged:
            metrics.HARD_FAILURES.labels(damage.reason).inc()
            found = {"found_size_bytes": damage.found_size_bytes}
            reason = FailureReason(damage.reason)
            self._failures.observed(context_id, damage, reason, component=_COMPONENT, found=found)

    async def _damage(self, context_id: str, identity: Identity) -> Damage | None:
        """What is wrong with a version, seen twice. Raises `Unavailable`, also if it was seen only once."""
        first = await self._read(context_id, identity)
        if first is None:
            return None
        second = await self._read(context_id, identity)
        if second is None:
            raise Unavailable("the store gave two different answers", operation="cold.read")
        return second

    async def _read(self, context_id: str, identity: Identity) -> Damage | None:
        try:
            data = await self._cold.read(context_id, identity)
        except HardFailure as e:
            return Damage(**dict(identity), reason="lost" if e.code == "lost" else "corrupt")
        if hashing.content_hash(identity.level, data) == identity.content_hash:
            return None
        return Damage(**dict(identity), reason="corrupt", found_size_bytes=len(data))


def _pieces(identities: Sequence[Identity], most: int, most_bytes: int) -> Iterator[list[Identity]]:
    """Cuts a list so that no piece has more than so many, or more bytes unless that is a single one."""
    piece: list[Identity] = []
    size_bytes = 0
    for identity in identities:
        if piece and (len(piece) == most or size_bytes + identity.size_bytes > most_bytes):
            yield piece
            piece, size_bytes = [], 0
        piece.append(identity)
        size_bytes += identity.size_bytes
    if piece:
        yield piece


def _name(span_id: str, version: int) -> str:
    return f"{span_id}@{version:012d}"
