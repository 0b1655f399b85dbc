"""The cold store on `obstore`: a local folder, S3, GCS, Azure, or memory for tests."""

import asyncio
import math
import os
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit
from urllib.request import url2pathname

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, NotFoundError
from obstore.store import LocalStore, MemoryStore, ObjectStore, from_url

from sexton.core import hash as hashing
from sexton.core.decide import Blob
from sexton.schemas.errors import InvalidInput, LeafCorrupt, LeafLost, Unavailable
from sexton.schemas.ids import level_of, token
from sexton.schemas.span import Claim, Identity
from sexton.worker.ports import StoredBlob

if TYPE_CHECKING:
    # Exists for type checkers only.
    from obstore import ObjectMeta

T = TypeVar("T")

_UPPER: Final = re.compile("[A-Z]")
_FOLDED: Final = re.compile("=([a-z])")
_BLOBS: Final = "blobs"
_CLAIMS: Final = "claims"
_NAME: Final = "name"
_REFUSAL_STANDS_S: Final = 60.0
_OS_ERROR: Final = re.compile(r"\(os error ([0-9]{1,4})\)")
_CONFIRMED_FOR_S: Final = 5.0
"""How long a store that is no folder is taken for the right one before it is asked again."""
_PARALLEL_DELETES: Final = 16
_CHUNK: Final = re.compile("sha256-[0-9a-f]{64}(/[^/]+)?/[0-9]+")
_LAST: Final = re.compile("([0-9]+)-(sha256(?:-l[1-7])?)-([0-9a-f]{64})")


def open_store(url: str) -> ObjectStore:
    """The object store that a URL names. Credentials come from the environment, as for its own tools.

    Raises:
        InvalidInput: no store of this kind is known, the URL is malformed, or the folder cannot be made.
    """
    if url.startswith("memory:"):
        return MemoryStore()
    try:
        if url.startswith("file://"):
            # Quoted, as `Path.as_uri` gives it: a blank in the path is a %20 in the URL.
            return LocalStore(url2pathname(urlsplit(url).path), mkdir=True)
        return from_url(url)
    except (BaseError, ValueError, OSError) as e:
        raise InvalidInput(f"cold_url cannot be opened: {type(e).__name__}", field="cold_url") from e


