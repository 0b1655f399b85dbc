"""Commands through real workers: order per context, once each, claims, large leaves, what others are told."""

import asyncio
import base64
import hashlib
import json
from collections import Counter
from typing import Any

import pytest

from sexton.core.hash import body_digest
from sexton.schemas import subjects
from sexton.schemas.commands import Append
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import Committed, RejectionCode
from sexton.schemas.rpc import PutRequest, Verb
from sexton.schemas.span import Claim, NewSpan
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf, rewrite
from tests.support.processes import Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, pointer_to, sending
from tests.worker_kit.service import ready, serving, start_worker

CHUNK = 256 * 1024


# --- order, once -------------------------------------------------------------------------------------


async def test_two_worker_processes_keep_the_order_of_fifty_contexts(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """C10, I2, I8: fifty contexts, twenty commands each, published in turn: in order, dense, each once."""
    contexts, count = [f"c{i}" for i in range(50)], 20
    workers = [start_worker(programs, own_servers, partitions=4) for _ in range(2)]
    await ready(*workers)
    async with sending(own_servers.nats_url) as sender, deadline(60, "a thousand commands"):
        for number in range(count):
            await asyncio.gather(
                *(sender.publish(append(f"e{number}", f"n{number}", context_id=c)) for c in contexts)
            )
        await eventually(lambda: len(sender.outcomes), until=lambda n: n == 50 * count, within_s=60)
        await sender.until_idle()
        expected = [f"e{number}" for number in range(count)]
        for context_id in contexts:
            records = await sender.records(context_id)
            assert expected == [record.event_id for record in records], context_id
            assert list(range(1, count + 1)) == [record.revision for record in records]
        assert {Committed} == {type(outcome) for outcome in sender.order}
        assert [] == await sender.dead_letters()
    assert all("commit.done" in worker.stderr for worker in workers), "both had their share"


async def test_an_order_holds_while_a_command_is_tried_again(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C10: a command that is given back with a delay is not overtaken by the next one of its context."""
    async with serving(own_servers, partitions=1) as (worker, sender):
        failures = Counter[str]()
        original = worker._handler.on_command

        async def sometimes(subject: str, data: bytes, *more: Any) -> None:
            event_id = json.loads(data)["event_id"]
            failures[event_id] += 1
            if failures[event_id] < 3:
                raise Unavailable("not yet")
            await original(subject, data, *more)

        monkeypatch.setattr(worker._handler, "on_command", sometimes)
        for i in range(4):
            await sender.publish(append(f"e{i}", f"n{i}"))
        await sender.until_idle()
        assert ["e0", "e1", "e2", "e3"] == [record.event_id for record in await sender.records("ctx")]
        assert {3} == set(failures.values())


async def test_every_command_sent_twice_counts_once(own_servers: EmbeddedServers) -> None:
    """I8, C26: and both times the sender is told the same."""
    async with serving(own_servers) as (_, sender):
        commands = [append(f"e{i}", f"n{i}") for i in range(10)]
        commands_twice = [command for command in commands for _ in range(2)]
        for command in commands_twice:
            await sender.publish(command)
        await sender.until_idle()
        records = await sender.records("ctx")
        assert [f"e{i}" for i in range(10)] == [record.event_id for record in records]
        for command in commands:
            first, second = sender.outcomes["ctx", command.event_id]
            assert first == second


async def test_an_event_id_counts_once_for_ever(own_servers: EmbeddedServers) -> None:
    """C24: beyond the broker's window, which commands do not use, and beyond the worker's memory."""
    first = append("e0", "n0")
    async with serving(own_servers, snapshot_every=3) as (_, sender):
        outcome = await sender.commit(first)
        for i in range(1, 5):
            await sender.commit(append(f"e{i}", f"n{i}"))
    await own_servers.nats.restart()
    async with serving(own_servers) as (worker, sender):
        await sender.js.purge_stream(subjects.STREAM_COMMANDS)
        assert outcome == await sender.commit(first)
        worker._contexts.forget_all()
        assert outcome == await sender.commit(first)
        assert 5 == len(await sender.records("ctx"))


async def test_two_workers_beside_each_other_run_into_few_conflicts(own_servers: EmbeddedServers) -> None:
    """The broadcast keeps the second worker's trees fresh: its commits hardly ever lose their first race."""
    async with (
        serving(own_servers, partitions=1) as (one, sender),
        serving(own_servers, partitions=1) as (two, _),
    ):
        heads = [_counted(worker) for worker in (one, two)]
        for i in range(60):
            await sender.publish(append(f"e{i}", f"n{i}"))
        await sender.until_idle()
        assert 60 == len(await sender.records("ctx"))
        assert sum(len(h) for h in heads) < 20, "without the broadcast it is about every other commit"


def _counted(worker: Any) -> list[str]:
    seen: list[str] = []
    log = worker._contexts._log
    original = log.head

    async def head(context_id: str) -> Any:
        seen.append(context_id)
        return await original(context_id)

    log.head = head
    return seen


# --- claims ------------------------------------------------------------------------------------------


def claimed(data: bytes, upload_id: str | None = None) -> Claim:
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    return Claim(digest=digest, size_bytes=len(data), chunk_bytes=CHUNK, upload_id=upload_id)


async def put(
    sender: Sender, claim: Claim, data: bytes, *indices: int, context_id: str = "ctx"
) -> list[dict[str, Any]]:
    """Leaves the chunks of a claim, in the order of `indices`, or all of them."""
    answers: list[dict[str, Any]] = []
    for index in indices or range(claim.chunks):
        chunk = data[index * claim.chunk_bytes : (index + 1) * claim.chunk_bytes]
        request = PutRequest(context_id=context_id, claim=claim, index=index, data=chunk)
        answers += await sender.rpc(Verb.PUT, request, context_id=context_id)
    return answers


def claiming(event_id: str, claim: Claim) -> Append:
    return append(event_id, NewSpan(name=event_id, claim=claim))


BIG = ("Zeile 🌍\r\n" * 100_000).encode()


async def test_content_left_in_chunks_is_committed(own_servers: EmbeddedServers) -> None:
    """In any order, doubled; and the commit drops what was left."""
    async with serving(own_servers) as (worker, sender):
        claim = claimed(BIG, "big")
        assert 4 <= claim.chunks
        order = [*reversed(range(claim.chunks)), 0, 1]
        assert {"ok"} == {answer["status"] for answer in await put(sender, claim, BIG, *order)}
        outcome = await sender.commit(claiming("big", claim))
        answer, data = await sender.fetch(pointer_to(BIG.decode(), "l0:big"))
        assert BIG == data
        assert len(BIG) == answer["span_size_bytes"]
        cold = worker._handler._committer._cold
        left = [await cold.read_chunk("ctx", claim, index) for index in range(claim.chunks)]
        assert [None] * claim.chunks == left
        assert outcome == await sender.commit(claiming("big", claim)), "told again, without the chunks"


async def test_a_claim_whose_chunks_are_missing_is_rejected(own_servers: EmbeddedServers) -> None:
    """I7: with a code that says what to do: put them again, then send the command again."""
    async with serving(own_servers) as (_, sender):
        claim = claimed(BIG)
        await put(sender, claim, BIG, 0, 2, 3)
        refused = await sender.refused(claiming("big", claim))
        assert RejectionCode.CLAIM_MISSING is refused.code
        assert "chunk 1" in refused.message
        assert [] == await sender.records("ctx")
        await put(sender, claim, BIG)
        await sender.commit(claiming("big", claim))


@pytest.mark.parametrize("wrong", ["bytes", "claim"])
async def test_content_that_is_not_what_the_claim_says_is_rejected(
    own_servers: EmbeddedServers, wrong: str
) -> None:
    """I1: the digest is over what is committed."""
    async with serving(own_servers) as (_, sender):
        claim = claimed(BIG)
        other = BIG[:-1] + b"?"
        await put(sender, claim, other if wrong == "bytes" else BIG)
        if wrong == "claim":
            claim = claim.model_copy(update={"size_bytes": claim.size_bytes - 1})
        refused = await sender.refused(claiming("big", claim))
        assert RejectionCode.CLAIM_MISSING is refused.code
        assert [] == await sender.records("ctx")


async def test_chunks_that_cannot_belong_to_a_claim_are_refused(own_servers: EmbeddedServers) -> None:
    """Of another size, beyond the last; and bytes that are no UTF-8 make no span."""
    async with serving(own_servers) as (_, sender):
        claim = claimed(BIG)
        request = PutRequest(context_id="ctx", claim=claim, index=0, data=BIG[: CHUNK - 1])
        assert "invalid" == (await sender.rpc(Verb.PUT, request, context_id="ctx"))[0]["code"]
        request = PutRequest(context_id="ctx", claim=claim, index=claim.chunks, data=b"x")
        assert "invalid" == (await sender.rpc(Verb.PUT, request, context_id="ctx"))[0]["code"]
        binary = b"\xff" * 1000
        await put(sender, claimed(binary), binary)
        assert RejectionCode.INVALID is (await sender.refused(claiming("bin", claimed(binary)))).code


@pytest.mark.parametrize("uploads", [("one", "two"), (None, None), ("one", None), (None, "two"), ("x", "x")])
async def test_two_commands_with_one_text_leave_each_other_what_they_claim(
    own_servers: EmbeddedServers, uploads: tuple[str | None, str | None]
) -> None:
    """I7: the commit of one does not take what the other waits for, with and without upload ids."""
    async with serving(own_servers) as (_, sender):
        claims = [claimed(BIG, upload_id) for upload_id in uploads]
        for claim in claims:
            await put(sender, claim, BIG)
        for event_id, claim in zip(("one", "two"), claims, strict=True):
            await sender.commit(claiming(event_id, claim))
            assert BIG == (await sender.fetch(pointer_to(BIG.decode(), f"l0:{event_id}")))[1]


async def test_two_claims_of_one_command(own_servers: EmbeddedServers) -> None:
    """All of them are put together, or none is committed."""
    one, two = b"a" * 300_000, b"b" * 300_000
    async with serving(own_servers) as (_, sender):
        command = append(
            "both", NewSpan(name="one", claim=claimed(one)), "inline", NewSpan(name="two", claim=claimed(two))
        )
        await put(sender, claimed(one), one)
        assert RejectionCode.CLAIM_MISSING is (await sender.refused(command)).code
        await put(sender, claimed(two), two)
        await sender.commit(command)
        for name, data in (("one", one), ("two", two)):
            assert data == (await sender.fetch(pointer_to(data.decode(), f"l0:{name}")))[1]


async def test_a_leaf_of_five_megabytes(own_servers: EmbeddedServers) -> None:
    """C68: the whole in parts, a range by itself, and the total size is known from either."""
    text = ("0123456789abcde\n" * 64 * 1024 * 5) + "🌍"
    data = text.encode()
    assert len(data) > 5 * 1024 * 1024
    async with serving(own_servers) as (_, sender), deadline(60, "five megabytes"):
        await put(sender, claimed(data), data)
        await sender.commit(claiming("big", claimed(data)))
        pointer = pointer_to(text, "l0:big")
        parts = await sender.rpc(
            Verb.FETCH,
            json.dumps({"context_id": "ctx", "pointer": json.loads(pointer.wire())}).encode(),
            context_id="ctx",
        )
        assert len(parts) > 20
        assert [True] + [False] * (len(parts) - 1) == ["answer" in part for part in parts]
        assert data == b"".join(base64.urlsafe_b64decode(part["data"]) for part in parts)
        answer, part = await sender.fetch(pointer_to(text, "l0:big", offset=len(data) - 20, length=20))
        assert data[-20:] == part
        assert (len(data), "cold") == (answer["span_size_bytes"], answer["tier"])


# --- what holders are told ---------------------------------------------------------------------------


async def test_the_commit_is_the_broadcast(own_servers: EmbeddedServers) -> None:
    """I6: what subscribers hear is what is in the log, with the sequences that show a gap."""
    async with serving(own_servers) as (_, sender):
        heard: list[tuple[int, int, bytes]] = []

        async def hear(message: Any) -> None:
            headers = message.headers
            heard.append((int(headers["Nats-Sequence"]), int(headers["Nats-Last-Sequence"]), message.data))

        await sender.client.subscribe(subjects.epoch("ctx"), cb=hear)
        await sender.client.flush()
        await sender.commit(append("e0", "a", "b"))
        await sender.commit(append("other", "x", context_id="other"))
        await sender.commit(compact("sum", "l0:a", "l0:b"))
        await eventually(lambda: heard, until=lambda found: len(found) == 2)
        assert 0 == heard[0][1]
        assert heard[0][0] == heard[1][1]
        assert ["e0", "sum"] == [json.loads(data)["event_id"] for _, _, data in heard]


async def test_success_is_said_after_the_commit(own_servers: EmbeddedServers) -> None:
    """C19: whoever hears "committed" finds the record in the log and the bytes in the store."""
    async with serving(own_servers) as (worker, sender):
        cold = worker._handler._committer._cold
        seen: list[bool] = []

        async def look(message: Any) -> None:
            outcome = json.loads(message.data)
            tree = await sender.tree("ctx")
            node = tree.nodes[outcome["spans"][0]["span_id"]]
            seen.append(tree.revision >= outcome["revision"])
            assert node.size_bytes == await cold.size_bytes("ctx", node.identity)

        await sender.client.subscribe("sexton.outcome.ctx.*", cb=look)
        for i in range(5):
            await sender.commit(append(f"e{i}", f"n{i}"))
        await eventually(lambda: seen, until=lambda found: len(found) == 5)
        assert [True] * 5 == seen


async def test_a_sync_gives_a_snapshot_or_what_is_missing(own_servers: EmbeddedServers) -> None:
    """And nothing to who has all there is."""
    async with serving(own_servers) as (_, sender):
        await sender.commit(append("e0", "a", "b"))
        [snapshot] = await sender.sync("ctx", snapshot=True)
        head = snapshot["head"]
        assert ["l0:a", "l0:b"] == [span["span_id"] for span in snapshot["snapshot"]["spans"]]
        [current] = await sender.sync("ctx", revision=1, chain=head["chain"])
        assert ([], None) == (current["records"], current.get("snapshot"))
        await sender.commit(rewrite("rw", "l0:a", "new bytes"))
        [tail] = await sender.sync("ctx", revision=1, chain=head["chain"])
        assert ["rw"] == [record["event_id"] for record in tail["records"]]
        [other] = await sender.sync("ctx", revision=2, chain="sha256:" + 64 * "0")
        assert "snapshot" in other, "another history starts over"
        [unknown] = await sender.sync("nobody")
        assert {"revision": 0, "epoch": 0, "chain": ""} == unknown["head"]


async def test_a_sync_of_a_large_context_comes_in_parts(own_servers: EmbeddedServers) -> None:
    """Each below the limit of a message."""
    async with serving(own_servers) as (_, sender):
        for i in range(3):
            await sender.commit(append(f"e{i}", *(leaf(f"n{i}-{n}-{'x' * 60}") for n in range(900))))
        parts = await sender.sync("ctx", snapshot=True)
        assert len(parts) > 2
        assert 2700 == sum(len(part["snapshot"]["spans"]) for part in parts)
        assert 1 == len({json.dumps(part["head"]) for part in parts})


async def test_latest_sees_the_commit_of_the_other_worker(own_servers: EmbeddedServers) -> None:
    """C65: whichever of the two is asked, right after the outcome."""
    async with serving(own_servers) as (_, sender), serving(own_servers) as (_, _other):
        await sender.commit(append("e0", leaf("a", "version 1")))
        for version in range(1, 9):
            text = f"version {version + 1}"
            await sender.commit(rewrite(f"rw{version}", "l0:a", text, base_version=version))
            pointer = pointer_to(text, "l0:a", version=version + 1, epoch=version)
            answer, data = await sender.fetch(pointer, latest=True)
            assert text == data.decode(), answer
            old = pointer_to(f"version {version}", "l0:a", version=version, epoch=version - 1)
            error, _ = await sender.fetch(old, latest=True)
            assert "stale_span" == error["code"]


async def test_the_outcome_goes_to_the_inbox_and_to_the_subject(own_servers: EmbeddedServers) -> None:
    """Whoever has no inbox listens to the outcome's own subject; the digest is of the bytes as sent."""
    async with serving(own_servers) as (_, sender):
        command = append("e0", "a")
        outcome = await sender.commit(command)
        assert outcome == await sender.outcome_of("ctx", "e0")
        [record] = await sender.records("ctx")
        assert body_digest(command.wire()) == record.digest
