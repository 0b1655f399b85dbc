"""The roles of deploy/nats, on a real server with exactly that configuration."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sexton.holder import PinCost
from sexton.schemas import subjects
from sexton.schemas.outcome import REPLY_HEADER
from sexton.schemas.rpc import SyncRequest, Verb
from sexton.worker.app import Worker
from sexton.worker.pager.app import Pager
from tests.pager_kit.receiver import receiving
from tests.pager_kit.scene import record, settings
from tests.secure_kit.fenced import Fenced, fenced
from tests.support.waiting import eventually

STREAMS = (
    "SEXTON_LOG",
    "SEXTON_COMMANDS",
    "SEXTON_SUMMARISE",
    "SEXTON_FAILURES",
    "SEXTON_DEAD",
    "SEXTON_INCIDENTS",
)
JETSTREAM = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    *(
        f"$JS.API.STREAM.{verb}.{stream}"
        for verb in ("INFO", "DELETE", "PURGE", "MSG.GET")
        for stream in STREAMS
    ),
    "$JS.API.DIRECT.GET.SEXTON_LOG",
    "$JS.API.CONSUMER.CREATE.SEXTON_LOG.x",
    "$JS.API.CONSUMER.MSG.NEXT.SEXTON_COMMANDS.commands-000",
    "$JS.ACK.SEXTON_COMMANDS.commands-000.1.1.1.1.1",
)
PRIVATE = (
    "sexton.log.research",
    "sexton.log.drafts",
    "sexton.epoch.research",
    "sexton.epoch.drafts",
    "sexton.outcome.research.ev",
    "sexton.part.0.research.append",
    "sexton.summarise.research",
    "sexton.failure.research",
    "sexton.dead.SEXTON_COMMANDS",
    "sexton.incident.aa",
)
ASKED = b'{"schema_version": 1, "context_id": "research"}'
EVERYBODYS = ("_INBOX.>", "_INBOX.*.>", "_INBOX_OPS.>", "_SEXTON.worker.>", "_SEXTON.>", ">")


@pytest_asyncio.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Fenced]:
    """The servers."""
    async with fenced(tmp_path, monkeypatch) as found:
        yield found


async def last_words(site: Fenced) -> set[str]:
    """What the server's log says it refused."""
    return {line.split(" - ", 3)[-1] for line in site.nats.log_tail().splitlines() if "Violation" in line}


# --- a holder ------------------------------------------------------------------------------------------


async def test_a_holder_may_do_all_that_a_holder_does(site: Fenced) -> None:
    """Append, a summary by the service, rewrite, prune, resolve, pin and follow, in its own context."""
    async with site.worker(), site.holder("alice") as holder:
        context = await holder.open("research")
        bumps = context.bumps()
        spans = [
            (await context.append(f"A leaf with some words in it, number {i}.")).spans[0].span_id
            for i in range(4)
        ]
        quote = await context.mint(spans[0], offset=2, length=4)
        assert "leaf" == (await context.resolve(quote, consistency="latest")).quote()
        async with context.pin(spans[0], cost=PinCost.EXPENSIVE):
            await context.rewrite(spans[0], "Something else.")
            assert "leaf" == (await context.resolve(quote, accept_superseded=True)).quote()
        await context.prune(spans[3])
        made = await context.compact(spans[1:3], allow_larger=True)
        assert made.revision == context.head.revision
        large = await context.append("x" * 700_000)
        assert large.revision == (await context.sync()).revision
        assert [1, 2, 3, 4] == [(await anext(bumps)).revision for _ in range(4)]
    assert set() == await last_words(site)


async def test_a_holder_may_do_nothing_else(site: Fenced) -> None:
    """No record, bump, outcome or failure; nothing of another context, of the streams, of other inboxes."""
    async with site.worker():
        bob = await site.plain("bob")
        other = [f"sexton.cmd.research.{kind}" for kind in ("append", "compact", "rewrite", "prune")]
        other += [f"sexton.rpc.research.{verb.value}" for verb in Verb]
        operators = [
            f"sexton.ops.{context}.{verb}"
            for context in ("research", "drafts")
            for verb in ("sweep", "verify")
        ]
        assert set() == await bob.may(publish=[*PRIVATE, *other, *operators, *JETSTREAM, "_INBOX.alice.x"])
        listening = ["sexton.epoch.research", "sexton.outcome.research.*", "sexton.rpc.research.sync"]
        listening += ["sexton.cmd.drafts.append", "sexton.log.drafts", "sexton.>", "$JS.>", "$SYS.>"]
        assert set() == await bob.may(
            subscribe=[*listening, *EVERYBODYS[:1], "_INBOX.alice.>", *EVERYBODYS[2:]]
        )
        assert {"sexton.epoch.drafts"} == await bob.may(subscribe=["sexton.epoch.drafts", "sexton.epoch.*"])


