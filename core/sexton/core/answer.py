"""What a worker answers to `sync` and `fetch`, as a function of its tree.

Shared by the worker and by the in-memory service that holders are tested with, so that the two cannot
differ.
"""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from sexton.core.snapshot import steps
from sexton.core.tree import ContextTree
from sexton.schemas.base import Part
from sexton.schemas.errors import SextonError
from sexton.schemas.limits import CHUNK_BYTES, SYNC_TAIL_RECORDS
from sexton.schemas.rpc import Answer, FetchPart, RpcError, SyncPart, SyncRequest


class SyncMode(StrEnum):
    """What a `sync` needs."""

    CURRENT = "current"
    """The asker has all there is."""
    RECORDS = "records"
    """The asker lacks the latest records."""
    SNAPSHOT = "snapshot"
    """The asker is far behind, follows another history, or wants to start over."""


def sync_mode(tree: ContextTree, request: SyncRequest, tail_limit: int = SYNC_TAIL_RECORDS) -> SyncMode:
    """How to answer `request` on a tree that is at the head of the log."""
    behind = tree.revision - request.revision
    if request.records_only:
        return SyncMode.RECORDS if behind > 0 else SyncMode.CURRENT
    if behind == 0:
        same = request.chain == tree.chain and not request.snapshot
        return SyncMode.CURRENT if same else SyncMode.SNAPSHOT
    if request.snapshot or behind < 0 or behind > tail_limit:
        return SyncMode.SNAPSHOT
    return SyncMode.RECORDS


def sync_parts(
    tree: ContextTree, mode: SyncMode, records: Sequence[tuple[dict[str, Any], int]] = ()
) -> Iterator[SyncPart]:
    """The parts of the answer.

    Args:
        tree: the context at its head.
        mode: what `sync_mode` said.
        records: for `RECORDS`: those since the asker's revision, as they are in the log, with the size of
            each in bytes.
    """
    if mode is SyncMode.SNAPSHOT:
        yield from (part for part in snapshot_steps(tree) if part is not None)
        return
    batches: list[list[dict[str, Any]]] = [[]]
    weight = 0
    for record, size_bytes in records:
        if batches[-1] and weight + size_bytes > CHUNK_BYTES:
            batches.append([])
            weight = 0
        batches[-1].append(record)
        weight += size_bytes
    for index, batch in enumerate(batches):
        yield SyncPart(
            context_id=tree.context_id,
            index=index,
            last=index == len(batches) - 1,
            head=tree.head,
            records=tuple(batch),
        )


def snapshot_steps(tree: ContextTree) -> Iterator[SyncPart | None]:
    """The parts of a whole snapshot, and None wherever one step is done and no part is ready.

    The same for everybody who asks at this head. See `sexton.core.snapshot.steps`.
    """
    ready: SyncPart | None = None
    for piece in steps(tree):
        if piece is None:
            yield None
            continue
        if ready is not None:
            yield ready
        index = 0 if ready is None else ready.index + 1
        # Only the next piece, or that there is none, tells whether this is the last.
        ready = SyncPart(context_id=tree.context_id, index=index, last=False, head=tree.head, snapshot=piece)
    if ready is not None:
        yield ready.model_copy(update={"last": True})


def records_gone(tree: ContextTree, kept_from: int) -> SyncPart:
    """The answer to who asks for records that the log does not keep any more."""
    return SyncPart(context_id=tree.context_id, head=tree.head, kept_from=kept_from)


def fetch_parts(answer: Answer, data: bytes, chunk_bytes: int = CHUNK_BYTES) -> Iterator[FetchPart]:
    """The bytes in chunks; the first part says what they are."""
    context_id = answer.pointer.context_id
    starts = range(0, len(data), chunk_bytes)
    for index, start in enumerate(starts):
        yield FetchPart(
            context_id=context_id,
            index=index,
            last=index == len(starts) - 1,
            answer=answer if index == 0 else None,
            data=data[start : start + chunk_bytes],
        )


def error_part(context_id: str, error: SextonError) -> RpcError:
    """An error as the wire shows it. Values that are no JSON are left out."""
    fields = {name: shown for name, value in error.fields.items() if (shown := _shown(value)) is not None}
    return RpcError(context_id=context_id, code=error.code, message=error.message, fields=fields)


def _shown(value: Any) -> Any:
    if isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, tuple | list):
        return [shown for v in value if (shown := _shown(v)) is not None]
    return value.model_dump(mode="json", exclude_none=True) if isinstance(value, Part) else None
