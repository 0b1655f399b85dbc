"""The commit on ports in memory: a fault, a cancellation or a race at every point of its way."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any

import pytest
import structlog

from sexton.core.hash import body_digest, content_hash
from sexton.core.pins import PinCost
from sexton.schemas.codec import AnyCommand, AnyOutcome
from sexton.schemas.commands import Append, SourceRef
from sexton.schemas.errors import PayloadTooLarge, Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.span import Claim, NewSpan, Strategy
from sexton.worker.commit import Deferred, Done
from sexton.worker.contexts import Contexts, Known
from sexton.worker.holdings import Held
from sexton.worker.ports import LostRaceError, RegistryUnavailable
from tests.core_kit.build import CONTEXT, append, compact, leaf, prune, rewrite, view_ids
from tests.support.waiting import deadline
from tests.worker_kit.stores import FixedHoldings, MemoryLog, World, carry_out, unavailable_at

COMMANDS: dict[str, AnyCommand] = {
    "append": append("go", "c", "d"),
    "compact": compact("go", "l0:a", "l0:b"),
    "rewrite": rewrite("go", "l0:a", "other bytes"),
    "prune": prune("go", "l0:a"),
}


@pytest.fixture
async def world() -> World:
    """A context of two leaves."""
    world = World()
    assert isinstance(await world.outcome(append("fill", "a", "b")), Committed)
    return world


async def _points(kind: str) -> list[str]:
    """The names of all points that a command of this kind passes."""
    world, seen = World(), list[str]()
    await world.outcome(append("fill", "a", "b"))
    await carry_out(world.with_faults(seen.append).committer(), COMMANDS[kind])
    return list(dict.fromkeys(seen))


POINTS = {kind: asyncio.run(_points(kind)) for kind in COMMANDS}


def test_the_way_of_a_commit_is_the_documented_one() -> None:
    """The table of crash points in the docs has a row for each port that a commit passes, in order."""
    assert [
        "hot.get_snapshot",
        "cold.write",
        "log.append",
        "hot.put",
    ] == [
        name
        for name in dict.fromkeys(point.split(":")[0] for point in POINTS["append"])
        if name != "log.head"
    ]


@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind, points in POINTS.items() for point in points]
)
async def test_redelivery_after_a_crash_at_any_point_changes_the_context_once(
    world: World, kind: str, point: str
) -> None:
    """I8, C08, C15: dead at the point, delivered again elsewhere: one record, and its first outcome."""
    command = COMMANDS[kind]

    def die(name: str) -> None:
        if name == point:
            raise asyncio.CancelledError

    before = await world.tree()
    with pytest.raises(asyncio.CancelledError):
        await carry_out(world.with_faults(die).committer(), command)
    middle = await world.tree()
    committed = middle.revision == 2
    assert committed or before == middle, "whole after the commit, untouched before it"

    outcome = await world.outcome(command, redelivered=True)
    assert isinstance(outcome, Committed)
    assert 2 == outcome.revision == (await world.tree()).revision
    assert outcome == await world.outcome(command), "a repeat is told the same"


@pytest.mark.parametrize(
    ("kind", "point"), [(kind, point) for kind, points in POINTS.items() for point in points]
)
async def test_an_outage_at_any_point_leaves_the_command_to_be_tried_again(
    world: World, kind: str, point: str
) -> None:
    """I7, I8: a port that fails once is either not needed, or the command comes again and counts once."""
    faulty = world.with_faults(unavailable_at(point)).committer()
    outcome: Any = None
    for redelivered in (False, True):
        try:
            done = await carry_out(faulty, COMMANDS[kind], redelivered=redelivered)
        except Unavailable:
            continue
        assert isinstance(done, Done)
        outcome = done.outcome
        break
    assert isinstance(outcome, Committed)
    assert 2 == outcome.revision == (await world.tree()).revision


@pytest.mark.parametrize("kind", COMMANDS)
async def test_cancelled_at_each_await(kind: str) -> None:
    """C15: whichever await it is, the context is as before or as after, and the repeat mends it."""
    for steps in range(200):
        world = World()
        await world.outcome(append("fill", "a", "b"))
        task = asyncio.ensure_future(carry_out(world.committer(), COMMANDS[kind]))
        for _ in range(steps):
            await asyncio.sleep(0)
        if task.done():
            assert steps > 4, "it was cancelled at some awaits before it was done"
            break
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert (await world.tree()).revision in (1, 2)
        outcome = await world.outcome(COMMANDS[kind], redelivered=True)
        assert isinstance(outcome, Committed)
        assert 2 == outcome.revision == (await world.tree()).revision
    else:
        pytest.fail("the command never came to its end")


async def test_no_record_names_bytes_that_were_not_read_back(world: World) -> None:
    """C66: a store that swallows what is written gets no record."""
    world.cold = _Forgetful(world.cold)
    with pytest.raises(Unavailable):
        await world.outcome(append("lost", "c"))
    assert 1 == (await world.tree()).revision


class _Forgetful:
    """A cold store that says yes and keeps nothing: what the adapter notices when it reads back."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def write(self, context_id: str, blob: Any) -> None:
        raise Unavailable(f"{blob.span_id} did not read back as written")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_nothing_is_said_before_the_record_is_stored() -> None:
    """C19: however long the log takes to answer."""
    stored = asyncio.Event()

    class _SlowLog(MemoryLog):
        async def append(self, context_id: str, data: bytes, expected: int) -> int:
            await stored.wait()
            return await super().append(context_id, data, expected)

    world = World(_SlowLog())
    telling = asyncio.ensure_future(world.outcome(append("go", "a")))
    for _ in range(500):
        await asyncio.sleep(0)
    assert not telling.done()
    stored.set()
    assert isinstance(await telling, Committed)


