"""Bad input at a real worker: each is answered or kept as a dead letter, changes nothing, and stops nobody.

One worker, one partition: whatever blocked its lane or its connection would keep the good command that each
test ends with from being committed.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from nats.js.errors import APIError

from sexton.schemas import subjects
from sexton.schemas.errors import MalformedMessage
from sexton.schemas.limits import MAX_COMMAND_BYTES
from sexton.schemas.outcome import REPLY_HEADER, Rejected, RejectionCode
from sexton.schemas.rpc import Verb
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf, prune, rewrite
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, hpub, pointer_to, pub, publish_raw
from tests.worker_kit.service import serving

APPEND = "sexton.cmd.ctx.append"
TEXT = "héllo 🌍 world"


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    """Servers of this module's own; the NATS server would take 32 MiB."""
    folder = tmp_path_factory.mktemp("bad-input")
    async with EmbeddedServers(folder, max_payload_bytes=32 * 1024 * 1024) as servers:
        yield servers


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def service(servers: EmbeddedServers) -> AsyncIterator[tuple[Worker, Sender]]:
    """A worker that holds a context of two leaves, and a commanding side."""
    async with serving(servers, partitions=1) as (worker, sender):
        await sender.commit(append("fill", leaf("a", TEXT), "b"))
        yield worker, sender


@pytest.fixture(scope="module")
def worker(service: tuple[Worker, Sender]) -> Worker:
    return service[0]


@pytest.fixture(scope="module")
def sender(service: tuple[Worker, Sender]) -> Sender:
    return service[1]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def well(sender: Sender) -> None:
    """The worker still commits, the lane is free, and the context is as it was but for good commands."""
    tree = await sender.tree("ctx")
    outcome = await sender.commit(append(f"well-{tree.revision}", f"well-{tree.revision}"), within_s=5)
    assert tree.revision + 1 == outcome.revision
    assert 0 == await eventually(sender.waiting, until=lambda left: left == 0)


async def buried(sender: Sender, original: bytes) -> tuple[str, str]:
    """The reason and the message of the dead letter that is `original`."""

    async def found() -> list[tuple[str, str]]:
        return [
            (letter.reason, letter.message)
            for letter, data in await sender.dead_letters()
            if data == original
        ]

    return (await eventually(found, what="the dead letter"))[0]


def body(event_id: Any, **change: Any) -> bytes:
    """An append of a leaf `x` as JSON, with fields changed; None takes a field away."""
    fields = json.loads(append("x", "x").wire()) | {"event_id": event_id} | change
    return json.dumps({k: v for k, v in fields.items() if v is not None}, ensure_ascii=False).encode()


# --- commands in no lane -----------------------------------------------------------------------------


@pytest.mark.parametrize("subject", ["sexton.cmd.*.append", "sexton.cmd.>.append", "sexton.cmd.*.*"])
async def test_a_subject_with_a_wildcard_for_its_context_is_a_dead_letter(
    sender: Sender, subject: str
) -> None:
    """I7: the server takes it, puts it into no partition, and would keep it for ever. Its sender is told."""
    data = body(f"no-lane-{subject.count('*')}-{subject.count('>')}")
    outcome = await sender.refused(data, subject=subject)
    assert (RejectionCode.INVALID, None, None) == (outcome.code, outcome.context_id, outcome.event_id)
    reason, message = await buried(sender, data)
    assert ("malformed", True) == (reason, "context_id" in message)
    await well(sender)


@pytest.mark.parametrize("subject", ["sexton.cmd.ctx.*", "sexton.cmd.ctx.>"])
async def test_a_subject_with_a_wildcard_for_its_kind_is_refused(sender: Sender, subject: str) -> None:
    """It says whose it is: like any other kind that there is not."""
    outcome = await sender.refused(body(f"no-kind-{subject.count('*')}"), subject=subject)
    assert (RejectionCode.INVALID, "ctx") == (outcome.code, outcome.context_id)
    await well(sender)


