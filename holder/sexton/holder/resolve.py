"""Resolves pointers: the core's `check` before the bytes are got, and its `check` and `accept` after.

Between the two a bump may land. What is served is right for the tree as it is when it is served, or it is
not served.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from sexton.core.artifact import ArtifactKey, current_key
from sexton.core.check import Verdict, accept, check, diagnose, mint
from sexton.core.text import check_range, cut
from sexton.core.tree import ContextTree
from sexton.holder.calls import Calls
from sexton.holder.fetch import Fetcher, Piece
from sexton.holder.follow import Follower
from sexton.holder.results import Resolved
from sexton.holder.runtime import Runtime
from sexton.schemas.errors import (
    HashMismatch,
    InvalidInput,
    PointerResurrectionError,
    SextonError,
    TransientError,
    Unavailable,
    Unsettled,
)
from sexton.schemas.ids import level_of
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import MAX_BUDGET_MS, FetchRequest

T = TypeVar("T")

Consistency = Literal["bounded", "latest"]
"""`bounded`: from memory, within the staleness bound. `latest`: as of the head of the log, one round trip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """On what terms a pointer is resolved."""

    strict: bool = False
    accept_superseded: bool = False
    budget_ms: int | None = None


class Resolver:
    """Reads one context."""

    def __init__(self, follower: Follower, fetcher: Fetcher, runtime: Runtime, calls: Calls) -> None:
        self._follower = follower
        self._fetcher = fetcher
        self._calls = calls
        self._clock = runtime.clock
        self._tries = runtime.settings.settle_tries

    async def resolve(
        self,
        pointer: Pointer,
        *,
        consistency: Consistency = "bounded",
        strict: bool = False,
        accept_superseded: bool = False,
        budget_s: float | None = None,
    ) -> Resolved:
        """The bytes of a pointer, or the error that says why not. See `Context.resolve`."""
        if consistency not in get_args(Consistency):
            # A misspelt word would silently be the weaker check.
            raise InvalidInput("consistency is 'bounded' or 'latest'", field="consistency")
        budget_ms = None if budget_s is None else _budget_ms(budget_s)
        terms = Terms(strict=strict, accept_superseded=accept_superseded, budget_ms=budget_ms)
        work = self._latest if consistency == "latest" else self._bounded
        if budget_s is None:
            return await work(pointer, terms)
        try:
            async with self._clock.timeout(budget_s):
                return await work(pointer, terms)
        except TimeoutError:
            raise Unavailable(
                f"{pointer.span_id}: no answer within the budget of {budget_s:g} s", budget_s=budget_s
            ) from None

    async def on_tree(self, question: Callable[[ContextTree], T]) -> T:
        """What `question` says of the tree. If it refuses, perhaps because the tree lags, asks once more."""
        tree = await self._follower.confirmed()
        try:
            return question(tree)
        except SextonError as e:
            if not e.fields.get("maybe_behind"):
                raise
        await self._follower.sync()
        return question(await self._follower.confirmed())

    async def revalidate(self, pointer: Pointer) -> Pointer:
        """The pointer, re-stamped. See `Context.revalidate`."""
        plain = pointer.model_copy(update={"accept_summary": False})
        _, stamped = await self.on_tree(lambda tree: check(plain, tree).granted())
        return stamped.model_copy(update={"accept_summary": pointer.accept_summary})

    async def mint(self, span_id: str, offset: int, length: int | None) -> Pointer:
        """A pointer to a span or to a part of it. See `Context.mint`."""
        level_of(span_id)
        whole = await self.on_tree(lambda tree: mint(tree, span_id))
        size = whole.length - offset if length is None else length
        check_range(whole.length, offset, size)
        if (offset, size) == (0, whole.length):
            return whole
        for _ in range(self._tries):
            key, data = await self.current(span_id)
            part = cut(data, offset, size)
            tree = self._follower.tree
            if current_key(tree, span_id) == key:
                return mint(tree, span_id, offset=offset, length=size, part=part)
        raise self._unsettled(span_id)

    async def current(self, span_id: str) -> tuple[ArtifactKey, bytes]:
        """The bytes of a span as it is now, and the key of what is made from them.

        Raises:
            Unreachable: unknown or gone.
            Unsettled: it changed as often as the bound allows.
        """
        for _ in range(self._tries):
            whole = await self.on_tree(lambda tree: mint(tree, span_id))
            try:
                resolved = await self.resolve(whole)
            except PointerResurrectionError:
                continue  # it has just changed; if it is gone, the next mint says so
            return ArtifactKey(span_id, whole.version, whole.content_hash), resolved.data
        raise self._unsettled(span_id)

    async def _bounded(self, pointer: Pointer, terms: Terms) -> Resolved:
        """From memory, within the staleness bound."""
        caught_up = False
        for _ in range(self._tries):
            verdict = self._check(pointer, await self._follower.confirmed(), terms)
            if verdict.error is not None:
                if caught_up or not verdict.maybe_behind:
                    raise verdict.error
                caught_up = True
                await self._follower.sync()
                continue
            if (kept := self._fetcher.kept(verdict)) is not None:
                return _served(verdict, kept)  # nothing can have happened since the check
            try:
                piece = await self._fetcher.part(verdict, budget_ms=terms.budget_ms)
            except PointerResurrectionError as refusal:
                # The service knows more than this tree, unless it has just been asked.
                if caught_up:
                    raise
                caught_up = True
                await self._learn_why(refusal)
                continue
            now = self._check(pointer, await self._follower.confirmed(), terms)
            if now.error is None and now.target == verdict.target:
                return _served(now, piece)
        raise self._unsettled(pointer.span_id)

    async def _latest(self, pointer: Pointer, terms: Terms) -> Resolved:
        """As of the head of the log: one round trip, and more only if that shows that this tree lags."""
        local = self._check(pointer, self._follower.tree, terms)
        if local.error is None and self._fetcher.kept(local) is not None:
            await self._follower.sync()
            return await self._bounded(pointer, terms)
        for _ in range(self._tries):
            self._follower.check_usable()
            request = FetchRequest(
                context_id=self._follower.context_id,
                pointer=pointer,
                latest=True,
                strict=terms.strict,
                accept_superseded=terms.accept_superseded,
                budget_ms=terms.budget_ms,
            )
            try:
                answer, data = await self._calls.fetch(request)
            except PointerResurrectionError as refusal:
                await self._learn_why(refusal)
                self._check(pointer, self._follower.tree, terms).granted()
                raise
            now = self._check(pointer, self._follower.tree, terms)
            if answer.pointer.epoch > self._follower.tree.epoch or now.maybe_behind:
                await self._follower.sync()
                now = self._check(pointer, self._follower.tree, terms)
            target, stamped = now.granted()
            given = answer.pointer
            if (given.span_id, given.version) == (target.span_id, target.version):
                whole = data if stamped.length == target.size_bytes else None
                resolved = _served(now, Piece(data, answer.tier, whole))
                if whole is not None:
                    self._fetcher.keep(target, whole)
                return resolved
        raise self._unsettled(pointer.span_id)

    async def _learn_why(self, refusal: PointerResurrectionError) -> None:
        """Catches up, so that the tree says what the service said. Without an answer its word stands."""
        try:
            await self._follower.sync()
        except TransientError:
            raise refusal from None

    @staticmethod
    def _check(pointer: Pointer, tree: ContextTree, terms: Terms) -> Verdict:
        return check(pointer, tree, strict=terms.strict, accept_superseded=terms.accept_superseded)

    @staticmethod
    def _unsettled(span_id: str) -> Unsettled:
        return Unsettled(f"{span_id} changed whenever its bytes were there", span_id=span_id)


def _served(verdict: Verdict, piece: Piece) -> Resolved:
    try:
        return Resolved(piece.data, accept(verdict, piece.data, piece.tier))
    except HashMismatch:
        if piece.whole is None:
            raise
        raise diagnose(verdict, piece.whole) from None


def _budget_ms(budget_s: float) -> int:
    """What the service may spend. Raises `InvalidInput` for what is no length of time."""
    if not math.isfinite(budget_s) or budget_s < 0:
        raise InvalidInput(f"budget_s is {budget_s}, must be a number of seconds", field="budget_s")
    return min(max(1, int(budget_s * 1000)), MAX_BUDGET_MS)
