"""Leases and pins of holders: the registry's answer, joined with the head of the log.

The order within a pin is what collection rests on: the registry is written first, and the log's head is read
after. See `sexton.core.pinning`. A command, too, writes the registry before it writes the log: a pin that
comes amid a change waits until that is through (`docs/decisions/0022`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Final

import structlog

from sexton.core.collection import Version
from sexton.core.pinning import judge
from sexton.core.registry import Changing
from sexton.core.tree import ContextTree
from sexton.schemas.errors import InvalidInput, Unavailable
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
from sexton.schemas.span import SpanState
from sexton.worker.census import Census
from sexton.worker.contexts import Contexts
from sexton.worker.ports import Registry

log: Final = structlog.get_logger("sexton.leases")

WAITS_S: Final = (0.025, 0.05, 0.1, 0.15, 0.2, 0.2, 0.2)
"""Between looks at a change that is under way. Together well below the silence that a holder bears (2 s)."""


class Leases:
    """Answers `pin`, `release` and `heartbeat`.

    Every method raises `Fenced`, `LeaseLost`, or `Unavailable`; `heartbeat` raises `InvalidInput` for a lease
    that is too long.
    """

    def __init__(
        self,
        registry: Registry,
        contexts: Contexts,
        *,
        longest_s: float,
        census: Census | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._registry = registry
        self._census = census
        self._contexts = contexts
        self._longest_ms = int(longest_s * 1000)
        self._sleep = sleep

    async def heartbeat(self, request: HeartbeatRequest) -> LeaseReply:
        """Renews the lease, takes in an announced set, and says where the log is."""
        if request.ttl_ms > self._longest_ms:
            raise InvalidInput(
                f"a lease of {request.ttl_ms} ms; the longest here is {self._longest_ms} ms",
                field="ttl_ms",
                limit=self._longest_ms,
            )
        beat = await self._registry.beat(request)
        # An announcement that is older than what the registry knows has registered nothing.
        announced = (request.pins or ()) if beat.operation == request.operation else ()
        # What is still being changed gets no answer: the lease must live, and the holder announces it again.
        open_ = await self._in_change(request.context_id, beat.changing)
        settled = [pin for pin in announced if (pin.span_id, pin.version) not in open_]
        known = await self._contexts.refresh(request.context_id)
        granted, refused = await self._judged(known.tree, request, settled)
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
        """Pins versions; those that the log does not allow are refused, and taken back.

        Raises:
            Unavailable: also if a command that changes one of them does not come to its end. The pin is
                registered all the same; the same request again asks for it again.
        """
        answer = await self._registry.pin(request)
        if open_ := await self._in_change(request.context_id, answer.changing):
            span_id, version = min(open_)
            raise Unavailable(
                f"{span_id} version {version} is being changed",
                operation="pin",
                changing=True,
                span_id=span_id,
                version=version,
            )
        # After the notes are gone: a record whose note is gone is in the log.
        known = await self._contexts.refresh(request.context_id)
        granted, refused = await self._judged(known.tree, request, request.pins if answer.taken else ())
        return LeaseReply(
            context_id=request.context_id,
            head=known.tree.head,
            operation=request.operation,
            granted=granted,
            refused=refused,
            announce=not answer.taken,
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

    async def _in_change(self, context_id: str, changing: Changing) -> Collection[Version]:
        """The versions whose change is still under way after a while; mostly none, and at once."""
        for wait_s in WAITS_S if changing else ():
            # A tree may lag and is never ahead: what is not current in it has nothing to wait for.
            tree = (await self._contexts.get(context_id)).tree
            changing = {version: notes for version, notes in changing.items() if _may_change(tree, version)}
            if not changing:
                break
            await self._sleep(wait_s)
            tokens = frozenset[str]().union(*changing.values())
            standing = await self._registry.standing(context_id, tokens)
            changing = {version: left for version, notes in changing.items() if (left := notes & standing)}
        return changing.keys()

    async def _judged(
        self, tree: ContextTree, request: HolderRequest, pins: Sequence[Pin]
    ) -> tuple[tuple[GrantedPin, ...], tuple[RefusedPin, ...]]:
        verdicts = [judge(tree, pin) for pin in pins]
        granted = tuple(v for v in verdicts if isinstance(v, GrantedPin))
        refused = tuple(v for v in verdicts if isinstance(v, RefusedPin))
        if refused:
            await self._registry.withdraw(request, refused)
        return granted, refused


def _may_change(tree: ContextTree, version: Version) -> bool:
    node = tree.nodes.get(version[0])
    if node is None or node.version < version[1]:
        return True
    return node.version == version[1] and node.state is SpanState.LIVE
