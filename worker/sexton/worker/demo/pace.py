"""The demo's times: how soon its worker collects, and how long anything is waited for."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from sexton.holder import HolderSettings
from sexton.schemas.errors import Unavailable

_LEASE_S: Final = 2.0
"""Of the holders. After Redis was emptied nothing is collected for so long; a holder that stands still for
longer loses its pins."""
_QUIET_S: Final = 0.6
"""Less than a heartbeat interval, which is waited for anyway."""
_SWEEP_S: Final = 0.25

WORKER: Final[Mapping[str, str]] = {
    "SEXTON_LEASE_TTL_MAX_S": str(_LEASE_S),
    "SEXTON_QUIET_S": str(_QUIET_S),
    "SEXTON_SWEEP_INTERVAL_S": str(_SWEEP_S),
}
"""A worker that collects within a second or two. Nobody would run one like this."""

COLLECTED_WITHIN_S: Final = 15.0
"""Lease, quiet time, two sweeps and a heartbeat are 4 s at most; the rest is for a machine that is busy."""


def holder_settings(**more: Any) -> HolderSettings:
    """Settings of a holder that fit the worker's."""
    return HolderSettings(lease_ttl_s=_LEASE_S, **more)


@asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Bounds a wait. Raises `Unavailable` that names what was waited for."""
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            yield
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise Unavailable(f"the demo waited {seconds:.0f} s for {what}", what=what) from error