# --- the log's ambiguities ---------------------------------------------------------------------------


class _AmbiguousLog(MemoryLog):
    """Says that a race was lost, whatever became of the record: `fate` decides that."""

    def __init__(self, fate: Callable[["_AmbiguousLog", str, bytes, int], Any]) -> None:
        super().__init__()
        self.fate = fate
        self.tries = 0

    async def append(self, context_id: str, data: bytes, expected: int) -> int:
        self.tries += 1
        if self.tries == 2:  # the first one fills the context
            await self.fate(self, context_id, data, expected)
            raise LostRaceError(context_id)
        return await super().append(context_id, data, expected)

    async def really(self, context_id: str, data: bytes, expected: int) -> int:
        return await super().append(context_id, data, expected)


async def _filled(log: MemoryLog) -> World:
    world = World(log)
    await world.outcome(append("fill", "a", "b"))
    return world


async def test_a_publish_that_timed_out_and_was_stored_counts_once() -> None:
    """I8, C26: no answer came, or 10071 to our own success; the head says that it is there."""
    world = await _filled(_AmbiguousLog(lambda log, *what: log.really(*what)))
    outcome = await world.outcome(append("go", "c"))
    assert isinstance(outcome, Committed)
    assert 2 == outcome.revision == (await world.tree()).revision


async def test_a_slow_publish_that_was_stored_without_an_answer_confirms_its_bytes() -> None:
    """I9: paused for long before it, while the bytes were swept as an orphan's; they are put again."""

    async def swept(log: Any, *what: Any) -> None:
        async for blob in filled.cold.stored():
            await filled.cold.delete_key(blob.key)
        await log.really(*what)

    filled = await _filled(_AmbiguousLog(swept))
    committer = filled.committer()
    committer._confirm_after_s = -1.0  # any commit is a slow one
    done = await carry_out(committer, append("go", "c"))
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Committed)
    [span] = done.outcome.spans
    node = (await committer._contexts.refresh("ctx")).tree.nodes[span.span_id]
    assert node.size_bytes == await filled.cold.size_bytes("ctx", node.identity)


async def test_a_publish_that_was_lost_is_made_again() -> None:
    """I7: no answer came and nothing was stored."""

    async def nothing(*_: Any) -> None:
        return

    world = await _filled(_AmbiguousLog(nothing))
    outcome = await world.outcome(append("go", "c"))
    assert isinstance(outcome, Committed)
    assert 2 == outcome.revision == (await world.tree()).revision


