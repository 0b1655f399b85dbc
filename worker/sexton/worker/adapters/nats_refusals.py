"""What the server refused a process of the service: in the log, counted, and told to whoever asks."""

import time
from collections.abc import Callable
from typing import Final

import structlog

from sexton.schemas.errors import PermissionRefused
from sexton.schemas.refusal import Refusal
from sexton.worker import metrics

log: Final = structlog.get_logger("sexton.nats")

AGAIN_S: Final = 60.0
"""A refusal that is met again and again is logged this often."""


class Refusals:
    """Collects refusals. Each is told by operation and pattern, never by an id."""

    def __init__(self, tell: Callable[[str, str], None] | None = None) -> None:
        """Args: tell: is called with operation and pattern, at each refusal. Must not block."""
        self._tell = tell
        self._logged: dict[tuple[str, str], float] = {}
        self._seen: dict[tuple[str, str], tuple[Refusal, float]] = {}

    def __call__(self, refusal: Refusal) -> None:
        """Takes note of one."""
        now = time.monotonic()
        key = refusal.operation, refusal.pattern
        metrics.REFUSED.labels(refusal.operation).inc()
        self._seen[key] = refusal, now
        if now - self._logged.get(key, -AGAIN_S) >= AGAIN_S:
            self._logged[key] = now
            log.error("nats.refused", operation=refusal.operation, subject=refusal.pattern)
        if self._tell is not None:
            self._tell(*key)

    def within(self, seconds: float) -> list[Refusal]:
        """What was refused lately: the latest of each pattern."""
        since = time.monotonic() - seconds
        return [refusal for refusal, at in self._seen.values() if at >= since]

    def check(self) -> None:
        """Raises `PermissionRefused` if anything was ever refused: for a start."""
        if self._seen:
            refusals = [refusal for refusal, _ in self._seen.values()]
            told = ", ".join(f"{refusal.operation} {refusal.pattern}" for refusal in refusals)
            raise PermissionRefused(
                f"NATS does not permit what this process needs: {told}",
                operation=refusals[0].operation,
                subject=refusals[0].subject,
            )
