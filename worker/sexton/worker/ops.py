"""Answers to operators: who holds what, what waits for what, sweep now, verify."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from sexton.schemas.codec import decode
from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.schemas.leases import PinInfo
from sexton.schemas.ops import (
    HoldersPart,
    OpsRequest,
    OpsVerb,
    PinsPart,
    TombstoneInfo,
    TombstonesPart,
    VerifyRequest,
)
from sexton.schemas.rpc import ReplyPart
from sexton.worker.collect import Collector, StoneReport, SweepReport
from sexton.worker.ports import Registry
from sexton.worker.verify import Verifier

T = TypeVar("T")

_PER_PART: Final = 1000
"""Pins and other entries. At some 500 bytes each at most, a part stays below a message's limit."""


class OpsService:
    """Answers operators' requests. Raises `Unavailable` if a store does not answer."""

    def __init__(
        self, registry: Registry, collector: Collector, verifier: Verifier, *, collect: bool = True
    ) -> None:
        self._registry = registry
        self._collector = collector
        self._verifier = verifier
        self._collect = collect

    async def parts(self, verb: OpsVerb, context_id: str, data: bytes) -> Iterable[ReplyPart]:
        """The parts of one answer."""
        request = decode(VerifyRequest if verb is OpsVerb.VERIFY else OpsRequest, data)
        if request.context_id != context_id:
            raise InvalidInput(f"a request for {request.context_id} was sent to {context_id}")
        match verb:
            case OpsVerb.HOLDERS:
                holders = await self._registry.holders(context_id)
                return _numbered(HoldersPart(context_id=context_id, holders=b) for b in _cut(holders))
            case OpsVerb.PINS:
                pins = await self._registry.held(context_id)
                return _numbered(PinsPart(context_id=context_id, pins=b) for b in _cut(pins))
            case OpsVerb.TOMBSTONES:
                return _told(await self._collector.report(context_id))
            case OpsVerb.SWEEP:
                if not self._collect:
                    raise Unavailable("nothing is collected now: this worker has SEXTON_COLLECT=false")
                return _told(await self._collector.sweep(context_id))
            case OpsVerb.VERIFY:
                assert isinstance(request, VerifyRequest)  # noqa: S101 - decoded as one above
                return [await self._verifier.verify(request)]


def _told(report: SweepReport) -> Iterable[ReplyPart]:
    parts = [
        TombstonesPart(context_id=report.context_id, tombstones=batch)
        for batch in _cut([_info(stone) for stone in report.stones], lambda info: 1 + len(info.pins))
    ]
    parts[-1] = parts[-1].model_copy(
        update={
            "collected": report.collected,
            "size_freed_bytes": report.freed_bytes,
            "called_off": report.called_off,
        }
    )
    return _numbered(parts)


def _info(report: StoneReport) -> TombstoneInfo:
    seen, stone = report.seen, report.stone
    mark = seen.marks.get(report.version)
    current = mark is not None and mark.generation == seen.generation
    span_id, version = report.version
    pins = seen.pins.get(report.version, ())
    return TombstoneInfo(
        **dict(stone.identity),
        state=stone.state,
        strategy=stone.strategy,
        epoch=stone.epoch,
        step=report.step.value,
        marked_for_ms=max(0, seen.now_ms - mark.at_ms) if mark is not None and current else None,
        pins=tuple(
            PinInfo(
                span_id=span_id,
                version=version,
                cost=pin.cost,
                holder_id=pin.holder_id,
                held_for_ms=max(0, seen.now_ms - pin.since_ms),
            )
            for pin in pins[: _PER_PART - 1]
        ),
        pin_count=len(pins),
    )


def _cut(items: Iterable[T], weight: Callable[[T], int] = lambda _: 1) -> Iterator[tuple[T, ...]]:
    """Pieces for one part each; at least one, so that an empty answer is an answer."""
    piece: list[T] = []
    total = 0
    for item in items:
        if piece and total + weight(item) > _PER_PART:
            yield tuple(piece)
            piece, total = [], 0
        piece.append(item)
        total += weight(item)
    yield tuple(piece)


def _numbered(parts: Iterable[Any]) -> Iterator[ReplyPart]:
    kept = list(parts)
    for index, part in enumerate(kept):
        yield part.model_copy(update={"index": index, "last": index == len(kept) - 1})