# --- commands that say whose they are ----------------------------------------------------------------


COMMANDS: dict[str, tuple[Any, RejectionCode]] = {
    "unknown context": (
        prune("b1", "l0:a").model_copy(update={"context_id": "nowhere"}),
        RejectionCode.UNKNOWN_CONTEXT,
    ),
    "unknown span": (prune("b2", "l0:nobody"), RejectionCode.UNKNOWN_SPAN),
    "unknown level": (prune("b3", "l5:a"), RejectionCode.UNKNOWN_SPAN),
    "unknown version": (rewrite("b4", "l0:a", "new", base_version=7), RejectionCode.STALE_SOURCE),
    "unknown hash": (
        rewrite("b5", "l0:a", "new", base_hash="sha256:" + 64 * "0"),
        RejectionCode.STALE_SOURCE,
    ),
    "unknown source": (compact("b6", "l0:a", "l0:nobody"), RejectionCode.UNKNOWN_SPAN),
    "name taken": (append("b7", "a"), RejectionCode.SPAN_EXISTS),
    "name twice": (append("b8", "y", "y"), RejectionCode.SPAN_EXISTS),
    "not in a row": (compact("b9", "l0:b", "l0:a"), RejectionCode.NOT_CONTIGUOUS),
    "empty summary": (compact("b10", "l0:a", "l0:b", summary=" \n"), RejectionCode.EMPTY_SUMMARY),
    "empty span": (append("b11", leaf("y", "")), RejectionCode.INVALID),
    "empty rewrite": (rewrite("b12", "l0:a", ""), RejectionCode.INVALID),
}


@pytest.mark.parametrize("case", COMMANDS)
async def test_a_command_that_cannot_be_met_is_rejected_with_a_code(sender: Sender, case: str) -> None:
    """And changes nothing."""
    command, code = COMMANDS[case]
    assert code is (await sender.refused(command)).code
    await well(sender)


BODIES: dict[str, tuple[dict[str, Any], RejectionCode]] = {
    "span id with a dot": ({"kind": "prune", "span_id": "l0:a.b", "spans": None}, RejectionCode.INVALID),
    "span name with a star": ({"spans": [{"name": "*", "content": "x"}]}, RejectionCode.INVALID),
    "span name with a blank": ({"spans": [{"name": "a b", "content": "x"}]}, RejectionCode.INVALID),
    "span name with a line end": ({"spans": [{"name": "a\n", "content": "x"}]}, RejectionCode.INVALID),
    "span name of 10 KB": ({"spans": [{"name": "n" * 10_240, "content": "x"}]}, RejectionCode.INVALID),
    "group of 10 KB": (
        {"spans": [{"content": "x", "labels": {"group": "g" * 10_240}}]},
        RejectionCode.INVALID,
    ),
    "context of 10 KB": ({"context_id": "c" * 10_240}, RejectionCode.INVALID),
    "context with a dot": ({"context_id": "ctx.append"}, RejectionCode.INVALID),
    "context of another": ({"context_id": "other"}, RejectionCode.INVALID),
    "no spans": ({"spans": []}, RejectionCode.INVALID),
    "too many spans": ({"spans": [{"content": "x"}] * 1001}, RejectionCode.INVALID),
    "spans of another type": ({"spans": "x"}, RejectionCode.INVALID),
    "no kind": ({"kind": None}, RejectionCode.INVALID),
    "unknown kind": ({"kind": "conjure"}, RejectionCode.INVALID),
    "kind of another subject": ({"kind": "prune", "span_id": "l0:a", "spans": None}, RejectionCode.INVALID),
    "kind of 700 KB": ({"kind": "k" * 700_000}, RejectionCode.INVALID),
    "neither content nor claim": ({"spans": [{"name": "y"}]}, RejectionCode.INVALID),
    "newer schema": ({"schema_version": 2}, RejectionCode.UNSUPPORTED_SCHEMA),
    "newer schema with other fields": (
        {"schema_version": 99, "kind": "append2", "spans": {"x": 1}},
        RejectionCode.UNSUPPORTED_SCHEMA,
    ),
    "schema zero": ({"schema_version": 0}, RejectionCode.INVALID),
    "schema as text": ({"schema_version": "1"}, RejectionCode.INVALID),
    "claim without end": (
        {"spans": [{"claim": {"digest": "sha256:" + 64 * "0", "size_bytes": 2**60, "chunk_bytes": 1}}]},
        RejectionCode.INVALID,
    ),
    "claim in crumbs": (
        {"spans": [{"claim": {"digest": "sha256:" + 64 * "0", "size_bytes": 10_000, "chunk_bytes": 1}}]},
        RejectionCode.INVALID,
    ),
}