@pytest.mark.parametrize(
    "reply",
    [
        "sexton.log.research",
        "sexton.log.drafts",
        "sexton.cmd.research.append",
        "sexton.epoch.research",
        "sexton.failure.research",
        "sexton.incident.aa",
        "sexton.dead.SEXTON_COMMANDS",
        "sexton.ops.research.sweep",
        "$JS.API.STREAM.PURGE.SEXTON_LOG",
    ],
)
async def test_nobody_writes_elsewhere_for_a_holder(site: Fenced, reply: str) -> None:
    """Neither the server's acknowledgement of a command nor a worker's answer goes where a holder says."""
    async with site.worker() as worker, site.holder("alice") as alice:
        research = await alice.open("research")
        await research.append("What is there.")
        js = worker._client.jetstream()
        before = {name: (await js.stream_info(name)).state.last_seq for name in STREAMS}
        bob = await site.plain("bob")
        request = SyncRequest(context_id="drafts").wire()
        await bob.client.publish("sexton.cmd.drafts.append", b"not a command", reply=reply)
        await bob.client.publish("sexton.cmd.drafts.append", b"not one either", headers={REPLY_HEADER: reply})
        await bob.client.publish("sexton.rpc.drafts.sync", request, reply=reply)
        await bob.client.flush()
        await eventually(
            lambda: _stored(worker, "SEXTON_DEAD"), until=lambda n: n == before["SEXTON_DEAD"] + 2
        )
        after = {name: (await js.stream_info(name)).state.last_seq for name in STREAMS}
        assert (
            before
            | {
                "SEXTON_DEAD": before["SEXTON_DEAD"] + 2,
                "SEXTON_COMMANDS": before["SEXTON_COMMANDS"] + 2,
            }
            == after
        )
        assert 1 == (await research.sync()).revision


async def _stored(worker: Worker, stream: str) -> int:
    js = worker._client.jetstream()
    return int((await js.stream_info(stream)).state.last_seq)


async def test_a_holder_cannot_feed_another_ones_inbox(site: Fenced) -> None:
    """What it has sent to where the other listens is not taken for an answer, even if it knows the place."""
    async with site.worker(), site.holder("alice") as alice:
        research = await alice.open("research")
        span = (await research.append("What is there.")).spans[0].span_id
        inbox = alice._runtime.transport._inbox  # type: ignore[attr-defined]
        bob = await site.plain("bob")
        for number in range(200):
            await bob.client.publish(
                "sexton.rpc.drafts.sync",
                SyncRequest(context_id="drafts").wire(),
                reply=f"{inbox._root}.{number}",
            )
        await bob.client.flush()
        assert "What is there." == (await research.resolve(await research.mint(span))).quote()


async def test_traces_are_not_led_astray(site: Fenced) -> None:
    """The server traces a message to a subject that its sender may publish to, and to no other."""
    async with site.worker():
        bob = await site.plain("bob")
        headers = {"Nats-Trace-Dest": "sexton.log.research"}
        await bob.may_publish("sexton.cmd.drafts.append", b"x", headers=headers)
        operator = await site.plain("operator")
        info = await operator.client.jetstream().stream_info("SEXTON_LOG")
        assert 0 == info.state.messages


# --- the others ----------------------------------------------------------------------------------------


async def test_an_observer_watches_and_does_nothing(site: Fenced) -> None:
    """It sees commits and outcomes of all contexts, and asks for nothing but what was committed."""
    async with site.worker(), site.holder("alice") as alice, site.holder("observer") as observer:
        research = await alice.open("research")
        watched = await observer.open("research")
        bumps = watched.bumps()
        await research.append("Something new.")
        assert 1 == (await anext(bumps)).revision
        plain = await site.plain("observer")
        commands = [f"sexton.cmd.research.{kind}" for kind in ("append", "compact", "rewrite", "prune")]
        asking = [f"sexton.rpc.research.{verb.value}" for verb in Verb if verb is not Verb.SYNC]
        assert set() == await plain.may(
            publish=[*PRIVATE, *commands, *asking, *JETSTREAM, "sexton.ops.research.sweep"],
            subscribe=EVERYBODYS,
        )


