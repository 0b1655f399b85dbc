"""Collections that do not come to their end: announced or condemned, and still there after too long.

A tombstone does not say since when it is in its state, and the log has no clock. So a worker counts from the
sweep that first saw it so. Which worker sweeps a context changes; each keeps its own count, and one that has
just started begins anew: a stuck collection is noticed late rather than never.
"""

from collections.abc import Callable
from typing import Final

import structlog

from sexton.core.collection import Version
from sexton.core.tree import ContextTree
from sexton.schemas.errors import SextonError
from sexton.schemas.failure import FailureReason
from sexton.schemas.span import Identity, SpanState
from sexton.worker.contexts import Contexts
from sexton.worker.failures import Failures

log: Final = structlog.get_logger("sexton.stuck")

_UNDER_WAY: Final = frozenset({SpanState.COLLECTING, SpanState.CONDEMNED})
_STUCK: Final = frozenset({FailureReason.STUCK})
_COMPONENT: Final = "worker.sweeper"


class StuckWatch:
    """Looks at a context after each of its sweeps."""

    def __init__(
        self, contexts: Contexts, failures: Failures, *, after_s: float, clock: Callable[[], float]
    ) -> None:
        self._contexts = contexts
        self._failures = failures
        self._after_s = after_s
        self._clock = clock
        self._since: dict[str, dict[Version, float]] = {}

    async def look(self, context_id: str) -> None:
        """Reports what has been under way for too long, and what no longer is. Does not raise."""
        try:
            known = await self._contexts.get(context_id)
        except SextonError as e:
            log.info("stuck.not_looked", context_id=context_id, reason=e.code)
            return
        self._judge(known.tree)

    def _judge(self, tree: ContextTree) -> None:
        now = self._clock()
        under_way = {
            version: stone.identity for version, stone in tree.tombstones.items() if stone.state in _UNDER_WAY
        }
        before = self._since.pop(tree.context_id, {})
        if under_way:
            self._since[tree.context_id] = {version: before.get(version, now) for version in under_way}
        for version, identity in under_way.items():
            self._report(tree.context_id, identity, now - self._since[tree.context_id][version])
        for version, reasons in self._failures.open(tree.context_id).items():
            if version not in under_way and FailureReason.STUCK in reasons:
                self._failures.over(tree.context_id, version, _STUCK, component=_COMPONENT)

    def _report(self, context_id: str, identity: Identity, for_s: float) -> None:
        if for_s < self._after_s:
            return
        log.error(
            "stuck.collection",
            context_id=context_id,
            span_id=identity.span_id,
            version=identity.version,
            for_s=round(for_s),
        )
        self._failures.observed(context_id, identity, FailureReason.STUCK, component=_COMPONENT)
