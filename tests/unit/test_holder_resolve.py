"""Resolving in a holder: the right bytes or an error, at the moment they are handed out."""

import asyncio
from typing import Any, Final

import pytest

from sexton.core.check import Action
from sexton.core.hash import content_hash
from sexton.core.pins import PinCost
from sexton.holder import (
    BoundaryError,
    Consistency,
    HashMismatch,
    LeafCorrupt,
    LeafLost,
    PointerResurrectionError,
    StaleSpanError,
    Unavailable,
    Unreachable,
    Unsettled,
)
from sexton.schemas.errors import EpochMismatch, InvalidInput, LevelMismatch
from sexton.schemas.ids import Level
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Tier, Verb
from sexton.schemas.span import SpanState
from tests.holder_kit import CONTEXT, Rig, rig

CONSISTENCIES: Final[tuple[Consistency, ...]] = ("bounded", "latest")

BIG = "0123456789abcdef" * 40_000
"""Over what is kept whole."""


async def minted(r: Rig, text: str = "Ship on Friday.", **part: int) -> Pointer:
    return await r.run(r.context.mint(await r.leaf(text), **part))


async def fresh(r: Rig, **settings: float) -> tuple[Rig, object]:
    """The same context in a holder with an empty cache."""
    transport, context = await r.another(**settings)
    return Rig(r.clock, r.service, transport, r.others[-1], context), context


# --- what comes back ---------------------------------------------------------------------------------


async def test_a_leaf_comes_back_as_it_was() -> None:
    """C77: the bytes, their level, and where they came from; the second time from memory."""
    text = "\ufeffA\x00B\r\n  trailing  \n\n"
    async with rig() as r:
        pointer = await minted(r, text)
        first = await r.run(r.context.resolve(pointer))
        assert (text.encode(), Tier.COLD) == (first.data, first.tier)
        second = await r.run(r.context.resolve(pointer))
        assert (text, Tier.MEMORY, 1) == (second.text, second.tier, r.service.asked[Verb.FETCH])
        assert (pointer, Level.L0_VERBATIM, True) == (second.pointer, second.level, second.verbatim)
        assert not second.restamped
        assert not second.superseded


async def test_a_part_of_a_span_is_cut_in_bytes() -> None:
    """C82, C83: "ö" has two bytes: the offset counts bytes, and what is cut is whole characters."""
    async with rig() as r:
        pointer = await minted(r, "Größe: 12 €", offset=2, length=5)
        assert "öße" == (await r.run(r.context.resolve(pointer))).quote()


async def test_a_cut_inside_a_character_is_refused() -> None:
    """C81: when it is minted, and when a pointer that somebody made up is used: with the nearest cuts."""
    async with rig() as r:
        span_id = await r.leaf("a👍b")
        with pytest.raises(BoundaryError) as caught:
            await r.run(r.context.mint(span_id, offset=2, length=2))
        assert (1, 5) == caught.value.nearest
        whole = await r.run(r.context.mint(span_id))
        wrong = "a👍b".encode()[2:4]
        made_up = whole.model_copy(
            update={"offset": 2, "length": 2, "content_hash": content_hash(Level.L0_VERBATIM, wrong)}
        )
        for consistency in CONSISTENCIES:
            with pytest.raises(BoundaryError) as caught:
                await r.run(r.context.resolve(made_up, consistency=consistency))
            assert (1, 5) == caught.value.nearest


@pytest.mark.parametrize(("offset", "length"), [(0, 0), (3, 1), (0, 4), (-1, 2), (1, -1)])
async def test_a_range_outside_the_span_is_refused(offset: int, length: int) -> None:
    """Negative, empty, and past the end."""
    async with rig() as r:
        span_id = await r.leaf("abc")
        with pytest.raises(BoundaryError):
            await r.run(r.context.mint(span_id, offset=offset, length=length))


async def test_a_part_to_the_end_needs_no_length() -> None:
    """All the rest from an offset."""
    async with rig() as r:
        pointer = await minted(r, "abcdef", offset=4)
        assert "ef" == (await r.run(r.context.resolve(pointer))).quote()