async def test_the_pager_does_its_work_and_nothing_else(site: Fenced) -> None:
    """It pages what a worker records, keeps incidents, and touches no log, no command and no context."""
    async with site.worker() as worker, receiving() as receiver:
        paging = settings(
            site.nats.url, receiver.url, nats_nkey_file=site.keys["pager"].seed_file(site.folder)
        )
        async with Pager(paging):
            failed = record()
            await worker._client.publish(subjects.failure(failed.context_id), failed.wire())
            await receiver.until(1)
        plain = await site.plain("pager")
        commands = ["sexton.cmd.research.append", "sexton.rpc.research.sync", "sexton.ops.research.sweep"]
        mine = {"sexton.incident.aa", "$JS.API.STREAM.MSG.GET.SEXTON_INCIDENTS"}
        mine |= {f"$JS.API.STREAM.INFO.{name}" for name in STREAMS[3:]}
        assert mine == await plain.may(
            publish=[*PRIVATE, *commands, *JETSTREAM], subscribe=[*EVERYBODYS, "sexton.>"]
        )
    assert set() == {line for line in await last_words(site) if "sexton-pager" in line}


async def test_the_worker_needs_no_more_than_it_has(site: Fenced) -> None:
    """Provisioning, commits, summaries, dead letters, failures, sweeps and collection."""
    quick = {"lease_ttl_max_s": 2.0, "quiet_s": 0.1, "sweep_interval_s": 0.1}
    async with site.worker(**quick) as worker, site.holder("alice", lease_ttl_s=1.0) as alice:
        research = await alice.open("research")
        spans = [(await research.append(f"Leaf {i}: some words.")).spans[0].span_id for i in range(3)]
        await research.compact(spans[:2], allow_larger=True)
        await research.rewrite(spans[2], "Other words.")
        plain = await site.plain("alice")
        await plain.client.publish("sexton.cmd.research.append", b"not a command")
        await eventually(lambda: _stored(worker, "SEXTON_DEAD"), until=lambda n: n == 1)
        # Collected, for nobody holds it.
        await eventually(
            lambda: research.tree.tombstones,
            until=lambda stones: not stones,
            within_s=20,
            what="a collection",
        )
        blob = next(path for path in (site.folder / "cold" / "blobs").rglob("*") if path.is_file())
        blob.write_bytes(b"?")
        operator = await site.plain("operator")
        await operator.client.request("sexton.ops.research.verify", ASKED, timeout=5)
        await eventually(lambda: _stored(worker, "SEXTON_FAILURES"), what="a failure")
    assert [] == worker.refusals.within(3600)
    assert set() == await last_words(site)


async def test_the_worker_may_do_nothing_else(site: Fenced) -> None:
    """It cannot delete or empty a stream, write an incident, or listen to what goes to holders."""
    async with site.worker():
        plain = await site.plain("worker")
        refused = [
            f"$JS.API.STREAM.{verb}.{name}" for verb in ("DELETE", "PURGE", "UPDATE") for name in STREAMS
        ]
        refused += [
            "sexton.cmd.research.append",
            "sexton.incident.aa",
            "sexton.ops.research.sweep",
            "_SEXTON.pager.x",
        ]
        assert set() == await plain.may(
            publish=refused, subscribe=["_INBOX.>", "_INBOX.alice.>", "_SEXTON.pager.>"]
        )


async def test_an_operator_does_an_operators_work(site: Fenced) -> None:
    """`holders`, `verify` and `failures` work; commands and the log are closed to it."""
    async with site.worker(), site.holder("alice") as alice:
        await (await alice.open("research")).append("Something.")
        plain = await site.plain("operator")
        answer = json.loads(
            (await plain.client.request("sexton.ops.research.holders", ASKED, timeout=5)).data
        )
        assert ["alice"] == [holder["holder_id"] for holder in answer["holders"]]
        refused = ["sexton.log.research", "sexton.cmd.research.append", "sexton.epoch.research"]
        refused += ["$JS.API.STREAM.DELETE.SEXTON_LOG", "$JS.API.STREAM.PURGE.SEXTON_DEAD"]
        assert set() == await plain.may(publish=refused, subscribe=["_INBOX.>", "_SEXTON.>", "sexton.log.*"])
