"""Commands: one effect and the right outcome, whatever is lost on the way."""

import asyncio

import pytest

from sexton.holder import CommandRejected, OutcomeUnknown, PayloadTooLarge, Unavailable
from sexton.holder.commands import Source
from sexton.holder.testing import MemoryService
from sexton.schemas.codec import decode_command
from sexton.schemas.commands import Append, CommandKind, Compact, SourceRef
from sexton.schemas.errors import InvalidInput, PeerError
from sexton.schemas.limits import CHUNK_BYTES, MAX_SOURCES, MAX_SPANS_PER_APPEND
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.rpc import Verb
from sexton.schemas.span import Labels, NewSpan, Strategy, Text
from tests.holder_kit import CONTEXT, rig


async def test_an_append_is_committed_and_known() -> None:
    """On return the holder's own tree has it (read your writes)."""
    async with rig() as r:
        outcome = await r.run(r.context.append("Ship on Friday.", role="user", name="plan"))
        assert ("l0:plan", 1, 0) == (outcome.spans[0].span_id, outcome.revision, outcome.epoch)
        assert "user" == r.context.tree.nodes["l0:plan"].labels.role
        assert 1 == r.service.commands


async def test_several_spans_are_appended_at_once() -> None:
    """In order, all or none, in one record."""
    async with rig() as r:
        spans = [NewSpan(content=f"{i}", labels=Labels(group="g", open=i == 0)) for i in range(3)]
        outcome = await r.run(r.context.append(spans))
        assert [span.span_id for span in outcome.spans] == [n.span_id for n in r.context.tree.view()]
        assert (1, False) == (outcome.revision, r.context.tree.groups["g"].open)


@pytest.mark.parametrize("channel", ["commands", "acks", "outcomes"])
@pytest.mark.parametrize("lost", [1, 3])
async def test_a_lost_message_is_made_good(channel: str, lost: int) -> None:
    """I8: the command, its acknowledgement or its outcome is lost, once or three times: one effect."""
    async with rig() as r:
        getattr(r.transport, channel).lose(lost)
        outcome = await r.run(r.context.append("once"))
        assert (1, 1) == (outcome.revision, r.context.tree.view_count)
        assert 1 == len(r.service.log(CONTEXT))


async def test_doubled_messages_do_no_harm() -> None:
    """C24, C26: the same command twice is one command; the second outcome goes nowhere."""
    async with rig() as r:
        for channel in (r.transport.commands, r.transport.acks, r.transport.outcomes, r.transport.bumps):
            channel.repeat()
        for text in ("one", "two"):
            await r.run(r.context.append(text))
        assert (4, 2) == (r.service.commands, r.context.tree.revision)


async def test_no_outcome_at_all_is_unknown_and_can_be_asked_again() -> None:
    """The error names the event; the same call under that event id gives the first commit's outcome."""
    async with rig() as r:
        r.transport.outcomes.lose()
        with pytest.raises(OutcomeUnknown, match="may yet commit") as caught:
            await r.run(r.context.append("once", name="plan"))
        r.transport.outcomes.work()
        event_id = caught.value.fields["event_id"]
        outcome = await r.run(r.context.append("once", name="plan", event_id=event_id))
        assert (event_id, 1) == (outcome.event_id, outcome.revision)
        assert 1 == r.context.tree.revision


async def test_a_command_that_never_left_is_unavailable() -> None:
    """An outage before anything was sent: nothing can come of it, and the error says so."""
    async with rig() as r:
        r.transport.disconnect()
        with pytest.raises(Unavailable, match="could not be sent"):
            await r.run(r.context.append("once"))
        assert 0 == r.service.commands


async def test_a_short_outage_is_waited_out() -> None:
    """The connection is back within the tries: the caller notices nothing."""
    async with rig() as r:
        r.transport.disconnect()
        appending = asyncio.create_task(r.context.append("once"))
        await r.clock.advance(3)
        r.transport.reconnect()
        assert 1 == (await r.run(appending)).revision


async def test_a_connection_lost_while_the_outcome_is_awaited() -> None:
    """The wait is ended at once, and the command sent again on the next connection."""
    async with rig() as r:
        r.transport.outcomes.hold()
        appending = asyncio.create_task(r.context.append("once"))
        await r.clock.rest()
        r.transport.disconnect()
        r.transport.outcomes.release(lambda _: [])
        r.transport.reconnect()
        began = r.clock.monotonic()
        assert 1 == (await r.run(appending)).revision
        assert r.clock.monotonic() - began < 1
        assert (2, 1) == (r.service.commands, len(r.service.log(CONTEXT)))


