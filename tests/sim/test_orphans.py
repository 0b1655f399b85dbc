"""Orphans: bytes that no committed record names, and that are older than any commit takes."""

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from sexton.core.decide import Blob
from sexton.core.hash import content_hash
from sexton.core.tree import ContextTree
from sexton.schemas.errors import LeafLost, Unavailable, UnsupportedSchema
from sexton.schemas.ids import level_of
from sexton.schemas.span import Claim, Identity, SpanState
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.contexts import Contexts, Known
from sexton.worker.orphans import OrphanReport, OrphanSweep
from sexton.worker.ports import StoredBlob
from tests.core_kit.build import CONTEXT, append, compact, grown, prune, rewrite
from tests.sim.gates import Way
from tests.sim.world import ORPHAN_AGE, QUIET_MS, World
from tests.unit.test_core_collection import brought

DAY = timedelta(days=1)


def blob(span_id: str, version: int, data: bytes) -> Blob:
    return Blob(span_id, version, content_hash(level_of(span_id), data), data)


class Trees:
    """The worker's trees: what the log says, and what this worker has seen of it."""

    def __init__(self, tree: ContextTree, seen: ContextTree | None = None) -> None:
        self.tree = tree
        self.seen = seen if seen is not None else tree
        self.refreshed = 0

    async def get(self, context_id: str) -> Known:
        return Known(self.seen if context_id == CONTEXT else ContextTree.empty(context_id))

    async def refresh(self, context_id: str) -> Known:
        self.refreshed += 1
        return Known(self.tree if context_id == CONTEXT else ContextTree.empty(context_id))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cold"


@pytest.fixture
def cold(folder: Path) -> ObjectColdStore:
    return ObjectColdStore(open_store(folder.as_uri()), 5.0)


def age(folder: Path, by: timedelta = 2 * DAY) -> None:
    """Everything that is there was written so long ago."""
    for path in folder.rglob("*"):
        if path.is_file():
            stamp = path.stat().st_mtime - by.total_seconds()
            os.utime(path, (stamp, stamp))


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def swept(cold: Any, trees: Trees, *, dry_run: bool = False, min_age: timedelta = DAY) -> OrphanReport:
    sweep = OrphanSweep(cold, cast("Contexts", trees), min_age=min_age, new_token=lambda: "token")
    return await sweep.run(dry_run=dry_run)


FILLED = grown(
    ContextTree.empty(CONTEXT),
    append("fill", *"abcd"),
    rewrite("r", "l0:a", "another a"),
    prune("p", "l0:b"),
    compact("s", "l0:c", summary="sum"),
)


async def fill(cold: ObjectColdStore, tree: ContextTree = FILLED) -> None:
    """The bytes of every version; what they are does not matter, their keys do."""
    identities = [node.identity for node in tree.nodes.values()]
    identities += [stone.identity for stone in tree.tombstones.values()]
    texts = {"l0:a": {1: b"<a>".ljust(20, b"."), 2: b"another a"}, "l1:s": {1: b"sum"}}
    for i in {(i.span_id, i.version): i for i in identities}.values():
        name = i.span_id.split(":")[1]
        data = texts.get(i.span_id, {}).get(i.version, f"<{name}>".ljust(20, ".").encode())
        await cold.write(CONTEXT, Blob(i.span_id, i.version, i.content_hash, data))


async def test_what_a_record_names_is_never_touched(cold: ObjectColdStore, folder: Path) -> None:
    """I4, C103: live, covered, under a summary, a tombstone, a pruned span; however old."""
    await fill(cold)
    before = files(folder)
    age(folder)
    report = await swept(cold, Trees(FILLED))
    assert (len(before), 0, 0) == (report.looked_at, report.young, report.deleted)
    assert before == files(folder)


