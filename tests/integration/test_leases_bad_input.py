"""Bad input about leases and pins, from a plain NATS client at a real worker.

Each is answered with a typed error, or with an answer that says what is so; nothing changes; and the next
good request is served.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_asyncio

from sexton.core.collection import Version, announce, condemn, finish
from sexton.core.pins import EMPTY_DIGEST, pins_digest
from sexton.schemas import subjects
from sexton.schemas.errors import Fenced, InvalidInput, LeaseLost, MalformedMessage, UnsupportedSchema
from sexton.schemas.leases import MAX_PINS, MAX_TTL_MS, MIN_TTL_MS, Pin, PinRefusal
from sexton.schemas.ops import HoldersPart, OpsRequest, OpsVerb
from sexton.schemas.rpc import Verb
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, leaf, prune, rewrite
from tests.leases_kit.servers import ops, pins
from tests.support.waiting import eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

CTX = "ctx"
LONGEST_S = 60.0
HELD = {"span_id": "l0:a", "version": 1, "cost": "expensive"}
YEAR_MS = 365 * 24 * 3600 * 1000

Body = dict[str, Any]


def digest(*held: Body) -> str:
    """Of a set of pins."""
    return pins_digest([Pin(**pin) for pin in held])


def body(**changes: Any) -> Body:
    """What the good holder says of itself, with fields changed; None takes a field away."""
    fields = {
        "context_id": CTX,
        "holder_id": "good",
        "incarnation": 5,
        "operation": 2,
        "digest": digest(HELD),
        **changes,
    }
    return {name: value for name, value in fields.items() if value is not None}


def beat(**changes: Any) -> Body:
    return body(**{"ttl_ms": 30_000, "operation": 1, **changes})


def pin(*wanted: Body, **changes: Any) -> Body:
    return body(pins=list(wanted) or [HELD], **changes)


def release(*named: Body, **changes: Any) -> Body:
    return body(versions=list(named) or [{"span_id": "l0:b", "version": 1}], **changes)


@dataclass
class Registry:
    """The registry of one context, asked from outside."""

    sender: Sender

    async def ask(self, verb: Verb, request: Body | bytes) -> Body:
        """The one part of the answer."""
        data = request if isinstance(request, bytes) else json.dumps(request).encode()
        (part,) = await self.sender.rpc(verb, data, context_id=CTX)
        return part

    async def state(self) -> object:
        """All that a bad request must not change."""
        parts = await ops(self.sender, OpsVerb.HOLDERS, OpsRequest(context_id=CTX), HoldersPart, CTX)
        holders = {(info.holder_id, info.incarnation, info.pins) for part in parts for info in part.holders}
        held = await pins(self.sender, CTX)
        return (
            holders,
            {version: {(info.holder_id, info.cost) for info in infos} for version, infos in held.items()},
            (await self.sender.tree(CTX)).head if not self.collected else None,
        )

    collected: bool = False

    async def well(self) -> None:
        """The good holder is still there, known to hold what it holds, and can pin and release."""
        answer = await self.ask(Verb.HEARTBEAT, beat())
        assert ("ok", False) == (answer["status"], answer["announce"])


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def registry(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Registry]:
    """A worker that does not sweep by itself. `good` holds version 1 of `l0:a`, for a minute."""
    async with (
        EmbeddedServers(tmp_path_factory.mktemp("bad-leases")) as servers,
        serving(servers, lease_ttl_max_s=LONGEST_S, sweep_interval_s=3600.0) as (_, sender),
    ):
        await sender.commit(append("fill", "a", "b", "c", "d", "e"))
        registry = Registry(sender)
        answer = await registry.ask(
            Verb.HEARTBEAT, beat(ttl_ms=int(LONGEST_S * 1000), register_new=True, pins=[HELD])
        )
        assert [HELD | {"state": "live"}] == answer["granted"]
        yield registry


async def refused(registry: Registry, verb: Verb, request: Body | bytes) -> Body:
    """The error that a bad request is answered with; it has changed nothing."""
    before = await registry.state()
    answer = await registry.ask(verb, request)
    assert "error" == answer["status"], answer
    assert before == await registry.state()
    await registry.well()
    return answer


# --- requests that cannot be right -----------------------------------------------------------------------


BEATS: dict[str, Body] = {
    "ttl: zero": beat(ttl_ms=0),
    "ttl: negative": beat(ttl_ms=-1),
    "ttl: too short": beat(ttl_ms=MIN_TTL_MS - 1),
    "ttl: over the worker's own longest": beat(ttl_ms=int(LONGEST_S * 1000) + 1),
    "ttl: over any": beat(ttl_ms=MAX_TTL_MS + 1),
    "ttl: a year": beat(ttl_ms=YEAR_MS),
    "ttl: a word": beat(ttl_ms="30000"),
    "ttl: half a millisecond": beat(ttl_ms=2000.5),
    "ttl: true": beat(ttl_ms=True),
    "ttl: none": beat(ttl_ms=None),
    "ttl: a list": beat(ttl_ms=[30_000]),
    "digest: none": beat(digest=None),
    "digest: empty": beat(digest=""),
    "digest: no algorithm": beat(digest="0" * 64),
    "digest: another algorithm": beat(digest="md5:" + "0" * 32),
    "digest: too short": beat(digest="sha256:abc"),
    "digest: not hex": beat(digest="sha256:" + "z" * 64),
    "digest: a number": beat(digest=7),
    "operation: negative": beat(operation=-1),
    "operation: past what JSON holds": beat(operation=2**53),
    "operation: a word": beat(operation="1"),
    "incarnation: zero": beat(incarnation=0),
    "incarnation: negative": beat(incarnation=-5),
    "incarnation: past what JSON holds": beat(incarnation=2**60),
    "holder: none": beat(holder_id=None),
    "holder: empty": beat(holder_id=""),
    "holder: a wildcard": beat(holder_id="*"),
    "holder: two tokens": beat(holder_id="a.b"),
    "holder: with a bar": beat(holder_id="a|b"),
    "holder: too long": beat(holder_id="h" * 65),
    "holder: not ASCII": beat(holder_id="hölder"),
    "context: another one": beat(context_id="other"),
    "context: none": beat(context_id=None),
    "flag: a word": beat(register_new="yes"),
    "pins: no list": beat(operation=2, pins="all"),
    "pins: over the limit": beat(
        operation=2, pins=[{"span_id": f"l0:{i}", "version": 1} for i in range(MAX_PINS + 1)]
    ),
    "pins: an unknown cost": beat(operation=2, pins=[HELD | {"cost": "priceless"}]),
}


@pytest.mark.parametrize("name", BEATS)
async def test_a_heartbeat_that_cannot_be_right(registry: Registry, name: str) -> None:
    """Times of zero and of a year, malformed digests, numbers, names and sets: `invalid`, and no lease is
    begun, renewed or shortened.
    """
    answer = await refused(registry, Verb.HEARTBEAT, BEATS[name])
    assert InvalidInput.code == answer["code"]


PINS: dict[str, Body] = {
    "no pins": body(pins=[]),
    "pins: none": body(pins=None),
    "over the limit": pin(*({"span_id": f"l0:{i}", "version": 1} for i in range(MAX_PINS + 1))),
    "version: zero": pin({"span_id": "l0:b", "version": 0}),
    "version: negative": pin({"span_id": "l0:b", "version": -1}),
    "version: a word": pin({"span_id": "l0:b", "version": "1"}),
    "version: true": pin({"span_id": "l0:b", "version": True}),
    "version: none": pin({"span_id": "l0:b"}),
    "span: no level": pin({"span_id": "b", "version": 1}),
    "span: an unknown level": pin({"span_id": "l9:b", "version": 1}),
    "span: a wildcard": pin({"span_id": "l0:>", "version": 1}),
    "span: with an at sign": pin({"span_id": "l0:b@1", "version": 1}),
    "span: none": pin({"version": 1}),
    "cost: unknown": pin({"span_id": "l0:b", "version": 1, "cost": "priceless"}),
    "digest: malformed": pin({"span_id": "l0:b", "version": 1}, digest="sha256:0"),
    "context: another one": pin({"span_id": "l0:b", "version": 1}, context_id="other"),
}


@pytest.mark.parametrize("name", PINS)
async def test_a_pin_that_cannot_be_right(registry: Registry, name: str) -> None:
    """`invalid`, and not one of its pins is taken."""
    assert InvalidInput.code == (await refused(registry, Verb.PIN, PINS[name]))["code"]


RELEASES: dict[str, Body] = {
    "no versions": body(versions=[]),
    "versions: none": body(versions=None),
    "version: zero": release({"span_id": "l0:a", "version": 0}),
    "one good and one bad": release({"span_id": "l0:a", "version": 1}, {"span_id": "l0:a", "version": "x"}),
    "operation: none": release({"span_id": "l0:a", "version": 1}, operation=None),
}


@pytest.mark.parametrize("name", RELEASES)
async def test_a_release_that_cannot_be_right(registry: Registry, name: str) -> None:
    """`invalid`, and nothing is let go of."""
    assert InvalidInput.code == (await refused(registry, Verb.RELEASE, RELEASES[name]))["code"]


@pytest.mark.parametrize("verb", [Verb.HEARTBEAT, Verb.PIN, Verb.RELEASE])
@pytest.mark.parametrize("data", [b"", b"\xff", b"{", b"[]", b"null", b'{"schema_version": 1, ', b"{}" * 2])
async def test_bytes_that_are_no_request(registry: Registry, verb: Verb, data: bytes) -> None:
    """`malformed`, whatever was asked."""
    assert MalformedMessage.code == (await refused(registry, verb, data))["code"]


@pytest.mark.parametrize("ttl", ["NaN", "Infinity", "-Infinity", "1e400"])
async def test_a_lease_that_is_not_a_number(registry: Registry, ttl: str) -> None:
    """JSON has no word for it, or none that is a length of time."""
    data = json.dumps(beat(ttl_ms=0)).replace('"ttl_ms": 0', f'"ttl_ms": {ttl}').encode()
    answer = await refused(registry, Verb.HEARTBEAT, data)
    assert answer["code"] in (InvalidInput.code, MalformedMessage.code)


async def test_a_request_of_a_newer_schema(registry: Registry) -> None:
    """Not guessed at."""
    answer = await refused(registry, Verb.PIN, pin({"span_id": "l0:b", "version": 1}, schema_version=2))
    assert UnsupportedSchema.code == answer["code"]


async def test_a_request_without_an_inbox_is_not_carried_out(registry: Registry) -> None:
    """Nobody could be told."""
    before = await registry.state()
    request = json.dumps(pin({"span_id": "l0:b", "version": 1})).encode()
    await registry.sender.client.publish(subjects.rpc(CTX, Verb.PIN), request)
    await registry.sender.client.flush()
    await registry.well()
    assert before == await registry.state()


# --- requests of the wrong process ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verb", "request_body"),
    [
        (Verb.HEARTBEAT, beat(incarnation=4)),
        (Verb.HEARTBEAT, beat(incarnation=4, register_new=True, pins=[], operation=9, digest=EMPTY_DIGEST)),
        (Verb.HEARTBEAT, beat(incarnation=4, leave=True, operation=9, digest=EMPTY_DIGEST)),
        (Verb.PIN, pin({"span_id": "l0:b", "version": 1}, incarnation=4)),
        (Verb.RELEASE, release({"span_id": "l0:a", "version": 1}, incarnation=4)),
    ],
)
async def test_an_older_process_of_the_same_name(registry: Registry, verb: Verb, request_body: Body) -> None:
    """`fenced`, with the number that is current; also its farewell."""
    answer = await refused(registry, verb, request_body)
    assert (Fenced.code, 5) == (answer["code"], answer["fields"]["incarnation"])


@pytest.mark.parametrize(
    ("verb", "request_body"),
    [
        (Verb.HEARTBEAT, beat(holder_id="nobody")),
        (Verb.PIN, pin({"span_id": "l0:b", "version": 1}, holder_id="nobody")),
        (Verb.RELEASE, release({"span_id": "l0:a", "version": 1}, holder_id="nobody")),
        (Verb.HEARTBEAT, beat(incarnation=6)),
        (Verb.PIN, pin({"span_id": "l0:b", "version": 1}, incarnation=6)),
        (Verb.RELEASE, release({"span_id": "l0:a", "version": 1}, incarnation=6)),
    ],
)
async def test_without_a_lease(registry: Registry, verb: Verb, request_body: Body) -> None:
    """Another holder's lease is none of one's own, nor is that of an older process: `lease_lost`."""
    assert LeaseLost.code == (await refused(registry, verb, request_body))["code"]


async def test_under_a_lease_that_has_run_out(registry: Registry) -> None:
    """Its own process, with the right numbers, and too late: `lease_lost`, and what it held is free."""
    me: Body = {"holder_id": "late", "incarnation": 1}
    held: Body = {"span_id": "l0:c", "version": 1, "cost": "cheap"}
    await registry.ask(
        Verb.HEARTBEAT,
        beat(**me, ttl_ms=MIN_TTL_MS, register_new=True, pins=[held], digest=digest(held), operation=1),
    )
    nothing = release({"span_id": "l0:none", "version": 1}, **me, operation=1, digest=digest(held))
    await eventually(
        lambda: registry.ask(Verb.RELEASE, nothing), until=lambda said: LeaseLost.code == said.get("code")
    )
    for verb, request in (
        (Verb.PIN, pin(held, **me, operation=2, digest=digest(held))),
        (Verb.HEARTBEAT, beat(**me, digest=digest(held))),
    ):
        assert LeaseLost.code == (await registry.ask(verb, request))["code"]
    assert ("l0:c", 1) not in await pins(registry.sender, CTX)
    await registry.well()


async def test_one_cannot_release_for_another(registry: Registry) -> None:
    """What is not held is let go of already; what another one holds stays."""
    me: Body = {"holder_id": "second", "incarnation": 1}
    await registry.ask(
        Verb.HEARTBEAT, beat(**me, register_new=True, pins=[], digest=EMPTY_DIGEST, operation=1)
    )
    before = await registry.state()
    for operation, version in enumerate(
        ({"span_id": "l0:a", "version": 1}, {"span_id": "l0:none", "version": 7}), 2
    ):
        answer = await registry.ask(
            Verb.RELEASE, release(version, **me, operation=operation, digest=EMPTY_DIGEST)
        )
        assert ("ok", False) == (answer["status"], answer["announce"])
    assert before == await registry.state()
    answer = await registry.ask(Verb.HEARTBEAT, beat(**me, leave=True, operation=4, digest=EMPTY_DIGEST))
    assert "ok" == answer["status"]
    await registry.well()


async def test_a_farewell_of_nobody(registry: Registry) -> None:
    """Whoever has no lease has nothing to give up: done already."""
    before = await registry.state()
    answer = await registry.ask(Verb.HEARTBEAT, beat(holder_id="nobody", leave=True, digest=EMPTY_DIGEST))
    assert "ok" == answer["status"]
    assert before == await registry.state()
    await registry.well()


# --- operations out of line ----------------------------------------------------------------------------


async def test_operations_that_go_backwards_change_nothing(registry: Registry) -> None:
    """C93: answered with the wish to hear the whole set, which is the cure."""
    before = await registry.state()
    for verb, request in (
        (Verb.PIN, pin({"span_id": "l0:b", "version": 1}, operation=0, digest=EMPTY_DIGEST)),
        (Verb.RELEASE, release({"span_id": "l0:a", "version": 1}, operation=0, digest=EMPTY_DIGEST)),
        (Verb.HEARTBEAT, beat(operation=0, pins=[], digest=EMPTY_DIGEST)),
        (Verb.HEARTBEAT, beat(operation=0, register_new=True, pins=[], digest=EMPTY_DIGEST)),
    ):
        answer = await registry.ask(verb, request)
        assert ("ok", True) == (answer["status"], answer["announce"]), verb
        assert [] == answer.get("granted", []) == answer.get("refused", [])
        assert before == await registry.state()
    await registry.well()


async def test_an_operation_that_leaves_one_out_is_followed_by_an_announcement(registry: Registry) -> None:
    """A number was lost on the way, and with it who knows what: done, and the whole set is asked for."""
    both = [HELD, {"span_id": "l0:c", "version": 1, "cost": "cheap"}]
    answer = await registry.ask(Verb.PIN, pin(both[1], operation=7, digest=digest(*both)))
    assert [both[1] | {"state": "live"}] == answer["granted"]
    answer = await registry.ask(Verb.HEARTBEAT, beat(operation=7, digest=digest(*both)))
    assert ("ok", True, 7) == (answer["status"], answer["announce"], answer["operation"])
    answer = await registry.ask(Verb.HEARTBEAT, beat(operation=8, pins=both, digest=digest(*both)))
    assert ("ok", False) == (answer["status"], answer["announce"])
    answer = await registry.ask(Verb.HEARTBEAT, beat(operation=9, pins=[HELD]))
    assert ("ok", False) == (answer["status"], answer["announce"])
    await registry.well()


async def test_a_heartbeat_that_claims_another_set(registry: Registry) -> None:
    """The registry says so, and believes neither."""
    before = await registry.state()
    answer = await registry.ask(Verb.HEARTBEAT, beat(digest=EMPTY_DIGEST))
    assert ("ok", True) == (answer["status"], answer["announce"])
    assert before == await registry.state()
    await registry.well()


# --- versions that cannot be pinned ---------------------------------------------------------------------


async def collector(registry: Registry, version: Version, *, to_the_end: bool) -> None:
    """Commits a collector's records, as a worker that does it wrong or dies would."""
    log = NatsLog(registry.sender.client, 5.0)
    steps = (announce, condemn, finish) if to_the_end else (announce,)
    for step in steps:
        tree = await registry.sender.tree(CTX)
        head = await log.head(CTX)
        record = step(tree, [version], "by-hand")
        assert head is not None
        assert record is not None
        await log.append(CTX, record.wire(), head.sequence)


