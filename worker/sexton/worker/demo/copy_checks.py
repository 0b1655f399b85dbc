"""What must hold of old versions: a copy is kept for its holder, and all of them are collected in the end.

What they are compared with is the transcript's bytes and the files of the cold store.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from sexton.core.collection import Version
from sexton.schemas.errors import StaleSpanError
from sexton.schemas.leases import PinCost, PinRefusal
from sexton.schemas.records import Collected
from sexton.schemas.span import Strategy
from sexton.worker.cli.output import size
from sexton.worker.demo.checks import Check, all_of
from sexton.worker.demo.copies import KEEPER, Kept, Old
from sexton.worker.demo.talk import HeldRead, holder_id

_READS: Final = 2
_LOOKS: Final = 3


def copy_was_kept(old: Old, kept: Kept) -> Check:
    """The rewrite made a copy, its holder could read it to the byte, and a sweep left it alone.

    Twice: after the rewrite, and once Redis had been emptied and everything around it was collected.
    """
    wrong = [f"read {n}: {why}" for n, read in enumerate(kept.reads, 1) if (why := _misread(old, read))]
    if len(kept.reads) != _READS:
        wrong.append(f"{len(kept.reads)} reads")
    record = kept.records.get(old.held)
    if record is None or record.strategy is not Strategy.COPY_ON_REWRITE:
        wrong.append(f"strategy {record.strategy.value if record else None}")
    told = [
        (stone.span_id, stone.version, stone.step, [(pin.holder_id, pin.cost) for pin in stone.pins])
        for stone in kept.swept
    ]
    if told != [(old.held, 1, "keep", [(holder_id(KEEPER), PinCost.EXPENSIVE)])]:
        wrong.append(f"a sweep told {told}")
    if not _stored_then(old, kept, 1, [old.held], gone=(old.rewritten, old.pruned)):
        wrong.append(_files(kept))
    detail = f"{Strategy.COPY_ON_REWRITE.value}, held by {holder_id(KEEPER)}"
    return all_of(f"{KEEPER}: old copy read while held", wrong, len(kept.reads), detail)


def free_ones_were_collected(old: Old, kept: Kept) -> Check:
    """What was rewritten or pruned while nobody held it is gone with its bytes, and nothing else is."""
    free = (old.rewritten, old.pruned)
    wrong = _miscollected(old, free, kept.free)
    record = kept.records.get(old.rewritten)
    if record is None or record.strategy is not Strategy.INVALIDATE_AND_REKEY:
        wrong.append(f"strategy {record.strategy.value if record else None}")
    if not _stored_then(old, kept, 1, old.first, gone=free):
        wrong.append(_files(kept))
    return all_of("free old versions collected", wrong, len(free), _freed(kept.free))


def released_one_was_collected(old: Old, kept: Kept) -> Check:
    """Once it was let go of, the copy went too: bytes, pointers, and the right to pin it."""
    wrong = _miscollected(old, (old.held,), kept.released)
    if not _stored_then(old, kept, 2, old.first, gone=(old.rewritten, old.pruned, old.held)):
        wrong.append(_files(kept))
    after = kept.read_after
    errors = None if after is None else (after.plain.error, after.old.error)
    if errors != (StaleSpanError.code, StaleSpanError.code):
        wrong.append(f"read as {errors}")
    if kept.pin_refused != PinRefusal.COLLECTED.value:
        wrong.append(f"pin refused as {kept.pin_refused!r}")
    detail = f"{_freed(kept.released)}, {kept.took_s:.1f} s after its release"
    return all_of("released copy collected", wrong, 1, detail)


def _misread(old: Old, read: HeldRead) -> str:
    """What is wrong with a read of the copy; empty if nothing is."""
    if (read.plain.data, read.plain.error) != (None, StaleSpanError.code):
        return f"without accept_superseded: {read.plain.error or 'bytes'}"
    if read.old.data != old.first[old.held]:
        return read.old.error or "other bytes"
    return "" if read.old.superseded and read.old.verbatim else "not said to be superseded"


def _miscollected(old: Old, span_ids: Sequence[str], records: Iterable[Collected]) -> list[str]:
    """What is wrong with the records: they must name exactly these, each once, and count their bytes."""
    records = list(records)
    found: list[Version] = [(v.span_id, v.version) for record in records for v in record.versions]
    wanted = {(span_id, 1) for span_id in span_ids}
    wrong = [f"{version[0]} not collected" for version in sorted(wanted - set(found))]
    wrong += [f"{version[0]} version {version[1]} collected" for version in found if version not in wanted]
    if len(found) != len(set(found)):
        wrong.append("collected twice")
    freed = sum(record.size_freed_bytes for record in records)
    if freed != sum(len(old.first[span_id]) for span_id in span_ids):
        wrong.append(f"{freed} bytes counted")
    return wrong


def _stored_then(old: Old, kept: Kept, look: int, of: Iterable[str], *, gone: Sequence[str]) -> bool:
    """Whether at that look the files of `gone` were gone, and no others, as far as `of` is looked at."""
    if len(kept.stored) != _LOOKS:
        return False
    first, then = kept.stored[0], kept.stored[look]
    # Rows may have the same bytes.
    return all(
        first[span_id] - then[span_id] == sum(old.first[other] == old.first[span_id] for other in gone)
        and first[span_id] > 0
        for span_id in of
    )


def _files(kept: Kept) -> str:
    return "files " + " then ".join("/".join(map(str, look.values())) for look in kept.stored)


def _freed(records: Iterable[Collected]) -> str:
    return f"{size(sum(record.size_freed_bytes for record in records))} freed"
