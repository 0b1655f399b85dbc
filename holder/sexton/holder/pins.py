"""Pins as an agent uses them: around a block, and under an artifact."""

from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Final

from sexton.core.artifact import current_key
from sexton.core.collection import Version
from sexton.holder.lease import Held, LeaseKeeper
from sexton.holder.resolve import Resolver
from sexton.schemas.errors import InvalidInput, PinRefused, Unsettled
from sexton.schemas.leases import PinCost

Sync = Callable[[], Awaitable[None]]
"""Catches up with the head of the log."""

_TRIES: Final = 5


class Pinned:
    """A version that is pinned."""

    def __init__(self, keeper: LeaseKeeper, held: Held) -> None:
        self._keeper = keeper
        self._held = held

    @property
    def span_id(self) -> str:
        """Of the span."""
        return self._held.version[0]

    @property
    def version(self) -> int:
        """The version pinned."""
        return self._held.version[1]

    @property
    def proven(self) -> bool:
        """Whether the pin is good at this moment: granted, under a lease that has not run out."""
        return self._keeper.is_proven(self._held)


class PinScope:
    """`async with` a version pinned. See `Context.pin`."""

    def __init__(
        self,
        resolver: Resolver,
        keeper: LeaseKeeper,
        sync: Sync,
        *,
        span_id: str,
        cost: PinCost,
        version: int | None,
    ) -> None:
        self._resolver = resolver
        self._keeper = keeper
        self._sync = sync
        self._span_id = span_id
        self._cost = cost
        self._version = version
        self._held: Held | None = None

    async def __aenter__(self) -> Pinned:
        if self._held is not None:
            raise InvalidInput(f"this pin of {self._span_id} is held already; make another one")
        if self._version is not None:
            self._held = await self._keeper.acquire((self._span_id, self._version), self._cost)
            return Pinned(self._keeper, self._held)
        for _ in range(_TRIES):
            version = await self._current()
            held = await _acquire_current(self._keeper, self._sync, (self._span_id, version), self._cost)
            if held is None:
                continue
            try:
                # A rewrite may have come between the look and the pin.
                if await self._current() == version:
                    self._held = held
                    return Pinned(self._keeper, held)
            finally:
                if self._held is not held:
                    await self._keeper.release(held)
        raise Unsettled(f"{self._span_id} was rewritten during each of {_TRIES} tries", span_id=self._span_id)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            await self._keeper.release(held)

    async def _current(self) -> int:
        return (await self._resolver.on_tree(lambda tree: current_key(tree, self._span_id))).version


class Pinning:
    """The pin of an artifact: on the version that it was made from, moved when it is made anew."""

    def __init__(self, keeper: LeaseKeeper, sync: Sync, cost: PinCost) -> None:
        self._keeper = keeper
        self._sync = sync
        self._cost = cost
        self._held: Held | None = None

    async def take(self, span_id: str, version: int) -> Held | None:
        """Pins a version beside the one that is held. None if it is not current, which is known here then.

        Raises as `LeaseKeeper.acquire`.
        """
        return await _acquire_current(self._keeper, self._sync, (span_id, version), self._cost)

    async def move(self, held: Held) -> None:
        """Holds `held` from now on, and lets go of what was held before."""
        before, self._held = self._held, held
        if before is not None:
            await self._keeper.release(before)

    async def drop(self, held: Held | None = None) -> None:
        """Lets go of `held`, or of what is held."""
        if held is None:
            held, self._held = self._held, None
        if held is not None:
            await self._keeper.release(held)


async def _acquire_current(keeper: LeaseKeeper, sync: Sync, version: Version, cost: PinCost) -> Held | None:
    """Pins a version that is current as far as is known here. None if it is not: then what is, is known.

    Where this holder's tree lags behind the log, the service's answer to the pin tells.
    """
    try:
        held = await keeper.acquire(version, cost)
    except PinRefused:
        await sync()
        return None
    if not held.superseded:
        return held
    await keeper.release(held)
    await sync()
    return None
