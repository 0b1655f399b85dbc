"""What is proven lost is reported, and so is its end; the caller never waits for it (I9)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest
from structlog.testing import capture_logs

from sexton.core.collection import announce, condemn
from sexton.core.incidents import failure_fingerprint
from sexton.core.pins import PinCost
from sexton.schemas.errors import (
    HashMismatch,
    LeafCorrupt,
    LeafLost,
    PointerResurrectionError,
    StaleSpanError,
    Unavailable,
)
from sexton.schemas.failure import FailureKind, FailureReason, HardFailureRecord
from sexton.schemas.ops import VerifyPart, VerifyRequest
from sexton.schemas.rpc import FetchRequest
from sexton.schemas.span import Identity
from sexton.worker import failures as module
from sexton.worker.adapters.cold import _key
from sexton.worker.contexts import Contexts
from sexton.worker.failures import BYTES, FailureReports
from sexton.worker.fetch import Fetcher
from sexton.worker.stuck import StuckWatch
from sexton.worker.verify import Verifier
from tests.core_kit.build import CONTEXT, append, leaf, rewrite
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import pointer_to
from tests.worker_kit.stores import MemoryHot, World

TEXT = "the words that count"


class MemoryStream:
    """The stream of failures, with outages on demand. Like NATS, it tells whoever listens."""

    def __init__(self) -> None:
        self.records: list[HardFailureRecord] = []
        self.ids: list[str] = []
        self.outages = 0
        self.tries = 0
        self.listeners: list[Callable[[bytes], None]] = []

    async def add(self, record: HardFailureRecord, message_id: str) -> None:
        await asyncio.sleep(0)
        self.tries += 1
        self.ids.append(message_id)
        if self.outages:
            self.outages -= 1
            raise Unavailable("NATS is away")
        self.records.append(record)
        for listener in self.listeners:
            listener(record.wire())

    async def each(self, use: Callable[[bytes], None]) -> None:
        await asyncio.sleep(0)
        if self.outages:
            self.outages -= 1
            raise Unavailable("NATS is away")
        for record in self.records:
            use(record.wire())

    def told(self) -> list[tuple[FailureKind, FailureReason, str]]:
        return [(r.kind or FailureKind.OBSERVED, r.reason, r.span_id) for r in self.records]


class Sleeps:
    """Stands for `asyncio.sleep`: notes how long, and goes on when it is told to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self._go = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)
        await self._go.wait()

    async def over(self) -> None:
        """All that sleep now wake up."""
        self._go.set()
        await asyncio.sleep(0)
        self._go = asyncio.Event()


class Bench:
    """A worker's reports, and what they come from."""

    def __init__(self) -> None:
        self.world = World()
        self.stream = MemoryStream()
        self.sleeps = Sleeps()
        self.tasks: set[asyncio.Task[None]] = set()
        self.reports = self.worker()
        self.contexts = self.world.contexts()

    def worker(self) -> FailureReports:
        """A worker's reports, knowing nothing yet."""
        ids = iter(range(10**6))
        stream: Any = self.stream
        reports = FailureReports(
            stream,
            self.world.cold,
            every_s=10.0,
            attempts=4,
            delay_s=1.0,
            delay_max_s=2.5,
            spawn=self.spawn,
            new_id=lambda: str(next(ids)),
            sleep=self.sleeps,
        )
        self.stream.listeners.append(reports._hear)
        return reports

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def fetch(self, *, contexts: Contexts | None = None, budget_s: float = 5.0, **more: Any) -> bytes:
        fetcher = Fetcher(
            contexts or self.contexts,
            self.world.cold,
            self.world.hot,
            budget_s=budget_s,
            failures=self.reports,
        )
        pointer = more.pop("pointer", pointer_to(TEXT, "l0:a"))
        _, data = await fetcher.fetch(FetchRequest(context_id=CONTEXT, pointer=pointer, **more))
        return data

    async def verify(self, **more: Any) -> VerifyPart:
        verifier = Verifier(self.contexts, self.world.cold, self.reports)
        return await verifier.verify(VerifyRequest(context_id=CONTEXT, **more))

    async def identity(self, span_id: str = "l0:a") -> Identity:
        return (await self.contexts.refresh(CONTEXT)).tree.nodes[span_id].identity

    async def put(self, data: bytes, span_id: str = "l0:a") -> None:
        """Puts bytes under a version's key, past all checks."""
        store: Any = self.world.cold
        await store._store.put_async(_key(CONTEXT, await self.identity(span_id)), data)

    async def lose(self, span_id: str = "l0:a") -> None:
        await self.world.cold.delete(CONTEXT, await self.identity(span_id))

    async def until_told(self, records: int) -> None:
        await eventually(self.stream.told, until=lambda told: len(told) >= records, what=f"{records} records")


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    """A context of two leaves, `a` with `TEXT`, whose bytes are in the cold store only."""
    bench = Bench()
    await bench.world.outcome(append("fill", leaf("a", TEXT), "b"))
    assert isinstance(bench.world.hot, MemoryHot)
    bench.world.hot.blobs.clear()
    yield bench
    for task in bench.tasks:
        task.cancel()
    await asyncio.gather(*bench.tasks, return_exceptions=True)