async def test_a_ghost_write_that_arrives_later_changes_nothing() -> None:
    """I8: the first try was still on its way when the second one was committed; then it arrives."""
    late: list[tuple[str, bytes, int]] = []

    async def keep(_: Any, *what: Any) -> None:
        late.append(what)

    log = _AmbiguousLog(keep)
    world = await _filled(log)
    await world.outcome(append("go", "c"))
    with pytest.raises(LostRaceError):
        await log.really(*late[0])
    assert ["fill", "go"] == [record.event_id for record in await world.records()]


async def test_a_ghost_write_that_arrives_between_the_tries_counts() -> None:
    """I8: the first try arrives after the head was read, so the second one loses to it and finds it."""
    late: list[tuple[str, bytes, int]] = []

    class _Ghost(MemoryLog):
        async def append(self, context_id: str, data: bytes, expected: int) -> int:
            if len(self.entries) == 1 and not late:
                late.append((context_id, data, expected))
                raise LostRaceError(context_id)
            if len(late) == 1:
                late.append(late[0])
                await super().append(*late[0])
            return await super().append(context_id, data, expected)

    world = await _filled(_Ghost())
    outcome = await world.outcome(append("go", "c"))
    assert isinstance(outcome, Committed)
    assert ["fill", "go"] == [record.event_id for record in await world.records()]


async def test_races_lost_without_end_give_the_command_back() -> None:
    """I7: after a bounded number of tries the command is to be delivered again, not lost and not spun on."""

    class _NeverLog(MemoryLog):
        tries = 0

        async def append(self, context_id: str, data: bytes, expected: int) -> int:
            self.tries += 1
            raise LostRaceError(context_id)

    log = _NeverLog()
    with pytest.raises(Unavailable, match="lost 3 races"):
        await carry_out(World(log).committer(attempts=3), append("go", "a"))
    assert 3 == log.tries


async def test_a_record_that_the_log_takes_from_nobody_is_rejected() -> None:
    """I7: a command that can never be committed must not come again and again, and hold up its partition."""

    class _SmallLog(MemoryLog):
        async def append(self, context_id: str, data: bytes, expected: int) -> int:
            raise PayloadTooLarge("the record has 9 bytes, at most 8 fit", limit=8, actual=9)

    outcome = await World(_SmallLog()).outcome(append("go", "a"))
    assert isinstance(outcome, Rejected)
    assert RejectionCode.TOO_LARGE is outcome.code


# --- two writers -------------------------------------------------------------------------------------


async def test_two_rewrites_of_one_version_give_one_winner(world: World) -> None:
    """C06: the loser is told what is there now."""
    first, second = await asyncio.gather(
        world.outcome(rewrite("one", "l0:a", "bytes of the one")),
        world.outcome(rewrite("two", "l0:a", "bytes of the other")),
    )
    winner, loser = (first, second) if isinstance(first, Committed) else (second, first)
    assert isinstance(winner, Committed)
    assert isinstance(loser, Rejected)
    assert RejectionCode.STALE_SOURCE is loser.code
    node = (await world.tree()).nodes["l0:a"]
    assert [node.current] == list(loser.spans)
    assert 2 == node.version


async def test_a_loser_s_bytes_are_not_the_winner_s(world: World) -> None:
    """I1: the loser's bytes lie under another key, so the version reads as what was committed."""
    await asyncio.gather(
        world.outcome(rewrite("one", "l0:a", "bytes of the one")),
        world.outcome(rewrite("two", "l0:a", "bytes of the two")),
    )
    node = (await world.tree()).nodes["l0:a"]
    data = await world.cold.read(CONTEXT, node.identity)
    assert node.content_hash == content_hash(Level.L0_VERBATIM, data)


async def test_appends_of_two_workers_are_both_kept(world: World) -> None:
    """I7, C05: neither is refused as stale, whoever was first."""
    await asyncio.gather(*(world.outcome(append(f"e{i}", f"n{i}")) for i in range(8)))
    tree = await world.tree()
    assert 9 == tree.revision
    assert {f"l0:n{i}" for i in range(8)} <= set(view_ids(tree))