async def test_of_a_large_span_only_the_range_is_fetched() -> None:
    """C68: a range of a large leaf; its total size is known."""
    async with rig() as r:
        pointer = await minted(r, BIG, offset=100_000, length=16)
        fetched = r.transport.parts.passed
        resolved = await r.run(r.context.resolve(pointer))
        assert (BIG[100_000:100_016], len(BIG)) == (resolved.quote(), resolved.answer.span_size_bytes)
        assert fetched + 1 == r.transport.parts.passed
        assert Tier.COLD is (await r.run(r.context.resolve(pointer))).tier


async def test_a_quote_is_never_a_paraphrase() -> None:
    """C69, seed-1: a summarised leaf comes back verbatim; the summary only to who asks, marked as such."""
    async with rig() as r:
        sources = await r.leaves("the literal signature", "and more of the same")
        pointer = await r.run(r.context.mint(sources[0]))
        await r.run(r.context.compact(sources, "a paraphrase", name="sum"))
        leaf = await r.run(r.context.resolve(pointer))
        assert ("the literal signature", True) == (leaf.quote(), leaf.restamped)
        summary = await r.run(r.context.resolve(pointer, accept_summary=True))
        assert ("a paraphrase", Level.L1_SUMMARY, False) == (summary.text, summary.level, summary.verbatim)
        assert "l1:sum" == summary.pointer.span_id
        for claim in (summary.quote, lambda: str(summary), lambda: bytes(summary)):
            with pytest.raises(LevelMismatch, match="no quote"):
                claim()
        assert "paraphrase" not in repr(summary)
        assert b"the literal signature" == bytes(leaf)
        assert "the literal signature" == str(leaf)
        flagged = pointer.model_copy(update={"accept_summary": True})
        assert not (await r.run(r.context.resolve(flagged))).verbatim
        assert (await r.run(r.context.resolve(flagged, accept_summary=False))).verbatim


async def test_a_pointer_of_another_epoch_is_re_stamped_or_refused() -> None:
    """Re-stamped by default, refused in strict mode; a re-stamped one is good in strict mode."""
    async with rig() as r:
        pointer = await minted(r)
        other = await r.leaf("other")
        await r.run(r.context.rewrite(other, "changed"))
        await r.run(r.context.rewrite(other, "changed again"))
        await r.run(r.context.compact([pointer.span_id], "s"))
        for consistency in CONSISTENCIES:
            with pytest.raises(EpochMismatch):
                await r.run(r.context.resolve(pointer, strict=True, consistency=consistency))
        resolved = await r.run(r.context.resolve(pointer))
        assert (3, True) == (resolved.pointer.epoch, resolved.restamped)
        again = await r.run(r.context.resolve(resolved.pointer, strict=True))
        assert not again.restamped


async def test_a_rewritten_span_is_stale_and_says_what_is_there() -> None:
    """The error carries the current identity, in both modes."""
    async with rig() as r:
        pointer = await minted(r)
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        for consistency in CONSISTENCIES:
            with pytest.raises(StaleSpanError) as caught:
                await r.run(r.context.resolve(pointer, consistency=consistency))
            assert (2, SpanState.LIVE) == (caught.value.current.version, caught.value.current.state)


async def test_an_old_version_that_is_kept_is_read_by_name() -> None:
    """Copy on rewrite: with `accept_superseded`, and the answer says so."""
    async with rig() as r:
        pointer = await minted(r)
        r.service.pins[CONTEXT] = {(pointer.span_id, 1): PinCost.EXPENSIVE}
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        other, _ = await fresh(r)
        for consistency in CONSISTENCIES:
            with pytest.raises(StaleSpanError) as caught:
                await r.run(other.context.resolve(pointer, consistency=consistency))
            assert caught.value.fields["superseded_readable"] is True
            old = await r.run(other.context.resolve(pointer, accept_superseded=True, consistency=consistency))
            assert ("Ship on Friday.", True) == (old.quote(), old.superseded)