@pytest.mark.parametrize("case", BODIES)
async def test_a_body_with_a_field_that_cannot_be_right_is_rejected(sender: Sender, case: str) -> None:
    """To whoever it names, with a code, in words that do not repeat what was sent."""
    change, code = BODIES[case]
    event_id = "body-" + case.replace(" ", "-").lower()
    outcome = await sender.refused(body(event_id, **change), subject=APPEND)
    assert (code, event_id, "ctx") == (outcome.code, outcome.event_id, outcome.context_id)
    assert len(outcome.message) < 2000
    await well(sender)


async def test_the_same_event_id_with_another_body_is_rejected(sender: Sender) -> None:
    """I8: and the first one stands."""
    first = await sender.commit(append("twice", "twice"))
    assert RejectionCode.EVENT_ID_REUSED is (await sender.refused(append("twice", "other"))).code
    assert first == await sender.commit(append("twice", "twice"))
    await well(sender)


# --- messages that do not say whose they are ---------------------------------------------------------


MESSAGES: dict[str, bytes] = {
    "empty": b"",
    "not UTF-8": b'{"kind":"append","event_id":"\xff\xfe"}',
    "not JSON": b"append, please",
    "cut": append("cut", "x").wire()[:-9],
    "an array": b"[]",
    "a number": b"7",
    "null": b"null",
    "not a number": b'{"event_id": NaN}',
    "too deep": b'{"event_id":' + b"[" * 5000 + b"]" * 5000 + b"}",
    "event id with a dot": body("a.b"),
    "event id with a star": body("*"),
    "event id with a blank": body("a b"),
    "event id with a line end": body("a\n"),
    "event id of 10 KB": body("e" * 10_240),
    "event id that is none": body(7),
    "no event id": body(None),
    "lone surrogate": body("lone").replace(b'"<x>', b'"\\ud83c<x>'),
    "raw surrogate": body("raw").replace(b'"<x>', b'"\xed\xa0\xbc<x>'),
    "control character": body("ctl").replace(b'"<x>', b'"\x07<x>'),
}


@pytest.mark.parametrize("case", MESSAGES)
async def test_what_names_nobody_is_a_dead_letter_byte_for_byte(sender: Sender, case: str) -> None:
    """I7: with its reason; and whoever waits at an inbox is told."""
    data = MESSAGES[case]
    outcome = await sender.refused(data, subject=APPEND)
    assert outcome.code in (RejectionCode.MALFORMED, RejectionCode.INVALID)
    assert outcome.event_id is None
    reason, message = await buried(sender, data)
    assert outcome.code.value == reason
    assert message == outcome.message
    await well(sender)


@pytest.mark.parametrize(
    "subject",
    [
        "sexton.cmd.ctx.conjure",
        "sexton.cmd.ctx.APPEND",
        "sexton.cmd.ünï.append",
        "sexton.cmd.$SYS.append",
        "sexton.cmd." + "c" * 1000 + ".append",
    ],
)
async def test_an_unknown_subject_is_a_rejection_or_a_dead_letter(sender: Sender, subject: str) -> None:
    """A kind that there is not, a context that cannot be."""
    data = body(f"subject-{len(subject)}")
    outcome = await sender.refused(data, subject=subject)
    assert RejectionCode.INVALID is outcome.code
    if outcome.event_id is None:
        await buried(sender, data)
    await well(sender)