async def test_commands_wait_for_a_worker() -> None:
    """With no worker the command is stored; the outcome comes when there is one."""
    async with rig() as r:
        r.transport.stop_workers()
        appending = asyncio.create_task(r.context.append("once"))
        await r.clock.advance(2)
        assert not appending.done()
        r.transport.start_workers()
        assert 1 == (await r.run(appending)).revision


async def test_a_rejection_is_an_error_with_the_outcome() -> None:
    """C06: two writers on one base: the other is told the current identity. Its tree knows by then."""
    async with rig() as r:
        span_id = await r.leaf("base")
        _, other = await r.another()
        await r.run(r.context.rewrite(span_id, "mine"))
        with pytest.raises(CommandRejected, match="stale_source") as caught:
            await r.run(other.rewrite(span_id, "yours", base_version=1))
        rejected = caught.value.outcome
        assert isinstance(rejected, Rejected)
        assert (RejectionCode.STALE_SOURCE, 2) == (rejected.code, rejected.spans[0].version)
        assert 2 == other.tree.nodes[span_id].version


async def test_submit_gives_any_outcome() -> None:
    """A rejection is an outcome like another there."""
    async with rig() as r:
        append = Append(context_id=CONTEXT, event_id="e", spans=(NewSpan(content="x", name="a"),))
        assert isinstance(await r.run(r.context.submit(append)), Committed)
        again = append.model_copy(update={"event_id": "f"})
        outcome = await r.run(r.context.submit(again))
        assert isinstance(outcome, Rejected)
        assert RejectionCode.SPAN_EXISTS is outcome.code


async def test_the_same_event_id_with_another_body_is_rejected() -> None:
    """The first one stands."""
    async with rig() as r:
        await r.run(r.context.append("one", event_id="e"))
        with pytest.raises(CommandRejected, match="event_id_reused"):
            await r.run(r.context.append("two", event_id="e"))


async def test_no_change_is_said_as_such() -> None:
    """C46: nothing to compact, or the bytes that are there already: no bump."""
    async with rig() as r:
        span_id = await r.leaf("same")
        assert isinstance(await r.run(r.context.rewrite(span_id, "same")), NoChange)
        assert isinstance(await r.run(r.context.compact([])), NoChange)
        assert (1, 0) == (r.context.head.revision, r.context.head.epoch)


async def test_a_late_rejection_of_an_earlier_try_is_passed_over() -> None:
    """A rejection is not remembered by the service: that of a first try is not the answer to a second."""
    async with rig() as r:
        sources = (SourceRef(span_id="l0:late"),)
        command = Compact(context_id=CONTEXT, event_id="c", sources=sources, summary=Text(content="s"))
        r.transport.outcomes.hold()
        sending = asyncio.create_task(r.context.submit(command))
        await r.clock.advance(4.9)  # the rejection waits: the span is unknown
        _, other = await r.another()
        await r.run(other.append("longer than its summary", name="late"))
        r.transport.commands.hold()
        await r.clock.advance(1)  # the second try is on its way
        r.transport.outcomes.release()
        await r.clock.rest()
        assert not sending.done()
        r.transport.commands.release()
        assert isinstance(await r.run(sending), Committed)


async def test_a_late_commit_of_an_earlier_try_counts() -> None:
    """A commit is remembered: it is the answer, whichever try it answers."""
    async with rig() as r:
        r.transport.outcomes.hold()
        appending = asyncio.create_task(r.context.append("once"))
        await r.clock.advance(5)
        r.transport.commands.lose()
        await r.clock.advance(0.5)
        r.transport.outcomes.release()
        assert 1 == (await r.run(appending)).revision


