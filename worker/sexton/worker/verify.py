"""Reads a context's bytes and compares them with what was committed."""

import asyncio
from typing import Final

from sexton.core import hash as hashing
from sexton.core.tree import ContextTree
from sexton.schemas.errors import HardFailure
from sexton.schemas.ops import Damage, VerifyPart, VerifyRequest
from sexton.schemas.span import Identity, SpanState
from sexton.worker.contexts import Contexts
from sexton.worker.ports import ColdStore

_PARALLEL: Final = 16
_CURRENT: Final = frozenset({SpanState.LIVE, SpanState.COVERED})
_SUPERSEDED: Final = frozenset({SpanState.TOMBSTONE, SpanState.COLLECTING})


def kept(tree: ContextTree) -> list[Identity]:
    """Every version whose bytes must be there, in a stable order: current, covered, and tombstones."""
    # A pruned span's bytes are its tombstone's.
    nodes = [node.identity for node in tree.nodes.values() if node.state in _CURRENT]
    stones = [stone.identity for stone in tree.tombstones.values() if stone.state in _SUPERSEDED]
    return sorted([*nodes, *stones], key=_name)


class Verifier:
    """Walks a context's bytes, a piece at a time."""

    def __init__(self, contexts: Contexts, cold: ColdStore) -> None:
        self._contexts = contexts
        self._cold = cold

    async def verify(self, request: VerifyRequest) -> VerifyPart:
        """Checks presence, length and hash of the next versions. Raises `Unavailable`.

        A version that was collected while it was being read is not reported.
        """
        known = await self._contexts.refresh(request.context_id)
        versions = kept(known.tree)
        rest = [identity for identity in versions if _name(identity) > request.after]
        batch = rest[: request.limit]
        damaged: list[Damage] = []
        for start in range(0, len(batch), _PARALLEL):
            piece = batch[start : start + _PARALLEL]
            found = await asyncio.gather(*(self._damage(request.context_id, identity) for identity in piece))
            damaged += [damage for damage in found if damage is not None]
        if damaged:
            later = await self._contexts.refresh(request.context_id)
            now = {_name(identity) for identity in kept(later.tree)}
            damaged = [damage for damage in damaged if _name(damage) in now]
        return VerifyPart(
            context_id=request.context_id,
            head=known.tree.head,
            checked=len(batch),
            size_checked_bytes=sum(identity.size_bytes for identity in batch),
            damaged=tuple(damaged),
            next=_name(batch[-1]) if len(rest) > len(batch) else None,
            total=len(versions),
        )

    async def _damage(self, context_id: str, identity: Identity) -> Damage | None:
        try:
            data = await self._cold.read(context_id, identity)
        except HardFailure as e:
            return Damage(**dict(identity), reason="lost" if e.code == "lost" else "corrupt")
        if hashing.content_hash(identity.level, data) == identity.content_hash:
            return None
        return Damage(**dict(identity), reason="corrupt", found_size_bytes=len(data))


def _name(identity: Identity) -> str:
    return f"{identity.span_id}@{identity.version:012d}"
