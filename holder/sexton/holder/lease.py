"""The lease of one holder on one context, and the pins under it.

What is claimed and proven is `sexton.core.lease.PinBook`'s; this module sends what it says, one operation
at a time, keeps the lease alive, and counts the users of each pin. A lease is begun when the context is
opened and given up when it is closed; a process that is killed falls out with it.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, Protocol

from sexton.core.collection import Version
from sexton.core.lease import NEVER, PinBook
from sexton.core.pins import highest
from sexton.holder.calls import Calls
from sexton.holder.errors import HolderClosed
from sexton.holder.runtime import Runtime
from sexton.holder.tasks import Tasks
from sexton.schemas.errors import (
    CallerError,
    Fenced,
    InvalidInput,
    LeaseLost,
    PeerError,
    PinRefused,
    TooManyPins,
    TransientError,
    Unconfirmed,
)
from sexton.schemas.leases import MAX_PINS, MIN_TTL_MS, LeaseReply, Pin, PinCost, RefusedPin
from sexton.schemas.rpc import Head
from sexton.schemas.span import SpanState


class HeadHandler(Protocol):
    """Who wants to know where the log is."""

    def __call__(self, head: Head, sent_at: float, *, anew: bool) -> None:
        """Takes in the head that a heartbeat brought, sent at `sent_at`; with `anew` it began a lease."""


_BEATS_PER_LEASE: Final = 3
_TAKEOVERS: Final = 3


class Held:
    """One use of a pin. Ends with `LeaseKeeper.release`."""

    def __init__(self, version: Version, cost: PinCost) -> None:
        self.version = version
        self.cost = cost
        self.lost: RefusedPin | None = None
        """Set when the service refused it later: the version can no longer be held."""
        self.superseded = False
        """Whether the version was not current any more when the service granted it."""


class LeaseKeeper:
    """Keeps a lease, and the pins that are in use."""

    def __init__(self, context_id: str, runtime: Runtime, calls: Calls, *, on_head: HeadHandler) -> None:
        self._book = PinBook(
            context_id, runtime.holder_id, runtime.incarnation, int(runtime.settings.lease_ttl_s * 1000)
        )
        self._calls = calls
        self._clock = runtime.clock
        self._interval_s = runtime.settings.lease_ttl_s / _BEATS_PER_LEASE
        self._log = runtime.log.bind(context_id=context_id)
        self._on_head = on_head
        self._uses: dict[Version, list[Held]] = {}
        self._operations = asyncio.Lock()
        """One operation on pins at a time. A heartbeat waits too: beside a pin that is under way it would
        claim what the registry cannot know yet, and renew nothing."""
        self._due_at = NEVER
        """When the next heartbeat is to be sent."""
        self._wake = asyncio.Event()
        self._tasks = Tasks(self._log)
        self._said = False
        """Whether a heartbeat of this process was ever sent: the registry may have a lease of ours."""
        self._heard = False
        """Whether the registry has ever taken a heartbeat of this process."""
        self._closed = False

    # --- life ---

    def start(self) -> None:
        """Begins to keep the lease, in the background."""
        self._tasks.start(self._keep(), f"lease {self._book.context_id}", lambda _: None)

    async def stop(self) -> None:
        """Gives up the lease and all pins, if the service can be reached. Does not raise."""
        self._closed = True
        await self._tasks.close()
        self._uses.clear()
        if not self._said or self._book.fenced_by is not None:
            return
        try:
            await self._calls.heartbeat(self._book.leave(), tries=1)
        except (TransientError, PeerError, CallerError) as e:
            self._log.info("holder.lease_left_to_expire", reason=str(e))

    # --- pins ---

    async def acquire(self, version: Version, cost: PinCost) -> Held:
        """Pins a version; returns when the pin is proven.

        Raises:
            PinRefused: the version is unknown, being collected, or gone.
            Fenced: another process of this holder's id has taken its place.
            TooManyPins: over what one holder may pin.
            HolderClosed: the lease was given up.
            TransientError: no answer; nothing is pinned.
        """
        async with self._operations:
            self._check_open()
            self._check_fenced()
            await self._beat_if_due()
            held = Held(version, cost)
            users = self._uses.setdefault(version, [])
            if not users and len(self._uses) > MAX_PINS:
                del self._uses[version]
                raise TooManyPins(f"a holder pins at most {MAX_PINS} versions of a context", limit=MAX_PINS)
            before = highest(user.cost for user in users)
            users.append(held)
            try:
                if before is None or highest((before, cost)) is not before:
                    await self._ask([self._pin(version)])
                await self._prove([version])
                self._check_open()
                _check_granted(held)
            except BaseException:
                self._withdraw(held)
                raise
            return held

    async def release(self, held: Held) -> None:
        """Ends one use of a pin; the last one lets go of it. Does not raise: what is not said expires."""
        try:
            async with self._operations:
                try:
                    await self._beat_if_due()
                    if held not in self._uses.get(held.version, ()):
                        return
                    cheaper = self._forget(held)
                    if held.version not in self._uses:
                        await self._let_go([held.version])
                    elif cheaper:
                        await self._ask([self._pin(held.version)])
                except (TransientError, PeerError, CallerError) as e:
                    self._log.info("holder.release_unheard", reason=str(e))
        finally:
            # Cancelled before its turn came, or without an answer: nobody would let go of it any more.
            self._withdraw(held)

    def is_proven(self, held: Held) -> bool:
        """Whether the pin is good at this moment, and this use of it has not ended."""
        in_use = held in self._uses.get(held.version, ())
        now = self._clock.monotonic()
        return in_use and held.lost is None and self._book.is_proven(held.version, now, held.cost)

    async def prove(self) -> None:
        """Makes sure that the lease is good before anything is served under it.

        Costs nothing while it is. A holder whose lease has run out, for whatever reason, registers again and
        announces its pins here; those that are refused are lost, and say so.

        Raises:
            Fenced: another process has taken this holder's place.
            Unconfirmed: the lease could not be renewed.
        """
        if not self._uses:
            return
        self._check_fenced()
        if self._book.is_good(self._clock.monotonic()):
            return
        async with self._operations:
            try:
                await self._prove(list(self._uses))
            except TransientError as e:
                raise Unconfirmed(
                    f"the lease on {self._book.context_id} has run out and could not be renewed: {e}",
                    context_id=self._book.context_id,
                ) from e

    # --- inside: all of it runs under the lock ---

    async def _prove(self, versions: Sequence[Version]) -> None:
        """Heartbeats until nothing of `versions` is unproven: granted, or lost."""
        for _ in range(_TAKEOVERS):
            if self._all_proven(versions):
                return
            self._book.on_no_answer()
            await self._beat()
        if not self._all_proven(versions):
            raise Unconfirmed("the registry does not confirm the pins", context_id=self._book.context_id)

    def _all_proven(self, versions: Sequence[Version]) -> bool:
        now = self._clock.monotonic()
        return self._book.is_good(now) and set(self._book.unproven(now)).isdisjoint(versions)

    async def _ask(self, pins: Sequence[Pin]) -> None:
        request = self._book.ask(pins)
        try:
            reply = await self._calls.pin(request)
        except LeaseLost:
            self._book.on_lease_lost()
            return
        except Fenced as e:
            self._on_fenced(e)
            return
        except BaseException:
            self._book.on_no_answer()
            self._wake.set()
            raise
        self._take_in(reply, self._book.on_pins(reply))

    async def _let_go(self, versions: Sequence[Version]) -> None:
        request = self._book.let_go(versions)
        if request is None:
            return
        try:
            reply = await self._calls.release(request)
        except LeaseLost:
            self._book.on_lease_lost()
            self._wake.set()
            return
        except BaseException:
            self._book.on_no_answer()
            self._wake.set()
            raise
        self._take_in(reply, self._book.on_pins(reply))

    async def _beat_if_due(self) -> None:
        """Before every operation: a long line of them must not keep the lease from being renewed."""
        if self._book.must_beat or self._clock.monotonic() >= self._due_at:
            await self._beat()

    async def _beat(self) -> None:
        """One heartbeat, registering and announcing if it must."""
        for _ in range(_TAKEOVERS):
            self._check_open()
            sent_at = self._clock.monotonic()
            request = self._book.heartbeat(sent_at)
            self._said = True
            try:
                reply = await self._calls.heartbeat(request)
            except LeaseLost:
                self._log.warning("holder.lease_lost")
                self._book.on_lease_lost()
                continue
            except Fenced as e:
                self._on_fenced(e)
                continue
            except InvalidInput as e:
                if not self._shortened(e):
                    raise
                continue
            self._heard = True
            self._take_in(reply, self._book.on_heartbeat(request, reply, sent_at))
            self._due_at = sent_at + self._interval_s
            self._on_head(reply.head, sent_at, anew=request.register_new)
            return
        raise Unconfirmed("the registry does not keep the lease", context_id=self._book.context_id)

    def _shortened(self, error: InvalidInput) -> bool:
        """Whether the lease was refused as too long, and is asked for as long as it may be from now on.

        To go on as before would be to go on without a lease, and without pins.
        """
        limit_ms = error.fields.get("limit")
        if error.fields.get("field") != "ttl_ms" or not isinstance(limit_ms, int):
            return False
        if not MIN_TTL_MS <= limit_ms < self._book.ttl_ms:
            return False
        self._log.warning(
            "holder.lease_shortened", lease_ttl_s=self._book.ttl_ms / 1000, longest_s=limit_ms / 1000
        )
        self._book.ttl_ms = limit_ms
        self._interval_s = limit_ms / 1000 / _BEATS_PER_LEASE
        return True

    async def _keep(self) -> None:
        while True:
            try:
                async with self._operations:
                    await self._beat_if_due()
            except Fenced as e:
                self._log.error("holder.fenced", incarnation=e.fields.get("incarnation"))
                return
            except (TransientError, PeerError, CallerError) as e:
                self._log.warning("holder.heartbeat_failed", reason=str(e))
            await self._pause()

    async def _pause(self) -> None:
        """Waits for the next heartbeat, or for a reason to send one at once."""
        until_due_s = self._due_at - self._clock.monotonic()
        if self._book.must_beat or until_due_s <= 0:
            # Not at once again: what failed a moment ago fails now.
            await self._clock.sleep(self._interval_s / _BEATS_PER_LEASE)
            return
        self._wake.clear()
        try:
            async with self._clock.timeout(until_due_s):
                await self._wake.wait()
        except TimeoutError:
            return

    def _take_in(self, reply: LeaseReply, refused: Sequence[RefusedPin]) -> None:
        for granted in reply.granted:
            for held in self._uses.get((granted.span_id, granted.version), ()):
                held.superseded = granted.state is SpanState.TOMBSTONE
        for pin in refused:
            for held in self._uses.get((pin.span_id, pin.version), ()):
                held.lost = pin
            self._log.warning(
                "holder.pin_refused", span_id=pin.span_id, version=pin.version, reason=pin.reason.value
            )
        if reply.announce:
            self._wake.set()

    def _pin(self, version: Version) -> Pin:
        cost = highest(user.cost for user in self._uses[version])
        return Pin(span_id=version[0], version=version[1], cost=cost if cost is not None else PinCost.CHEAP)

    def _forget(self, held: Held) -> bool:
        """Ends a use. True if those that are left need a lower cost class."""
        users = self._uses[held.version]
        before = highest(user.cost for user in users)
        users.remove(held)
        if not users:
            del self._uses[held.version]
            return False
        return highest(user.cost for user in users) is not before

    def _withdraw(self, held: Held) -> None:
        """Ends a use without a word, if it has not ended. The service will hear of it with the whole set."""
        if held not in self._uses.get(held.version, ()):
            return
        cheaper = self._forget(held)
        if held.version not in self._uses:
            self._book.let_go([held.version])
        elif cheaper and held.lost is None:
            self._book.ask([self._pin(held.version)])
        else:
            return
        self._book.on_no_answer()
        self._wake.set()

    def _on_fenced(self, error: Fenced) -> None:
        """Another process of our id has registered. Raises if that was after us."""
        newest = int(error.fields.get("incarnation", self._book.incarnation))
        if self._heard:
            self._book.on_fenced(newest)
            raise error
        # We are the newer process, by a clock that lags behind the older one's.
        self._book.incarnation = newest + 1
        self._book.on_lease_lost()

    def _check_open(self) -> None:
        if self._closed:
            raise HolderClosed(f"{self._book.context_id} is closed in this holder")

    def _check_fenced(self) -> None:
        if self._book.fenced_by is not None:
            raise Fenced(
                f"another process of {self._book.holder_id} has taken this one's place",
                incarnation=self._book.fenced_by,
            )


def _check_granted(held: Held) -> None:
    pin = held.lost
    if pin is None:
        return
    raise PinRefused(
        f"{pin.span_id} version {pin.version} cannot be pinned: {pin.reason.value}",
        span_id=pin.span_id,
        version=pin.version,
        reason=pin.reason.value,
        current=pin.current,
    )