async def test_an_append_beside_a_compaction_is_kept(world: World) -> None:
    """I7, C01: the append commits between the plan of the compaction and its commit."""
    outcomes = await asyncio.gather(
        world.outcome(compact("sum", "l0:a", "l0:b", planned_epoch=0)), world.outcome(append("new", "c"))
    )
    assert [Committed, Committed] == [type(outcome) for outcome in outcomes]
    assert ["l1:sum", "l0:c"] == view_ids(await world.tree())


async def test_a_tree_that_lags_does_not_refuse_what_the_head_would_take(world: World) -> None:
    """C05: a rejection is only given by the head of the log."""
    contexts = world.contexts()
    committer = world.committer(contexts)
    await contexts.get(CONTEXT)
    await world.outcome(append("elsewhere", "c"))
    done = await carry_out(committer, rewrite("go", "l0:c", "new bytes"))
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Committed)


async def test_a_tree_that_lags_knows_a_repeat_in_the_end(world: World) -> None:
    """I8: committed elsewhere, unknown here: the compare-and-swap notices; the first outcome is told."""
    contexts = world.contexts()
    committer = world.committer(contexts)
    await contexts.get(CONTEXT)
    first = await world.outcome(append("go", "c"))
    done = await carry_out(committer, append("go", "c"))
    assert Done(first) == done
    assert 2 == (await world.tree()).revision


async def test_the_same_event_id_with_another_body_is_refused(world: World) -> None:
    """I8: also by a worker that has not heard of the first one."""
    contexts = world.contexts()
    committer = world.committer(contexts)
    await contexts.get(CONTEXT)
    await world.outcome(append("go", "c"))
    done = await carry_out(committer, append("go", "d"))
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Rejected)
    assert RejectionCode.EVENT_ID_REUSED is done.outcome.code
    assert 2 == (await world.tree()).revision


async def test_nothing_to_compact_is_said_as_such(world: World) -> None:
    """C46: no change, no record."""
    outcome = await world.outcome(compact("none"))
    assert isinstance(outcome, NoChange)
    assert 1 == (await world.tree()).revision


async def test_a_compaction_without_a_summary_is_deferred(world: World) -> None:
    """No model call inside a commit: nothing is written, nothing is committed."""
    done = await carry_out(world.committer(), compact("go", "l0:a", "l0:b", summary=None))
    assert isinstance(done, Deferred)
    assert Level.L1_SUMMARY is done.need.level
    assert 1 == (await world.tree()).revision


# --- pins --------------------------------------------------------------------------------------------


async def test_an_expensive_pin_keeps_the_old_version_readable(world: World) -> None:
    """The live pins decide the strategy of a rewrite."""
    world.pins = {("l0:a", 1): PinCost.EXPENSIVE}
    outcome = await world.outcome(rewrite("go", "l0:a", "new bytes"))
    assert isinstance(outcome, Committed)
    assert Strategy.COPY_ON_REWRITE is outcome.strategy


@pytest.mark.parametrize("kind", ["compact", "rewrite", "prune"])
async def test_an_immovable_pin_refuses_by_name(world: World, kind: str) -> None:
    """C37: nobody moves what a live holder needs as it is."""
    world.pins = {("l0:a", 1): PinCost.IMMOVABLE}
    outcome = await world.outcome(COMMANDS[kind])
    assert isinstance(outcome, Rejected)
    assert RejectionCode.IMMOVABLE is outcome.code
    assert ["l0:a"] == [span.span_id for span in outcome.spans]
    assert 1 == (await world.tree()).revision


# --- bytes that were swept ---------------------------------------------------------------------------


async def test_a_redelivered_command_puts_its_bytes_again_if_they_are_gone(world: World) -> None:
    """I1: an orphan sweep took the bytes of a commit that was very slow; the command still has them."""
    command = append("go", "c")
    await world.outcome(command)
    identity = (await world.tree()).nodes["l0:c"].identity
    await world.cold.delete(CONTEXT, identity)
    await world.outcome(command, redelivered=True)
    assert b"<c>................." == await world.cold.read(CONTEXT, identity)


