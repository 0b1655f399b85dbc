"""Compacting to a budget: the core plans, the holder carries out, and it always ends."""

import asyncio
from collections.abc import Sequence

import pytest

from sexton.core.pins import PinCost
from sexton.core.plan import Kept
from sexton.holder import (
    CommandRejected,
    CompactionReport,
    Irreducible,
    NewSpan,
    OutcomeUnknown,
    Policy,
    Unsettled,
)
from sexton.holder.testing import MemoryService
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.schemas.span import Labels
from tests.holder_kit import CONTEXT, Rig, rig

POLICY = Policy(fan_in=4, keep_tail_bytes=0, keep_tail_spans=2, min_run_bytes=1)
TEXTS = [f"This is leaf number {i:03}, which has some sixty bytes of text." for i in range(32)]


async def first_words(texts: Sequence[str], level: Level) -> str:
    """A summary that is always smaller."""
    return f"{level.value}:{len(texts)}"


async def filled(r: Rig) -> list[str]:
    outcome = await r.run(r.context.append([NewSpan(content=text) for text in TEXTS]))
    return [span.span_id for span in outcome.spans]


async def compacted(r: Rig, budget_bytes: int, **how: object) -> CompactionReport:
    how = {"policy": POLICY, "summarise": first_words, **how}
    return await r.run(r.context.compact_to(budget_bytes, **how))  # type: ignore[arg-type]


async def test_it_fits_and_every_leaf_is_still_there() -> None:
    """Over two levels and more; every L0 pointer minted before gives exactly its bytes."""
    async with rig() as r:
        pointers = [await r.run(r.context.mint(span_id)) for span_id in await filled(r)]
        report = await compacted(r, 135)
        assert r.context.tree.view_bytes == report.size_after_bytes <= 135
        assert sum(len(text) for text in TEXTS) == report.size_before_bytes
        assert (0, r.context.head.epoch) == (report.epoch_before, report.epoch_after)
        assert report.epoch_after == len(report.committed)
        assert report.changed
        assert Level.L2_ROLLUP <= max(node.level for node in r.context.tree.view())
        for pointer, text in zip(pointers, TEXTS, strict=True):
            assert text == (await r.run(r.context.resolve(pointer))).quote()


async def test_within_the_budget_nothing_is_done() -> None:
    """C46: said as such."""
    async with rig() as r:
        await filled(r)
        report = await compacted(r, 1_000_000)
        assert (0, (), False) == (report.passes, report.committed, report.changed)
        assert report.size_before_bytes == report.size_after_bytes


async def test_the_service_makes_the_summaries_if_asked_to() -> None:
    """Without a summariser of one's own."""
    service = MemoryService(summarise=lambda texts, level: f"{level.value}:{len(texts)}")
    async with rig(service=service) as r:
        await filled(r)
        report = await compacted(r, 200, summarise=None)
        assert report.size_after_bytes <= 200


async def test_what_cannot_be_compacted_ends_it() -> None:
    """C58: the target is below what stays: a typed error with the reasons, and the report so far."""
    async with rig() as r:
        await filled(r)
        with pytest.raises(Irreducible) as caught:
            await compacted(r, 10)
        fields = caught.value.fields
        assert (10, r.context.tree.view_bytes) == (fields["budget_bytes"], fields["view_bytes"])
        assert 2 == fields["kept"][Kept.FRESH.value]
        assert fields["report"].committed


async def test_passes_are_bounded() -> None:
    """C59: a budget of work."""
    async with rig() as r:
        await filled(r)
        with pytest.raises(Unsettled, match="after 1 passes") as caught:
            await compacted(r, 135, max_passes=1)
        assert 1 == caught.value.fields["report"].passes


async def test_an_append_meanwhile_is_kept() -> None:
    """C01, C05: neither is refused: appends make no summary stale."""
    async with rig() as r:
        await filled(r)

        async def slow(texts: Sequence[str], level: Level) -> str:
            await r.context.append("appended meanwhile")
            return await first_words(texts, level)

        report = await compacted(r, 1000, summarise=slow)
        assert {} == report.rejected
        assert "appended meanwhile" in await r.run(r.context.render())


async def test_a_source_that_changed_is_planned_anew() -> None:
    """C02: the stale summary is not committed; a new one is made of what is there."""
    async with rig() as r:
        spans = await filled(r)
        seen: list[str] = []

        async def racing(texts: Sequence[str], level: Level) -> str:
            seen.extend(texts)
            if len(seen) == 4:
                await r.context.rewrite(spans[0], "rewritten")
            return await first_words(texts, level)

        report = await compacted(r, 200, summarise=racing, lanes=1)
        assert {RejectionCode.STALE_SOURCE: 1} == report.rejected
        assert "rewritten" in seen


async def test_a_source_that_always_changes_ends_it() -> None:
    """C02: retries are capped, and the stop is typed: it says what was met, and nothing was committed."""
    async with rig() as r:
        spans = await filled(r)
        calls = 0

        async def racing(texts: Sequence[str], level: Level) -> str:
            nonlocal calls
            calls += 1
            for span_id in spans[:30]:
                await r.context.rewrite(span_id, f"turn {calls} of a text that is long enough for this")
            return await first_words(texts, level)

        with pytest.raises(Unsettled, match=r"after 3 passes that met .'stale_source'") as caught:
            await compacted(r, 200, summarise=racing, lanes=1, moved_passes=2)
        assert not caught.value.fields["report"].changed
        assert 3 == calls