async def test_what_is_unknown_is_unreachable() -> None:
    """Another context, no such span, no such version, a pruned span."""
    async with rig() as r:
        pointer = await minted(r)
        pruned = await minted(r, "pruned")
        await r.run(r.context.prune(pruned.span_id))
        for wrong in (
            pointer.model_copy(update={"context_id": "other"}),
            pointer.model_copy(update={"span_id": "l0:none"}),
            pointer.model_copy(update={"version": 2}),
            pruned,
        ):
            for consistency in CONSISTENCIES:
                with pytest.raises((Unreachable, PointerResurrectionError)):
                    await r.run(r.context.resolve(wrong, consistency=consistency))
        for call in (
            r.context.mint("l0:none"),
            r.context.mint(pruned.span_id),
            r.context.expand("l0:none"),
            r.context.derived("l0:none", len).use(),
            r.context.derived(pruned.span_id, len).use(),
            r.context.revalidate(pruned),
        ):
            with pytest.raises(Unreachable):
                await r.run(call)


async def test_a_made_up_hash_is_refused() -> None:
    """A claim on bytes that are not there, of the whole span or of a part of it, small or large."""
    async with rig() as r:
        for text in ("abcdef", BIG):
            pointer = await minted(r, text)
            other = content_hash(Level.L0_VERBATIM, b"xyz")
            for wrong in (
                pointer.model_copy(update={"content_hash": other}),
                pointer.model_copy(update={"content_hash": other, "length": 3}),
            ):
                with pytest.raises(HashMismatch):
                    await r.run(r.context.resolve(wrong))
        assert "abc" == (await minted_quote(r))


async def minted_quote(r: Rig) -> str:
    pointer = await minted(r, "abc")
    return (await r.run(r.context.resolve(pointer))).quote()


async def test_revalidation_re_stamps_without_fetching() -> None:
    """A pointer that is still good comes back at the current epoch, with its own flag; a stale one raises."""
    async with rig() as r:
        sources = await r.leaves("a long first leaf", "a long second leaf")
        pointer = (await r.run(r.context.mint(sources[0]))).model_copy(update={"accept_summary": True})
        await r.run(r.context.compact(sources, "sum"))
        assert pointer.model_copy(update={"epoch": 1}) == await r.run(r.context.revalidate(pointer))
        assert 0 == r.service.asked[Verb.FETCH]


async def test_a_summary_expands_to_its_leaves() -> None:
    """C67: pointers to all leaves, in order, through every level; each resolves verbatim."""
    texts = [f"leaf number {i}, long enough" for i in range(4)]
    async with rig() as r:
        leaves = await r.leaves(*texts)
        await r.run(r.context.compact(leaves[:2], "first", name="a"))
        await r.run(r.context.compact(leaves[2:], "second", name="b"))
        await r.run(r.context.compact(["l1:a", "l1:b"], "all", name="c"))
        pointers = await r.run(r.context.expand("l2:c"))
        assert leaves == [pointer.span_id for pointer in pointers]
        assert texts == [(await r.run(r.context.resolve(p))).quote() for p in pointers]
        assert leaves[:1] == [p.span_id for p in await r.run(r.context.expand(leaves[0]))]


# --- losses ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("consistency", CONSISTENCIES)
@pytest.mark.parametrize("text", ["small", BIG], ids=["small", "large"])
async def test_lost_and_damaged_and_unavailable_are_told_apart(consistency: Consistency, text: str) -> None:
    """C70, C110, C111, I9: three errors, of which two are hard failures; never a summary instead."""
    async with rig() as r:
        pointer = await minted(r, text)
        await r.run(r.context.compact([pointer.span_id], "s"))
        r.service.cold_down = True
        with pytest.raises(Unavailable):
            await r.run(r.context.resolve(pointer, consistency=consistency))
        r.service.cold_down = False
        r.service.damage(CONTEXT, pointer.span_id)
        with pytest.raises(LeafCorrupt):
            await r.run(r.context.resolve(pointer, consistency=consistency))
        r.service.lose(CONTEXT, pointer.span_id)
        with pytest.raises(LeafLost):
            await r.run(r.context.resolve(pointer, consistency=consistency))


