"""Following a context: what is lost is found, and nothing is served that is not known well enough."""

import asyncio

import pytest

from sexton.core.snapshot import Restoration, pieces
from sexton.holder import HolderSettings, StaleSpanError, Unavailable, Unconfirmed, calls, follow
from sexton.holder.ports import ConnectionEvent
from sexton.schemas.base import Message
from sexton.schemas.codec import decode
from sexton.schemas.errors import InvalidInput, PeerError
from sexton.schemas.records import Rewritten
from sexton.schemas.rpc import Snapshot, SyncPart, Verb
from sexton.schemas.span import NewSpan
from tests.holder_kit import CONTEXT, Rig, rig

SYNC_S = HolderSettings().sync_interval_s
BOUND_S = HolderSettings().staleness_bound_s


async def rewritten_elsewhere(r: Rig, span_id: str, text: str = "Ship on Monday.") -> None:
    """Another holder rewrites the span."""
    if not r.others:
        await r.another()
    other = await r.run(r.others[0].open(CONTEXT))
    await r.run(other.rewrite(span_id, text))


def alike(r: Rig) -> bool:
    here, there = r.context.tree, r.service.tree(CONTEXT)
    return (here.head, dict(here.nodes)) == (there.head, dict(there.nodes))


async def test_a_bump_is_known_as_it_comes() -> None:
    """Another holder's commit needs no asking."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.parts.lose()
        await rewritten_elsewhere(r, span_id)
        await r.clock.rest()
        assert 2 == r.context.tree.nodes[span_id].version


async def test_a_lost_bump_and_then_silence() -> None:
    """C86: one bump is lost and none follows: found by the timer, within the interval."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.lose(1)
        await rewritten_elsewhere(r, span_id)
        await r.clock.rest()
        assert 1 == r.context.tree.nodes[span_id].version
        await r.clock.advance(SYNC_S)
        assert 2 == r.context.tree.nodes[span_id].version


async def test_a_lost_bump_and_then_another_one() -> None:
    """The gap in the revisions is filled at once."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.lose(1)
        await rewritten_elsewhere(r, span_id)
        await rewritten_elsewhere(r, span_id, "Ship on Tuesday.")
        began = r.clock.monotonic()
        await r.clock.rest()
        assert alike(r)
        assert began == r.clock.monotonic()


async def test_bumps_out_of_order_and_doubled() -> None:
    """C87: delivered backwards and twice: applied in order, each once."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.hold()
        for day in ("Monday", "Tuesday", "Wednesday"):
            await rewritten_elsewhere(r, span_id, f"Ship on {day}.")
        seen = r.context.bumps()
        r.transport.bumps.repeat()
        r.transport.bumps.release(lambda held: held[::-1])
        records = [await r.run(anext(seen)) for _ in range(3)]
        assert [2, 3, 4] == [record.revision for record in records]
        assert all(isinstance(record, Rewritten) for record in records)
        assert alike(r)


async def test_a_hundred_bumps_cut_off() -> None:
    """I6: cut off without a word for a hundred changes: it converges once the connection is back."""
    async with rig() as r:
        span_id = await r.leaf("version 1")
        pointer = await r.run(r.context.mint(span_id))
        r.transport.cut()
        for i in range(100):
            await rewritten_elsewhere(r, span_id, f"version {i + 2}")
        assert 1 == r.context.tree.revision
        r.transport.mend()
        await r.clock.advance(SYNC_S * 3)
        assert alike(r)
        assert 101 == r.context.tree.revision
        with pytest.raises(StaleSpanError):
            await r.run(r.context.resolve(pointer))


async def test_far_behind_a_snapshot_is_taken() -> None:
    """Further behind than the service keeps a tail for."""
    async with rig() as r:
        r.service.tail_records = 10
        span_id = await r.leaf("version 1")
        r.transport.bumps.lose()
        for i in range(20):
            await rewritten_elsewhere(r, span_id, f"version {i + 2}")
        r.transport.bumps.work()
        await r.clock.advance(SYNC_S)
        assert alike(r)
        assert 0 == r.context.lineage


