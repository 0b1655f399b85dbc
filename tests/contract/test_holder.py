"""What a holder does, in memory and over NATS with a worker behind it: an agent cannot tell the two apart."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from sexton.holder import (
    BoundaryError,
    CommandRejected,
    Context,
    Holder,
    Irreducible,
    Labels,
    LevelMismatch,
    NewSpan,
    Policy,
    StaleSpanError,
    Unreachable,
)
from sexton.schemas.errors import EpochMismatch
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed, NoChange, Rejected
from sexton.schemas.records import Appended, Compacted, Pruned, Rewritten
from sexton.schemas.rpc import Tier
from sexton.worker.embedded import EmbeddedServers
from tests.holder_kit.benches import Bench, memory_bench, nats_bench
from tests.support.waiting import deadline, eventually

WITHIN_S = 30.0

TEXTS = ["Grüße, Ada. ", "\ufeffcontrol \x00 and CR LF\r\n", "👩‍👩‍👧 family ", "  trailing blanks   \n\n"]


@pytest.fixture(params=["memory", "nats"])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield await stack.enter_async_context(memory_bench())
            return
        servers = await stack.enter_async_context(EmbeddedServers(tmp_path / "servers"))
        yield await stack.enter_async_context(nats_bench(servers))


@pytest.fixture
async def two(bench: Bench, context_id: str) -> AsyncIterator[tuple[Context, Context]]:
    """The same context in two holders."""
    async with deadline(WITHIN_S, "the test"), AsyncExitStack() as stack:
        holders = [await stack.enter_async_context(Holder(bench.transport())) for _ in range(2)]
        one, two = [await holder.open(context_id) for holder in holders]
        yield one, two


async def first_words(texts: Sequence[str], level: Level) -> str:
    return f"{level.value}:{len(texts)} "


async def test_bytes_come_back_as_they_went_in(two: tuple[Context, Context]) -> None:
    """C77, C83: whole and in parts, here and elsewhere, from the service and from memory."""
    one, other = two
    for text in TEXTS:
        span_id = (await one.append(text)).spans[0].span_id
        whole = await one.mint(span_id)
        part = await one.mint(span_id, offset=len(text[:3].encode()))
        for context in (one, other):
            for _ in range(2):
                assert text.encode() == (await context.resolve(whole)).data
                assert text[3:] == (await context.resolve(part, consistency="latest")).quote()
    assert "".join(TEXTS) == await other.render()


async def test_large_content_goes_both_ways(two: tuple[Context, Context]) -> None:
    """C68: five megabytes, sent ahead in chunks; then a range of it, and all of it."""
    one, other = two
    text = "".join(f"line {i:07} of a long document\n" for i in range(170_000))
    span_id = (await one.append([NewSpan(content=text), NewSpan(content="short")])).spans[0].span_id
    whole = await one.mint(span_id)
    assert text == (await other.resolve(whole)).quote()
    line = "line 0001000 of a long document\n"
    part = await other.mint(span_id, offset=len(line) * 1000, length=len(line))
    resolved = await other.resolve(part)
    assert (line, len(text)) == (resolved.quote(), resolved.answer.span_size_bytes)


async def test_a_rewrite_is_known_to_both(two: tuple[Context, Context]) -> None:
    """Seed-2: the bump reaches the other holder; the pointer is stale, the artifact made anew."""
    one, other = two
    span_id = (await one.append("Ship on Friday.")).spans[0].span_id
    pointer = await other.mint(span_id)
    words = other.derived(span_id, str.split)
    assert ["Ship", "on", "Friday."] == await words.use()
    outcome = await one.rewrite(span_id, "We ship on Monday.")
    assert isinstance(outcome, Committed)
    await eventually(lambda: other.head.revision, until=lambda revision: revision == outcome.revision)
    with pytest.raises(StaleSpanError) as caught:
        await other.resolve(pointer)
    assert 2 == caught.value.current.version
    assert ["We", "ship", "on", "Monday."] == await words.use()
    assert 2 == words.builds


async def test_latest_knows_without_a_bump(two: tuple[Context, Context]) -> None:
    """Right after the other's commit, whether the bump has come or not."""
    one, other = two
    span_id = (await one.append("version 1")).spans[0].span_id
    pointer = await other.mint(span_id)
    await other.resolve(pointer)
    for version in range(2, 12):
        await one.rewrite(span_id, f"version {version}")
        with pytest.raises(StaleSpanError) as caught:
            await other.resolve(pointer, consistency="latest")
        assert version == caught.value.current.version


