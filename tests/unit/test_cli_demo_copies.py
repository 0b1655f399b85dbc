"""The demo's checks of old versions can fail: given what a broken Sexton would have shown, they say no."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.core.hash import UNLINKED
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost, PinInfo
from sexton.schemas.ops import TombstoneInfo
from sexton.schemas.records import Collected, Rewritten
from sexton.schemas.span import Identity, SpanState, SpanVersion, Strategy
from sexton.worker.demo import copy_checks
from sexton.worker.demo.checks import Check
from sexton.worker.demo.copies import Kept, Old, files_of
from sexton.worker.demo.talk import HeldRead, Quote

FIRST: Final = {"l0:r": b"rewritten", "l0:h": b"it is held", "l0:p": b"pruned"}
OLD: Final = Old(rewritten="l0:r", held="l0:h", pruned="l0:p", first=FIRST)
STALE: Final = Quote(span_id="l0:h", error="stale_span")

CHECKS: Final[dict[str, Callable[[Old, Kept], Check]]] = {
    "kept": copy_checks.copy_was_kept,
    "free": copy_checks.free_ones_were_collected,
    "released": copy_checks.released_one_was_collected,
}


def identity(span_id: str, version: int = 1) -> Identity:
    return Identity(
        span_id=span_id,
        version=version,
        level=Level.L0_VERBATIM,
        content_hash="sha256:" + "0" * 64,
        size_bytes=len(FIRST[span_id]),
    )


def record(kind: type[Any], **more: Any) -> Any:
    return kind(context_id="demo", revision=9, epoch=3, event_id="e", digest=UNLINKED, chain=UNLINKED, **more)


def rewritten(span_id: str, strategy: Strategy) -> Rewritten:
    made: Rewritten = record(
        Rewritten, before=identity(span_id), after=identity(span_id, 2), strategy=strategy
    )
    return made


def collected(*span_ids: str, freed: int | None = None, version: int = 1) -> Collected:
    freed_bytes = sum(len(FIRST[span_id]) for span_id in span_ids) if freed is None else freed
    made: Collected = record(
        Collected,
        attempt="a",
        versions=tuple(SpanVersion(span_id=span_id, version=version) for span_id in span_ids),
        size_freed_bytes=freed_bytes,
    )
    return made


def stone(span_id: str = "l0:h", step: str = "keep", holder: str | None = "demo-ada") -> TombstoneInfo:
    pin = PinInfo(
        span_id=span_id, version=1, cost=PinCost.EXPENSIVE, holder_id=holder or "nobody", held_for_ms=5
    )
    return TombstoneInfo(
        **dict(identity(span_id)),
        state=SpanState.TOMBSTONE,
        strategy=Strategy.COPY_ON_REWRITE,
        epoch=2,
        step=step,
        pins=(pin,) if holder is not None else (),
        pin_count=int(holder is not None),
    )


def read(**update: Any) -> HeldRead:
    """What ada gets while she holds it, or with a difference."""
    old = Quote(span_id="l0:h", data=FIRST["l0:h"], level=Level.L0_VERBATIM, verbatim=True, superseded=True)
    return HeldRead(plain=STALE, old=old.model_copy(update=update))


def good() -> Kept:
    """What is to be seen."""
    return Kept(
        records={
            "l0:r": rewritten("l0:r", Strategy.INVALIDATE_AND_REKEY),
            "l0:h": rewritten("l0:h", Strategy.COPY_ON_REWRITE),
        },
        reads=[read(), read()],
        swept=[stone()],
        free=[collected("l0:r"), collected("l0:p")],
        released=[collected("l0:h")],
        took_s=1.0,
        read_after=HeldRead(plain=STALE, old=STALE),
        pin_refused="collected",
        stored=[
            {"l0:r": 1, "l0:h": 1, "l0:p": 1},
            {"l0:r": 0, "l0:h": 1, "l0:p": 0},
            {"l0:r": 0, "l0:h": 0, "l0:p": 0},
        ],
    )


def held_by(kept: Kept, old: Old = OLD) -> set[str]:
    """The checks that hold."""
    return {name for name, check in CHECKS.items() if check(old, kept).held}


def test_what_is_to_be_seen_holds() -> None:
    """All three, each with what it looked at."""
    assert set(CHECKS) == held_by(good())
    assert [2, 2, 1] == [check(OLD, good()).count for check in CHECKS.values()]
    assert "10 B freed, 1.0 s after its release" == copy_checks.released_one_was_collected(OLD, good()).detail


def test_one_record_may_collect_several() -> None:
    """Tombstones share records as it happens to be."""
    kept = good()
    kept.free = [collected("l0:p", "l0:r")]

    assert set(CHECKS) == held_by(kept)


def strategy(span_id: str, strategy: Strategy) -> Callable[[Kept], None]:
    return lambda kept: kept.records.update({span_id: rewritten(span_id, strategy)})


def having(**changes: Any) -> Callable[[Kept], None]:
    def sabotage(kept: Kept) -> None:
        for name, value in changes.items():
            setattr(kept, name, value)

    return sabotage


def looked(look: int, **counts: int) -> Callable[[Kept], None]:
    return lambda kept: kept.stored[look].update({f"l0:{name}": count for name, count in counts.items()})


LEAKED: Final = HeldRead(plain=Quote(span_id="l0:h", data=FIRST["l0:h"]), old=read().old)


@pytest.mark.parametrize(
    ("sabotage", "caught_by"),
    [
        (strategy("l0:h", Strategy.INVALIDATE_AND_REKEY), {"kept"}),
        (lambda kept: kept.records.pop("l0:h"), {"kept"}),
        (having(reads=[read(), read(data=b"other")]), {"kept"}),
        (having(reads=[read(data=FIRST["l0:h"][:-1]), read()]), {"kept"}),
        (having(reads=[read(), read(data=None, error="stale_span")]), {"kept"}),
        (having(reads=[read(), read(superseded=False)]), {"kept"}),
        (having(reads=[read(), read(verbatim=False)]), {"kept"}),
        (having(reads=[read(), LEAKED]), {"kept"}),
        (having(reads=[read()]), {"kept"}),
        (having(reads=[]), {"kept"}),
        (having(swept=[]), {"kept"}),
        (having(swept=[stone(holder=None)]), {"kept"}),
        (having(swept=[stone(holder="demo-ben")]), {"kept"}),
        (having(swept=[stone(step="announce")]), {"kept"}),
        (having(swept=[stone(), stone("l0:r", "wait_quiet", None)]), {"kept"}),
        (strategy("l0:r", Strategy.COPY_ON_REWRITE), {"free"}),
        (lambda kept: kept.records.pop("l0:r"), {"free"}),
        (having(free=[]), {"free"}),
        (having(free=[collected("l0:r")]), {"free"}),
        (having(free=[collected("l0:r"), collected("l0:p"), collected("l0:h")]), {"free"}),
        (having(free=[collected("l0:r"), collected("l0:p"), collected("l0:r", freed=0)]), {"free"}),
        (having(free=[collected("l0:r", version=2), collected("l0:p")]), {"free"}),
        (having(free=[collected("l0:r", freed=8), collected("l0:p")]), {"free"}),
        (having(released=[]), {"released"}),
        (having(released=[collected("l0:h", freed=0)]), {"released"}),
        (having(pin_refused=""), {"released"}),
        (having(pin_refused="collecting"), {"released"}),
        (having(read_after=None), {"released"}),
        (having(read_after=read()), {"released"}),
        (having(read_after=HeldRead(plain=STALE, old=Quote(span_id="l0:h", error="lost"))), {"released"}),
        (looked(1, h=0), {"kept", "free"}),
        (looked(1, r=1), {"free"}),
        (looked(2, h=1), {"released"}),
        (looked(0, h=0), {"kept", "free", "released"}),
        (looked(1, p=1), {"free"}),
        (looked(0, h=2), {"kept", "free", "released"}),
        (having(stored=[]), {"kept", "free", "released"}),
    ],
    ids=str,
)
def test_what_is_not_to_be_seen_is_caught(sabotage: Callable[[Kept], Any], caught_by: set[str]) -> None:
    """I4, I5, and what pointers and pins may do, one at a time."""
    kept = good()
    sabotage(kept)

    assert caught_by == set(CHECKS) - held_by(kept)


def test_nothing_seen_is_nothing_shown() -> None:
    """A story that did not come to this part holds nothing."""
    assert set() == held_by(Kept())


def test_rows_may_have_the_same_bytes() -> None:
    """Two of the three, and a row that stays: files are counted, whosever they are."""
    first = {**FIRST, "l0:p": FIRST["l0:r"]}
    old = Old(rewritten="l0:r", held="l0:h", pruned="l0:p", first=first)
    kept = good()
    kept.free = [collected("l0:r"), collected("l0:p", freed=len(FIRST["l0:r"]))]
    kept.stored = [
        {"l0:r": 3, "l0:h": 2, "l0:p": 3},
        {"l0:r": 1, "l0:h": 2, "l0:p": 1},
        {"l0:r": 1, "l0:h": 1, "l0:p": 1},
    ]

    assert set(CHECKS) == held_by(kept, old)
    one_stayed = copy.deepcopy(kept)
    one_stayed.stored[1] = {"l0:r": 2, "l0:h": 2, "l0:p": 2}
    assert {"kept", "released"} == held_by(one_stayed, old)


def test_files_are_known_by_what_is_in_them(tmp_path: Path) -> None:
    """Whatever their names, in whichever folder; all of the bytes and no others."""
    for name, data in {"a/1": b"text", "b/c/2": b"text", "3": b"texts", "4": b"tex", "5": b"TEXT"}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)

    assert (2, 0) == (files_of(tmp_path, b"text"), files_of(tmp_path, b"none"))
    assert 0 == files_of(tmp_path / "missing", b"text")