async def claiming(world: World, event_id: str, text: str, *, upload_id: str | None) -> AnyCommand:
    """An append of a short leaf and one left in a chunk."""
    claim = Claim(
        digest=body_digest(text.encode()), size_bytes=len(text), chunk_bytes=len(text), upload_id=upload_id
    )
    await world.cold.write_chunk(CONTEXT, claim, 0, text.encode())
    return append(event_id, "c", NewSpan(name="big", claim=claim))


@pytest.mark.parametrize("upload_id", ["go", None, "another"])
async def test_what_is_still_there_of_a_redelivered_command_is_put_again(
    world: World, upload_id: str | None
) -> None:
    """The chunks of its claim are gone, as its commit drops them; its other bytes are not lost for that."""
    command = await claiming(world, "go", "long", upload_id=upload_id)
    await world.outcome(command)
    identities = [(await world.tree()).nodes[name].identity for name in ("l0:c", "l0:big")]
    await world.cold.delete(CONTEXT, identities[0])
    await world.outcome(command, redelivered=True)
    assert b"<c>................." == await world.cold.read(CONTEXT, identities[0])
    assert b"long" == await world.cold.read(CONTEXT, identities[1])


async def test_a_commit_drops_what_was_left_for_it_alone(world: World) -> None:
    """What names no upload, or that of another command, is left for the sweep of orphans."""
    kept = {"other": True, None: True, "go": False}
    for number, (upload_id, is_kept) in enumerate(kept.items()):
        event_id = "go" if upload_id == "go" else f"go{number}"
        text = f"text {number}"
        command = await claiming(world, event_id, text, upload_id=upload_id)
        command = command.model_copy(update={"spans": (command.spans[1].model_copy(update={"name": None}),)})  # type: ignore[union-attr]
        assert isinstance(await world.outcome(command), Committed)
        claim = command.spans[0].claim  # type: ignore[union-attr]
        assert claim is not None
        assert is_kept == (await world.cold.read_chunk(CONTEXT, claim, 0) is not None)


async def test_a_claim_that_another_delivery_has_committed_is_no_miss(world: World) -> None:
    """I8: the chunks went with a commit that this worker has not heard of; the head of the log knows it."""
    command = await claiming(world, "go", "long", upload_id="go")
    behind = world.contexts()
    await behind.get(CONTEXT)
    first = await world.outcome(command)
    done = await carry_out(world.committer(behind), command)
    assert Done(first) == done


@pytest.mark.parametrize("upload_id", ["go", None])
async def test_bytes_that_nobody_has_any_more_are_said(world: World, upload_id: str | None) -> None:
    """The commit's bytes were swept, and its claim's chunks too: it stays committed, and the log says so."""
    command = await claiming(world, "go", "long", upload_id=upload_id)
    first = await world.outcome(command)
    tree = await world.tree()
    claim = command.spans[1].claim  # type: ignore[union-attr]
    assert claim is not None
    await world.cold.delete_chunks(CONTEXT, claim)
    await world.cold.delete(CONTEXT, tree.nodes["l0:big"].identity)
    with structlog.testing.capture_logs() as logs:
        assert first == await world.outcome(command, redelivered=True)
    assert ["commit.bytes_gone"] == [line["event"] for line in logs if line["log_level"] == "error"]


async def test_a_command_that_only_comes_again_does_not_look_at_the_store(world: World) -> None:
    """A resend, as opposed to a redelivery, costs no round trip to the cold store."""
    command = append("go", "c")
    await world.outcome(command)
    seen: list[str] = []
    await carry_out(world.with_faults(seen.append).committer(), command)
    assert [] == [point for point in seen if point.startswith("cold")]


# --- without the registry ----------------------------------------------------------------------------


class NoRegistry(FixedHoldings):
    """`Holdings` whose registry does not answer."""

    def change(self, command: AnyCommand) -> FixedHoldings:
        return FixedHoldings() if isinstance(command, Append) else self

    async def read(self, known: Known) -> Held:
        raise RegistryUnavailable("registry.pins: ConnectionError")


async def without_registry(world: World, command: AnyCommand, contexts: Contexts | None = None) -> AnyOutcome:
    committer = world.committer(contexts)
    committer._holdings = NoRegistry()  # type: ignore[assignment]
    done = await carry_out(committer, command)
    assert isinstance(done, Done)
    return done.outcome


