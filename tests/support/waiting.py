"""Waiting with a bound, and a message that says what was waited for."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, overload

T = TypeVar("T")

_POLL_S: Final = 0.01
_NOTHING: Final = object()


class DeadlineExceeded(AssertionError):
    """Something did not happen in time. An assertion: it is the test that failed, not the code it called."""


@asynccontextmanager
async def deadline(seconds: float, what: str = "the block") -> AsyncIterator[None]:
    """Fail the test if the block takes longer. A time-out that the block itself raises passes unchanged."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise DeadlineExceeded(f"{what} took longer than {seconds:g} s") from error


@overload
async def eventually(
    probe: Callable[[], Awaitable[T]],
    *,
    until: Callable[[T], Any] = ...,
    within_s: float = ...,
    what: str = ...,
) -> T: ...


@overload
async def eventually(
    probe: Callable[[], T],
    *,
    until: Callable[[T], Any] = ...,
    within_s: float = ...,
    what: str = ...,
) -> T: ...


async def eventually(
    probe: Callable[[], T | Awaitable[T]],
    *,
    until: Callable[[T], Any] = bool,
    within_s: float = 5.0,
    what: str = "",
) -> T:
    """Call `probe`, plain or async, until its value satisfies `until`; return that value.

    The last value is in the message of the failure, so a probe should return what is looked at and leave the
    comparison to `until`: `await eventually(lambda: tree.revision, until=lambda revision: revision == 5)`.
    What the probe raises is not caught. A probe that hangs is bounded too.
    """
    last: Any = _NOTHING
    scope = asyncio.timeout(within_s)
    try:
        async with scope:
            while True:
                answer = probe()
                last = await answer if inspect.isawaitable(answer) else answer
                if until(last):
                    return last  # type: ignore[no-any-return]
                await asyncio.sleep(_POLL_S)
    except TimeoutError as error:
        if not scope.expired():
            raise
        seen = "the probe never answered" if last is _NOTHING else f"last seen: {last!r}"
        raise DeadlineExceeded(
            f"{what or 'what was awaited'} did not come within {within_s:g} s; {seen}"
        ) from error