async def test_a_rejection_that_planning_cannot_cure_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raised as it is, with the whole outcome."""
    async with rig() as r:
        await filled(r)
        odd = Rejected(context_id=CONTEXT, code=RejectionCode("moon_phase"), message="not now")
        monkeypatch.setattr(r.service, "carry_out", lambda *_: odd.wire())
        with pytest.raises(CommandRejected, match="moon_phase: not now"):
            await compacted(r, 150)


@pytest.mark.parametrize("bad", ["", "  \n ", "x" * 10_000], ids=["empty", "blank", "larger"])
async def test_a_summary_that_is_no_good_is_put_aside(bad: str) -> None:
    """C47, C50, C51: not committed, not tried again; the rest is compacted as far as that goes."""
    async with rig() as r:
        await filled(r)
        calls = 0

        async def sometimes(texts: Sequence[str], level: Level) -> str:
            nonlocal calls
            calls += 1
            return bad if "number 000" in texts[0] else await first_words(texts, level)

        with pytest.raises(Irreducible) as caught:
            await compacted(r, 150, summarise=sometimes)
        report = caught.value.fields["report"]
        assert 1 == sum(report.rejected.values())
        assert 4 == report.kept[Kept.REFUSED]
        assert calls < 20


async def test_a_summariser_that_raises_commits_nothing() -> None:
    """C44: the error is the caller's, and is not a summary."""
    async with rig() as r:
        await filled(r)

        async def down(texts: Sequence[str], level: Level) -> str:
            raise ConnectionError("the model is down")

        with pytest.raises(ConnectionError, match="the model is down"):
            await compacted(r, 150, summarise=down)
        assert 0 == r.context.head.epoch


async def test_every_source_is_in_the_summarisers_hands() -> None:
    """C48: all texts of a run, whole and in order."""
    async with rig() as r:
        await filled(r)
        seen: list[str] = []

        async def reading(texts: Sequence[str], level: Level) -> str:
            seen.extend(texts)
            return await first_words(texts, level)

        await compacted(r, 600, summarise=reading, lanes=1)
        assert TEXTS[: len(seen)] == seen


async def test_summaries_are_made_side_by_side() -> None:
    """Four lanes: a model call of ten seconds each, seven runs, two rounds."""
    async with rig(staleness_bound_s=60.0) as r:
        await filled(r)
        at_once, most = 0, 0

        async def slow(texts: Sequence[str], level: Level) -> str:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await r.clock.sleep(10)
            at_once -= 1
            return await first_words(texts, level)

        began = r.clock.monotonic()
        await compacted(r, 300, summarise=slow)
        assert 4 == most
        assert r.clock.monotonic() - began < 30


async def test_a_held_span_stays_and_its_neighbours_go() -> None:
    """C37: an immovable pin keeps its span; the rest of the run is free."""
    async with rig() as r:
        spans = await filled(r)
        r.service.pins[CONTEXT] = {(spans[1], 1): PinCost.IMMOVABLE}
        with pytest.raises(Irreducible) as caught:
            await compacted(r, 100)
        report = caught.value.fields["report"]
        assert 1 == report.rejected[RejectionCode.IMMOVABLE]
        assert spans[1] in [node.span_id for node in r.context.tree.view()]
        assert spans[0] not in [node.span_id for node in r.context.tree.view()]


async def test_open_groups_stay() -> None:
    """C38, C41: a call without its result is not compacted, nor split from it later."""
    async with rig() as r:
        call = NewSpan(content="call " * 20, name="call", labels=Labels(group="g", open=True))
        await r.run(r.context.append([call]))
        await filled(r)
        with pytest.raises(Irreducible) as caught:
            await compacted(r, 50)
        assert "l0:call" == next(r.context.tree.view()).span_id
        assert 1 == caught.value.fields["kept"][Kept.OPEN.value]


async def test_two_compactors_at_once_do_no_harm() -> None:
    """C11, C20: each plans around what the other has committed; no span is covered twice."""
    async with rig() as r:
        spans = await filled(r)
        _, other = await r.another()
        how = {"policy": POLICY, "summarise": first_words}
        one, two = await r.run(
            asyncio.gather(r.context.compact_to(200, **how), other.compact_to(200, **how))  # type: ignore[arg-type]
        )
        assert r.context.tree.view_bytes <= 200
        leaves = [
            leaf.span_id for node in r.context.tree.view() for leaf in r.context.tree.leaves(node.span_id)
        ]
        assert spans == leaves
        assert r.service.tree(CONTEXT).epoch == len(one.committed) + len(two.committed)


async def test_a_lost_outcome_ends_it_honestly() -> None:
    """What became of the last compaction is unknown; nothing is claimed."""
    async with rig() as r:
        await filled(r)
        r.transport.outcomes.lose()
        with pytest.raises(OutcomeUnknown):
            await compacted(r, 150)


async def test_cancelled_in_the_middle_it_leaves_a_whole_context() -> None:
    """C15: what was committed is whole; everything else is untouched; it can be gone on with."""
    async with rig() as r:
        spans = await filled(r)
        how = {"policy": POLICY, "summarise": first_words}
        for steps in range(0, 60, 3):
            task = asyncio.create_task(r.context.compact_to(200, **how))  # type: ignore[arg-type]
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await r.clock.rest()
            tree = r.service.tree(CONTEXT)
            assert spans == [leaf.span_id for n in tree.view() for leaf in tree.leaves(n.span_id)]
        await compacted(r, 200)
        assert r.context.tree.view_bytes <= 200
