"""Artifacts that follow their span."""

import asyncio

import pytest

from sexton.holder import Derived, StaleSpanError, Unreachable, Unsettled
from tests.holder_kit import CONTEXT, Rig, rig


def offsets(text: str) -> dict[str, int]:
    """An offset map: where each word begins."""
    return {word: text.index(word) for word in text.split()}


async def rewritten_behind_its_back(r: Rig, span_id: str, text: str) -> None:
    """Another holder rewrites, and the bump is lost."""
    if not r.others:
        await r.another()
    other = await r.run(r.others[0].open(CONTEXT))
    r.transport.bumps.lose(1)
    await r.run(other.rewrite(span_id, text))


async def test_it_is_built_once_and_used_often() -> None:
    """No build as long as the span is what it was made from."""
    async with rig() as r:
        derived = r.context.derived(await r.leaf("Ship on Friday."), offsets)
        for _ in range(3):
            assert {"Ship": 0, "on": 5, "Friday.": 8} == await r.run(derived.use())
        assert 1 == derived.builds
        assert derived.key is not None
        assert (derived.span_id, 1) == (derived.key.span_id, derived.key.version)


async def test_a_stale_offset_map_is_caught_and_made_anew() -> None:
    """Seed-2: after a rewrite the old offsets are not used on the new text."""
    async with rig() as r:
        span_id = await r.leaf("Ship on Friday.")
        derived = r.context.derived(span_id, offsets, name="words")
        await r.run(derived.use())
        await r.run(r.context.rewrite(span_id, "On Monday we ship."))
        assert {"On": 0, "Monday": 3, "we": 10, "ship.": 13} == await r.run(derived.use())
        assert ("words", 2) == (derived.name, derived.builds)


async def test_an_append_or_a_compaction_is_no_reason() -> None:
    """The key is span, version and hash: what happens around it does not matter."""
    async with rig() as r:
        span_id = await r.leaf("a leaf that is long enough")
        derived = r.context.derived(span_id, len)
        await r.run(derived.use())
        await r.leaf("another")
        await r.run(r.context.compact([span_id], "sum"))
        assert 26 == await r.run(derived.use())
        assert 1 == derived.builds


async def test_a_lost_bump_is_noticed_with_the_next_sync() -> None:
    """However the bump was missed: the key is compared at use."""
    async with rig() as r:
        span_id = await r.leaf("short")
        derived = r.context.derived(span_id, len)
        await r.run(derived.use())
        await rewritten_behind_its_back(r, span_id, "longer text")
        await r.run(r.context.sync())
        assert 11 == await r.run(derived.use())


async def test_concurrent_uses_share_one_build() -> None:
    """Single flight: fifty uses, one build."""
    async with rig() as r:
        began = asyncio.Event()

        async def build(text: str) -> int:
            began.set()
            await r.clock.sleep(30)
            return len(text)

        derived = r.context.derived(await r.leaf("short"), build)
        uses = [asyncio.create_task(derived.use()) for _ in range(50)]
        assert [5] * 50 == await r.run(asyncio.gather(*uses))
        assert 1 == derived.builds


async def test_a_bump_during_the_build_means_another_one() -> None:
    """What is handed out was made from what is there when it is handed out."""
    async with rig() as r:
        span_id = await r.leaf("version 1")
        built: list[str] = []

        async def build(text: str) -> str:
            built.append(text)
            if len(built) == 1:
                await r.context.rewrite(span_id, "version 2")
            return text.upper()

        derived = r.context.derived(span_id, build)
        assert "VERSION 2" == await r.run(derived.use())
        assert ["version 1", "version 2"] == built


async def test_a_span_that_changes_during_every_build_is_unsettled() -> None:
    """Bounded tries, then a typed error; with the last build's key a later use goes on."""
    async with rig() as r:
        span_id = await r.leaf("version 1")
        turbulent = True

        async def build(text: str) -> str:
            if turbulent:
                await r.context.rewrite(span_id, text + "!")
            return text

        derived = r.context.derived(span_id, build)
        with pytest.raises(Unsettled, match="changed during each of 5 builds"):
            await r.run(derived.use())
        turbulent = False
        assert "version 1!!!!!" == await r.run(derived.use())


async def test_a_failing_build_fails_for_those_who_waited_and_is_tried_anew() -> None:
    """The caller's own exception, once, and not remembered."""
    async with rig() as r:
        fail = True

        async def build(text: str) -> int:
            await r.clock.sleep(1)
            if fail:
                raise RuntimeError("the model is down")
            return len(text)

        derived: Derived[int] = r.context.derived(await r.leaf("short"), build)
        uses = [asyncio.create_task(derived.use()) for _ in range(10)]
        results = await r.run(asyncio.gather(*uses, return_exceptions=True))
        assert {"the model is down"} == {str(result) for result in results}
        assert 1001 == r.clock.monotonic()
        fail = False
        assert 5 == await r.run(derived.use())


async def test_a_cancelled_use_leaves_it_to_the_next() -> None:
    """C15: the one who builds goes away: the next in line builds."""
    async with rig() as r:
        gate = asyncio.Event()

        async def build(text: str) -> int:
            await gate.wait()
            return len(text)

        derived = r.context.derived(await r.leaf("short"), build)
        first, second = (asyncio.create_task(derived.use()) for _ in range(2))
        await r.clock.rest()
        first.cancel()
        gate.set()
        assert 5 == await r.run(second)
        assert first.cancelled()


async def test_a_span_that_is_gone_has_no_artifact() -> None:
    """Pruned while it is held: an error at use, not the old value."""
    async with rig() as r:
        span_id = await r.leaf("short")
        derived = r.context.derived(span_id, len)
        await r.run(derived.use())
        await r.run(r.context.prune(span_id))
        with pytest.raises(Unreachable):
            await r.run(derived.use())


async def test_a_span_of_another_holder_is_caught_up_with() -> None:
    """C65: its bump has not come yet."""
    async with rig() as r:
        transport, other = await r.another()
        transport.bumps.hold()
        span_id = await r.leaf("short")
        assert 5 == await r.run(other.derived(span_id, len).use())


async def test_a_summary_has_artifacts_too() -> None:
    """A span of any level."""
    async with rig() as r:
        await r.run(r.context.compact(await r.leaves("long enough to", "be compacted"), "sum", name="s"))
        assert 3 == await r.run(r.context.derived("l1:s", len).use())


async def test_the_seeds_two_holders() -> None:
    """Seed-2: the planner rewrites on every turn, the retriever slices: no slice of a text that is gone."""
    async with rig() as r:
        span_id = await r.leaf("task: find the bug in parser.py line 12")
        _, retriever = await r.another()
        pointers = []
        where = retriever.derived(span_id, lambda text: text.index("parser.py"))
        for turn in range(20):
            filler = "turn " * turn
            await r.run(r.context.rewrite(span_id, f"{filler}look at parser.py again, turn {turn}"))
            offset = await r.run(where.use())
            pointer = await r.run(retriever.mint(span_id, offset=offset, length=9))
            assert "parser.py" == (await r.run(retriever.resolve(pointer))).quote()
            pointers.append(pointer)
        await r.run(r.context.rewrite(span_id, "gone"))
        for pointer in pointers:
            with pytest.raises(StaleSpanError):
                await r.run(retriever.resolve(pointer))