@pytest.mark.parametrize("size", [MAX_COMMAND_BYTES + 1, MAX_COMMAND_BYTES + 8000])
async def test_a_command_just_over_the_limit_is_rejected(sender: Sender, size: int) -> None:
    """It fits into the stream, so it is answered."""
    data = body(f"big-{size}", spans=[{"content": "x"}])
    data = data[:-1] + b" " * (size - len(data)) + b"}"
    outcome = await sender.refused(data, subject=APPEND)
    assert (RejectionCode.TOO_LARGE, f"big-{size}") == (outcome.code, outcome.event_id)
    await well(sender)


async def test_a_command_of_20_megabytes_is_refused_by_the_server(sender: Sender) -> None:
    """By the stream's own limit, also where the server's would allow it: it never reaches a worker."""
    with pytest.raises(APIError, match="message size exceeds"):
        await sender.publish(b"x" * 20 * 1024 * 1024, subject=APPEND)
    await well(sender)


async def test_a_record_that_would_be_large_is_committed_or_rejected(sender: Sender) -> None:
    """The largest append there can be: a thousand spans with all their labels."""
    label = "é" * 100
    spans = [
        {"name": f"{i:0>90}", "content": "x", "labels": {"role": label, "kind": label}} for i in range(1000)
    ]
    outcome = await sender.ask(
        body("largest", spans=spans, context_id="large"), subject="sexton.cmd.large.append"
    )
    assert "committed" == outcome.status
    parts = await sender.sync("large", snapshot=True)
    assert 1000 == sum(len(part["snapshot"]["spans"]) for part in parts)
    await well(sender)


# --- headers and subjects that no client would send --------------------------------------------------


HEADERS: dict[str, bytes] = {
    "a status": b"NATS/1.0\r\nStatus: 404\r\n\r\n",
    "a status and a description": b"NATS/1.0\r\nStatus: 408\r\nDescription: Request Timeout\r\n\r\n",
    "a heartbeat": b"NATS/1.0\r\nStatus: 100\r\nDescription: Idle Heartbeat\r\n\r\n",
    "an inline status": b"NATS/1.0 409 Consumer Deleted\r\n\r\n",
    "an inline status that is no UTF-8": b"NATS/1.0 \xff\xff\xff \xff\r\n\r\n",
    "a description that is no UTF-8": b"NATS/1.0 404 \xff\xfe\r\nA: b\r\n\r\n",
    "no line end": b"NATS/1.0",
    "no colon": b"NATS/1.0\r\ngarbage\r\n\r\n",
    "no name": b"NATS/1.0\r\n: x\r\n\r\n",
    "names that are no ASCII": b"NATS/1.0\r\n\xff\xfe: \xff\r\n\x01\x02: \x00\r\n\r\n",
    "many": b"NATS/1.0\r\n" + b"".join(b"H%d: x\r\n" % i for i in range(500)) + b"\r\n",
    "a reply that is no UTF-8": b"NATS/1.0\r\nSexton-Reply: _INBOX.\xff\xfe\r\n\r\n",
    "a reply with control characters": b"NATS/1.0\r\nSexton-Reply: _INBOX.\x01\x7f\x00\r\n\r\n",
    "a reply longer than the server's line": b"NATS/1.0\r\nSexton-Reply: _INBOX."
    + b"a" * 10_000
    + b"\r\n\r\n",
    "an empty reply": b"NATS/1.0\r\nSexton-Reply: \r\n\r\n",
    "two replies": b"NATS/1.0\r\nSexton-Reply: _INBOX.a\r\nSexton-Reply: $JS.API.STREAM.DELETE.X\r\n\r\n",
    "a dead letter's": b"NATS/1.0\r\nSexton-Dead-Letter: {}\r\n\r\n",
    "a content type": b"NATS/1.0\r\ncontent-type: application/octet-stream\r\n\r\n",
}