async def test_a_compaction_hides_nothing(two: tuple[Context, Context]) -> None:
    """Seed-1: leaves stay verbatim, a summary is marked as one, and expands to its leaves."""
    one, other = two
    spans = [(await one.append(f"leaf {i}, long enough to be worth it")).spans[0].span_id for i in range(4)]
    pointers = [await one.mint(span_id) for span_id in spans]
    outcome = await one.compact(spans, "the four leaves", name="sum")
    assert isinstance(outcome, Committed)
    assert outcome.size_after_bytes == len("the four leaves")
    await other.sync()
    for i, pointer in enumerate(pointers):
        leaf = await other.resolve(pointer)
        assert (f"leaf {i}, long enough to be worth it", True) == (leaf.quote(), leaf.restamped)
        summary = await other.resolve(pointer, accept_summary=True)
        assert ("the four leaves", False, Level.L1_SUMMARY) == (summary.text, summary.verbatim, summary.level)
        with pytest.raises(LevelMismatch):
            summary.quote()
        with pytest.raises(EpochMismatch):
            await other.resolve(pointer, strict=True)
    assert spans == [pointer.span_id for pointer in await other.expand("l1:sum")]
    assert "the four leaves" == await other.render()


async def test_the_service_makes_a_summary(two: tuple[Context, Context]) -> None:
    """Without one of our own; the outcome comes when it is committed."""
    one, _ = two
    spans = [
        (await one.append(f"leaf {i}, long enough to be worth a summary. And more.")).spans[0].span_id
        for i in range(3)
    ]
    outcome = await one.compact(spans)
    assert isinstance(outcome, Committed)
    assert Level.L1_SUMMARY is one.tree.nodes[outcome.spans[0].span_id].level


async def test_compacting_to_a_budget(two: tuple[Context, Context]) -> None:
    """Over two levels; every leaf is still there, to the byte, in both holders."""
    one, other = two
    texts = [f"This is leaf number {i:03}, which has some sixty bytes of text." for i in range(40)]
    appended = await one.append([NewSpan(content=text) for text in texts])
    pointers = [await one.mint(span.span_id) for span in appended.spans]
    policy = Policy(fan_in=4, keep_tail_bytes=0, keep_tail_spans=2, min_run_bytes=1)
    report = await one.compact_to(145, policy=policy, summarise=first_words)
    assert one.tree.view_bytes == report.size_after_bytes <= 145
    assert max(node.level for node in one.tree.view()) >= Level.L2_ROLLUP
    assert report.epoch_after == len(report.committed)
    await other.sync()
    for pointer, text in zip(pointers, texts, strict=True):
        assert text == (await other.resolve(pointer)).quote()
    with pytest.raises(Irreducible):
        await one.compact_to(1, policy=policy, summarise=first_words)


async def test_both_see_every_record(two: tuple[Context, Context]) -> None:
    """I6: in order, each once, of four kinds."""
    one, other = two
    await one.append("before")
    await other.sync()
    readers = [one.bumps(), other.bumps()]
    spans = [span.span_id for span in (await one.append([NewSpan(content="a long leaf")] * 2)).spans]
    await other.sync()
    await other.rewrite(spans[0], "another text")
    await one.sync()
    await one.compact(spans, "sum", name="s")
    await one.prune("l1:s")
    for reader in readers:
        records = [await anext(reader) for _ in range(4)]
        assert [2, 3, 4, 5] == [record.revision for record in records]
        assert [Appended, Rewritten, Compacted, Pruned] == [type(record) for record in records]


