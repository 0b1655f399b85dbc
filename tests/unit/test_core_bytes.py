"""What `accept` and `diagnose` say of bytes, and where a pointer may cut."""

import pytest

from sexton.core.buffer import ContextBuffer
from sexton.core.check import Verdict, accept, check, diagnose, mint
from sexton.core.hash import content_hash
from sexton.schemas.errors import (
    BoundaryError,
    HashMismatch,
    LeafCorrupt,
    StaleSpanError,
    Unreachable,
)
from sexton.schemas.ids import Level
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Tier
from tests.core_kit.build import CONTEXT, append, done, leaf
from tests.core_kit.fates import BUFFER, FORGED, TREE, pointer


def granted(claim: Pointer) -> Verdict:
    verdict = check(claim, TREE)
    verdict.granted()
    return verdict


def test_accept_says_what_the_bytes_are() -> None:
    """Level, verbatim, tier, the whole span's size and hash, and whether it was re-stamped."""
    claim = pointer("l0:a", offset=1, length=1, content_hash=content_hash(Level.L0_VERBATIM, b"a"))
    answer = accept(granted(claim), b"a", Tier.COLD)

    assert (Level.L0_VERBATIM, True, False, True, Tier.COLD) == (
        answer.level,
        answer.verbatim,
        answer.superseded,
        answer.restamped,
        answer.tier,
    )
    assert (20, TREE.nodes["l0:a"].content_hash) == (answer.span_size_bytes, answer.span_hash)


@pytest.mark.parametrize(
    "data",
    [b"", b"<a>", b"<a>".ljust(20, b","), b"<a>".ljust(21, b".")],
    ids=["none", "part", "other", "longer"],
)
def test_accept_takes_no_other_bytes_c110(data: bytes) -> None:
    """C110: length and hash of the bytes themselves, whatever was promised."""
    with pytest.raises(HashMismatch):
        accept(granted(pointer("l0:a")), data, Tier.HOT)


def test_accept_raises_the_error_of_a_refusal() -> None:
    """Nobody gets past a refusal with the right bytes in hand."""
    with pytest.raises(StaleSpanError):
        accept(check(pointer("l0:c"), TREE), b"<c>".ljust(20, b"."), Tier.HOT)


def test_diagnose_tells_damage_from_a_false_claim() -> None:
    """The whole version is hashed: if it is not what was committed, an operator must know."""
    whole = b"<a>".ljust(20, b".")
    false = granted(pointer("l0:a", offset=1, length=2, content_hash=FORGED))
    assert isinstance(diagnose(false, whole), HashMismatch)
    damaged = diagnose(granted(pointer("l0:a")), whole[:-1])

    assert isinstance(damaged, LeafCorrupt)
    assert {
        "span_id": "l0:a",
        "version": 1,
        "content_hash": TREE.nodes["l0:a"].content_hash,
        "found_hash": content_hash(Level.L0_VERBATIM, whole[:-1]),
        "found_size_bytes": 19,
    } == dict(damaged.fields)


def test_a_false_claim_on_damaged_bytes_is_damage() -> None:
    """The graver fault wins: it pages."""
    both = granted(pointer("l0:a", offset=1, length=2, content_hash=FORGED))

    assert isinstance(diagnose(both, b"?" * 20), LeafCorrupt)


# --- boundaries ----------------------------------------------------------------------------------------

TEXT = "né 👩‍👩‍👧!"
"""n, a character of two bytes, a blank, one of 18 made of three emoji and two joiners, and one more."""


def emoji() -> ContextBuffer:
    buffer = ContextBuffer(CONTEXT)
    done(buffer, append("fill", leaf("t", TEXT), leaf("next", "next")))
    return buffer