LOST = (FailureKind.OBSERVED, FailureReason.LOST, "l0:a")
CORRUPT = (FailureKind.OBSERVED, FailureReason.CORRUPT, "l0:a")
STUCK = (FailureKind.OBSERVED, FailureReason.STUCK, "l0:a")
FOUND = (FailureKind.RESOLVED, FailureReason.LOST, "l0:a")


# --- a loss is told from an outage -------------------------------------------------------------------


async def test_a_loss_that_a_fetch_proves_is_recorded(bench: Bench) -> None:
    """C70, I9: with a fingerprint, and what should be there. The caller gets `LeafLost`."""
    await bench.lose()
    with pytest.raises(LeafLost):
        await bench.fetch()
    await bench.until_told(1)
    (record,) = bench.stream.records
    about = await bench.identity()
    assert failure_fingerprint(FailureReason.LOST, CONTEXT, about) == record.fingerprint
    assert (CONTEXT, "l0:a", 1, about.content_hash, len(TEXT.encode())) == (
        record.context_id,
        record.span_id,
        record.version,
        record.content_hash,
        record.size_bytes,
    )
    assert "worker.fetch" == record.component


@pytest.mark.parametrize("wrong", [b"", TEXT.encode()[:-1], TEXT.encode() + b"!", b"x" * len(TEXT.encode())])
async def test_damage_is_recorded_with_what_is_there_instead(bench: Bench, wrong: bytes) -> None:
    """C110: nothing at all, too few, too many, others."""
    await bench.put(wrong)
    with pytest.raises(LeafCorrupt):
        await bench.fetch()
    await bench.until_told(1)
    assert [CORRUPT] == bench.stream.told()
    (record,) = bench.stream.records
    if len(wrong) >= len(TEXT.encode()):
        assert len(wrong) == record.found_size_bytes
        assert record.found_hash not in (None, record.content_hash)


