"""Looking at the cold store. Writes a few bytes of its own, and deletes them."""

import time
import uuid
from collections.abc import AsyncIterator

from sexton.core import hash as hashing
from sexton.core.decide import Blob
from sexton.schemas.ids import Level
from sexton.schemas.span import Identity
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.doctor.findings import Finding, ok
from sexton.worker.doctor.judge_clocks import judge_clock
from sexton.worker.doctor.probe import CONTEXT, SPAN
from sexton.worker.settings import Settings


async def look_at_cold(settings: Settings) -> AsyncIterator[Finding]:
    """Writes, reads back and deletes, as a commit and a collection do.

    Raises:
        Unavailable: the store does not answer, or refuses one of them.
        LeafLost: what was written was not there.
        InvalidInput: an address that is none.
    """
    cold = ObjectColdStore(open_store(settings.cold_url), settings.io_timeout_s)
    data = uuid.uuid4().hex.encode()
    digest = hashing.content_hash(Level.L0_VERBATIM, data)
    identity = Identity(
        span_id=SPAN, level=Level.L0_VERBATIM, version=1, content_hash=digest, size_bytes=len(data)
    )
    began = time.perf_counter()
    try:
        await cold.write(CONTEXT, Blob(span_id=SPAN, version=1, content_hash=digest, data=data))
        took_s = time.perf_counter() - began
        await cold.read(CONTEXT, identity)
    finally:
        await cold.delete(CONTEXT, identity)
    yield ok("cold.store", f"writes and reads back in {1000 * took_s:.1f} ms, and deletes")
    before = time.time()
    told = (await cold.clock(data.decode())).timestamp()
    after = time.time()
    yield judge_clock("cold", told - (before + after) / 2, (after - before) / 2 + _RESOLUTION_S)


_RESOLUTION_S = 1.0
"""Some stores tell the time of an object in whole seconds."""