async def test_a_conflict_names_what_is_there(two: tuple[Context, Context]) -> None:
    """C06: two writers on one base: one wins, the other gets the current identity."""
    one, other = two
    span_id = (await one.append("base")).spans[0].span_id
    await other.sync()
    results = await asyncio.gather(
        one.rewrite(span_id, "mine", base_version=1),
        other.rewrite(span_id, "yours", base_version=1),
        return_exceptions=True,
    )
    (lost,) = [result for result in results if isinstance(result, CommandRejected)]
    assert isinstance(lost.outcome, Rejected)
    assert 2 == lost.outcome.spans[0].version
    assert one.head == other.head


async def test_refusals_are_the_same_everywhere(two: tuple[Context, Context]) -> None:
    """Unknown, pruned, cut in the middle; nothing to do."""
    one, other = two
    span_id = (await one.append("a👍b", name="plan")).spans[0].span_id
    with pytest.raises(Unreachable):
        await other.mint("l0:none")
    with pytest.raises(BoundaryError) as caught:
        await other.mint(span_id, offset=2, length=2)
    assert (1, 5) == caught.value.nearest
    assert isinstance(await other.rewrite(span_id, "a👍b"), NoChange)
    with pytest.raises(CommandRejected, match="span_exists"):
        await other.append("again", name="plan")
    with pytest.raises(CommandRejected, match="unknown_span"):
        await other.prune("l0:none")
    await other.prune(span_id)
    with pytest.raises(CommandRejected, match="pruned"):
        await other.prune(span_id)
    with pytest.raises(Unreachable):
        await other.mint(span_id)


async def test_a_repeat_under_an_event_id_counts_once(two: tuple[Context, Context]) -> None:
    """C24: from another holder, too."""
    one, other = two
    first = await one.append("once", name="plan", role="user", event_id="e1")
    assert first == await other.append("once", name="plan", role="user", event_id="e1")
    assert 1 == other.head.revision
    with pytest.raises(CommandRejected, match="event_id_reused"):
        await other.append("twice", name="plan", event_id="e1")


async def test_a_group_is_not_split(two: tuple[Context, Context]) -> None:
    """C38, C41: a call without its result is open; with it, both go together."""
    one, _ = two
    call = NewSpan(content="call " * 30, name="call", labels=Labels(group="g", open=True))
    result = NewSpan(content="result " * 30, name="result", labels=Labels(group="g"))
    await one.append([call])
    with pytest.raises(CommandRejected, match="open_group"):
        await one.compact(["l0:call"], "s")
    await one.append([result])
    with pytest.raises(CommandRejected, match="splits_group"):
        await one.compact(["l0:call"], "s")
    assert isinstance(await one.compact(["l0:call", "l0:result"], "s"), Committed)


async def test_many_contexts_at_once(bench: Bench, context_id: str) -> None:
    """C10: fifty contexts in one holder, each with its own order."""
    async with deadline(WITHIN_S, "fifty contexts"), Holder(bench.transport()) as holder:

        async def one(i: int) -> str:
            context = await holder.open(f"{context_id[:40]}_{i}")
            for n in range(5):
                await context.append(f"{i}.{n} ")
            return await context.render()

        texts = await asyncio.gather(*(one(i) for i in range(50)))
        assert ["".join(f"{i}.{n} " for n in range(5)) for i in range(50)] == texts


async def test_a_late_holder_finds_everything(bench: Bench, context_id: str) -> None:
    """C18: one that comes when all is done has the same view, and resolves what the first one minted."""
    async with deadline(WITHIN_S, "both holders"):
        async with Holder(bench.transport()) as holder:
            first = await holder.open(context_id)
            spans = [(await first.append(f"leaf {i}, long enough. ")).spans[0].span_id for i in range(6)]
            pointers = [await first.mint(span_id) for span_id in spans]
            await first.compact(spans[:3], "three. ")
            await first.rewrite(spans[4], "rewritten. ")
            view = await first.render()
        async with Holder(bench.transport()) as holder:
            late = await holder.open(context_id)
            assert (view, first.head) == (await late.render(), late.head)
            assert "leaf 0, long enough. " == (await late.resolve(pointers[0])).quote()
            assert Tier.MEMORY is (await late.resolve(await late.mint(spans[5]))).tier
            with pytest.raises(StaleSpanError):
                await late.resolve(pointers[4])