@pytest.mark.parametrize("state", ["collecting", "condemned"])
async def test_what_is_being_collected_is_the_collectors(
    cold: ObjectColdStore, folder: Path, state: str
) -> None:
    """It is named until it is collected, and then it is not."""
    await fill(cold)
    before = files(folder)
    age(folder)
    tree = brought(FILLED, SpanState(state), ("l0:a", 1), ("l0:b", 1))
    assert 0 == (await swept(cold, Trees(tree))).deleted
    assert before == files(folder)
    tree = brought(FILLED, SpanState.COLLECTED, ("l0:a", 1), ("l0:b", 1))
    report = await swept(cold, Trees(tree))
    assert (2, 40) == (report.deleted, report.freed_bytes)


async def test_old_bytes_without_a_name_are_deleted_and_young_ones_kept(
    cold: ObjectColdStore, folder: Path
) -> None:
    """The loser of a race, a commit that was given up; not of a context that the log never heard of."""
    lost = [
        blob("l0:a", 2, b"the loser's"),
        blob("l0:a", 3, b"never committed"),
        blob("l0:stranger", 1, b"never appended"),
        blob("l1:t", 1, b"a summary"),
    ]
    for orphan in lost:
        await cold.write(CONTEXT, orphan)
    await cold.write("Another_Context", blob("l0:A-b", 1, b"x"))
    assert 5 == (await swept(cold, Trees(FILLED))).young
    assert 5 == len(files(folder))
    age(folder)
    await fill(cold)
    kept = files(folder)
    dry = await swept(cold, Trees(FILLED), dry_run=True)
    assert kept == files(folder)
    report = await swept(cold, Trees(FILLED))
    assert dry == report
    assert (4, sum(len(b.data) for b in lost)) == (report.deleted, report.freed_bytes)
    assert 1 == report.spared, "whether its log is gone cannot be told"
    assert len(kept) - 4 == len(files(folder))
    assert 0 == (await swept(cold, Trees(FILLED))).deleted


async def test_the_head_of_the_log_decides_and_not_a_tree_that_lags(
    cold: ObjectColdStore, folder: Path
) -> None:
    """I4: another worker has committed what this one has not heard of."""
    await fill(cold)
    age(folder)
    lagging = grown(ContextTree.empty(CONTEXT), append("fill", *"abcd"))
    trees = Trees(FILLED, seen=lagging)
    assert 0 == (await swept(cold, trees)).deleted
    assert 0 < trees.refreshed


FOREIGN = [
    "readme.txt",
    "blobs/readme.txt",
    "blobs/ctx/l0/a/1-sha256-abc",
    "blobs/ctx/l0/a/x-sha256-" + 64 * "0",
    "blobs/ctx/l0/a/1-sha256-" + 64 * "0" + ".bak",
    "blobs/ctx/l0/a/01-sha256-" + 64 * "0",
    "blobs/ctx/l9/a/1-sha256-" + 64 * "0",
    "blobs/ctx/l0/a/b/1-sha256-" + 64 * "0",
    "blobs/c t x/l0/a/1-sha256-" + 64 * "0",
    "blobs/Ctx/l0/a/1-sha256-" + 64 * "0",
    "blobs/ctx/l0/a/1-md5-" + 64 * "0",
    "claims/readme",
    "claims/ctx/sha256-abc/0",
    "claims/ctx/sha256-" + 64 * "0" + "/x",
    "claims/ctx/sha256-" + 64 * "0" + "/01",
    "claims/c.t.x/sha256-" + 64 * "0" + "/0",
    "other/ctx/l0/a/1-sha256-" + 64 * "0",
]


async def test_a_context_whose_log_cannot_be_read_stops_no_other(cold: ObjectColdStore, folder: Path) -> None:
    """A record of a newer build, say: what is not understood is not judged."""

    class Newer(Trees):
        async def get(self, context_id: str) -> Known:
            if context_id == "newer":
                raise UnsupportedSchema("a record of an unknown kind")
            return await super().get(context_id)

    for context_id in ("newer", CONTEXT):
        await cold.write(context_id, blob("l0:stranger", 1, b"x"))
    age(folder)
    report = await swept(cold, Newer(FILLED))
    assert (2, 1, 1) == (report.looked_at, report.spared, report.deleted)
    assert [True] == ["newer" in name for name in files(folder)]