@pytest.mark.parametrize("how", ["away", "too slow"])
async def test_an_outage_makes_no_record(bench: Bench, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """C111, I9: the caller gets `Unavailable`, and nobody is woken."""

    async def read(*_: Any) -> bytes:
        if how == "too slow":
            await asyncio.Event().wait()
        raise Unavailable("the store is away")

    monkeypatch.setattr(bench.world.cold, "read", read)
    with pytest.raises(Unavailable):
        await bench.fetch(budget_s=0.05)
    if how == "away":
        with pytest.raises(Unavailable):
            await bench.verify()
    assert ([], set()) == (bench.stream.records, bench.tasks)


@pytest.mark.parametrize("what", ["fetch", "verify"])
async def test_what_is_seen_only_once_makes_no_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """C111: a store that says two things is unavailable. Only a loss seen twice is one."""
    original, reads = bench.world.cold.read, 0

    async def flaky(*args: Any, **kwargs: Any) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 1:
            raise LeafLost("not yet here")
        return await original(*args, **kwargs)

    monkeypatch.setattr(bench.world.cold, "read", flaky)
    with pytest.raises(Unavailable):
        await (bench.fetch() if what == "fetch" else bench.verify())
    assert ([], set()) == (bench.stream.records, bench.tasks)


async def test_an_outage_at_the_second_read_makes_no_record(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was not confirmed."""
    answers = iter([LeafLost("gone"), Unavailable("the store is away")])

    async def read(*_: Any) -> bytes:
        raise next(answers)

    monkeypatch.setattr(bench.world.cold, "read", read)
    with pytest.raises(Unavailable):
        await bench.fetch()
    assert ([], set()) == (bench.stream.records, bench.tasks)


async def test_a_false_claim_makes_no_record(bench: Bench) -> None:
    """Nobody is woken for a caller's mistake."""
    pointer = pointer_to(TEXT, "l0:a", length=3).model_copy(update={"content_hash": "sha256:" + 64 * "0"})
    with pytest.raises(HashMismatch):
        await bench.fetch(pointer=pointer)
    assert ([], set()) == (bench.stream.records, bench.tasks)


async def test_bytes_that_were_collected_meanwhile_are_no_loss(bench: Bench) -> None:
    """I9: this worker's tree lags behind a collector that has just deleted them; the log's head knows."""
    bench.world.pins = {("l0:a", 1): PinCost.EXPENSIVE}
    await bench.world.outcome(rewrite("rw", "l0:a", "other words"))
    lagging = bench.world.contexts()
    known = await lagging.get(CONTEXT)
    old = known.tree.tombstones["l0:a", 1].identity
    assert TEXT.encode() == await bench.fetch(contexts=lagging, accept_superseded=True)
    for plan in (announce, condemn):
        record = plan((await bench.contexts.refresh(CONTEXT)).tree, [("l0:a", 1)], "attempt")
        assert record is not None
        head = await bench.world.log.head(CONTEXT)
        assert head is not None
        await bench.world.log.append(CONTEXT, record.wire(), head.sequence)
    await bench.world.cold.delete(CONTEXT, old)
    with pytest.raises(StaleSpanError) as caught:
        await bench.fetch(contexts=lagging, accept_superseded=True)
    assert isinstance(caught.value, PointerResurrectionError)
    assert [] == bench.stream.records


async def test_verify_reports_what_it_finds(bench: Bench) -> None:
    """Both sorts, and says so to whoever asked."""
    await bench.lose()
    await bench.put(b"?", "l0:b")
    part = await bench.verify()
    assert {("l0:a", "lost"), ("l0:b", "corrupt")} == {(d.span_id, d.reason) for d in part.damaged}
    await bench.until_told(2)
    assert {LOST, (FailureKind.OBSERVED, FailureReason.CORRUPT, "l0:b")} == set(bench.stream.told())
    assert {"worker.verify"} == {record.component for record in bench.stream.records}


# --- best effort towards the caller ------------------------------------------------------------------


async def test_the_caller_has_its_error_whether_or_not_it_can_be_recorded(bench: Bench) -> None:
    """I9: tries go on in the background, are bounded, and the log has the last word."""
    bench.stream.outages = 10**6
    await bench.lose()
    with capture_logs() as logs:
        async with deadline(5, "the error"):
            with pytest.raises(LeafLost):
                await bench.fetch()
        for tries in range(1, 4):
            await eventually(lambda n=tries: bench.stream.tries == n and len(bench.sleeps.seconds) == n)  # type: ignore[misc]
            await bench.sleeps.over()
        await eventually(lambda: bench.stream.tries == 4 and len(bench.sleeps.seconds) == 4)
    assert [1.0, 2.0, 2.5, 10.0] == bench.sleeps.seconds
    assert 1 == len(set(bench.stream.ids)), "the same message, so that one that did arrive is stored once"
    assert 1 == sum(entry["event"] == "failures.not_recorded" for entry in logs)
    await bench.sleeps.over()
    await eventually(lambda: not bench.tasks, what="the end of it")


async def test_what_could_not_be_recorded_is_recorded_when_it_is_seen_again(bench: Bench) -> None:
    """NATS came back."""
    bench.stream.outages = 4
    await bench.lose()
    with pytest.raises(LeafLost):
        await bench.fetch()
    for _ in range(4):
        await eventually(lambda: bench.sleeps.seconds)
        bench.sleeps.seconds.clear()
        await bench.sleeps.over()
    await eventually(lambda: not bench.tasks)
    with pytest.raises(LeafLost):
        await bench.fetch()
    await bench.until_told(1)


async def test_repeats_that_come_soon_share_a_record(bench: Bench) -> None:
    """The first at once; then one for all that came meanwhile; none for none."""
    await bench.lose()
    for _ in range(6):
        with pytest.raises(LeafLost):
            await bench.fetch()
    await bench.until_told(1)
    await eventually(lambda: bench.sleeps.seconds == [10.0])
    await bench.sleeps.over()
    await bench.until_told(2)
    await eventually(lambda: bench.sleeps.seconds == [10.0, 20.0])
    await bench.sleeps.over()
    await eventually(lambda: not bench.tasks)
    assert [None, 5] == [record.observations for record in bench.stream.records]
    assert 2 == len(set(bench.stream.ids)), "two records are two messages"


async def test_a_flood_of_failures_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest is in the log only, which says so."""
    monkeypatch.setattr(module, "MAX_REPORTING", 1)
    about = await bench.identity()
    with capture_logs() as logs:
        for reason in (FailureReason.LOST, FailureReason.CORRUPT):
            bench.reports.observed(CONTEXT, about, reason, component="test")
    await bench.until_told(1)
    assert [LOST] == bench.stream.told()
    assert ["failures.too_many"] == [entry["event"] for entry in logs if entry["log_level"] == "error"]


async def test_what_was_noticed_is_recorded_before_the_program_ends(bench: Bench) -> None:
    """And an outage does not keep it from ending."""
    await bench.lose()
    with pytest.raises(LeafLost):
        await bench.fetch()
    await bench.reports.drain(5.0)
    assert [LOST] == bench.stream.told()
    bench.stream.outages = 10**6
    bench.reports.observed(CONTEXT, await bench.identity("l0:b"), FailureReason.LOST, component="test")
    with capture_logs() as logs:
        async with deadline(5, "the end"):
            await bench.reports.drain(0.01)
    assert ["failures.not_recorded_at_the_end"] == [
        entry["event"] for entry in logs if entry["log_level"] == "error"
    ]


# --- the end of it -----------------------------------------------------------------------------------


async def lost(bench: Bench) -> None:
    await bench.lose()
    with pytest.raises(LeafLost):
        await bench.fetch()
    await bench.until_told(1)


@pytest.mark.parametrize("how", ["fetch", "verify"])
async def test_bytes_that_are_found_again_end_it(bench: Bench, how: str) -> None:
    """I9: whoever finds them says so, once."""
    await lost(bench)
    await bench.put(TEXT.encode())
    for _ in range(3):
        await (bench.fetch() if how == "fetch" else bench.verify())
    await bench.until_told(2)
    await (bench.fetch() if how == "fetch" else bench.verify())
    assert [LOST, FOUND] == bench.stream.told()
    assert {} == bench.reports.open(CONTEXT)


@pytest.mark.parametrize("whose", ["own", "another worker's"])
async def test_what_was_noticed_before_the_end_does_not_open_it_again(bench: Bench, whose: str) -> None:
    """Repeats are held back for a while; the end is not, and comes before them."""
    await lost(bench)
    for _ in range(3):
        with pytest.raises(LeafLost):
            await bench.fetch()
    await bench.put(TEXT.encode())
    if whose == "own":
        await bench.verify()
    else:
        other = bench.worker()
        await other.load()
        other.over(CONTEXT, ("l0:a", 1), BYTES, component="test")
    await bench.until_told(2)
    await bench.sleeps.over()
    await eventually(lambda: not bench.tasks)
    assert [LOST, FOUND] == bench.stream.told()
    await bench.lose()
    with pytest.raises(LeafLost):
        await bench.fetch()
    await bench.until_told(3)
    assert [LOST, FOUND, LOST] == bench.stream.told()


async def test_another_worker_may_find_them(bench: Bench) -> None:
    """It knows what is open from the stream: from before its start, and what it has heard since."""
    await lost(bench)
    other = bench.worker()
    bench.stream.outages = 1
    loading = asyncio.create_task(other.load())
    await eventually(lambda: 1.0 in bench.sleeps.seconds, what="another try")
    await bench.sleeps.over()
    await loading
    bench.reports = other
    await bench.put(TEXT.encode())
    await bench.fetch()
    await bench.until_told(2)
    assert [LOST, FOUND] == bench.stream.told()


async def test_a_good_part_is_not_the_whole(bench: Bench) -> None:
    """It is over when every byte is good again."""
    await bench.put(TEXT.encode()[:-1] + b"?")
    with pytest.raises(LeafCorrupt):
        await bench.fetch()
    await bench.until_told(1)
    part = pointer_to(TEXT, "l0:a", length=3)
    assert b"the" == await bench.fetch(pointer=part)
    await eventually(lambda: not bench.reports._proving)
    assert [CORRUPT] == bench.stream.told()
    await bench.put(TEXT.encode())
    assert b"the" == await bench.fetch(pointer=part)
    await bench.until_told(2)
    assert (FailureKind.RESOLVED, FailureReason.CORRUPT, "l0:a") == bench.stream.told()[1]


async def test_what_nobody_needs_any_more_is_no_failure(bench: Bench) -> None:
    """The span was rewritten without a pin on it, and the old version is collected."""
    await lost(bench)
    await bench.world.outcome(rewrite("rw", "l0:a", "other words"))
    await bench.verify()
    assert [LOST] == bench.stream.told(), "a tombstone's bytes must be there until it is collected"
    for plan in (announce, condemn):
        record = plan((await bench.contexts.refresh(CONTEXT)).tree, [("l0:a", 1)], "attempt")
        assert record is not None
        head = await bench.world.log.head(CONTEXT)
        assert head is not None
        await bench.world.log.append(CONTEXT, record.wire(), head.sequence)
    await bench.verify()
    await bench.until_told(2)
    assert FOUND == bench.stream.told()[-1]


async def test_an_unreadable_record_is_passed_over(bench: Bench) -> None:
    """It is for the pager to bury it."""
    bench.reports._hear(b"no record")
    assert {} == bench.reports.open(CONTEXT)


async def test_open_failures_in_memory_are_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """And go when they are over."""
    monkeypatch.setattr(module, "MAX_OPEN", 1)
    bench.reports.observed(CONTEXT, await bench.identity("l0:a"), FailureReason.LOST, component="test")
    await bench.until_told(1)
    bench.reports.observed(CONTEXT, await bench.identity("l0:b"), FailureReason.LOST, component="test")
    await bench.until_told(2)
    assert {("l0:a", 1)} == set(bench.reports.open(CONTEXT))
    bench.reports.over(CONTEXT, ("l0:a", 1), BYTES, component="test")
    await bench.until_told(3)
    assert (0, {}) == (bench.reports._open_count, bench.reports._open)


# --- stuck collections -------------------------------------------------------------------------------


async def test_a_collection_that_is_not_done_in_time_is_reported_and_so_is_its_end(bench: Bench) -> None:
    """Counted from the sweep that first saw it under way; over when it is collected or called off."""
    now = 0.0
    watch = StuckWatch(bench.contexts, bench.reports, after_s=60.0, clock=lambda: now)
    await bench.world.outcome(rewrite("rw", "l0:a", "other words"))
    await watch.look(CONTEXT)
    tree = (await bench.contexts.refresh(CONTEXT)).tree
    record = announce(tree, [("l0:a", 1)], "attempt")
    assert record is not None
    head = await bench.world.log.head(CONTEXT)
    assert head is not None
    await bench.world.log.append(CONTEXT, record.wire(), head.sequence)
    await bench.contexts.refresh(CONTEXT)
    now = 1000.0
    await watch.look(CONTEXT)
    now = 1059.0
    await watch.look(CONTEXT)
    assert set() == bench.tasks, "nothing is being reported"
    now = 1060.0
    await watch.look(CONTEXT)
    await bench.until_told(1)
    assert [STUCK] == bench.stream.told()
    bench.reports.over(CONTEXT, ("l0:a", 1), BYTES, component="test")
    bench.contexts.forget_all()
    bench.world.log.entries[CONTEXT].pop()  # type: ignore[attr-defined]
    await watch.look(CONTEXT)
    await bench.until_told(2)
    assert (FailureKind.RESOLVED, FailureReason.STUCK, "l0:a") == bench.stream.told()[1]
    assert {} == watch._since


async def test_a_look_that_fails_is_only_a_look(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sweep goes on."""

    async def away(*_: Any) -> Any:
        raise Unavailable("the log is away")

    monkeypatch.setattr(bench.world.log, "head", away)
    watch = StuckWatch(bench.world.contexts(), bench.reports, after_s=1.0, clock=lambda: 0.0)
    await watch.look(CONTEXT)