@pytest.mark.parametrize("consistency", CONSISTENCIES)
async def test_the_workers_bytes_are_checked_here(consistency: Consistency) -> None:
    """I1: a worker that hands out other bytes than it checked is not believed, and the bytes not kept."""
    async with rig() as r:
        for text in ("abcdef", BIG):
            pointer = await minted(r, text)
            r.service.tamper = lambda data: b"X" + data[1:]
            with pytest.raises((LeafCorrupt, HashMismatch)):
                await r.run(r.context.resolve(pointer, consistency=consistency))
            r.service.tamper = None
            assert text == (await r.run(r.context.resolve(pointer))).quote()


async def test_wrong_bytes_are_asked_for_once_more() -> None:
    """Another worker may have the right ones."""
    async with rig() as r:
        pointer = await minted(r)
        wrong = iter([True, False])
        r.service.tamper = lambda data: b"X" + data[1:] if next(wrong) else data
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer))).quote()
        assert 2 == r.service.asked[Verb.FETCH]


async def test_a_budget_bounds_the_whole_of_it() -> None:
    """No answer in the budget: unavailable, after exactly that time."""
    async with rig() as r:
        pointer = await minted(r)
        r.transport.parts.lose()
        for consistency in CONSISTENCIES:
            began = r.clock.monotonic()
            with pytest.raises(Unavailable, match=r"budget of 0\.3 s"):
                await r.run(r.context.resolve(pointer, budget_s=0.3, consistency=consistency))
            assert began + 0.3 == pytest.approx(r.clock.monotonic())


@pytest.mark.parametrize("budget_s", [float("nan"), float("inf"), float("-inf"), -0.1])
async def test_a_budget_that_is_no_length_of_time_is_the_callers_mistake(budget_s: float) -> None:
    """A typed error like any other, and nothing is asked."""
    async with rig() as r:
        pointer = await minted(r)
        for consistency in CONSISTENCIES:
            with pytest.raises(InvalidInput, match="budget_s"):
                await r.run(r.context.resolve(pointer, budget_s=budget_s, consistency=consistency))


async def test_a_budget_beyond_the_longest_is_no_mistake() -> None:
    """The service is told the longest that it takes."""
    async with rig() as r:
        pointer = await minted(r)
        served = await r.run(r.context.resolve(pointer, budget_s=1e9, consistency="latest"))
        assert "Ship on Friday." == served.quote()


@pytest.mark.parametrize("word", ["lastest", "", "LATEST", None, True])
async def test_a_misspelt_consistency_is_not_the_weaker_one(word: Any) -> None:
    """It would be served without the check that was asked for."""
    async with rig() as r:
        pointer = await minted(r)
        with pytest.raises(InvalidInput, match="consistency"):
            await r.run(r.context.resolve(pointer, consistency=word))


@pytest.mark.parametrize("span_id", ["l0:a.b", "None", "a", "l9:a", "", "l0:" + 97 * "x"])
async def test_minting_what_is_no_span_id_is_the_callers_mistake(span_id: str) -> None:
    """No such span can ever have been, so it is not "unreachable"."""
    async with rig() as r:
        with pytest.raises(InvalidInput, match="span_id"):
            await r.run(r.context.mint(span_id))


# --- lagging -----------------------------------------------------------------------------------------


async def test_a_pointer_made_elsewhere_resolves_here() -> None:
    """C65: made on A, used on B, whose bump is late: B catches up before it says that it knows nothing."""
    async with rig() as r:
        other, _ = await fresh(r)
        other.transport.bumps.hold()
        pointer = await minted(r)
        assert 0 == other.context.tree.revision
        assert "Ship on Friday." == (await r.run(other.context.resolve(pointer))).quote()