async def test_keys_that_we_do_not_make_are_none_of_our_business(cold: ObjectColdStore, folder: Path) -> None:
    """Somebody else's objects in the same place, however much they look like ours."""
    for name in FOREIGN:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"foreign")
    age(folder)
    assert 0 == (await swept(cold, Trees(FILLED))).deleted
    assert set(FOREIGN) == files(folder)


@pytest.mark.parametrize("upload_id", [None, "Ev-1"])
async def test_chunks_of_claims_are_swept_past_their_age(
    cold: ObjectColdStore, folder: Path, upload_id: str | None
) -> None:
    """Their command was committed, refused, or never sent."""
    claim = Claim(digest="sha256:" + 64 * "a", size_bytes=10, chunk_bytes=5, upload_id=upload_id)
    await cold.write_chunk("Ctx", claim, 0, b"old")
    age(folder)
    await cold.write_chunk("Ctx", claim, 1, b"young")
    report = await swept(cold, Trees(FILLED))
    assert (1, 1, 3) == (report.young, report.deleted, report.freed_bytes)
    assert await cold.read_chunk("Ctx", claim, 0) is None
    assert b"young" == await cold.read_chunk("Ctx", claim, 1)


async def test_the_clock_leaves_nothing_behind(cold: ObjectColdStore, folder: Path) -> None:
    for _ in range(2):
        await swept(cold, Trees(FILLED))
    assert set() == files(folder)


class SkewedStore:
    """A store whose clock is not this machine's."""

    def __init__(self, ahead: timedelta, written_ago: timedelta) -> None:
        self.now = datetime.now(UTC) + ahead
        self.blob = StoredBlob(
            key="key",
            modified=self.now - written_ago,
            size_bytes=1,
            context_id=CONTEXT,
            version=("l0:stranger", 1),
            content_hash="sha256:" + 64 * "0",
        )
        self.deleted: list[str] = []

    async def confirm(self) -> None:
        await asyncio.sleep(0)

    async def clock(self, token: str) -> datetime:
        await asyncio.sleep(0)
        return self.now

    async def stored(self) -> AsyncIterator[StoredBlob]:
        await asyncio.sleep(0)
        yield self.blob

    async def read(self, context_id: str, identity: Identity) -> bytes:
        raise LeafLost("another sweep was quicker")

    async def delete_key(self, key: str) -> None:
        self.deleted.append(key)


@pytest.mark.parametrize("minutes", [-40, 0, 40])
async def test_only_the_stores_own_clock_counts(minutes: int) -> None:
    """C106: forty minutes apart, with an age of half an hour: young is young, old is old."""
    age_limit = timedelta(minutes=30)
    young = SkewedStore(timedelta(minutes=minutes), timedelta(minutes=29))
    await swept(young, Trees(FILLED), min_age=age_limit)
    assert [] == young.deleted
    old = SkewedStore(timedelta(minutes=minutes), timedelta(minutes=30))
    await swept(old, Trees(FILLED), min_age=age_limit)
    assert ["key"] == old.deleted


async def test_an_outage_of_the_log_deletes_nothing(cold: ObjectColdStore, folder: Path) -> None:
    """I9: not to be named and not to know are two things."""
    await fill(cold)
    age(folder)
    before = files(folder)

    class Down(Trees):
        async def refresh(self, context_id: str) -> Known:
            raise Unavailable("no answer")

    with pytest.raises(Unavailable):
        await swept(cold, Down(FILLED, seen=ContextTree.empty(CONTEXT)))
    assert before == files(folder)


# --- with commits that are under way -----------------------------------------------------------------------