@pytest.mark.parametrize("case", HEADERS)
async def test_strange_headers_do_not_keep_a_command_from_its_outcome(
    worker: Worker, sender: Sender, servers: EmbeddedServers, case: str
) -> None:
    """It is carried out on its first delivery: its lane is not blocked, and no connection is lost."""
    event_id = "hdr-" + "".join(c if c.isalnum() else "-" for c in case)
    wire = append(event_id, event_id).wire()
    answer = await publish_raw(servers.nats.port, hpub(APPEND.encode(), HEADERS[case], wire))
    assert b"PONG\r\n" == answer
    outcome = await sender.outcome_of("ctx", event_id, within_s=5)
    assert "committed" == outcome.status
    assert 1 == len([r for r in await sender.records("ctx") if r.event_id == event_id])
    await well(sender)
    assert 0 == worker._client.stats["reconnects"]


@pytest.mark.parametrize(
    "reply",
    [
        "sexton.log.ctx",
        "sexton.cmd.ctx.append",
        "$JS.API.STREAM.DELETE.SEXTON_LOG",
        "$SYS.REQ.SERVER.PING",
        "_INBOX",
        "_INBOX.",
        "_INBOX.>",
        "_INBOX.*",
        "_INBOX..x",
        "x_INBOX.a",
    ],
)
async def test_a_reply_subject_that_is_no_inbox_is_not_published_to(sender: Sender, reply: str) -> None:
    """A worker publishes with its own rights; nobody may borrow them."""
    event_id = f"reply-{'-'.join(c for c in reply if c.isalnum())}"
    heard: list[str] = []

    async def hear(message: Any) -> None:
        if event_id.encode() in message.data and b'"status"' in message.data:
            heard.append(message.subject)

    listening = await sender.client.subscribe(">", cb=hear)
    await sender.client.flush()
    await sender.publish(append(event_id, event_id), headers={REPLY_HEADER: reply})
    await sender.outcome_of("ctx", event_id, within_s=5)
    await well(sender)
    await listening.unsubscribe()
    assert [f"sexton.outcome.ctx.{event_id}"] == heard


@pytest.mark.parametrize(
    "wire",
    [
        pub(b"sexton.cmd.\xff\xfe.append", b"x"),
        pub(b"sexton.cmd.ctx.\xff", b"x"),
        pub(b"sexton.rpc.\xff.sync", b"{}", b"_INBOX.x"),
        pub(b"sexton.rpc.ctx.sync", b"{}", b"_INBOX.\xff"),
        pub(b"sexton.rpc.ctx.sync", b"{}", b"sexton.log.ctx"),
        pub(b"sexton.rpc.ctx.sync", b"{}"),
        pub(b"sexton.epoch.\xff", b"x"),
        pub(b"sexton.epoch.ctx", b"x"),
        hpub(b"sexton.epoch.ctx", b"NATS/1.0\r\nNats-Sequence: many\r\n\r\n", b"x"),
        hpub(b"sexton.epoch.ctx", b"NATS/1.0\r\nNats-Sequence: 99999999999999999999\r\n\r\n", b"x"),
        hpub(b"sexton.epoch.ctx", b"NATS/1.0 \xff\xff\xff\r\n\r\n", b"x"),
        pub(b"$JS.EVENT.ADVISORY.CONSUMER.DELETED.SEXTON_COMMANDS.commands-000", b"\xff"),
        pub(b"$JS.EVENT.ADVISORY.STREAM.DELETED.SEXTON_LOG", b"not true"),
        pub(b"$JS.EVENT.ADVISORY.STREAM.DELETED.\xff", b"not true"),
    ],
)
async def test_protocol_bytes_that_no_client_would_send_stop_nobody(
    sender: Sender, servers: EmbeddedServers, wire: bytes
) -> None:
    """Subjects that are no UTF-8, requests without an inbox, made-up broadcasts and advisories."""
    assert b"PONG\r\n" == await publish_raw(servers.nats.port, wire)
    await well(sender)


