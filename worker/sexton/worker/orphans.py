"""Orphans: bytes that no committed record names. Swept only past a minimum age, far above any commit's time.

Bytes are written before the record that names them, so young bytes without a name may belong to a commit
under way. Age is measured on the store's own clock, by an object written for the purpose: the clock of this
machine does not count.

A worker that was paused for longer than the minimum age could still commit a name whose bytes were swept
meanwhile. So a slow or redelivered command confirms its bytes after the commit, before it is acknowledged
(`sexton.worker.commit`). And a command may write, under the same key, the very bytes that an earlier one had
left behind, and commit them just when they are swept: so the log is asked once more after they were deleted,
and they are put back if they have a name by now.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import structlog

from sexton.core.decide import Blob
from sexton.core.tree import ContextTree
from sexton.schemas.errors import HardFailure, PeerError
from sexton.schemas.ids import level_of
from sexton.schemas.span import Identity, SpanState
from sexton.worker.contexts import Contexts
from sexton.worker.ports import ColdStore, StoredBlob

log: Final = structlog.get_logger("sexton.orphans")


@dataclass(slots=True)
class OrphanReport:
    """What a sweep for orphans found."""

    looked_at: int = 0
    young: int = 0
    """Without a name, and too young to be judged."""
    spared: int = 0
    """Of contexts without a single record, or with one that cannot be read: nobody can tell what they are."""
    deleted: int = 0
    freed_bytes: int = 0


class OrphanSweep:
    """Deletes bytes that no record names. Costs in proportion to what is stored; run it rarely."""

    def __init__(
        self, cold: ColdStore, contexts: Contexts, *, min_age: timedelta, new_token: Callable[[], str]
    ) -> None:
        self._cold = cold
        self._contexts = contexts
        self._min_age = min_age
        self._new_token = new_token

    async def run(self, *, dry_run: bool = False) -> OrphanReport:
        """One pass over the whole store. Raises `Unavailable`."""
        report = OrphanReport()
        await self._cold.confirm()
        now = await self._cold.clock(self._new_token())
        async for blob in self._cold.stored():
            report.looked_at += 1
            # Age first: what is young is none of our business, whatever the log says.
            if now - blob.modified < self._min_age:
                report.young += 1
                continue
            try:
                if await self._is_named(blob):
                    continue
                if await self._is_unheard_of(blob):
                    report.spared += 1
                    continue
                if not dry_run and not await self._delete(blob):
                    continue
            except PeerError as e:
                # A log that this build cannot read. What is not understood is not judged, and stops no other.
                report.spared += 1
                log.warning("orphans.not_judged", context_id=blob.context_id, reason=e.code)
                continue
            report.deleted += 1
            report.freed_bytes += blob.size_bytes
        return report

    async def _delete(self, blob: StoredBlob) -> bool:
        """Deletes an orphan; False if it turns out to be none any more."""
        kept = await self._bytes(blob)
        await self._cold.delete_key(blob.key)
        if kept is not None and await self._is_named(blob):
            log.warning("orphans.put_back", context_id=blob.context_id, size_bytes=blob.size_bytes)
            await self._cold.write(blob.context_id or "", kept)
            return False
        log.info("orphans.deleted", context_id=blob.context_id, size_bytes=blob.size_bytes)
        return True

    async def _bytes(self, blob: StoredBlob) -> Blob | None:
        """The bytes of a version; None for those of a claim, and if somebody has deleted them."""
        if blob.context_id is None or blob.version is None or blob.content_hash is None:
            return None
        span_id, version = blob.version
        identity = Identity(
            span_id=span_id,
            version=version,
            level=level_of(span_id),
            content_hash=blob.content_hash,
            size_bytes=blob.size_bytes,
        )
        try:
            data = await self._cold.read(blob.context_id, identity)
        except HardFailure:
            return None
        return Blob(span_id, version, blob.content_hash, data)

    async def _is_unheard_of(self, blob: StoredBlob) -> bool:
        """Whether the log knows nothing at all of its context. Claims are no bytes that count."""
        if blob.context_id is None or blob.version is None:
            return False
        return (await self._contexts.get(blob.context_id)).tree.head.revision == 0

    async def _is_named(self, blob: StoredBlob) -> bool:
        if blob.context_id is None:
            # Not a key of ours: somebody else's object is not ours to judge.
            return True
        if blob.version is None:
            # A chunk of a claim: its command was committed, refused, or never sent.
            return False
        known = await self._contexts.get(blob.context_id)
        if _names(known.tree, blob):
            return True
        # A tree that lags may not know the record yet.
        return _names((await self._contexts.refresh(blob.context_id)).tree, blob)


def _names(tree: ContextTree, blob: StoredBlob) -> bool:
    assert blob.version is not None  # noqa: S101 - chunks do not come here
    node = tree.nodes.get(blob.version[0])
    if node is not None and node.version == blob.version[1] and node.state is not SpanState.COLLECTED:
        return node.content_hash == blob.content_hash
    stone = tree.tombstones.get(blob.version)
    return stone is not None and stone.identity.content_hash == blob.content_hash