def test_a_redelivered_command_puts_its_bytes_again() -> None:
    """I4: its first delivery was paused past the minimum age, and committed a name whose bytes were swept."""
    with World() as world:
        world.append("a")
        command = world.rewriting("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "log.append:rewritten")
        world.sweep_orphans()
        assert not world.stores.has_bytes(("l0:a", 2))
        world.step(command.event_id)
        assert 2 == world.stores.tree.nodes["l0:a"].version
        world.kill(command.event_id)
        world.command("w2", command, redelivered=True)
        world.finish(command.event_id)
        assert world.stores.has_bytes(("l0:a", 2))
        assert {key: len(data) for key, data in world.stores.blobs.items()} == world.stores.kept()


def test_bytes_that_are_committed_while_they_are_swept_are_put_back() -> None:
    """I4: an earlier command left the same bytes behind, under the same key, a long time ago."""
    with World() as world:
        world.append("a")
        first = world.rewriting("l0:a")
        world.command("w1", first)
        world.run(first.event_id, "log.append:rewritten")
        world.kill(first.event_id)
        world.stores.now_ms += 2 * int(ORPHAN_AGE.total_seconds() * 1000)
        worker = world.workers["w2"]
        reports: list[OrphanReport] = []

        async def sweep() -> None:
            reports.append(await worker.orphans.run())

        worker.start(sweep(), "orphans")
        world.loop.settle()
        world.run("orphans", "cold.delete_key")
        again = first.model_copy(update={"event_id": "again"})
        world.command("w1", again)
        world.finish("again")
        assert world.stores.has_bytes(("l0:a", 2))
        world.finish("orphans")
        assert 0 == reports[0].deleted
        assert {key: len(data) for key, data in world.stores.blobs.items()} == world.stores.kept()


def test_young_bytes_of_a_commit_under_way_are_left_alone() -> None:
    with World() as world:
        world.append("a")
        command = world.rewriting("l0:a")
        world.command("w1", command)
        world.run(command.event_id, "log.append:rewritten")
        worker = world.workers["w2"]
        reports: list[OrphanReport] = []

        async def sweep() -> None:
            reports.append(await worker.orphans.run())

        world.stores.now_ms += int(ORPHAN_AGE.total_seconds() * 1000) - 1
        worker.start(sweep(), "orphans")
        world.loop.settle()
        world.finish("orphans")
        assert (2, 0) == (reports[0].young, reports[0].deleted)
        world.finish(command.event_id)
        world.assert_sound()


def test_bytes_of_lost_races_come_free_in_the_end() -> None:
    """I5: what no record names is swept, and the rest is as it was."""
    with World() as world:
        world.append("a")
        first, second = world.rewriting("l0:a"), world.rewriting("l0:a")
        world.command("w1", first)
        world.command("w2", second)
        for command in (first, second):
            world.run(command.event_id, "log.append:rewritten")
        world.finish(second.event_id)
        world.finish(first.event_id)
        assert 3 == len(world.stores.blobs)
        world.sweep_orphans()
        assert {key: len(data) for key, data in world.stores.blobs.items()} == world.stores.kept()
        world.sweep("c1")
        world.finish("c1")
        world.elapse(QUIET_MS)
        world.collect_all()
        world.assert_all_freed()


def test_a_delete_of_an_orphan_that_fails_is_made_by_the_next_sweep() -> None:
    with World() as world:
        world.append("a")
        command = world.rewriting("l0:a", base_version=1)
        world.command("w1", command)
        world.run(command.event_id, "log.append:rewritten")
        world.kill(command.event_id)
        world.stores.now_ms += 2 * int(ORPHAN_AGE.total_seconds() * 1000)
        worker = world.workers["w1"]

        async def sweep() -> None:
            with pytest.raises(Unavailable):
                await worker.orphans.run()

        worker.start(sweep(), "orphans")
        world.loop.settle()
        world.run("orphans", "cold.delete_key")
        world.let(world.gates.of("orphans")[0], Way.LOST)
        assert 2 == len(world.stores.blobs)
        world.sweep_orphans()
        assert 1 == len(world.stores.blobs)
        assert [] == world.loop.errors
