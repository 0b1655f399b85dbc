"""Follows a context: subscribe first, then sync, then serve.

Correctness never rests on the broadcast. The head is asked for when a bump is missing, on a jittered timer,
after every reconnect, and whenever something is to be served and the last confirmation is too old. That
last check is made at the moment of use and not by a timer, so that a process that was stopped for an hour
does not serve on waking.

A confirmation counts from the moment the question was sent: the answer says what the head was no earlier
than that, and nothing about later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from sexton import tracing
from sexton.core.lease import NEVER
from sexton.core.snapshot import Restoration
from sexton.core.tree import ContextTree
from sexton.holder.calls import Calls
from sexton.holder.clock import backoff, spread, until
from sexton.holder.errors import HolderClosed
from sexton.holder.flight import SingleFlight
from sexton.holder.ports import ConnectionEvent, Subscription
from sexton.holder.replica import Heard, Replica
from sexton.holder.runtime import Runtime
from sexton.holder.spans import Causes
from sexton.holder.tasks import Tasks
from sexton.schemas.codec import AnyRecord
from sexton.schemas.errors import (
    LineageError,
    MalformedMessage,
    PeerError,
    PermissionRefused,
    SextonError,
    TransientError,
    Unavailable,
    Unconfirmed,
    UnsupportedSchema,
)
from sexton.schemas.rpc import Head, SyncPart


class Follower:
    """Keeps one context's tree, and knows how well."""

    def __init__(self, context_id: str, runtime: Runtime, calls: Calls) -> None:
        self.context_id = context_id
        self.calls = calls
        self.causes = Causes()
        """Whose doing the latest records were."""
        self._transport = runtime.transport
        self._clock = runtime.clock
        self._settings = settings = runtime.settings
        self._log = runtime.log.bind(context_id=context_id)
        self._replica = Replica(
            context_id,
            early_records=settings.gap_buffer_records,
            recent_spans=settings.recent_spans,
        )
        self._flight = SingleFlight()
        self._tasks = Tasks(self._log)
        self._subscription: Subscription | None = None
        self._wake = asyncio.Event()
        self._changed = asyncio.Event()
        self._confirmed_at: float | None = None
        self._not_before = NEVER
        """Confirmations from before this do not count: then there was no lease."""
        self._floor = 0
        """Nothing is served below this revision: an own command was committed there."""
        self.before_serving: Callable[[], Awaitable[None]] | None = None
        """Called before anything is served: makes sure of the lease that pins are under."""
        self._failure: BaseException | None = None
        self._refusal: PermissionRefused | None = None
        """Why following came to an end for the time being. It is tried again on the timer."""
        self._closed = False

    # --- what is known ---

    @property
    def tree(self) -> ContextTree:
        """The context as known here. Ask `confirmed` before serving from it."""
        return self._replica.tree

    @property
    def lineage(self) -> int:
        """Counts the times that another history took the place of the one followed."""
        return self._replica.lineage

    @property
    def confirmed_age_s(self) -> float:
        """Seconds since the question was sent whose answer last confirmed the head; infinite before it."""
        return float("inf") if self._confirmed_at is None else self._clock.monotonic() - self._confirmed_at

    def recent(self, revision: int) -> AnyRecord | None:
        """The record of a revision, if it is among the latest."""
        return self._replica.recent.at(revision)

    # --- life ---

    @property
    def closed(self) -> bool:
        """Whether it was stopped."""
        return self._closed

    async def start(self) -> None:
        """Subscribes, syncs, and keeps on following. Raises `TransientError` or `PeerError` if it cannot."""
        try:
            self._subscription = await self._subscribe()
            await self.sync()
        except BaseException:
            await self.stop()
            raise
        self._replica.announced = self.tree.revision
        self._tasks.start(self._keep_up(), f"follow {self.context_id}", self._on_failure)
        self._log.info("holder.following", revision=self.tree.revision, epoch=self.tree.epoch)

    async def stop(self) -> None:
        """Ends all. May be called again."""
        self._closed = True
        self._notify()
        try:
            await self._tasks.close()
        finally:
            subscription, self._subscription = self._subscription, None
            if subscription is not None:
                await subscription.close()

    def on_event(self, event: ConnectionEvent) -> None:
        """Takes notice of what the transport says of itself."""
        if event is not ConnectionEvent.DISCONNECTED:
            self._wake.set()
        if event is ConnectionEvent.REFUSED:
            self._notify()

    # --- asking ---

    async def sync(self, *, fresh: bool = True) -> None:
        """Catches up with the head of the log.

        Args:
            fresh: what was committed before this call must be seen; else an answer on its way will do.

        Raises:
            TransientError: no answer.
            PeerError: an answer that cannot be used.
        """
        self.check_usable()
        await self._flight.run(self._synchronise, fresh=fresh)

    def heard_head(self, head: Head, sent_at: float, *, anew: bool) -> None:
        """Takes in where the log was when a heartbeat, sent at `sent_at`, was answered.

        With `anew` that heartbeat began a lease. Before it nothing was proven to be kept, so what was heard
        of the head before it counts no more.
        """
        if anew:
            self._not_before = sent_at
        known = self._replica.chain_at(head.revision)
        if known != head.chain:
            self._wake.set()
        elif head.revision == self.tree.revision:  # behind this tree: bumps were faster, and it says nothing
            self._confirmed_at = max(self._confirmed_at or sent_at, sent_at)

    async def confirmed(self) -> ContextTree:
        """The tree, fit to be served from: within the staleness bound, and not before an own command.

        Raises:
            Unconfirmed: the head was not confirmed within the bound, and asking for it did not help; or pins
                are in use and the lease they are under could not be renewed.
            PeerError: the log cannot be followed.
            Fenced: another process has taken this holder's place.
            PermissionRefused: this context may not be followed any more.
        """
        self.check_usable()
        self._check_permitted()
        for last in (False, False, True):
            # Again after each question: the process may have been stopped while it waited for the answer.
            if self.before_serving is not None:
                await self.before_serving()
            if self._servable():
                return self.tree
            if not last:
                try:
                    await self.sync()
                except TransientError as e:
                    raise self._unconfirmed(str(e)) from e
        raise self._unconfirmed("the answer took longer than that")

    async def reach(self, revision: int) -> None:
        """Waits until the tree holds `revision`, by bump or by asking. Does not raise if it cannot be had
        now: then nothing is served before it is.
        """
        self._floor = max(self._floor, revision)
        try:
            try:
                async with self._clock.timeout(self._settings.read_your_writes_s):
                    await self.until(lambda: self.tree.revision >= revision)
            except TimeoutError:
                await self.sync()
        except SextonError as e:
            self._log.warning("holder.behind_own_command", revision=revision, reason=str(e))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Waits until `holds`, looking whenever the tree has changed. Raises if the following has ended."""

        def looked() -> bool:
            self.check_usable()
            self._check_permitted()
            return holds()

        await until(lambda: self._changed, looked)

    def check_usable(self) -> None:
        """Raises `HolderClosed`, or what the following ended with."""
        if self._failure is not None:
            raise PeerError(
                f"following {self.context_id} has failed: {type(self._failure).__name__}"
            ) from self._failure
        if self._closed:
            raise HolderClosed(f"{self.context_id} is closed in this holder")

    # --- inside ---

    def _check_permitted(self) -> None:
        """Nothing is served by who may not follow, however fresh it is."""
        found = None if self._subscription is None else self._subscription.refused
        found = found or self._refusal
        if found is not None:
            raise PermissionRefused(found.message, **found.fields)

    def _servable(self) -> bool:
        return (
            self._confirmed_at is not None
            and self._confirmed_at >= self._not_before
            and self.confirmed_age_s <= self._settings.staleness_bound_s
            and self.tree.revision >= self._floor
        )

    def _unconfirmed(self, why: str) -> Unconfirmed:
        return Unconfirmed(
            f"the head of {self.context_id} was not confirmed within {self._settings.staleness_bound_s:g} s: "
            f"{why}",
            context_id=self.context_id,
            age_s=self.confirmed_age_s,
            bound_s=self._settings.staleness_bound_s,
        )

    async def _synchronise(self) -> None:
        try:
            await self._ask()
        except (LineageError, UnsupportedSchema) as e:
            self._log.warning("holder.starting_over", reason=str(e))
            await self._ask()

    async def _ask(self) -> None:
        old_revision, lineage, floor = self.tree.revision, self.lineage, self._floor
        request, waited = self._replica.request(), self._replica.waiting()
        sent_at = self._clock.monotonic()
        parts = await self.calls.sync(request)
        snapshot = await _restored(parts)
        try:
            self._replica.answered(request, parts, waited, snapshot)
        finally:
            self._notify()
        self._confirmed_at = sent_at
        if self._floor == floor:  # the question was sent after that command, so the log has no such revision
            self._floor = min(floor, self.tree.revision)
        if self.lineage != lineage:
            self._log.error(
                "holder.lineage_changed",
                old_revision=old_revision,
                revision=self.tree.revision,
                lineage=self.lineage,
            )

    def _on_bump(self, data: bytes) -> None:
        before = self.tree
        try:
            heard = self._replica.heard(data)
        except MalformedMessage as e:
            self._log.error("holder.malformed_bump", size_bytes=len(data), reason=str(e))
            tracing.current().set(heard="malformed")
            return
        tracing.current().set(context_id=self.context_id, heard=heard.value, revision=self.tree.revision)
        if heard is Heard.APPLIED:
            self.causes.note(self.recent(before.revision + 1), tracing.cause())
        if self.tree is not before:
            self._notify()
        if heard not in (Heard.APPLIED, Heard.KNOWN):
            self._log.info("holder.bump_out_of_line", heard=heard.value, revision=self.tree.revision)
            self._wake.set()

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _on_failure(self, error: BaseException) -> None:
        self._failure = error
        self._notify()

    async def _keep_up(self) -> None:
        failures = 0
        expected = self.tree.revision
        while True:
            woken = await self._woken()
            if not woken:
                await self._check_broadcast(expected)
            try:
                await self._subscribe_if_refused()
                await self.sync(fresh=True)
            except (TransientError, PeerError, PermissionRefused) as e:
                if isinstance(e, PermissionRefused):
                    self._refusal = e
                    self._notify()
                self._log.warning("holder.sync_failed", failures=failures + 1, reason=str(e))
                await self._clock.sleep(
                    backoff(failures, self._settings.backoff_s, self._settings.sync_interval_s)
                )
                failures += 1
                self._wake.set()
                continue
            failures, self._refusal = 0, None
            if not self._replica.complete:
                self._wake.set()
            if not woken:
                expected = self.tree.revision

    async def _woken(self) -> bool:
        """Waits for a reason to ask. False if it was only time again."""
        try:
            async with self._clock.timeout(
                spread(self._settings.sync_interval_s, self._settings.sync_jitter)
            ):
                await self._wake.wait()
        except TimeoutError:
            return False
        self._wake.clear()
        return True

    async def _subscribe_if_refused(self) -> None:
        """Tries once more, if the permission was taken away. Raises `PermissionRefused` if it still is."""
        if self._subscription is None or self._subscription.refused is None:
            return
        old, self._subscription = self._subscription, await self._subscribe()
        await old.close()

    async def _check_broadcast(self, expected: int) -> None:
        """Subscribes anew if a whole interval has passed and no bump told of what was known before it.

        Whatever the reason (a server that lost the interest, a permission that was taken away), this says so.
        """
        announced = self._replica.announced
        if announced >= expected:
            return
        self._log.warning("holder.bumps_missing", revision=expected, announced_revision=announced)
        try:
            fresh = await self._subscribe()
        except (TransientError, PermissionRefused) as e:
            self._log.warning("holder.resubscribe_failed", reason=str(e))
            return
        old, self._subscription = self._subscription, fresh
        self._replica.announced = max(announced, expected)
        if old is not None:
            await old.close()

    async def _subscribe(self) -> Subscription:
        try:
            async with self._clock.timeout(self._settings.rpc_timeout_s):
                await self._transport.ready()
                return await self._transport.follow(self.context_id, self._on_bump)
        except TimeoutError:
            raise Unavailable(f"no subscription to {self.context_id} within the time-out") from None


async def _restored(parts: Sequence[SyncPart]) -> ContextTree | None:
    """The tree of a snapshot, if the answer is one. A piece at a time: a long context takes a while.

    Raises:
        MalformedMessage: the pieces do not fit together.
    """
    restoration, pieces = Restoration(), [part.snapshot for part in parts if part.snapshot is not None]
    for piece in pieces:
        restoration.add(piece)
        await asyncio.sleep(0)
    return restoration.tree() if pieces else None
