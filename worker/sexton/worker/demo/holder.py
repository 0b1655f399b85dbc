"""One holder of the demo: a process of its own, as an agent would be.

`python -m sexton.worker.demo.holder NAME NATS_URL CONTEXT`. It follows the context, notes every bump, and
does what the demo asks of it.
"""

import asyncio
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import nats
from pydantic import BaseModel

from sexton.core.artifact import current_key
from sexton.holder import Context, Derived, Holder
from sexton.schemas.errors import SextonError, StaleSpanError, Unavailable
from sexton.schemas.leases import PinCost
from sexton.schemas.pointer import Pointer
from sexton.worker import logs
from sexton.worker.demo.offsets import OffsetMap
from sexton.worker.demo.pace import holder_settings, within
from sexton.worker.demo.served import open_served
from sexton.worker.demo.talk import (
    Ask,
    Done,
    Followed,
    Handler,
    HeldRead,
    MapUsed,
    Quote,
    Seen,
    Verb,
    answer,
    holder_id,
)

_LANES: Final = 16
"""Quotes asked for at a time."""
_WAIT_S: Final = 15.0
"""For a bump that must come: less than whoever asks waits, so that the answer can say what is missing."""
_CONNECT_S: Final = 10.0
_START_S: Final = 30.0
"""For the worker, which is started at the same time."""


