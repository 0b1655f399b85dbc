"""Answers to `sync`: the records that the asker lacks, from memory or from the log, or the whole context."""

from sexton.core.answer import SyncMode, records_gone, sync_mode, sync_parts
from sexton.schemas.rpc import SyncRequest
from sexton.worker.contexts import Contexts, Known
from sexton.worker.history import History
from sexton.worker.replies import Parts
from sexton.worker.snapshots import Snapshots


class Sync:
    """Brings holders up to the head."""

    def __init__(self, contexts: Contexts, history: History, snapshots: Snapshots) -> None:
        self._contexts = contexts
        self._history = history
        self._snapshots = snapshots

    async def parts(self, request: SyncRequest) -> Parts:
        """The parts of the answer. Raises `Unavailable`, `LineageError`, `UnsupportedSchema`."""
        known = await self._contexts.refresh(request.context_id)
        match sync_mode(known.tree, request):
            case SyncMode.CURRENT as mode:
                return sync_parts(known.tree, mode)
            case SyncMode.SNAPSHOT:
                return self._snapshots.parts(known.tree)
            case SyncMode.RECORDS:
                return await self._records(known, request)

    async def _records(self, known: Known, request: SyncRequest) -> Parts:
        tree, since = known.tree, request.revision
        records = self._contexts.tail(request.context_id, since)
        # Who has nothing yet is as well off with a snapshot as with all records there ever were.
        if records is None and (request.records_only or since > 0):
            found = await self._history.since(known, since)
            if request.records_only and found.kept_from is not None:
                return [records_gone(tree, found.kept_from)]
            if request.records_only or len(found.records) == tree.revision - since:
                records = found.records
        if records is not None:
            return sync_parts(tree, SyncMode.RECORDS, records)
        # Asked for again: the head may have moved on meanwhile, and a snapshot is of the latest one.
        return self._snapshots.parts((await self._contexts.refresh(request.context_id)).tree)