async def test_a_pointer_to_a_later_epoch_or_version_is_caught_up_with() -> None:
    """C65: the same for a span that is known here at an older version, and for an epoch not heard of."""
    async with rig() as r:
        pointer = await minted(r)
        other, _ = await fresh(r)
        other.transport.bumps.hold()
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        newer = await r.run(r.context.mint(pointer.span_id))
        assert "Ship on Monday." == (await r.run(other.context.resolve(newer))).quote()
        third = await minted(r, "third")
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Tuesday."))
        stamped = await r.run(r.context.revalidate(third))
        assert "third" == (await r.run(other.context.resolve(stamped))).quote()


async def test_catching_up_is_tried_once() -> None:
    """A span that does not exist costs one question, not a loop."""
    async with rig() as r:
        pointer = await minted(r)
        asked = r.service.asked[Verb.SYNC]
        with pytest.raises(Unreachable):
            await r.run(r.context.resolve(pointer.model_copy(update={"span_id": "l0:none"})))
        assert asked + 1 == r.service.asked[Verb.SYNC]


async def test_a_worker_that_knows_more_is_listened_to() -> None:
    """The bump is late, the bytes are not here: the worker refuses, the holder catches up and says why."""
    async with rig() as r:
        pointer = await minted(r)
        other, _ = await fresh(r)
        other.transport.bumps.hold()
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        with pytest.raises(StaleSpanError) as caught:
            await r.run(other.context.resolve(pointer))
        assert 2 == caught.value.current.version
        assert 2 == other.context.tree.nodes[pointer.span_id].version


async def test_bounded_staleness_is_what_it_says() -> None:
    """In memory, within the bound, a lost bump is not known: `latest` knows it."""
    async with rig() as r:
        pointer = await minted(r)
        other, _ = await fresh(r)
        await r.run(other.context.resolve(pointer))
        other.transport.bumps.hold()
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        assert "Ship on Friday." == (await r.run(other.context.resolve(pointer))).quote()
        with pytest.raises(StaleSpanError):
            await r.run(other.context.resolve(pointer, consistency="latest"))


async def test_latest_costs_one_round_trip() -> None:
    """A fetch if the bytes are not here, a sync if they are, and never both."""
    async with rig() as r:
        pointer = await minted(r)
        asked = r.service.asked.copy()
        for verb, tier in ((Verb.FETCH, Tier.COLD), (Verb.SYNC, Tier.MEMORY)):
            resolved = await r.run(r.context.resolve(pointer, consistency="latest"))
            asked[verb] += 1
            assert tier is resolved.tier
            assert (asked[Verb.FETCH], asked[Verb.SYNC]) == (
                r.service.asked[Verb.FETCH],
                r.service.asked[Verb.SYNC],
            )


async def test_latest_shows_that_this_holder_lags() -> None:
    """The answer is of a later epoch: caught up with, and then served as of that."""
    async with rig() as r:
        pointer = await minted(r)
        span_id = await r.leaf("other")
        other, _ = await fresh(r)
        other.transport.bumps.hold()
        await r.run(r.context.rewrite(span_id, "changed"))
        resolved = await r.run(other.context.resolve(pointer, consistency="latest"))
        assert (1, 1) == (resolved.pointer.epoch, other.context.head.epoch)


async def test_latest_is_served_past_the_staleness_bound() -> None:
    """The head itself was asked; what is known from before does not matter."""
    async with rig() as r:
        pointer = await minted(r)
        r.clock.jump(1000)
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer, consistency="latest"))).quote()


# --- a bump while the bytes are on their way ---------------------------------------------------------


@pytest.mark.parametrize("consistency", CONSISTENCIES)
async def test_a_rewrite_while_the_bytes_are_on_their_way(consistency: Consistency) -> None:
    """The bytes are right, and for a version that is gone when they arrive: not served."""
    async with rig() as r:
        pointer = await minted(r)
        other, _ = await fresh(r)
        other.transport.parts.hold()
        resolving = asyncio.create_task(other.context.resolve(pointer, consistency=consistency))
        await r.clock.rest()
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        await r.clock.rest()
        assert 2 == other.context.tree.nodes[pointer.span_id].version
        other.transport.parts.release()
        with pytest.raises(StaleSpanError):
            await r.run(resolving)


