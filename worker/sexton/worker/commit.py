"""Carries out one command: decide, store, compare-and-swap, project, confirm.

The order is what makes a crash harmless: bytes are in the cold store, and read back, before a record names
them; the record is the commit, and its broadcast; all that follows is idempotent and is done again when
the command is delivered again. `docs/protocol.md` has the table of crash points.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from sexton import tracing
from sexton.core.decide import (
    Blob,
    Commit,
    NeedsSummary,
    Settled,
    committed,
    decide,
    rejection,
    repeated,
    texts,
)
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, AnyOutcome
from sexton.schemas.errors import PayloadTooLarge, SextonError, Unavailable
from sexton.schemas.ids import level_of
from sexton.schemas.outcome import Committed, RejectionCode
from sexton.schemas.span import Identity, SpanState
from sexton.worker import metrics
from sexton.worker.contexts import Contexts, Known
from sexton.worker.holdings import Change, Held, Holdings
from sexton.worker.moments import clock, elapsed_s
from sexton.worker.ports import ColdStore, HotStore, Log, LostRaceError, RegistryUnavailable
from sexton.worker.texts import ClaimMissing, drop_claims, load_text, load_texts

log: Final = structlog.get_logger("sexton.commit")


@dataclass(frozen=True, slots=True)
class Done:
    """The command has an outcome."""

    outcome: AnyOutcome


@dataclass(frozen=True, slots=True)
class Deferred:
    """The command is a compaction in good order that needs a summary first."""

    need: NeedsSummary


class Committer:
    """Carries out commands against the ports."""

    def __init__(
        self,
        log_store: Log,
        cold: ColdStore,
        hot: HotStore,
        contexts: Contexts,
        holdings: Holdings,
        *,
        attempts: int,
        confirm_after_s: float,
    ) -> None:
        self._log = log_store
        self._cold = cold
        self._hot = hot
        self._contexts = contexts
        self._holdings = holdings
        self._attempts = attempts
        self._confirm_after_s = confirm_after_s

    async def carry_out(
        self, command: AnyCommand, digest: str, *, redelivered: bool = False
    ) -> Done | Deferred:
        """Brings a command to its outcome. Safe to call again, at any time, from anywhere.

        Args:
            command: what was asked for.
            digest: `body_digest` of its bytes.
            redelivered: another delivery of it may have come half-way.

        Raises:
            Unavailable: a store or the log did not answer, or too many races were lost; try again later.
        """
        began = clock()

        def unsure() -> bool:
            """Whether the bytes may have been swept as an orphan's, before their name was committed."""
            return redelivered or elapsed_s(began, clock()) > self._confirm_after_s

        known = await self._contexts.get(command.context_id)
        before = repeated(known.tree, command, digest)
        if before is not None:
            if redelivered and isinstance(before, Committed):
                await self._confirm_repeat(known.tree, command, before)
            return Done(before)
        try:
            contents = await load_texts(self._cold, command)
        except (ClaimMissing, PayloadTooLarge) as e:
            code = RejectionCode.CLAIM_MISSING if isinstance(e, ClaimMissing) else RejectionCode.TOO_LARGE
            return await self._refused(known, command, digest, code, e.message, unsure=unsure)
        change = self._holdings.change(command)
        try:
            return await self._decide_and_commit(known, command, digest, contents, change, unsure=unsure)
        except RegistryUnavailable as e:
            change.over()
            code = RejectionCode.REGISTRY_UNAVAILABLE
            return await self._refused(known, command, digest, code, e.message, unsure=unsure)
        except SextonError:
            change.over()
            raise

    async def _decide_and_commit(
        self,
        known: Known,
        command: AnyCommand,
        digest: str,
        contents: list[bytes],
        change: Change,
        *,
        unsure: Callable[[], bool],
    ) -> Done | Deferred:
        """Decides and tries to commit, again and again while races are lost."""
        stored = set[_Key]()
        for attempt in range(self._attempts):
            with tracing.step("sexton.decide", attempt=attempt + 1):
                held = await _held(change, known, attempt)
                decision = decide(known.tree, command, digest, contents, held.pins, pins_whole=held.whole)
            match decision:
                case Settled(outcome):
                    # A tree that lags may refuse what the head would take, or know of no repeat.
                    if attempt == 0 and not isinstance(outcome, Committed):
                        lagged, known = known, await self._contexts.refresh(command.context_id)
                        if lagged.sequence != known.sequence:
                            continue
                    change.over(known)
                    if isinstance(outcome, Committed):
                        # Ours, by a try whose answer was lost.
                        if unsure():
                            await self._confirm_repeat(known.tree, command, outcome)
                        await self._drop_claims(command)
                    return Done(outcome)
                case NeedsSummary():
                    change.over(known)
                    return Deferred(decision)
                case Commit():
                    with tracing.step(
                        "sexton.commit", attempt=attempt + 1, revision=decision.record.revision
                    ):
                        done = await self._commit(known, command, decision, change, stored)
                    if done is not None:
                        change.over()
                        if unsure():
                            await self._confirm(command.context_id, decision.blobs)
                        await self._drop_claims(command)
                        return done
            known = await self._contexts.refresh(command.context_id)
        raise Unavailable(f"lost {self._attempts} races for a commit", context_id=command.context_id)

    async def _commit(
        self, known: Known, command: AnyCommand, decision: Commit, change: Change, stored: "set[_Key]"
    ) -> Done | None:
        """One try. None if it must be decided again: the race was lost, or may have been, or storing the
        bytes (those that are not among `stored`) has taken so long that pins must be read again.
        """
        missing = [blob for blob in decision.blobs if _key(blob) not in stored]
        await self._store(command.context_id, missing)
        stored.update(map(_key, missing))
        record = decision.record
        data = record.wire()
        if not change.is_fresh:
            log.info("commit.reads_pins_again", revision=record.revision)
            return None
        change.sending(known)
        try:
            with tracing.send_step("sexton.publish", _LOG, size_bytes=len(data)):
                sequence = await self._log.append(command.context_id, data, known.sequence)
        except LostRaceError:
            metrics.CONFLICTS.inc()
            log.info("commit.lost_race", revision=record.revision)
            return None
        except PayloadTooLarge as e:
            change.stored()
            return Done(rejection(known.tree, command, RejectionCode.TOO_LARGE, e.message))
        change.stored()
        with tracing.step("sexton.project"):
            known = self._contexts.committed(known, record, data, sequence)
            await self._hot.put(command.context_id, decision.blobs)
        log.info("commit.done", kind=record.kind.value, revision=record.revision, epoch=record.epoch)
        events = known.tree.events
        assert events is not None  # noqa: S101 - a worker's trees have events
        return Done(committed(command.context_id, command.event_id, events[command.event_id]))

    async def _store(self, context_id: str, blobs: Sequence[Blob]) -> None:
        if not blobs:
            return
        with tracing.step("sexton.cold.write", blobs=len(blobs), size_bytes=sum(len(b.data) for b in blobs)):
            await self._write(context_id, blobs)

    async def _write(self, context_id: str, blobs: Sequence[Blob]) -> None:
        for start in range(0, len(blobs), _PARALLEL_WRITES):
            batch = blobs[start : start + _PARALLEL_WRITES]
            # Not a TaskGroup: it takes a write that was cancelled from within for one that was made.
            results = await asyncio.gather(
                *(self._cold.write(context_id, blob) for blob in batch), return_exceptions=True
            )
            for error in results:
                if error is not None:
                    raise error

    async def _confirm(self, context_id: str, blobs: Sequence[Blob]) -> None:
        """Makes sure that a committed command's bytes are there, and puts them again if they are not.

        A worker that was paused long enough can commit a name whose bytes were swept as an orphan's in
        the meantime. The command still has the bytes.
        """
        missing = [b for b in blobs if await self._cold.size_bytes(context_id, _identity(b)) != len(b.data)]
        if missing:
            log.warning("commit.bytes_put_again", blobs=len(missing))
            await self._store(context_id, missing)

    async def _confirm_repeat(self, tree: ContextTree, command: AnyCommand, outcome: Committed) -> None:
        """`_confirm` for a command that an earlier delivery committed, as far as its versions are kept."""
        for span, text in zip(outcome.spans, texts(command), strict=False):
            identity = _kept(tree, span.span_id, span.version)
            if identity is None:
                continue
            if await self._cold.size_bytes(command.context_id, identity) == identity.size_bytes:
                # The rule, and then the claim's chunks are mostly gone: the commit drops its own at its end.
                continue
            try:
                data = await load_text(self._cold, command.context_id, text)
            except ClaimMissing:
                # Nobody else has them. The first reader gets `LeafLost`, and that pages.
                log.exception("commit.bytes_gone", span_id=span.span_id, version=span.version)
                continue
            await self._confirm(
                command.context_id, [Blob(span.span_id, span.version, identity.content_hash, data)]
            )

    async def _refused(
        self,
        known: Known,
        command: AnyCommand,
        digest: str,
        code: RejectionCode,
        message: str,
        *,
        unsure: Callable[[], bool],
    ) -> Done:
        """The rejection of a command that could not be decided, unless the head knows it as committed.

        A tree that lags may not know it yet. And claims are dropped by the commit: one that is missing may
        belong to a commit unknown here.
        """
        known = await self._contexts.refresh(command.context_id)
        before = repeated(known.tree, command, digest)
        if before is None:
            return Done(rejection(known.tree, command, code, message))
        if unsure() and isinstance(before, Committed):
            await self._confirm_repeat(known.tree, command, before)
        return Done(before)

    async def _drop_claims(self, command: AnyCommand) -> None:
        try:
            await drop_claims(self._cold, command)
        except Unavailable as e:
            # Left for the sweep of orphans; the commit stands.
            log.warning("commit.claims_left", reason=e.message)