async def test_versions_that_cannot_be_pinned(registry: Registry) -> None:
    """Unknown, future, being collected, collected: each refused with its reason and what is there now;
    nothing of it stays, and what the same request asks for beside it is granted.
    """
    sender = registry.sender
    await sender.commit(rewrite("new-b", "l0:b", "bytes that came later"))
    await sender.commit(prune("no-d", "l0:d"))
    await sender.commit(rewrite("new-e", "l0:e", "bytes that came later"))
    await collector(registry, ("l0:b", 1), to_the_end=False)
    await collector(registry, ("l0:d", 1), to_the_end=False)
    await collector(registry, ("l0:e", 1), to_the_end=True)
    registry.collected = True
    wanted: list[tuple[Body, PinRefusal | None, int | None]] = [
        ({"span_id": "l0:nowhere", "version": 1}, PinRefusal.UNKNOWN, None),
        ({"span_id": "l1:a", "version": 1}, PinRefusal.UNKNOWN, None),
        ({"span_id": "l0:a", "version": 2}, PinRefusal.UNKNOWN, 1),
        ({"span_id": "l0:a", "version": 2**53 - 1}, PinRefusal.UNKNOWN, 1),
        ({"span_id": "l0:b", "version": 1}, PinRefusal.COLLECTING, 2),
        ({"span_id": "l0:d", "version": 1}, PinRefusal.COLLECTING, 1),
        ({"span_id": "l0:e", "version": 1}, PinRefusal.COLLECTED, 2),
        ({"span_id": "l0:c", "version": 1}, None, None),
        ({"span_id": "l0:b", "version": 2}, None, None),
    ]
    before = await registry.state()
    operation = 20
    for version, reason, current in wanted:
        answer = await registry.ask(Verb.PIN, pin(version, operation=operation, digest=EMPTY_DIGEST))
        granted, gone = answer.get("granted", []), answer.get("refused", [])
        if reason is None:
            assert [version["span_id"]] == [one["span_id"] for one in granted]
        else:
            assert ([], [reason]) == (granted, [one["reason"] for one in gone])
            assert current == gone[0].get("current", {}).get("version")
        operation += 1
        answer = await registry.ask(Verb.HEARTBEAT, beat(operation=operation, pins=[HELD]))
        assert ("ok", False) == (answer["status"], answer["announce"])
        assert before == await registry.state()
        operation += 1
    together = [version for version, _, _ in wanted]
    answer = await registry.ask(Verb.PIN, pin(*together, operation=operation, digest=EMPTY_DIGEST))
    assert (2, 7) == (len(answer["granted"]), len(answer["refused"]))
    assert {("l0:a", 1), ("l0:b", 2), ("l0:c", 1)} == set(await pins(sender, CTX))
    # The whole set, announced: judged in the same way.
    answer = await registry.ask(
        Verb.HEARTBEAT,
        beat(operation=operation + 1, pins=[HELD, *together], digest=EMPTY_DIGEST),
    )
    assert (3, 7) == (len(answer["granted"]), len(answer["refused"]))
    assert {("l0:a", 1), ("l0:b", 2), ("l0:c", 1)} == set(await pins(sender, CTX))
    await eventually(
        lambda: registry.ask(Verb.HEARTBEAT, beat(operation=operation + 2, pins=[HELD])),
        until=lambda said: said["announce"] is False,
    )
    assert before == await registry.state()


