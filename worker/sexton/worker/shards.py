"""Shards: which of a few lanes a context's background work belongs to."""

import zlib
from typing import Final

SHARDS: Final = 16

ORPHAN_LANE: Final = SHARDS
"""The lane of the sweep for orphans, which goes over everything at once."""


def shard_of(context_id: str) -> int:
    """The shard of a context. Stable over versions and machines."""
    return zlib.crc32(context_id.encode()) % SHARDS