_Key = tuple[str, int, str]
"""Of a version's bytes."""

_PARALLEL_WRITES: Final = 16
_LOG: Final = "sexton.log.{context_id}"


def _key(blob: Blob) -> _Key:
    return blob.span_id, blob.version, blob.content_hash


async def _held(change: Change, known: Known, attempt: int) -> Held:
    """What is held of what a command touches.

    Raises:
        RegistryUnavailable: that is unknown, and the command can be refused for it.
        Unavailable: that is unknown, after a try whose record may be on its way: it must be looked for.
    """
    try:
        return await change.read(known)
    except RegistryUnavailable as e:
        if attempt:
            raise Unavailable(e.message, **e.fields) from e
        raise


def _identity(blob: Blob) -> Identity:
    return Identity(
        span_id=blob.span_id,
        version=blob.version,
        level=level_of(blob.span_id),
        content_hash=blob.content_hash,
        size_bytes=len(blob.data),
    )


def _kept(tree: ContextTree, span_id: str, version: int) -> Identity | None:
    """A version whose bytes must be there; None for one that is condemned or collected."""
    stone = tree.tombstones.get((span_id, version))
    if stone is not None:
        return None if stone.state is SpanState.CONDEMNED else stone.identity
    node = tree.nodes.get(span_id)
    if node is None or node.version != version or node.state in (SpanState.CONDEMNED, SpanState.COLLECTED):
        return None
    return node.identity