# --- requests ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [Verb.SYNC, Verb.FETCH, Verb.PUT])
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "malformed"),
        (b"\xff", "malformed"),
        (b"[]", "malformed"),
        (b"{" * 3000, "malformed"),
        (b"{}", "invalid"),
        (b'{"context_id":"other"}', "invalid"),
        (b'{"context_id":"ctx.x"}', "invalid"),
        (b'{"schema_version":2,"context_id":"ctx"}', "unsupported_schema"),
    ],
)
async def test_a_bad_request_is_answered_with_a_typed_error(
    sender: Sender, verb: Verb, data: bytes, code: str
) -> None:
    """Every request gets an answer, if only an error."""
    [part] = await sender.rpc(verb, data, context_id="ctx", within_s=5)
    assert ("error", code) == (part["status"], part["code"])


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"context_id": "nobody"}, "unreachable"),
        ({"span_id": "l0:nobody"}, "unreachable"),
        ({"version": 9}, "unreachable"),
        ({"level": 1}, "level_mismatch"),
        ({"level": 9}, "invalid"),
        ({"offset": -1}, "invalid"),
        ({"offset": 1.5}, "invalid"),
        ({"offset": "0"}, "invalid"),
        ({"length": -5}, "invalid"),
        ({"length": 0}, "boundary"),
        ({"offset": 10_000}, "boundary"),
        ({"length": 10_000}, "boundary"),
        ({"offset": 2, "length": 3}, "boundary"),
        ({"offset": 3, "length": 3}, "hash_mismatch"),
        ({"span_id": "l0:a.b"}, "invalid"),
        ({"span_id": "l0:" + "n" * 10_240}, "invalid"),
        ({"content_hash": "md5:0"}, "invalid"),
    ],
)
async def test_a_bad_pointer_is_answered_with_a_typed_error(
    sender: Sender, change: dict[str, Any], code: str
) -> None:
    """Offsets that are negative, past the end, inside a character; ids that cannot be."""
    pointer = json.loads(pointer_to(TEXT, "l0:a").wire()) | change
    context_id = pointer["context_id"]
    request = json.dumps({"context_id": context_id, "pointer": pointer}).encode()
    [part] = await sender.rpc(Verb.FETCH, request, context_id=context_id, within_s=5)
    assert ("error", code) == (part["status"], part["code"])
    if code == "boundary":
        assert "nearest" in part["fields"]


async def test_a_cut_inside_a_character_names_the_nearest_ones(sender: Sender) -> None:
    """C81."""
    globe = TEXT.encode().index("🌍".encode())
    error, _ = await sender.fetch(pointer_to(TEXT, "l0:a", offset=globe + 1, length=2))
    assert ("boundary", [globe, globe + 4]) == (error["code"], error["fields"]["nearest"])


@pytest.mark.parametrize("context_id", ["a.b", "*", ">", "", "x" * 65])
async def test_ids_that_could_escape_make_no_subject(context_id: str) -> None:
    """Refused where the subject would be built."""
    with pytest.raises((ValueError, MalformedMessage)):
        subjects.rpc(context_id, Verb.SYNC)


# --- all at once -------------------------------------------------------------------------------------


async def test_after_all_of_it_the_worker_is_whole(sender: Sender, servers: EmbeddedServers) -> None:
    """The log is dense and keeps the rules; nothing waits; every dead letter has its reason."""
    await well(sender)
    tree = await sender.tree("ctx")
    assert {"l0:a", "l0:b"} <= set(tree.nodes)
    assert all(letter.reason for letter, _ in await sender.dead_letters())
    async with deadline(10, "twenty good commands"):
        outcomes = await asyncio.gather(*(sender.ask(append(f"end{i}", f"end{i}")) for i in range(20)))
    assert not [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    answer, data = await sender.fetch(pointer_to(TEXT, "l0:a"))
    assert TEXT.encode() == data, answer