async def test_long_content_goes_ahead() -> None:
    """A 1 MB leaf: uploaded in chunks, then claimed. The bytes are the same on the other side."""
    text = "Grüße, " * 150_000
    async with rig() as r:
        span_id = await r.leaf(text)
        chunks = -(-len(text.encode()) // CHUNK_BYTES)
        assert chunks == r.service.asked[Verb.PUT]
        pointer = await r.run(r.context.mint(span_id))
        assert text == (await r.run(r.context.resolve(pointer))).quote()


async def test_a_missing_claim_is_uploaded_once_more() -> None:
    """The chunks did not outlast the wait of the command: they are left again, and the command sent again."""
    async with rig() as r:
        r.transport.commands.hold()
        appending = asyncio.create_task(r.context.append("x" * CHUNK_BYTES * 2))
        await r.clock.rest()
        r.service.drop_claims(CONTEXT)
        r.transport.commands.release()
        assert 1 == (await r.run(appending)).revision
        assert (4, 2) == (r.service.asked[Verb.PUT], r.service.commands)


async def test_a_claim_that_stays_missing_is_a_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once more, and then it is the outcome: no loop."""
    async with rig() as r:
        carry_out = r.service.carry_out

        def forgetful(*command: object) -> bytes:
            r.service.drop_claims(CONTEXT)
            return carry_out(*command)  # type: ignore[arg-type]

        monkeypatch.setattr(r.service, "carry_out", forgetful)
        with pytest.raises(CommandRejected, match="claim_missing"):
            await r.run(r.context.append("x" * CHUNK_BYTES * 2))
        assert 2 == r.service.commands


async def test_a_claim_that_cannot_be_left_stops_the_command() -> None:
    """No command is sent whose content is not there."""
    async with rig() as r:
        r.transport.requests.lose()
        with pytest.raises(Unavailable, match="put"):
            await r.run(r.context.append("x" * CHUNK_BYTES * 2))
        assert 0 == r.service.commands


async def test_bad_arguments_are_typed_errors_and_send_nothing() -> None:
    """Each is the caller's mistake; none reaches the service."""
    async with rig() as r:
        context = r.context
        too_many = [NewSpan(content="x")] * (MAX_SPANS_PER_APPEND + 1)
        for call, error in [
            (context.append("x", name="a.b"), InvalidInput),
            (context.append("x", name="n" * 10_000), InvalidInput),
            (context.append("x", role=""), InvalidInput),
            (context.append("x", event_id="a b"), InvalidInput),
            (context.append([NewSpan(content="x")], role="user"), InvalidInput),
            (context.append([]), InvalidInput),
            (context.append(too_many), PayloadTooLarge),
            (context.append("\ud800"), InvalidInput),
            (context.rewrite("l0:a", "x", event_id="e"), InvalidInput),
            (context.rewrite("nonsense", "x", base_version=1), InvalidInput),
            (context.rewrite("l0:a", "x", base_version=0), InvalidInput),
            (context.prune("l9:a"), InvalidInput),
            (context.compact(["l0:a"] * (MAX_SOURCES + 1)), PayloadTooLarge),
            (context.submit(Append(context_id="other", event_id="e", spans=too_many[:1])), InvalidInput),
        ]:
            with pytest.raises(error):
                await r.run(call)
        assert 0 == r.service.commands


async def test_an_error_names_the_field_and_not_the_value() -> None:
    """Content must not reach a log by way of an error."""
    async with rig() as r:
        with pytest.raises(InvalidInput) as caught:
            await r.run(r.context.append("x", name="secret value!"))
        assert "name" == caught.value.fields["field"]
        assert "secret" not in str(caught.value)


async def test_the_services_mistake_is_the_peers_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome of another command, or no outcome at all, is nothing to go by."""
    async with rig() as r:
        for outcome in [
            NoChange(context_id=CONTEXT, event_id="another", revision=0, epoch=0, reason="r").wire(),
            b"not json",
        ]:
            monkeypatch.setattr(r.service, "carry_out", lambda *_, outcome=outcome: outcome)
            with pytest.raises(PeerError):
                await r.run(r.context.append("x"))


async def test_a_command_that_could_not_be_read_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service cannot say whose it was; it came to this command's own address."""
    refused = Rejected(code=RejectionCode.MALFORMED, message="not a message").wire()
    async with rig() as r:
        monkeypatch.setattr(r.service, "carry_out", lambda *_: refused)
        with pytest.raises(CommandRejected, match="malformed"):
            await r.run(r.context.append("x"))


async def test_the_service_makes_a_summary_if_none_is_given() -> None:
    """Sources without a version are taken as they are known; the outcome names the strategy of nothing."""
    async with rig(
        service=MemoryService(summarise=lambda texts, level: f"{level.name} of {len(texts)}")
    ) as r:
        sources = await r.leaves("a long first leaf", "a long second leaf")
        outcome = await r.run(r.context.compact(sources, name="sum"))
        assert isinstance(outcome, Committed)
        assert ("l1:sum", None) == (outcome.spans[0].span_id, outcome.strategy)
        assert "L1_SUMMARY of 2" == await r.run(r.context.render())


async def test_a_source_by_id_is_the_version_known_here() -> None:
    """C02: rewritten between the call and the commit: the summary is of what was there, and is refused."""
    async with rig() as r:
        sources = await r.leaves("a long first leaf", "a long second leaf")
        _, other = await r.another()
        r.transport.commands.hold()
        compacting = asyncio.create_task(r.context.compact(sources, "sum"))
        await r.clock.rest()
        await r.run(other.rewrite(sources[0], "rewritten meanwhile"))
        r.transport.commands.release()
        with pytest.raises(CommandRejected, match="stale_source"):
            await r.run(compacting)
        read = await r.run(r.context.mint(sources[0]))
        refs: list[Source] = [read, SourceRef(span_id=sources[1], version=1)]
        assert isinstance(await r.run(r.context.compact(refs, "sum")), Committed)


async def test_a_summary_is_waited_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    """C09: a model call of 30 s is no time-out, and is not asked for twice."""
    async with rig(service=MemoryService(summarise=lambda texts, _: "short")) as r:
        sources = await r.leaves("a long first leaf", "a long second leaf")
        r.transport.outcomes.hold()
        compacting = asyncio.create_task(r.context.compact(sources))
        await r.clock.advance(30)
        r.transport.outcomes.release()
        await r.run(compacting)
        assert 3 == r.service.commands


async def test_a_pruned_span_and_a_strategy_are_in_the_outcome() -> None:
    """What became of the old version is the service's to say, and the caller's to know."""
    async with rig() as r:
        span_id = await r.leaf()
        outcome = await r.run(r.context.rewrite(span_id, "Ship on Monday."))
        assert isinstance(outcome, Committed)
        assert Strategy.INVALIDATE_AND_REKEY is outcome.strategy
        outcome = await r.run(r.context.prune(span_id, base_version=2))
        assert (3, 2) == (outcome.revision, outcome.epoch)
        with pytest.raises(CommandRejected, match="pruned"):
            await r.run(r.context.rewrite(span_id, "again"))
        with pytest.raises(CommandRejected, match="unknown_span"):
            await r.run(r.context.rewrite("l0:never", "x"))


async def test_a_registry_that_is_away_for_a_while_is_waited_for() -> None:
    """I8: refused because nobody can say who holds what, it is sent again, the same, and counts once."""
    async with rig() as r:
        span_id = await r.leaf()
        r.service.registry_down = True
        rewriting = asyncio.create_task(r.context.rewrite(span_id, "other bytes"))
        await r.clock.advance(r.holder.settings.outcome_timeout_s)
        assert not rewriting.done()
        assert 2 < r.service.commands < 20
        r.service.registry_down = False
        assert 2 == (await r.run(rewriting)).revision


async def test_a_registry_that_stays_away_is_unavailable_and_nothing_has_happened() -> None:
    """As many tries as for silence, each as long; and then it is known that nothing came of it."""
    async with rig() as r:
        span_id = await r.leaf()
        r.service.registry_down = True
        began = r.clock.monotonic()
        with pytest.raises(Unavailable, match="as the test says") as caught:
            await r.run(r.context.rewrite(span_id, "other bytes"))
        assert "event_id" in caught.value.fields
        settings = r.holder.settings
        assert r.clock.monotonic() - began >= settings.outcome_timeout_s * settings.command_tries
        assert 1 == r.service.tree(CONTEXT).revision


async def test_after_a_try_without_an_outcome_a_refusal_does_not_say_that_nothing_happened() -> None:
    """The first try may yet commit."""
    async with rig() as r:
        span_id = await r.leaf()
        r.transport.outcomes.lose(1)
        r.service.registry_down = True
        with pytest.raises(OutcomeUnknown):
            await r.run(r.context.rewrite(span_id, "other bytes"))


async def test_a_dead_letter_is_no_known_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been committed by the last of its tries: the caller may send the same command again."""
    async with rig() as r:

        def buried(context_id: str, kind: CommandKind, body: bytes) -> bytes:
            event_id = decode_command(body).event_id
            return Rejected(
                context_id=context_id,
                event_id=event_id,
                code=RejectionCode.DEAD_LETTER,
                message="50 deliveries; last: never",
            ).wire()

        monkeypatch.setattr(r.service, "carry_out", buried)
        with pytest.raises(OutcomeUnknown, match="50 deliveries"):
            await r.run(r.context.append("x", event_id="e"))
