"""The part of the story about old versions: ada holds one of them, and nobody the others.

Ada has made something expensive of a span, so its old version must outlive a rewrite for as long as she
holds it. The other old versions are free. What is free is to be collected soon; what is held, not before
she lets go of it.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sexton.core.collection import Version
from sexton.holder import Context
from sexton.schemas.errors import PeerError, PinRefused
from sexton.schemas.leases import PinCost
from sexton.schemas.ops import OpsRequest, OpsVerb, TombstoneInfo, TombstonesPart
from sexton.schemas.outcome import Committed, NoChange
from sexton.schemas.records import Collected, Rewritten
from sexton.worker.cli.asking import Operator
from sexton.worker.demo.cast import Cast
from sexton.worker.demo.pace import COLLECTED_WITHIN_S
from sexton.worker.demo.talk import Ask, Done, HeldRead, Verb
from sexton.worker.settings.connections import ConnectionSettings

KEEPER: Final = "ada"
"""Who holds an old version."""
_STEP_S: Final = 20.0
_POLL_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Old:
    """The spans that get an old version, and what stood in each at first."""

    rewritten: str
    """Nobody holds its old version."""
    held: str
    """Ada does; it is rewritten too."""
    pruned: str
    first: Mapping[str, bytes]
    """The bytes of each in the transcript."""


@dataclass(slots=True)
class Kept:
    """What was seen of the old versions."""

    records: dict[str, Rewritten] = field(default_factory=dict)
    """How the log says that spans were rewritten."""
    reads: list[HeldRead] = field(default_factory=list)
    """What ada got: after the rewrite, and again after Redis was emptied and the others were collected."""
    swept: list[TombstoneInfo] = field(default_factory=list)
    """What a sweep told that was ordered while she held it."""
    free: list[Collected] = field(default_factory=list)
    """Records of collection until she let go."""
    released: list[Collected] = field(default_factory=list)
    """And after that."""
    took_s: float = 0.0
    """From her release to the record."""
    read_after: HeldRead | None = None
    """What she gets after that."""
    pin_refused: str = ""
    """Why a pin is not granted then."""
    stored: list[dict[str, int]] = field(default_factory=list)
    """How many files of the cold store hold just the first bytes of each span: before anything was changed,
    while ada held one, and in the end. Looked up in its folder."""


class Copies:
    """Plays this part."""

    def __init__(self, cast: Cast, context: Context, old: Old) -> None:
        self._cast = cast
        self._context = context
        self._old = old
        self._since = 1
        """The revision from which on collections are looked for."""
        self.seen = Kept()

    async def hold(self) -> None:
        """Has ada make her extract."""
        held = Ask(revision=self._context.head.revision, span_id=self._old.held)
        await self._cast.ask(KEEPER, Verb.HOLD, held, Done, within_s=_STEP_S)

    def before_changes(self) -> None:
        """Looks at what there is."""
        self._since = self._context.head.revision + 1
        self._look()

    async def note(self, outcome: Committed | NoChange) -> None:
        """Looks up how the log says that a span was rewritten."""
        record = await anext(self._context.bumps(from_revision=outcome.revision))
        if not isinstance(record, Rewritten):
            raise PeerError(f"revision {outcome.revision} is no rewrite")
        self.seen.records[record.before.span_id] = record

    async def read(self) -> None:
        """Has ada read the version that she holds."""
        self.seen.reads.append(await self._read())

    async def collect(self) -> None:
        """The free ones go while ada holds hers, and hers goes when she lets go."""
        old = self._old
        self.seen.free = await self._collected([(old.rewritten, 1), (old.pruned, 1)])
        self.seen.swept = await self._sweep()
        await self.read()
        self._look()
        began = time.monotonic()
        await self._cast.ask(KEEPER, Verb.LET_GO, Ask(), Done, within_s=_STEP_S)
        self.seen.released = await self._collected([(old.held, 1)])
        self.seen.took_s = time.monotonic() - began
        self._look()
        self.seen.read_after = await self._read()
        self.seen.pin_refused = await self._pin()

    async def _read(self) -> HeldRead:
        asked = Ask(revision=self._context.head.revision)
        return await self._cast.ask(KEEPER, Verb.READ_HELD, asked, HeldRead, within_s=_STEP_S)

    async def _collected(self, versions: Iterable[Version]) -> list[Collected]:
        """The records of collection, until all of these are collected or the time for it is over."""
        left = set(versions)
        found: list[Collected] = []
        try:
            async with asyncio.timeout(COLLECTED_WITHIN_S):
                async for record in self._context.bumps(from_revision=self._since):
                    self._since = record.revision + 1
                    if isinstance(record, Collected):
                        found.append(record)
                        left -= {(version.span_id, version.version) for version in record.versions}
                    if not left:
                        break
        except TimeoutError:
            pass  # what did not come is missing in what is judged
        return found

    async def _sweep(self) -> list[TombstoneInfo]:
        """Orders a sweep, and again until ada, whose pins Redis has lost, is known to hold hers."""
        request = OpsRequest(context_id=self._context.context_id)
        give_up_at = time.monotonic() + COLLECTED_WITHIN_S
        async with Operator(ConnectionSettings(nats_url=self._cast.servers.nats_url)) as operator:
            while True:
                parts = await operator.ask(OpsVerb.SWEEP, request, TombstonesPart)
                stones = [stone for part in parts for stone in part.tombstones]
                if any(stone.pins for stone in stones) or time.monotonic() > give_up_at:
                    return stones
                await asyncio.sleep(_POLL_S)

    async def _pin(self) -> str:
        """Tries to pin what is collected. The reason of the refusal, empty if there was none."""
        try:
            async with self._context.pin(self._old.held, version=1, cost=PinCost.CHEAP):
                return ""
        except PinRefused as error:
            return str(error.fields.get("reason", error.code))

    def _look(self) -> None:
        self.seen.stored.append(
            {span_id: files_of(self._cast.cold, data) for span_id, data in self._old.first.items()}
        )


def files_of(folder: Path, data: bytes) -> int:
    """How many files in a folder hold exactly these bytes, whatever their names."""
    found = 0
    for path in folder.rglob("*"):
        try:
            found += path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
        except FileNotFoundError:
            continue  # deleted while it was looked at
    return found