@pytest.mark.parametrize(
    ("offset", "length", "nearest"),
    [
        (2, 1, (1, 3)),
        (1, 1, (1, 3)),
        (0, 2, (0, 3)),
        (5, 2, (4, 8)),
        (4, 1, (4, 8)),
        (7, 5, (4, 15)),
        (9, 2, (8, 11)),
    ],
)
def test_a_cut_inside_a_character_is_refused_with_the_nearest_boundaries_c81(
    offset: int, length: int, nearest: tuple[int, int]
) -> None:
    """C81: at mint and at use, even if the hash of those bytes is right; what is whole is told."""
    buffer = emoji()
    with pytest.raises(BoundaryError) as refusal:
        buffer.mint("l0:t", offset=offset, length=length)
    assert nearest == refusal.value.nearest == refusal.value.fields["nearest"]

    part = TEXT.encode()[offset : offset + length]
    honest = mint(buffer.tree, "l0:t", offset=offset, length=length, part=part)
    with pytest.raises(BoundaryError) as refusal:
        buffer.resolve(honest)
    assert nearest == refusal.value.nearest
    start, end = nearest
    whole = buffer.mint("l0:t", offset=start, length=end - start)
    assert TEXT.encode()[start:end] == buffer.resolve(whole).data


@pytest.mark.parametrize(
    ("offset", "length", "nearest"),
    [
        (-1, 2, (0, 1)),
        (0, 0, (0, 0)),
        (3, -1, (3, 3)),
        (0, 99, (0, 23)),
        (22, 2, (22, 23)),
        (23, 1, (23, 23)),
        (99, 1, (23, 23)),
        (2, 99, (1, 23)),
        (-9, 11, (0, 3)),
    ],
)
def test_a_range_outside_a_span_is_refused_c82(offset: int, length: int, nearest: tuple[int, int]) -> None:
    """C82: bytes are the unit; negative, empty, past the end. The nearest is told."""
    with pytest.raises(BoundaryError) as refusal:
        emoji().mint("l0:t", offset=offset, length=length)
    assert nearest == refusal.value.nearest


def test_characters_are_no_bytes_c82() -> None:
    """C82: an offset that was counted in characters is not what it seems, and is mostly refused."""
    buffer = emoji()
    at = TEXT.index("!")

    assert (8, 22) == (at, TEXT.encode().index(b"!"))
    with pytest.raises(BoundaryError):
        buffer.mint("l0:t", offset=at, length=1)
    assert "!" == buffer.resolve(buffer.mint("l0:t", offset=22, length=1)).text


# --- mint ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("span_id", ["l0:a", "l0:e", "l1:s", "l2:t", "l0:g", "l0:b", "l0:f"])
def test_a_pointer_is_minted_on_what_is_current(span_id: str) -> None:
    """Covered or in the view, of any level; it resolves at once, strictly."""
    minted = BUFFER.mint(span_id)
    node = TREE.nodes[span_id]

    assert (node.level, node.version, node.content_hash, TREE.epoch, False) == (
        minted.level,
        minted.version,
        minted.content_hash,
        minted.epoch,
        minted.accept_summary,
    )
    assert minted == BUFFER.resolve(minted, strict=True).answer.pointer


@pytest.mark.parametrize("span_id", ["l0:d", "l1:u", "l0:x", "l0:", "nonsense", ""])
def test_no_pointer_is_minted_on_what_is_not_there(span_id: str) -> None:
    """Pruned, unknown, or no id at all."""
    with pytest.raises(Unreachable):
        BUFFER.mint(span_id)


def test_a_pointer_to_a_part_needs_the_bytes() -> None:
    """The tree holds no content: the hash of a part cannot come from it."""
    with pytest.raises(ValueError, match="needs the part's bytes"):
        mint(TREE, "l0:e", offset=1)


def test_a_part_may_reach_to_an_end() -> None:
    """Without a length, to the end; without an offset, from the start."""
    data = b"<e>".ljust(20, b".")

    assert data[1:] == BUFFER.resolve(BUFFER.mint("l0:e", offset=1)).data
    assert data[:5] == BUFFER.resolve(BUFFER.mint("l0:e", length=5)).data