class DemoHolder:
    """Does what is asked, on one context."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._seen: list[Seen] = []
        self._more = asyncio.Condition()
        self._derived: Derived[OffsetMap] | None = None
        self._kept = OffsetMap(())
        """The first map, as a program would keep it that knows of no bumps."""
        self._words: list[Pointer] = []
        self._extract: Derived[Counter[str]] | None = None
        self._held: Pointer | None = None
        """Minted on the version that the extract was made from."""

    @property
    def handlers(self) -> dict[Verb, Handler]:
        """What can be asked."""
        return {
            Verb.HELLO: self.hello,
            Verb.MINT: self.mint,
            Verb.BUILD_MAP: self.build_map,
            Verb.USE_MAP: self.use_map,
            Verb.HOLD: self.hold,
            Verb.READ_HELD: self.read_held,
            Verb.LET_GO: self.let_go,
            Verb.QUOTE: self.quote,
            Verb.REPORT: self.report,
        }

    async def follow(self) -> None:
        """Notes every bump, for as long as it runs."""
        async for record in self._context.bumps(from_revision=1):
            async with self._more:
                self._seen.append(Seen(revision=record.revision, epoch=record.epoch, kind=record.kind))
                self._more.notify_all()

    async def hello(self, _: Ask) -> BaseModel:
        """Is there."""
        return Done()

    async def mint(self, request: Ask) -> BaseModel:
        """Mints a pointer on every span of the view, into a file."""
        await self._until(request.revision)
        pointers = [await self._context.mint(node.span_id) for node in self._context.tree.view()]
        _write(request.target, pointers)
        return Done(count=len(pointers))

    async def build_map(self, request: Ask) -> BaseModel:
        """Makes an offset map of a span, and a pointer to each of its words."""
        await self._until(request.revision)
        self._derived = self._context.derived(request.span_id, OffsetMap.of, name="offset-map")
        self._kept = await self._derived.use()
        self._words = [
            await self._context.mint(request.span_id, offset=place.offset, length=place.length)
            for place in self._kept.places
        ]
        return Done(count=len(self._words))

    async def use_map(self, request: Ask) -> BaseModel:
        """Uses the map again after a rewrite, and tries the old pointers."""
        await self._until(request.revision)
        derived = self._derived
        if derived is None or derived.key is None:
            raise ValueError("no map was built yet")
        before, builds_before = derived.key, derived.builds
        caught = before != current_key(self._context.tree, before.span_id)
        now = await derived.use()
        whole = await self._context.resolve(await self._context.mint(before.span_id))
        return MapUsed(
            version_before=before.version,
            version_after=derived.key.version,
            builds_before=builds_before,
            builds_after=derived.builds,
            caught=caught,
            words=len(self._kept.places),
            misled=self._kept.misled_by(whole.data),
            words_now=len(now.places),
            exact=len(now.places) - now.misled_by(whole.data),
            refused=sum([await self._is_stale(pointer) for pointer in self._words]),
        )

    async def hold(self, request: Ask) -> BaseModel:
        """Makes an extract of a span; it counts as expensive, and so pins the version it is made from."""
        await self._until(request.revision)
        self._held = await self._context.mint(request.span_id)
        self._extract = self._context.derived(
            request.span_id, lambda text: Counter(text.split()), cost=PinCost.EXPENSIVE, name="extract"
        )
        return Done(count=len(await self._extract.use()))

    async def read_held(self, request: Ask) -> BaseModel:
        """Reads what the extract was made from, though it is no longer current."""
        await self._until(request.revision)
        if self._held is None:
            raise ValueError("nothing is held")
        plain = await self._quoted(self._held)
        return HeldRead(plain=plain, old=await self._quoted(self._held, accept_superseded=True))

    async def let_go(self, _: Ask) -> BaseModel:
        """Throws the extract away, and with it the pin."""
        if self._extract is None:
            raise ValueError("nothing is held")
        await self._extract.close()
        return Done()

    async def quote(self, request: Ask) -> BaseModel:
        """Resolves the pointers in a file, and writes what each led to into another, in their order."""
        pointers = [Pointer.model_validate_json(line) for line in _lines(request.source)]
        quotes: list[Quote | None] = [None] * len(pointers)
        left = iter(range(len(pointers)))

        async def lane() -> None:
            for i in left:
                quotes[i] = await self._quoted(pointers[i])

        async with asyncio.TaskGroup() as lanes:
            for _ in range(_LANES):
                lanes.create_task(lane())
        _write(request.target, [quote for quote in quotes if quote is not None])
        return Done(count=len(pointers))

    async def report(self, request: Ask) -> BaseModel:
        """All bumps it was told of."""
        await self._until(request.revision)
        return Followed(bumps=self._seen)

    async def _until(self, revision: int) -> None:
        """Waits for the bump of a revision. Raises `Unavailable`."""
        try:
            async with asyncio.timeout(_WAIT_S), self._more:
                await self._more.wait_for(lambda: revision == 0 or self._reached(revision))
        except TimeoutError as error:
            heard = self._seen[-1].revision if self._seen else 0
            raise Unavailable(
                f"heard nothing of revision {revision} within {_WAIT_S:g} s, only up to {heard}"
            ) from error

    def _reached(self, revision: int) -> bool:
        return bool(self._seen) and self._seen[-1].revision >= revision

    async def _quoted(self, pointer: Pointer, *, accept_superseded: bool = False) -> Quote:
        try:
            found = await self._context.resolve(pointer, accept_superseded=accept_superseded)
        except SextonError as error:
            return Quote(span_id=pointer.span_id, error=error.code)
        return Quote(
            span_id=pointer.span_id,
            data=found.data,
            level=found.level,
            verbatim=found.verbatim,
            tier=found.tier,
            superseded=found.superseded,
        )

    async def _is_stale(self, pointer: Pointer) -> bool:
        try:
            await self._context.resolve(pointer)
        except StaleSpanError:
            return True
        return False


async def _main(name: str, nats_url: str, context_id: str) -> None:
    async with Holder.connect(nats_url, name=holder_id(name), settings=holder_settings()) as holder:
        context = await open_served(holder, context_id, within_s=_START_S)
        demo = DemoHolder(context)
        async with within(_CONNECT_S, "a connection to NATS"):
            client = await nats.connect(nats_url, name=f"demo-{name}-talk")
        try:
            await answer(client, name, demo.handlers)
            await demo.follow()
        finally:
            await client.close()


def _lines(path: str) -> list[bytes]:
    return Path(path).read_bytes().splitlines()


def _write(path: str, values: Iterable[BaseModel]) -> None:
    with Path(path).open("wb") as file:
        file.writelines(value.model_dump_json(exclude_none=True).encode() + b"\n" for value in values)


if __name__ == "__main__":
    logs.configure("INFO")
    asyncio.run(_main(*sys.argv[1:]))