async def test_one_version_named_twice(registry: Registry) -> None:
    """In one request, at two costs: one pin."""
    twice = [{"span_id": "l0:c", "version": 1, "cost": cost} for cost in ("cheap", "immovable")]
    answer = await registry.ask(Verb.PIN, pin(*twice, operation=100, digest=EMPTY_DIGEST))
    assert "ok" == answer["status"]
    assert 1 == len((await pins(registry.sender, CTX))["l0:c", 1])
    answer = await registry.ask(Verb.HEARTBEAT, beat(operation=101, pins=[HELD]))
    assert {("l0:a", 1)} == set(await pins(registry.sender, CTX))


async def test_an_announcement_of_very_many_that_are_all_refused_is_answered(registry: Registry) -> None:
    """In parts: each that is refused comes back with what its span is now. The good holder is left alone."""
    names = [f"{i:096d}" for i in range(4)]
    wanted = [{"span_id": f"l0:{names[i % 4]}", "version": 2 + i, "cost": "cheap"} for i in range(MAX_PINS)]
    await registry.sender.commit(append("many", *(leaf(name) for name in names)))
    request = beat(holder_id="many", incarnation=1, digest=digest(*wanted), register_new=True, pins=wanted)
    parts = await registry.sender.rpc(Verb.HEARTBEAT, json.dumps(request).encode(), context_id=CTX)
    assert {"ok"} == {part["status"] for part in parts}
    refused = [(pin["span_id"], pin["version"]) for part in parts for pin in part["refused"]]
    assert [(pin["span_id"], pin["version"]) for pin in wanted] == refused
    assert [] == [pin for part in parts for pin in part["granted"]]
    leave = beat(holder_id="many", incarnation=1, operation=2, digest=EMPTY_DIGEST, leave=True)
    await registry.ask(Verb.HEARTBEAT, leave)
    await registry.well()