@pytest.mark.parametrize("consistency", CONSISTENCIES)
async def test_a_compaction_while_the_bytes_are_on_their_way(consistency: Consistency) -> None:
    """The leaf is covered when its bytes arrive: served, re-stamped; with `accept_summary`, the summary."""
    async with rig() as r:
        pointer = await minted(r, "a leaf that is long enough")
        other, _ = await fresh(r)
        for accept_summary, expected in ((False, "a leaf that is long enough"), (True, "sum")):
            other.transport.parts.hold()
            resolving = asyncio.create_task(
                other.context.resolve(
                    pointer,
                    accept_summary=accept_summary,
                    consistency=consistency,
                )
            )
            await r.clock.rest()
            if not accept_summary:
                await r.run(r.context.compact([pointer.span_id], "sum"))
            other.transport.parts.release()
            resolved = await r.run(resolving)
            assert (expected, 1) == (resolved.text, resolved.pointer.epoch)


async def test_the_bound_holds_for_bytes_that_took_long() -> None:
    """The head was confirmed when the fetch began, and is too old when the bytes arrive: asked for again."""
    async with rig(staleness_bound_s=2.0, sync_interval_s=1.5, rpc_timeout_s=60.0) as r:
        pointer = await minted(r)
        other, _ = await fresh(r, staleness_bound_s=2.0, sync_interval_s=1.5, rpc_timeout_s=60.0)
        other.transport.parts.hold()
        resolving = asyncio.create_task(other.context.resolve(pointer))
        await r.clock.rest()
        other.transport.bumps.hold()
        await r.run(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        r.clock.jump(3)
        other.transport.parts.release()
        with pytest.raises(StaleSpanError):
            await r.run(resolving)


async def test_a_span_that_changes_with_every_try_is_unsettled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded tries, then a typed error."""
    async with rig() as r:
        span_id = await r.leaf("version 1")
        writer, _ = await fresh(r)
        answer, version = r.service.answer, iter(range(2, 1000))

        def rewriting(context_id: str, verb: Verb, body: bytes) -> list[bytes]:
            parts = answer(context_id, verb, body)
            if verb is Verb.FETCH:
                command = writer.context._commands.rewrite(
                    span_id, f"version {next(version)}", base_version=None, event_id=None
                )
                current = r.service.tree(CONTEXT).nodes[span_id].version
                command = command.model_copy(update={"base_version": current})
                r.service.carry_out(CONTEXT, command.kind, command.wire())
            return parts

        monkeypatch.setattr(r.service, "answer", rewriting)
        with pytest.raises(Unsettled):
            await r.run(r.context.mint(span_id, offset=1, length=2))


async def test_many_resolves_during_a_rewrite() -> None:
    """I1: of a hundred at once, each gives the old bytes or says that they are stale, and nothing else."""
    async with rig() as r:
        pointer = await minted(r)
        other, _ = await fresh(r)
        resolving = [asyncio.create_task(other.context.resolve(pointer)) for _ in range(50)]
        rewriting = asyncio.create_task(r.context.rewrite(pointer.span_id, "Ship on Monday."))
        resolving += [asyncio.create_task(other.context.resolve(pointer)) for _ in range(50)]
        results = await r.run(asyncio.gather(*resolving, return_exceptions=True))
        await r.run(rewriting)
        assert {"Ship on Friday.", "stale_span"} >= {
            result.code if isinstance(result, StaleSpanError) else result.quote()  # type: ignore[union-attr]
            for result in results
        }


def test_the_actions_are_all_met_here() -> None:
    """What `check` can say, and what the tests above bring about: a new action needs a test."""
    assert {"serve", "re_stamp", "re_expand", "stale", "refuse"} == {action.value for action in Action}