@pytest.mark.parametrize("kind", COMMANDS)
async def test_without_the_registry_nothing_is_decided_about_pins(world: World, kind: str) -> None:
    """I4: unknown is not zero. Nor is it a wait: the lane goes on, and the sender is told to try again."""
    outcome = await without_registry(world, COMMANDS[kind])
    if kind == "append":
        assert isinstance(outcome, Committed)
        return
    assert isinstance(outcome, Rejected)
    assert RejectionCode.REGISTRY_UNAVAILABLE is outcome.code
    assert 1 == outcome.revision == (await world.tree()).revision
    assert isinstance(await world.outcome(COMMANDS[kind]), Committed), "not remembered: it may be sent again"


@pytest.mark.parametrize("lagging", [False, True])
async def test_without_the_registry_a_repeat_gets_its_outcome(world: World, lagging: bool) -> None:
    """I8: also where this worker has not heard of the commit yet."""
    behind = world.contexts()
    await behind.get(CONTEXT)
    first = await world.outcome(COMMANDS["rewrite"])
    assert first == await without_registry(world, COMMANDS["rewrite"], behind if lagging else None)


# --- claims ------------------------------------------------------------------------------------------


async def test_claims_of_more_than_fits_are_refused_before_they_are_read(world: World) -> None:
    """One command must not take all the memory: the sum over its claims is bounded, not only each."""
    claim = Claim(digest="sha256:" + 64 * "0", size_bytes=40 * 1024 * 1024, chunk_bytes=256 * 1024)
    seen: list[str] = []
    command = append("go", NewSpan(name="x", claim=claim), NewSpan(name="y", claim=claim))
    done = await carry_out(world.with_faults(seen.append).committer(), command)
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Rejected)
    assert RejectionCode.TOO_LARGE is done.outcome.code
    assert "cold.read_chunk:before" not in seen


async def test_chunks_of_one_command_are_bounded_and_a_claim_is_read_once(world: World) -> None:
    """A thousand spans that name one claim of tiny chunks would hold the lane of other contexts for ever."""
    seen: list[str] = []
    data = bytes(range(48, 58)) * 10
    claim = Claim(digest="sha256:" + hashlib.sha256(data).hexdigest(), size_bytes=len(data), chunk_bytes=1)
    for i in range(claim.chunks):
        await world.cold.write_chunk("ctx", claim, i, data[i : i + 1])
    same = append("same", *(NewSpan(name=f"s{i}", claim=claim) for i in range(50)))
    done = await carry_out(world.with_faults(seen.append).committer(), same)
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Committed)
    assert claim.chunks == seen.count("cold.read_chunk:before")
    many = [
        NewSpan(name=f"m{i}", claim=claim.model_copy(update={"digest": f"sha256:{i:064x}"}))
        for i in range(41)
    ]
    seen.clear()
    done = await carry_out(world.with_faults(seen.append).committer(), append("many", *many))
    assert isinstance(done, Done)
    assert isinstance(done.outcome, Rejected)
    assert RejectionCode.TOO_LARGE is done.outcome.code
    assert "4100 chunks" in (done.outcome.message or "")
    assert "cold.read_chunk:before" not in seen


async def test_sources_by_version_that_changed_are_stale(world: World) -> None:
    """C02: rewritten while the summary was made; the rejection names what is there now."""
    await world.outcome(rewrite("rw", "l0:a", "changed since"))
    outcome = await world.outcome(
        compact("go", SourceRef(span_id="l0:a", version=1), SourceRef(span_id="l0:b", version=1))
    )
    assert isinstance(outcome, Rejected)
    assert RejectionCode.STALE_SOURCE is outcome.code
    assert [("l0:a", 2)] == [(span.span_id, span.version) for span in outcome.spans]


async def test_many_spans_of_one_append_are_written_side_by_side(world: World) -> None:
    """All or none: each of the bytes is there before the record is."""
    async with deadline(10):
        outcome = await world.outcome(append("many", *(leaf(f"n{i}") for i in range(100))))
    assert isinstance(outcome, Committed)
    assert 102 == (await world.tree()).view_count
