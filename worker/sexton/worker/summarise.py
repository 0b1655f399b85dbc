"""The summarise stage: compactions that came without a summary, one model call each, in no order.

Nothing here commits. The stage reads the sources, calls the summariser, and sends the compaction again,
now with a summary and with the versions it was made from. If a source changed meanwhile, the commit says
`stale_source`. Running one twice costs a model call and nothing else.
"""

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import structlog
from purgatory import AsyncCircuitBreakerFactory
from purgatory.domain.model import OpenedState

from sexton import tracing
from sexton.core.decide import NeedsSummary, Settled, decide, rejection
from sexton.core.text import is_blank
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyOutcome
from sexton.schemas.commands import Compact, SourceRef
from sexton.schemas.errors import HardFailure, TransientError, Unavailable
from sexton.schemas.limits import INLINE_BYTES
from sexton.schemas.outcome import RejectionCode
from sexton.schemas.span import Text
from sexton.worker import metrics
from sexton.worker.contexts import Contexts
from sexton.worker.fetch import Fetcher
from sexton.worker.ports import Summariser

log: Final = structlog.get_logger("sexton.summarise")

_CIRCUIT: Final = "summariser"
_COUNTED: Final = 10_000
"""Compactions whose failed calls are kept in mind; the ones that failed longest ago are forgotten first."""


class SummariserDown(TransientError):
    """The summariser failed, or is left alone after too many failures in a row."""

    code = "summariser_down"


class SummariserLeftAloneError(SummariserDown):
    """It was not even called."""


@dataclass(frozen=True, slots=True)
class Summarised:
    """Send this compaction in the place of the one that lacked a summary."""

    command: Compact


class SummariseStage:
    """Turns compactions without a summary into compactions with one."""

    def __init__(
        self,
        contexts: Contexts,
        fetcher: Fetcher,
        summariser: Summariser,
        *,
        timeout_s: float,
        attempts: int,
        breaker_failures: int,
        breaker_reset_s: float,
    ) -> None:
        self._contexts = contexts
        self._fetcher = fetcher
        self._summariser = summariser
        self._timeout_s = timeout_s
        self._attempts = attempts
        self._failed: OrderedDict[tuple[str, str], int] = OrderedDict()
        """Calls that failed in this process, by compaction. A delivery counts none: it may have come to no
        call, because a store was away or the summariser was left alone."""
        self._breakers = AsyncCircuitBreakerFactory(breaker_failures, breaker_reset_s)

    async def run(self, command: Compact, digest: str) -> Summarised | AnyOutcome:
        """The compaction with its summary, or the outcome if there is nothing to summarise (any more).

        Args:
            command: the compaction as it was sent.
            digest: `body_digest` of its bytes.

        Raises:
            SummariserDown: the call failed and may be tried again.
            Unavailable: a store did not answer.
        """
        known = await self._contexts.refresh(command.context_id)
        decision = decide(known.tree, command, digest)
        if not isinstance(decision, NeedsSummary):
            assert isinstance(decision, Settled)  # noqa: S101 - without a summary nothing is committed
            return decision.outcome
        try:
            summary = await self._summary(known.tree, decision)
        except SummariserLeftAloneError:
            raise
        except SummariserDown as e:
            if self._count(command) < self._attempts:
                raise
            self._forget(command)
            return rejection(known.tree, command, RejectionCode.SUMMARY_FAILED, e.message)
        except HardFailure as e:
            message = f"a source's bytes are {e.code}: {e.message}"
            return rejection(known.tree, command, RejectionCode.SUMMARY_FAILED, message, decision.sources[:1])
        self._forget(command)
        if is_blank(summary.encode()):
            return rejection(known.tree, command, RejectionCode.EMPTY_SUMMARY, "the summariser wrote nothing")
        if len(summary.encode()) > INLINE_BYTES:
            return rejection(
                known.tree, command, RejectionCode.TOO_LARGE, f"the summary has over {INLINE_BYTES} bytes"
            )
        sources = tuple(SourceRef(span_id=n.span_id, version=n.version) for n in decision.sources)
        return Summarised(
            command.model_copy(
                update={"sources": sources, "summary": Text(content=summary), "requested_digest": digest}
            )
        )

    def _count(self, command: Compact) -> int:
        """One more failed call for a compaction; gives how many there are."""
        key = command.context_id, command.event_id
        self._failed[key] = count = self._failed.pop(key, 0) + 1
        while len(self._failed) > _COUNTED:
            self._failed.popitem(last=False)
        return count

    def _forget(self, command: Compact) -> None:
        self._failed.pop((command.context_id, command.event_id), None)

    async def _summary(self, tree: ContextTree, need: NeedsSummary) -> str:
        sources = [(await self._fetcher.whole(tree, node.identity)).decode() for node in need.sources]
        size_bytes = sum(node.size_bytes for node in need.sources)
        breaker = await self._breakers.get_breaker(_CIRCUIT)
        try:
            with tracing.step("sexton.summariser", sources=len(sources), size_bytes=size_bytes):
                async with breaker, asyncio.timeout(self._timeout_s):
                    summary = await self._summariser(sources, need.level, size_bytes)
        except OpenedState:
            raise SummariserLeftAloneError(
                "the summariser failed too often and is left alone for a while"
            ) from None
        except TimeoutError:
            raise SummariserDown(f"no summary within {self._timeout_s} s") from None
        except Unavailable:
            raise
        except Exception as e:
            metrics.SUMMARISE_FAILURES.inc()
            log.warning("summarise.failed", error=type(e).__name__, sources=len(sources))
            raise SummariserDown(f"the summariser failed: {type(e).__name__}") from e
        try:
            summary.encode()
        except UnicodeEncodeError:
            raise SummariserDown("the summary holds a lone surrogate") from None
        return summary
