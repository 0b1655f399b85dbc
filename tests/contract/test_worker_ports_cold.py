"""The contract of the cold store, on each kind of store there is to be had on one machine."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import LocalStore, MemoryStore, ObjectStore

from sexton.core.decide import Blob
from sexton.core.hash import content_hash
from sexton.schemas.errors import InvalidInput, LeafCorrupt, LeafLost, Unavailable
from sexton.schemas.ids import Level, level_of
from sexton.schemas.span import Claim, Identity
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from tests.support.waiting import deadline

DATA = "Grüße\r\n\ufeff\x00 🌍 ".encode()
DIGEST = "sha256:" + 64 * "a"


@pytest.fixture(params=["memory", "local", "local with blanks"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "memory":
        yield open_store("memory:///")
    elif request.param == "local":
        yield open_store((tmp_path / "cold").as_uri())
    else:
        folder = tmp_path / "a b%20ü" / "cold"
        yield open_store(folder.as_uri())
        assert folder.is_dir(), "the folder that the URL names, and no other"


@pytest.fixture
def cold(store: ObjectStore) -> ObjectColdStore:
    return ObjectColdStore(store, timeout_s=5.0)


def blob(span_id: str = "l0:a", version: int = 1, data: bytes = DATA) -> Blob:
    return Blob(span_id, version, content_hash(level_of(span_id), data), data)


def identity(of: Blob, **change: Any) -> Identity:
    fields: dict[str, Any] = {
        "span_id": of.span_id,
        "version": of.version,
        "level": level_of(of.span_id),
        "content_hash": of.content_hash,
        "size_bytes": len(of.data),
    }
    return Identity(**(fields | change))


def claim(upload_id: str | None = None) -> Claim:
    """Of three chunks."""
    return Claim(digest=DIGEST, size_bytes=9, chunk_bytes=3, upload_id=upload_id)


async def only_key(store: ObjectStore) -> str:
    """The key of the one object there is."""
    [meta] = await obstore.list(store).collect_async()
    return str(meta["path"])


@pytest.mark.parametrize("span_id", ["l0:a", "l1:a", "l7:A-b_C"])
async def test_what_was_written_is_read_byte_for_byte(cold: ObjectColdStore, span_id: str) -> None:
    """C77: control characters, CR LF, a BOM, trailing blanks; at every level."""
    written = blob(span_id)
    await cold.write("ctx", written)
    assert written.data == await cold.read("ctx", identity(written))
    assert len(DATA) == await cold.size_bytes("ctx", identity(written))


@pytest.mark.parametrize(("offset", "length"), [(0, 1), (3, 5), (len(DATA) - 1, 1), (0, len(DATA) - 1)])
async def test_a_range_is_read_by_itself(cold: ObjectColdStore, offset: int, length: int) -> None:
    """C68: of a large span, only what is asked for."""
    written = blob()
    await cold.write("ctx", written)
    assert DATA[offset : offset + length] == await cold.read("ctx", identity(written), offset, length)


async def test_writing_again_is_harmless(cold: ObjectColdStore) -> None:
    """I8: a redelivered command writes its bytes again."""
    for _ in range(2):
        await cold.write("ctx", blob())
    assert DATA == await cold.read("ctx", identity(blob()))


@pytest.mark.parametrize(
    "change", [{"span_id": "l0:b"}, {"version": 2}, {"content_hash": "sha256:" + 64 * "0"}]
)
async def test_what_was_never_written_is_lost(cold: ObjectColdStore, change: dict[str, Any]) -> None:
    """I9: the store answered, and has none; for the whole and for a range."""
    await cold.write("ctx", blob())
    asked = identity(blob(), **change)
    with pytest.raises(LeafLost):
        await cold.read("ctx", asked)
    with pytest.raises(LeafLost):
        await cold.read("ctx", asked, 1, 2)
    assert await cold.size_bytes("ctx", asked) is None


async def test_no_two_versions_share_a_key(cold: ObjectColdStore) -> None:
    """C80: the same text in two contexts, spans, levels, versions: deleting one leaves the others."""
    contexts = ["ctx", "CTX", "c-t-x"]
    spans = ["l0:a", "l0:A", "l0:_a", "l1:a", "l2:a"]
    wanted = [(c, blob(s, v)) for c in contexts for s in spans for v in (1, 2, 12)]
    for context_id, written in wanted:
        await cold.write(context_id, written)
    gone_context, gone = wanted[0]
    await cold.delete(gone_context, identity(gone))
    with pytest.raises(LeafLost):
        await cold.read(gone_context, identity(gone))
    for context_id, written in wanted[1:]:
        assert DATA == await cold.read(context_id, identity(written))


async def test_names_that_differ_in_case_only_are_two(cold: ObjectColdStore, store: ObjectStore) -> None:
    """Also on a file system that ignores case: no two keys are the same in lower case."""
    names = [(context, name) for context in ("ctx", "Ctx") for name in ("Plan", "plan", "PLAN")]
    for context_id, name in names:
        await cold.write(context_id, blob(f"l0:{name}"))
        await cold.write_chunk(context_id, claim(name), 0, name.encode())
    keys = [str(meta["path"]) for meta in await obstore.list(store).collect_async()]
    assert 2 * len(names) == len({key.lower() for key in keys})


@pytest.mark.parametrize("kept", [0, 1, len(DATA) - 1])
async def test_a_short_object_is_corrupt(cold: ObjectColdStore, store: ObjectStore, kept: int) -> None:
    """C110: nothing at all, or too little, for the whole and for a range beyond what is there."""
    await cold.write("ctx", blob())
    await obstore.put_async(store, await only_key(store), DATA[:kept])
    with pytest.raises(LeafCorrupt):
        await cold.read("ctx", identity(blob()))
    with pytest.raises(LeafCorrupt):
        await cold.read("ctx", identity(blob()), len(DATA) - 2, 2)


async def test_deleting_is_idempotent(cold: ObjectColdStore) -> None:
    """A collector that died half-way does it again."""
    await cold.write("ctx", blob())
    for _ in range(2):
        await cold.delete("ctx", identity(blob()))
    assert await cold.size_bytes("ctx", identity(blob())) is None


async def test_a_store_that_keeps_something_else_is_unavailable(
    cold: ObjectColdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C66: what does not read back as written may not be named by a record."""
    put = obstore.put_async

    async def damaged(where: ObjectStore, key: str, data: bytes, **more: Any) -> Any:
        return await put(where, key, data[:-1] + b"?", **more)

    monkeypatch.setattr(obstore, "put_async", damaged)
    with pytest.raises(Unavailable, match="did not read back"):
        await cold.write("ctx", blob())


