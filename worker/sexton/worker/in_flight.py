"""What is being handled, and how it comes to its end when the program does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from sexton.schemas.errors import TransientError

_LET_GO_S: Final = 2.0
"""How long what is interrupted may take to let go."""


class Interrupted(TransientError):
    """The program ends, and this was not finished in its grace time. It is to be done again, by another."""

    code = "interrupted"


class InFlight:
    """Handlers that run."""

    def __init__(self) -> None:
        self._scopes: set[asyncio.Timeout] = set()
        self._changed = asyncio.Event()
        self._over = False
        self._hurried = False

    @contextlib.asynccontextmanager
    async def one(self) -> AsyncIterator[None]:
        """The block is one handler.

        Raises:
            Interrupted: the grace time has ended meanwhile, or before.
        """
        if self._over:
            raise Interrupted("the program ends")
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise Interrupted("the program ends") from None
        finally:
            self._scopes.discard(scope)
            self._changed.set()

    def hurry(self) -> None:
        """The grace time ends now."""
        self._hurried = True
        self._changed.set()

    async def finish(self, within_s: float) -> int:
        """Waits for what runs, for so long or until `hurry`; then interrupts what still does.

        Gives the number of handlers interrupted. Nothing begins any more once this is done.
        """
        await self._until(lambda: not self._scopes or self._hurried, within_s)
        self._over = True
        interrupted = list(self._scopes)
        for scope in interrupted:
            scope.reschedule(asyncio.get_running_loop().time())
        await self._until(lambda: not self._scopes, _LET_GO_S)
        return len(interrupted)

    async def _until(self, satisfied: Callable[[], bool], within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                while not satisfied():
                    self._changed.clear()
                    await self._changed.wait()
