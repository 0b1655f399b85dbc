"""An answer about a lease, in parts that fit into messages."""

import pytest

from sexton.core.lease_parts import SURELY_FIT, lease_parts, whole_reply
from sexton.schemas.base import MAX_SAFE_INTEGER
from sexton.schemas.ids import Level
from sexton.schemas.leases import MAX_PINS, GrantedPin, LeaseReply, PinCost, PinRefusal, RefusedPin
from sexton.schemas.limits import MAX_PAYLOAD_BYTES, MAX_SPAN_BYTES
from sexton.schemas.rpc import Head
from sexton.schemas.span import CurrentIdentity, SpanState

LONGEST = "l0:" + 96 * "n"


def granted() -> GrantedPin:
    return GrantedPin(
        span_id=LONGEST, version=MAX_SAFE_INTEGER, cost=PinCost.IMMOVABLE, state=SpanState.TOMBSTONE
    )


def refused() -> RefusedPin:
    current = CurrentIdentity(
        span_id=LONGEST,
        version=MAX_SAFE_INTEGER,
        level=Level.L7_ROLLUP,
        content_hash="sha256-l7:" + 64 * "f",
        size_bytes=MAX_SPAN_BYTES,
        state=SpanState.COLLECTING,
        epoch=MAX_SAFE_INTEGER,
        covered_by=LONGEST,
    )
    return RefusedPin(
        span_id=LONGEST, version=MAX_SAFE_INTEGER, reason=PinRefusal.COLLECTING, current=current
    )


def reply(granted_pins: int, refused_pins: int) -> LeaseReply:
    return LeaseReply(
        context_id="c" * 64,
        head=Head(revision=MAX_SAFE_INTEGER, epoch=MAX_SAFE_INTEGER, chain="sha256:" + 64 * "f"),
        operation=MAX_SAFE_INTEGER,
        granted=(granted(),) * granted_pins,
        refused=(refused(),) * refused_pins,
        announce=True,
    )


@pytest.mark.parametrize(
    "counts", [(0, 0), (1, 1), (0, SURELY_FIT), (MAX_PINS, 0), (0, MAX_PINS), (2000, 2096)], ids=str
)
def test_parts_fit_and_make_the_whole(counts: tuple[int, int]) -> None:
    """However many there are, with the longest names: nothing is lost, and each part is a message."""
    whole = reply(*counts)
    parts = lease_parts(whole)
    assert whole == whole_reply(parts)
    assert [(i, i == len(parts) - 1) for i in range(len(parts))] == [(p.index, p.last) for p in parts]
    assert all(len(part.wire()) < MAX_PAYLOAD_BYTES for part in parts)
    assert (1 == len(parts)) == (counts[1] <= SURELY_FIT)


def test_what_fits_stays_one_part() -> None:
    """Holders from before there were parts take the first for all there is."""
    for counts in ((0, SURELY_FIT), (MAX_PINS, 0)):
        whole = reply(*counts)
        assert [whole] == lease_parts(whole)
