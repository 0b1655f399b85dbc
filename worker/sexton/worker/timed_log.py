"""The log, with a clock at it: how long a commit takes, and its broadcast."""

import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Final

from sexton.worker import metrics
from sexton.worker.ports import Entry, Log

_MOST: Final = 1024
"""Records whose broadcast is waited for: one that never comes must not be kept without end."""


class TimedLog:
    """`Log`, measured. A record is known again by its bytes and by what it was to follow."""

    def __init__(self, log: Log, clock: Callable[[], float] = time.perf_counter) -> None:
        self._log = log
        self._clock = clock
        self._sent: OrderedDict[tuple[str, int], tuple[bytes, float]] = OrderedDict()

    async def head(self, context_id: str) -> Entry | None:
        """See `Log.head`."""
        return await self._log.head(context_id)

    def read(
        self, context_id: str, after: int, upto: int, *, limit: int | None = None
    ) -> AsyncGenerator[Entry, None]:
        """See `Log.read`."""
        return self._log.read(context_id, after, upto, limit=limit)

    def contexts(self) -> AsyncIterator[list[str]]:
        """See `Log.contexts`."""
        return self._log.contexts()

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        """See `Log.append`."""
        key, began = (context_id, expected), self._clock()
        self._sent[key] = (data, began)
        if len(self._sent) > _MOST:
            self._sent.popitem(last=False)
        try:
            sequence = await self._log.append(context_id, data, expected)
        except BaseException:
            # Not known to be ours any more, if it comes at all.
            self._sent.pop(key, None)
            raise
        metrics.COMMIT_SECONDS.observe(self._clock() - began)
        return sequence

    def heard(self, context_id: str, previous: int, data: bytes) -> None:
        """A record was broadcast, which follows `previous`. It may come before `append` returns."""
        sent = self._sent.get((context_id, previous))
        if sent is not None and sent[0] == data:
            del self._sent[context_id, previous]
            metrics.BUMP_SECONDS.observe(self._clock() - sent[1])