class ObjectColdStore:
    """`ColdStore` on an object store."""

    def __init__(
        self, store: ObjectStore, timeout_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._timeout_s = timeout_s
        self._clock = clock
        self._expected: str | None = None
        self._confirmed_at = -math.inf
        # A disk may be gone at the next moment, and asking it costs little; a bucket stays where it is.
        self._confirmed_for_s = 0.0 if isinstance(store, LocalStore) else _CONFIRMED_FOR_S
        self._refused: str | None = None
        """Why the last write failed, if it did."""
        self._refused_at = -math.inf

    async def name(self) -> str | None:
        """See `ColdStore.name`."""
        found = await self._bytes("cold.name", _NAME)
        return None if found is None else found.decode(errors="replace")

    async def set_name(self, name: str) -> str:
        """See `ColdStore.set_name`."""
        with suppress(_ThereError):
            await self._within(
                "cold.set_name", obstore.put_async(self._store, _NAME, name.encode(), mode="create")
            )
        found = await self.name()
        if found is None:
            raise Unavailable("the cold store's name did not read back", operation="cold.set_name")
        return found

    def expect(self, name: str) -> None:
        """See `ColdStore.expect`."""
        self._expected = name

    async def confirm(self) -> None:
        """See `ColdStore.confirm`."""
        if self._expected is not None and await self.name() != self._expected:
            self._confirmed_at = -math.inf
            raise Unavailable(
                "the cold store is not the one that was expected: is it mounted?", operation="cold.confirm"
            )
        self._confirmed_at = self._clock()

    async def answers(self) -> None:
        """Returns if the store answers, be it that there is nothing, and took what it was last given.

        Raises:
            Unavailable: it does not answer, or its last write failed a short while ago: a full disk and keys
                that may only read answer as well as ever.
        """
        if self._refused is not None and self._clock() - self._refused_at < _REFUSAL_STANDS_S:
            raise Unavailable(self._refused, operation="cold.write")
        await self.confirm()
        with suppress(_MissingError):
            await self._within("cold.head", obstore.head_async(self._store, "health/none"))

    async def write(self, context_id: str, blob: Blob) -> None:
        """See `ColdStore.write`."""
        if self._clock() - self._confirmed_at > self._confirmed_for_s:
            # A folder whose disk is not mounted takes bytes too, and hides them once it is.
            await self.confirm()
        key = _blob_key(context_id, blob.span_id, blob.version, blob.content_hash)
        try:
            await self._within("cold.write", obstore.put_async(self._store, key, blob.data))
        except Unavailable as e:
            self._refused, self._refused_at = e.message, self._clock()
            raise
        self._refused = None
        back = await self._bytes("cold.read_back", key)
        if back is None or hashing.content_hash(level_of(blob.span_id), back) != blob.content_hash:
            raise Unavailable(
                f"{blob.span_id} version {blob.version} did not read back as written", operation="cold.write"
            )

    async def read(
        self, context_id: str, identity: Identity, offset: int = 0, length: int | None = None
    ) -> bytes:
        """See `ColdStore.read`."""
        key = _key(context_id, identity)
        if length is None or (offset, length) == (0, identity.size_bytes):
            data = await self._bytes("cold.read", key)
        else:
            data = await self._range(key, offset, length)
        if data is None:
            # One object is missing: or all of them are, and then it is an outage.
            await self.confirm()
            raise LeafLost(
                f"{identity.span_id} version {identity.version} is not in the cold store",
                span_id=identity.span_id,
                version=identity.version,
            )
        wanted = identity.size_bytes - offset if length is None else length
        if len(data) < wanted:
            raise LeafCorrupt(
                f"{identity.span_id} version {identity.version}: the cold store holds fewer than the "
                f"{identity.size_bytes} bytes that were committed",
                span_id=identity.span_id,
                version=identity.version,
            )
        return data

    async def size_bytes(self, context_id: str, identity: Identity) -> int | None:
        """See `ColdStore.size_bytes`."""
        try:
            meta = await self._within(
                "cold.head", obstore.head_async(self._store, _key(context_id, identity))
            )
        except _MissingError:
            return None
        return meta["size"]

    async def delete(self, context_id: str, identity: Identity) -> None:
        """See `ColdStore.delete`."""
        await self.delete_key(_key(context_id, identity))

    async def delete_key(self, key: str) -> None:
        """See `ColdStore.delete_key`."""
        try:
            await self._within("cold.delete", obstore.delete_async(self._store, key))
        except _MissingError:
            return

    async def stored(self) -> AsyncIterator[StoredBlob]:
        """See `ColdStore.stored`."""
        for prefix in (_BLOBS, _CLAIMS):
            pages = obstore.list(self._store, prefix=prefix)
            while True:
                try:
                    page = await self._within("cold.list", anext(pages, None))
                except _MissingError:
                    break
                if page is None:
                    break
                for meta in page:
                    yield _stored(meta)

    async def clock(self, token: str) -> datetime:
        """See `ColdStore.clock`."""
        key = f"clock/{token}"
        await self._within("cold.clock", obstore.put_async(self._store, key, b"."))
        try:
            meta = await self._within("cold.clock", obstore.head_async(self._store, key))
        finally:
            await self.delete_key(key)
        return meta["last_modified"]

    async def write_chunk(self, context_id: str, claim: Claim, index: int, data: bytes) -> None:
        """See `ColdStore.write_chunk`."""
        await self._within(
            "cold.write_chunk", obstore.put_async(self._store, _claim_key(context_id, claim, index), data)
        )

    async def read_chunk(self, context_id: str, claim: Claim, index: int) -> bytes | None:
        """See `ColdStore.read_chunk`."""
        return await self._bytes("cold.read_chunk", _claim_key(context_id, claim, index))

    async def delete_chunks(self, context_id: str, claim: Claim) -> None:
        """See `ColdStore.delete_chunks`."""
        # One by one: a bulk delete ends at the first key that is not there, on some stores.
        keys = [_claim_key(context_id, claim, index) for index in range(claim.chunks)]
        for start in range(0, len(keys), _PARALLEL_DELETES):
            batch = keys[start : start + _PARALLEL_DELETES]
            results = await asyncio.gather(*(self.delete_key(key) for key in batch), return_exceptions=True)
            for error in results:
                if error is not None:
                    raise error

    async def _bytes(self, what: str, key: str) -> bytes | None:
        async def get() -> bytes:
            result = await obstore.get_async(self._store, key)
            return bytes(await result.bytes_async())

        try:
            return await self._within(what, get())
        except _MissingError:
            return None

    async def _range(self, key: str, offset: int, length: int) -> bytes | None:
        try:
            data = await self._within(
                "cold.read_range", obstore.get_range_async(self._store, key, start=offset, length=length)
            )
        except _MissingError:
            return None
        except Unavailable:
            # A range past the end of a damaged object is refused in the words of each store's own API:
            # the object's size tells damage from an outage.
            try:
                meta = await self._within("cold.head", obstore.head_async(self._store, key))
            except _MissingError:
                return None
            if meta["size"] < offset + length:
                return b""
            raise
        return bytes(data)

    async def _within(self, what: str, call: Awaitable[T]) -> T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await call
        except (NotFoundError, FileNotFoundError):
            raise _MissingError from None
        except AlreadyExistsError:
            raise _ThereError from None
        except TimeoutError:
            raise Unavailable(f"{what}: no answer within {self._timeout_s} s", operation=what) from None
        except (BaseError, OSError) as e:
            raise Unavailable(f"{what}: {type(e).__name__}{_why(e)}", operation=what) from e


def _why(error: Exception) -> str:
    """The system's word for what is wrong, if there is one. Not the store's own text, which holds paths."""
    number = _OS_ERROR.search(str(error))
    return f" ({os.strerror(int(number[1]))})" if number is not None else ""


class _MissingError(Exception):
    """The store answered that there is no such object."""


class _ThereError(Exception):
    """The store answered that there is such an object already."""


def _key(context_id: str, identity: Identity) -> str:
    return _blob_key(context_id, identity.span_id, identity.version, identity.content_hash)


def _blob_key(context_id: str, span_id: str, version: int, content_hash: str) -> str:
    """One key per version. The hash is in it, so a racer that lost cannot overwrite the winner's bytes."""
    level, name = span_id.split(":")
    return (
        f"{_BLOBS}/{_folded(context_id)}/{level}/{_folded(name)}/{version}-{content_hash.replace(':', '-')}"
    )


def _claim_key(context_id: str, claim: Claim, index: int) -> str:
    return _chunk_key(context_id, claim.digest.replace(":", "-"), claim.upload_id, index)


def _chunk_key(context_id: str, digest: str, upload_id: str | None, index: int) -> str:
    upload = "" if upload_id is None else f"/{_folded(token(upload_id, 'upload_id'))}"
    return f"{_CLAIMS}/{_folded(context_id)}/{digest}{upload}/{index}"


def _stored(meta: "ObjectMeta") -> StoredBlob:
    """What a key says. Keys that this program does not make are nobody's business here."""
    plain = StoredBlob(key=meta["path"], modified=meta["last_modified"], size_bytes=meta["size"])
    match meta["path"].split("/"):
        case [root, context, level, name, last] if root == _BLOBS and (found := _LAST.fullmatch(last)):
            version, content_hash = (f"{level}:{_unfolded(name)}", int(found[1])), f"{found[2]}:{found[3]}"
            known = replace(plain, context_id=_unfolded(context), version=version, content_hash=content_hash)
            made = _made(lambda c: _blob_key(c, *version, content_hash), known)
        case [root, context, digest, *upload, index] if root == _CLAIMS and _CHUNK.fullmatch(
            "/".join((digest, *upload, index))
        ):
            known = replace(plain, context_id=_unfolded(context))
            upload_id = _unfolded(upload[0]) if upload else None
            made = _made(lambda c: _chunk_key(c, digest, upload_id, int(index)), known)
        case _:
            return plain
    return known if made == known.key else plain


def _made(key: Callable[[str], str], blob: StoredBlob) -> str | None:
    """The key that this program would make of what it has read from one; None for what it would refuse."""
    try:
        if blob.version is not None:
            level_of(blob.version[0])
        return key(token(blob.context_id or "", "context_id"))
    except InvalidInput:
        return None


def _unfolded(folded: str) -> str:
    return _FOLDED.sub(lambda m: m[1].upper(), folded)


def _folded(token: str) -> str:
    """`Plan` and `plan` are two names; a file system that ignores case must not make them one file."""
    return _UPPER.sub(lambda m: "=" + m[0].lower(), token)
