"""Bytes for a pointer: checked before, verified after, from the nearest place that has them.

Hot bytes are a convenience: whatever is wrong with them, the cold store is asked. What is wrong with the
cold store's bytes is read a second time before it is called a loss.
"""

import asyncio
import time
from typing import Final

import structlog

from sexton import tracing
from sexton.core.check import Action, Verdict, accept, check, diagnose
from sexton.core.tree import ContextTree
from sexton.schemas.errors import (
    HardFailure,
    HashMismatch,
    PointerResurrectionError,
    SextonError,
    Unavailable,
)
from sexton.schemas.failure import FailureReason
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Answer, FetchRequest, Tier
from sexton.schemas.span import Identity
from sexton.worker import metrics
from sexton.worker.contexts import Contexts
from sexton.worker.failures import Failures, Unreported
from sexton.worker.ports import ColdStore, HotStore

log: Final = structlog.get_logger("sexton.fetch")


class Fetcher:
    """Resolves pointers against the worker's trees and stores."""

    def __init__(
        self,
        contexts: Contexts,
        cold: ColdStore,
        hot: HotStore,
        *,
        budget_s: float,
        failures: Failures | None = None,
    ) -> None:
        self._contexts = contexts
        self._cold = cold
        self._hot = hot
        self._budget_s = budget_s
        self._failures = failures or Unreported()

    async def fetch(self, request: FetchRequest) -> tuple[Answer, bytes]:
        """The bytes of a pointer, with what they are.

        Raises:
            PointerResurrectionError: one of its kinds says why the pointer is refused.
            LeafLost, LeafCorrupt: confirmed by a second read past every cache.
            Unavailable: no answer within the budget. Nothing is known to be lost.
        """
        began = time.perf_counter()
        budget_s = request.budget_ms / 1000 if request.budget_ms is not None else self._budget_s
        try:
            answer, data, verdict = await self._within(request, budget_s)
        except SextonError as e:
            metrics.FETCH_ERRORS.labels(e.code).inc()
            raise
        metrics.FETCHES.labels(answer.tier.value).inc()
        metrics.FETCH_SECONDS.labels(answer.tier.value).observe(time.perf_counter() - began)
        tracing.current().set(tier=answer.tier.value)
        if verdict.action is Action.RE_EXPAND:
            metrics.RE_EXPANSIONS.inc()
        return answer, data

    async def whole(self, tree: ContextTree, identity: Identity) -> bytes:
        """All bytes of a current version, verified. Raises as `fetch`."""
        pointer = Pointer(
            context_id=tree.context_id,
            span_id=identity.span_id,
            level=identity.level,
            version=identity.version,
            offset=0,
            length=identity.size_bytes,
            content_hash=identity.content_hash,
            epoch=tree.epoch,
        )
        verdict = check(pointer, tree)
        target, stamped = verdict.granted()
        _, data = await self._bytes(tree.context_id, verdict, target, stamped)
        return data

    async def _within(self, request: FetchRequest, budget_s: float) -> tuple[Answer, bytes, Verdict]:
        try:
            async with asyncio.timeout(budget_s):
                verdict = await self._verdict(request)
                target, pointer = verdict.granted()
                answer, data = await self._bytes(request.context_id, verdict, target, pointer)
        except TimeoutError:
            raise Unavailable(f"no answer within the budget of {budget_s} s", budget_s=budget_s) from None
        return answer, data, verdict

    async def _verdict(self, request: FetchRequest) -> Verdict:
        contexts, context_id = self._contexts, request.context_id
        known = await (contexts.refresh(context_id) if request.latest else contexts.get(context_id))
        verdict = _checked(request, known.tree)
        if verdict.maybe_behind and not request.latest:
            known = await contexts.refresh(context_id)
            verdict = _checked(request, known.tree)
        return verdict

    async def _bytes(
        self, context_id: str, verdict: Verdict, target: Identity, pointer: Pointer
    ) -> tuple[Answer, bytes]:
        end = pointer.offset + pointer.length
        if verdict.action is not Action.RE_EXPAND:
            whole = await self._hot.get(context_id, target)
            if whole is not None and len(whole) == target.size_bytes:
                data = whole[pointer.offset : end]
                try:
                    return accept(verdict, data, Tier.HOT), data
                except HashMismatch:
                    log.info("fetch.hot_bytes_passed_over", span_id=target.span_id)
        try:
            with tracing.step("sexton.cold.read", size_bytes=pointer.length):
                data = await self._cold.read(context_id, target, pointer.offset, pointer.length)
            answer = accept(verdict, data, Tier.COLD)
        except (HardFailure, HashMismatch) as e:
            raise await self._confirmed(context_id, verdict, target, e) from None
        self._failures.served(context_id, target)
        return answer, data

    async def _confirmed(
        self, context_id: str, verdict: Verdict, target: Identity, first: SextonError
    ) -> SextonError:
        """Reads the whole version once more, and says what is wrong with it or with the pointer."""
        try:
            whole = await self._cold.read(context_id, target)
        except HardFailure as e:
            second: SextonError = e
        else:
            second = diagnose(verdict, whole)
        if isinstance(first, HardFailure) and not isinstance(second, HardFailure):
            return Unavailable("the store gave two different answers", operation="cold.read")
        if isinstance(second, HardFailure):
            refusal = await self._refused_by_now(context_id, verdict)
            if refusal is not None:
                return refusal
            metrics.HARD_FAILURES.labels(second.code).inc()
            log.error(
                "fetch.hard_failure",
                reason=second.code,
                context_id=context_id,
                span_id=target.span_id,
                version=target.version,
            )
            reason = FailureReason(second.code)
            self._failures.observed(context_id, target, reason, component="worker.fetch", found=second.fields)
        return second

    async def _refused_by_now(self, context_id: str, verdict: Verdict) -> SextonError | None:
        """What the head of the log says against the pointer: bytes that were collected meanwhile are no loss.

        A tree may lag behind a collector that has just deleted them.
        """
        _, pointer = verdict.granted()
        known = await self._contexts.refresh(context_id)
        try:
            check(pointer, known.tree, accept_superseded=verdict.superseded).granted()
        except PointerResurrectionError as e:
            return e
        return None


def _checked(request: FetchRequest, tree: ContextTree) -> Verdict:
    return check(request.pointer, tree, strict=request.strict, accept_superseded=request.accept_superseded)