async def test_a_store_that_swallows_a_write_is_unavailable(
    cold: ObjectColdStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C66: said yes, kept nothing."""

    async def swallowed(*_: Any, **__: Any) -> None:
        return

    monkeypatch.setattr(obstore, "put_async", swallowed)
    with pytest.raises(Unavailable, match="did not read back"):
        await cold.write("ctx", blob())


async def test_a_store_that_hangs_is_unavailable(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """C111: not lost; each kind of call has its time."""
    cold = ObjectColdStore(store, timeout_s=0.02)

    async def never(*_: Any, **__: Any) -> None:
        await asyncio.Event().wait()

    for name in ("put_async", "get_async", "get_range_async", "head_async", "delete_async"):
        monkeypatch.setattr(obstore, name, never)
    calls = [
        cold.write("ctx", blob()),
        cold.read("ctx", identity(blob())),
        cold.read("ctx", identity(blob()), 1, 2),
        cold.size_bytes("ctx", identity(blob())),
        cold.delete("ctx", identity(blob())),
        cold.write_chunk("ctx", claim(), 0, DATA),
        cold.read_chunk("ctx", claim(), 0),
        cold.delete_chunks("ctx", claim()),
    ]
    async with deadline(10, "the time-outs"):
        for call in calls:
            with pytest.raises(Unavailable, match="no answer within"):
                await call


async def test_an_object_that_goes_while_its_range_is_read_is_lost(
    cold: ObjectColdStore, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No foreign exception crosses the port: refused as a range, then gone when its size is asked."""
    await cold.write("ctx", blob())
    key = await only_key(store)
    await obstore.put_async(store, key, b"")
    head = obstore.head_async

    async def gone(where: ObjectStore, path: str) -> Any:
        await obstore.delete_async(where, path)
        return await head(where, path)

    monkeypatch.setattr(obstore, "head_async", gone)
    with pytest.raises((LeafLost, LeafCorrupt)):
        await cold.read("ctx", identity(blob()), 5, 2)


# --- chunks of claims --------------------------------------------------------------------------------


async def test_chunks_are_kept_in_any_order_and_more_than_once(cold: ObjectColdStore) -> None:
    """The same chunk may come any number of times; the last one counts."""
    for index, data in [(2, b"c"), (0, b"x"), (1, b"b"), (0, b"a")]:
        await cold.write_chunk("ctx", claim(), index, data)
    assert [b"a", b"b", b"c", None] == [await cold.read_chunk("ctx", claim(), i) for i in range(4)]


async def test_chunks_of_contexts_claims_and_uploads_are_apart(cold: ObjectColdStore) -> None:
    """C80. Also those of one text that two commands have."""
    other = claim().model_copy(update={"digest": "sha256:" + 64 * "b"})
    await cold.write_chunk("ctx", claim(), 0, b"a")
    await cold.write_chunk("ctx", claim("up"), 0, b"b")
    assert await cold.read_chunk("CTX", claim(), 0) is None
    assert await cold.read_chunk("ctx", other, 0) is None
    assert await cold.read_chunk("ctx", claim("UP"), 0) is None
    await cold.delete_chunks("ctx", claim("up"))
    assert b"a" == await cold.read_chunk("ctx", claim(), 0)
    assert await cold.read_chunk("ctx", claim("up"), 0) is None


@pytest.mark.parametrize("there", [[], [0], [2], [0, 1, 2], [1, 2]])
async def test_dropping_chunks_drops_those_that_are_there(cold: ObjectColdStore, there: list[int]) -> None:
    """I8: doubled, or after some are gone already."""
    for index in there:
        await cold.write_chunk("ctx", claim(), index, b"x")
    await cold.write_chunk("ctx", claim(), 7, b"of nobody's business")
    await cold.delete_chunks("ctx", claim())
    assert [None] * 3 == [await cold.read_chunk("ctx", claim(), i) for i in range(3)]
    assert b"of nobody's business" == await cold.read_chunk("ctx", claim(), 7)


# --- health ------------------------------------------------------------------------------------------


async def test_a_store_that_takes_no_writes_does_not_pass_for_ready(tmp_path: Path) -> None:
    """As with a full disk, which answers as well as ever; until a write succeeds, or some time has passed."""
    now = [0.0]
    cold = ObjectColdStore(open_store(tmp_path.as_uri()), 5.0, clock=lambda: now[0])
    blob = Blob("l0:a", 1, content_hash(Level.L0_VERBATIM, b"a"), b"a")
    await cold.answers()
    (tmp_path / "blobs").write_text("in the way")
    with pytest.raises(Unavailable):
        await cold.write("ctx", blob)
    with pytest.raises(Unavailable, match=r"cold\.write: .*Not a directory") as caught:
        await cold.answers()
    assert str(tmp_path) not in caught.value.message
    now[0] = 61.0
    await cold.answers()
    with pytest.raises(Unavailable):
        await cold.write("ctx", blob)
    with pytest.raises(Unavailable):
        await cold.answers()
    (tmp_path / "blobs").unlink()
    await cold.write("ctx", blob)
    await cold.answers()


# --- opening -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["", "cold", "ftp://host/path", "nonsense://x", "s3://"])
def test_a_url_of_no_store_is_refused_at_the_start(url: str) -> None:
    """Typed, and naming the setting."""
    with pytest.raises(InvalidInput, match="cold_url"):
        open_store(url)


def test_a_folder_that_cannot_be_made_is_refused_at_the_start(tmp_path: Path) -> None:
    """Typed, too."""
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InvalidInput, match="cold_url"):
        open_store((tmp_path / "file" / "below").as_uri())


def test_urls_name_stores(tmp_path: Path) -> None:
    """A folder is made if it is not there."""
    assert isinstance(open_store("memory:///"), MemoryStore)
    assert isinstance(open_store((tmp_path / "x" / "y").as_uri()), LocalStore)
    assert (tmp_path / "x" / "y").is_dir()


def test_the_summary_s_level_is_in_its_hash() -> None:
    """The blobs of these tests are hashed at their own level."""
    assert content_hash(Level.L0_VERBATIM, DATA) != blob("l1:a").content_hash