async def test_a_long_snapshot_is_taken_over_with_turns_for_others() -> None:
    """An agent goes on while its holder reads thousands of spans: one piece in a turn at most."""
    async with rig() as r:
        for i in range(5):
            await r.run(r.context.append([NewSpan(name=f"n{i}-{j}", content="x") for j in range(1000)]))
        r.service.tail_records = 0
        turns, over = 0, False

        async def probe() -> None:
            nonlocal turns
            while not over:
                turns += 1
                await asyncio.sleep(0)

        added_at: list[int] = []
        decoded_at: list[int] = []

        class Counted(Restoration):
            def add(self, snapshot: Snapshot) -> None:
                added_at.append(turns)
                super().add(snapshot)

        def counted(model: type[Message], data: bytes) -> Message:
            if model is SyncPart:
                decoded_at.append(turns)
            return decode(model, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(follow, "Restoration", Counted)
            patch.setattr(calls, "decode", counted)
            probing = asyncio.create_task(probe())
            _, late = await r.another()
            over = True
            await probing
        assert 5000 == late.tree.view_count
        for found in (decoded_at, added_at):
            assert len(found) == len(list(pieces(late.tree))) > 10
            assert len(found) == len(set(found)), "two pieces in one turn"


async def test_gaps_are_asked_for_in_single_flight() -> None:
    """A burst of bumps behind a gap is one question, not one for each."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.another()
        r.transport.bumps.hold()
        for i in range(50):
            await rewritten_elsewhere(r, span_id, f"version {i + 2}")
        asked = r.service.asked[Verb.SYNC]
        r.transport.bumps.release(lambda held: held[1:])
        await r.clock.rest()
        assert alike(r)
        assert r.service.asked[Verb.SYNC] - asked <= 2


async def test_a_reconnect_asks_for_the_head() -> None:
    """What was committed while the connection was away is known right after it is back (C90)."""
    async with rig() as r:
        span_id = await r.leaf()
        await r.another()
        r.transport.disconnect()
        await rewritten_elsewhere(r, span_id)
        began = r.clock.monotonic()
        r.transport.reconnect()
        await r.clock.rest()
        assert alike(r)
        assert began == r.clock.monotonic()


async def test_dropped_messages_ask_for_the_head() -> None:
    """A transport that had to throw bumps away says so; nothing is known to be missing otherwise."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.lose(1)
        await rewritten_elsewhere(r, span_id)
        r.transport.tell(ConnectionEvent.DROPPED)
        await r.clock.rest()
        assert alike(r)


async def test_what_is_committed_between_subscription_and_sync_is_known() -> None:
    """C90: subscribe first, then sync: the commit in between comes by one of the two, or both."""
    async with rig() as r:
        transport, other = await r.another()
        await r.run(other.close())
        transport.parts.hold()
        opening = asyncio.create_task(r.others[0].open(CONTEXT))
        await r.clock.rest()
        await r.leaf()
        transport.parts.release()
        context = await r.run(opening)
        await r.clock.rest()
        assert 1 == context.tree.revision


async def test_a_silent_subscription_is_made_anew() -> None:
    """C91: a server that has forgotten the interest: noticed by what the syncs bring, and rebuilt."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.lose()
        await rewritten_elsewhere(r, span_id)
        await r.clock.advance(SYNC_S)
        assert (1, 2) == (r.transport.follows, r.context.tree.revision)
        await r.clock.advance(SYNC_S)
        assert 2 == r.transport.follows
        r.transport.bumps.work()
        await rewritten_elsewhere(r, span_id, "Ship on Tuesday.")
        await r.clock.rest()
        assert 3 == r.context.tree.revision
        await r.clock.advance(SYNC_S * 4)
        assert 2 == r.transport.follows


async def test_a_quiet_context_is_no_silent_subscription() -> None:
    """Nothing to tell is no reason for anything."""
    async with rig() as r:
        await r.leaf()
        await r.clock.advance(SYNC_S * 10)
        assert 1 == r.transport.follows


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_a_restored_log_is_followed(kept: int) -> None:
    """The log goes back to an older copy, or is made anew: followed, and counted as another lineage."""
    async with rig() as r:
        await r.leaves("a", "b", "c", "d")
        r.service.restore(CONTEXT, kept)
        await r.clock.advance(SYNC_S)
        assert (kept, 1) == (r.context.tree.revision, r.context.lineage)
        await r.leaf("new")
        assert alike(r)


async def test_a_recreated_log_that_has_grown_is_noticed_by_its_chain() -> None:
    """More records than before: the numbers fit, the chain does not."""
    async with rig() as r:
        _, other = await r.another()
        await r.leaves("a", "b")
        r.transport.cut()
        r.service.restore(CONTEXT, 0)
        for text in "wxyz":
            await r.run(other.append(text))
        r.transport.mend()
        await r.clock.advance(SYNC_S)
        assert alike(r)
        assert 1 == r.context.lineage


async def test_a_record_of_a_newer_kind_is_taken_over_by_snapshot() -> None:
    """A holder of an older build goes on: it knows the outcome, not the record."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.bumps.hold()
        await rewritten_elsewhere(r, span_id)
        record = r.service.log(CONTEXT)[1]
        newer = record.model_copy(update={"kind": "transmuted"}).model_dump_json(warnings=False).encode()
        r.transport.bumps.release(lambda _: [])
        r.context._follower._on_bump(newer)
        await r.clock.rest()
        assert alike(r)
        assert 0 == r.context.lineage


async def test_a_snapshot_that_bumps_have_overtaken_is_followed_by_another_question() -> None:
    """More came than is remembered while it was on its way: what is missing then is asked for at once."""
    async with rig(recent_spans=1) as r:
        await r.leaves("a", "b", "c")
        _, other = await r.another()
        r.transport.parts.hold()
        foreign = r.service.log(CONTEXT)[2].model_copy(update={"chain": "sha256:" + "0" * 64})
        r.context._follower._on_bump(foreign.wire())
        await r.clock.rest()
        for text in "def":
            await r.run(other.append(text))
        began = r.clock.monotonic()
        r.transport.parts.release()
        await r.clock.rest()
        assert began == r.clock.monotonic()
        assert alike(r)
        assert 0 == r.context.lineage


async def test_a_bump_that_is_none_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody publishes nonsense on the subject: it is logged, and nothing else happens."""
    async with rig() as r:
        await r.leaf()
        before = r.context.tree
        r.context._follower._on_bump(b"{}")
        await r.clock.rest()
        assert before is r.context.tree
        assert "holder.malformed_bump" in capsys.readouterr().err


# --- staleness ---------------------------------------------------------------------------------------


async def test_the_age_counts_from_the_question() -> None:
    """An answer says what the head was no earlier than it was asked for."""
    async with rig() as r:
        r.transport.parts.hold()
        syncing = asyncio.create_task(r.context.sync())
        await r.clock.advance(1.5)
        r.transport.parts.release()
        await r.run(syncing)
        assert 1.5 == r.context.confirmed_age_s


async def test_past_the_bound_nothing_is_served_from_memory() -> None:
    """C89: the connection dies without a word: within the bound the holder stops serving."""
    async with rig() as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        await r.run(r.context.resolve(pointer))
        r.transport.cut()
        age_s = r.context.confirmed_age_s
        await r.clock.advance(BOUND_S - age_s - 0.001)
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer))).quote()
        await r.clock.advance(0.002)
        for use in (
            r.context.resolve(pointer),
            r.context.revalidate(pointer),
            r.context.mint(pointer.span_id),
            r.context.expand(pointer.span_id),
            r.context.render(),
            r.context.derived(pointer.span_id, len).use(),
            r.context.compact_to(1),
        ):
            with pytest.raises(Unconfirmed) as caught:
                await r.run(use)
            assert (CONTEXT, BOUND_S) == (caught.value.fields["context_id"], caught.value.fields["bound_s"])
            assert caught.value.fields["age_s"] > BOUND_S


async def test_service_is_resumed_with_the_first_answer() -> None:
    """C98: the loop was blocked for longer than the bound: the head is asked for, and then served."""
    async with rig() as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        _, other = await r.another()
        r.transport.bumps.lose(1)
        await r.run(other.rewrite(span_id, "Ship on Monday."))
        r.clock.jump(BOUND_S * 10)
        with pytest.raises(StaleSpanError):
            await r.run(r.context.resolve(pointer))


async def test_an_answer_that_took_longer_than_the_bound_confirms_nothing() -> None:
    """It is as old as its question."""
    async with rig(staleness_bound_s=1.5, sync_interval_s=1.0) as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        r.clock.jump(10)
        r.transport.parts.hold()
        resolving = asyncio.create_task(r.context.resolve(pointer))
        await r.clock.rest()
        r.clock.jump(2)
        r.transport.parts.release()
        r.transport.requests.lose()
        with pytest.raises(Unconfirmed):
            await r.run(resolving)


async def test_nothing_is_served_before_an_own_commit() -> None:
    """Read your writes, when neither the bump nor the answer comes: no serving until one does."""
    async with rig() as r:
        span_id = await r.leaf()
        pointer = await r.run(r.context.mint(span_id))
        r.transport.bumps.lose()
        r.transport.parts.lose()
        await r.run(r.context.rewrite(span_id, "Ship on Monday."))
        assert 1 == r.context.tree.revision
        with pytest.raises(Unconfirmed):
            await r.run(r.context.resolve(pointer))
        r.transport.parts.work()
        with pytest.raises(StaleSpanError):
            await r.run(r.context.resolve(pointer))


async def test_an_own_commit_that_the_log_lost_does_not_block_for_ever() -> None:
    """The log was taken back behind an own command: the new head is served."""
    async with rig() as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        r.transport.bumps.lose()
        r.transport.parts.lose()
        await r.run(r.context.append("lost again"))
        r.service.restore(CONTEXT, 1)
        r.transport.mend()
        assert "Ship on Friday." == (await r.run(r.context.resolve(pointer))).quote()


async def test_many_who_need_the_head_ask_once() -> None:
    """A hundred resolves after the bound: one question for all that wait, one more at most."""
    async with rig() as r:
        pointer = await r.run(r.context.mint(await r.leaf()))
        await r.run(r.context.resolve(pointer))
        r.clock.jump(BOUND_S * 2)
        asked = r.service.asked[Verb.SYNC]
        resolved = await r.run(asyncio.gather(*(r.context.resolve(pointer) for _ in range(100))))
        assert 100 == len(resolved)
        assert r.service.asked[Verb.SYNC] - asked <= 2


# --- failures ----------------------------------------------------------------------------------------


async def test_a_context_that_cannot_be_synced_is_not_opened() -> None:
    """A typed error, and nothing is left behind: the next try can succeed."""
    async with rig() as r:
        r.transport.requests.lose()
        with pytest.raises(Unavailable):
            await r.run(r.holder.open("other"))
        r.transport.requests.work()
        assert 0 == (await r.run(r.holder.open("other"))).tree.revision


async def test_an_unusable_answer_is_the_peers_error() -> None:
    """It is raised to who asks, and the holder goes on trying."""
    async with rig() as r:
        r.service.answer, answer = (lambda *_: [b"{}"]), r.service.answer  # type: ignore[method-assign]
        with pytest.raises(PeerError):
            await r.run(r.context.sync())
        await r.clock.advance(SYNC_S * 2)
        r.service.answer = answer  # type: ignore[method-assign]
        await r.leaf()
        await r.run(r.context.sync())
        assert alike(r)


async def test_a_following_that_fails_says_so_at_the_next_use(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An error that nobody expected in the background is logged, and surfaces at whoever uses the context."""
    async with rig() as r:
        pointer = await r.run(r.context.mint(await r.leaf()))

        async def broken(**_: object) -> None:
            raise ZeroDivisionError("odd")

        monkeypatch.setattr(r.context._follower, "sync", broken)
        await r.clock.advance(SYNC_S)
        assert "holder.task_failed" in capsys.readouterr().err
        with pytest.raises(PeerError, match="ZeroDivisionError") as caught:
            await r.run(r.context.resolve(pointer))
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


async def test_failed_syncs_back_off() -> None:
    """An outage of ten minutes is not a loop: the tries are bounded by the interval."""
    async with rig() as r:
        r.transport.stop_workers()
        passed = r.transport.requests.passed
        await r.clock.advance(600)
        # Each failed sync has asked three times; heartbeats go the same way.
        assert r.transport.requests.passed - passed < 600 / SYNC_S * (3 * 3 + 3)
        r.transport.start_workers()
        await r.clock.advance(SYNC_S * 2)
        assert r.context.confirmed_age_s <= SYNC_S * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"staleness_bound_s": 4.0},
        {"sync_interval_s": 0.0},
        {"rpc_tries": 0},
        {"cache_bytes": -1},
        {"sync_jitter": 1.0},
    ],
)
def test_bounds_that_cannot_be_kept_are_refused(wrong: dict[str, float]) -> None:
    """At once, and by name."""
    with pytest.raises(InvalidInput):
        HolderSettings(**wrong)  # type: ignore[arg-type]
