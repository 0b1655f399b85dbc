"""Gets the bytes of a version: from memory, else from the service."""

from dataclasses import dataclass, replace
from typing import Final

from sexton.core.check import Verdict, accept, diagnose
from sexton.holder.cache import ByteCache, BytesKey
from sexton.holder.calls import Calls
from sexton.holder.runtime import Runtime
from sexton.schemas.errors import HashMismatch
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import FetchRequest, Tier
from sexton.schemas.span import Identity

_FETCHES: Final = 2
"""How often bytes that fail their check are asked for. Another worker may answer the second time."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The bytes that a verdict addresses. Pass them by `accept` before anyone sees them."""

    data: bytes
    tier: Tier
    whole: bytes | None = None
    """The whole version, if it was at hand; it has been checked."""


class Fetcher:
    """Bytes for one context."""

    def __init__(self, context_id: str, runtime: Runtime, calls: Calls, cache: ByteCache) -> None:
        self._context_id = context_id
        self._calls = calls
        self._cache = cache
        self._span_limit = runtime.settings.cache_span_bytes
        self._log = runtime.log.bind(context_id=context_id)

    def kept(self, verdict: Verdict) -> Piece | None:
        """What a granted verdict addresses, if it is in memory."""
        target, pointer = verdict.granted()
        whole = self._cache.get(BytesKey.of(self._context_id, target))
        return None if whole is None else _cut(whole, pointer, Tier.MEMORY)

    async def part(self, verdict: Verdict, *, budget_ms: int | None = None) -> Piece:
        """What a granted verdict addresses.

        Raises:
            PointerResurrectionError: the service knows better; this tree lags.
            HashMismatch: the service's bytes are not those of the pointer.
            LeafLost, LeafCorrupt: the service cannot have them any more.
            TransientError: no answer.
        """
        if (piece := self.kept(verdict)) is not None:
            return piece
        target, pointer = verdict.granted()
        if target.size_bytes > self._span_limit:
            return await self._checked(verdict, budget_ms)
        piece = await self._checked(whole_of(verdict), budget_ms)
        self.keep(target, piece.data)
        return _cut(piece.data, pointer, piece.tier)

    def keep(self, target: Identity, whole: bytes) -> None:
        """Keeps the bytes of a whole version, which must have been checked."""
        if target.size_bytes <= self._span_limit:
            self._cache.put(BytesKey.of(self._context_id, target), whole)

    async def _checked(self, verdict: Verdict, budget_ms: int | None) -> Piece:
        """Fetches exactly what the verdict addresses; the service applies no rule of its own to it."""
        target, pointer = verdict.granted()
        request = FetchRequest(
            context_id=self._context_id,
            pointer=pointer.model_copy(update={"accept_summary": False}),
            accept_superseded=verdict.superseded,
            budget_ms=budget_ms,
        )
        tries = _FETCHES
        while True:
            answer, data = await self._calls.fetch(request)
            try:
                accept(verdict, data, answer.tier)
            except HashMismatch as e:
                tries -= 1
                self._log.error(
                    "holder.bytes_refused",
                    span_id=target.span_id,
                    version=target.version,
                    size_bytes=len(data),
                    tier=answer.tier.value,
                )
                if tries == 0:
                    raise (diagnose(verdict, data) if _is_whole(pointer, target) else e) from None
            else:
                return Piece(data, answer.tier, data if _is_whole(pointer, target) else None)


def whole_of(verdict: Verdict) -> Verdict:
    """The same verdict on the whole version."""
    target, pointer = verdict.granted()
    whole = {"offset": 0, "length": target.size_bytes, "content_hash": target.content_hash}
    return replace(verdict, pointer=pointer.model_copy(update=whole))


def _is_whole(pointer: Pointer, target: Identity) -> bool:
    return pointer.length == target.size_bytes


def _cut(whole: bytes, pointer: Pointer, tier: Tier) -> Piece:
    return Piece(whole[pointer.offset : pointer.offset + pointer.length], tier, whole)
