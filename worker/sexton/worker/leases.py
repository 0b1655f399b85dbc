"""Leases and pins of holders: the registry's answer, joined with the head of the log.

The order within a pin is what collection rests on: the registry is written first, and the log's head is read
after. See `sexton.core.pinning`.
"""

from collections.abc import Sequence
from typing import Final

import structlog

from sexton.core.pinning import judge
from sexton.core.tree import ContextTree
from sexton.schemas.errors import InvalidInput
from sexton.schemas.leases import (
    GrantedPin,
    HeartbeatRequest,
    HolderRequest,
    LeaseReply,
    Pin,
    PinRequest,
    RefusedPin,
    ReleaseRequest,
)
from sexton.worker.census import Census
from sexton.worker.contexts import Contexts
from sexton.worker.ports import Registry

log: Final = structlog.get_logger("sexton.leases")


class Leases:
    """Answers `pin`, `release` and `heartbeat`.

    Every method raises `Fenced`, `LeaseLost`, or `Unavailable`; `heartbeat` raises `InvalidInput` for a lease
    that is too long.
    """

    def __init__(
        self, registry: Registry, contexts: Contexts, *, longest_s: float, census: Census | None = None
    ) -> None:
        self._registry = registry
        self._census = census
        self._contexts = contexts
        self._longest_ms = int(longest_s * 1000)

    async def heartbeat(self, request: HeartbeatRequest) -> LeaseReply:
        """Renews the lease, takes in an announced set, and says where the log is."""
        if request.ttl_ms > self._longest_ms:
            raise InvalidInput(
                f"a lease of {request.ttl_ms} ms; the longest here is {self._longest_ms} ms",
                field="ttl_ms",
                limit=self._longest_ms,
            )
        beat = await self._registry.beat(request)
        known = await self._contexts.refresh(request.context_id)
        # An announcement that is older than what the registry knows has registered nothing.
        announced = request.pins if beat.operation == request.operation else None
        granted, refused = await self._judged(known.tree, request, announced or ())
        if request.register_new:
            if self._census is not None:
                await self._census.note(request.context_id)
            log.info("leases.registered", holder_id=request.holder_id, incarnation=request.incarnation)
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=beat.operation,
            granted=granted,
            refused=refused,
            announce=beat.announce and not refused,
        )

    async def pin(self, request: PinRequest) -> LeaseReply:
        """Pins versions; those that the log does not allow are refused, and taken back."""
        taken = await self._registry.pin(request)
        known = await self._contexts.refresh(request.context_id)
        granted, refused = await self._judged(known.tree, request, request.pins if taken else ())
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=request.operation,
            granted=granted,
            refused=refused,
            announce=not taken,
        )

    async def release(self, request: ReleaseRequest) -> LeaseReply:
        """Drops pins."""
        taken = await self._registry.release(request)
        known = await self._contexts.get(request.context_id)
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=request.operation,
            announce=not taken,
        )

    async def _judged(
        self, tree: ContextTree, request: HolderRequest, pins: Sequence[Pin]
    ) -> tuple[tuple[GrantedPin, ...], tuple[RefusedPin, ...]]:
        verdicts = [judge(tree, pin) for pin in pins]
        granted = tuple(v for v in verdicts if isinstance(v, GrantedPin))
        refused = tuple(v for v in verdicts if isinstance(v, RefusedPin))
        if refused:
            await self._registry.withdraw(request, refused)
        return granted, refused
