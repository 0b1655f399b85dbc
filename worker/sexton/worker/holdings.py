"""What a commit must know of live holders, and tell them and the collector, before it decides."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import structlog

from sexton.core.decide import touched
from sexton.core.pins import NO_PINS, Pins
from sexton.core.registry import CHANGING_MS
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Append, Prune, Rewrite
from sexton.schemas.errors import Unavailable
from sexton.worker.contexts import Contexts, Known
from sexton.worker.moments import Clock, Moment, clock, elapsed_s
from sexton.worker.ports import LivePins, Registry, SweepIndex

log: Final = structlog.get_logger("sexton.holdings")

FRESH_S: Final = 0.4 * CHANGING_MS / 1000
"""How old a reading may be when its record is sent. The rest of the note's time is for the way to the log."""


@dataclass(frozen=True, slots=True)
class Held:
    """The live pins on what a command touches."""

    pins: Pins
    whole: bool
    """These are all: the registry has lost nothing within the longest lease."""


_NOTHING: Final = Held(NO_PINS, whole=True)


class Holdings:
    """Looks up live pins before a decision, and notes what is about to change."""

    def __init__(
        self,
        registry: Registry,
        index: SweepIndex,
        contexts: Contexts,
        *,
        longest_lease_s: float,
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        now: Clock = clock,
    ) -> None:
        self._registry = registry
        self._index = index
        self._contexts = contexts
        self._longest_lease_ms = int(longest_lease_s * 1000)
        self._spawn = spawn
        self.now = now
        # No two commands, and no two deliveries of one, have the same: each clears its own note only.
        self._prefix = uuid.uuid4().hex
        self._numbers = count(1)

    def change(self, command: AnyCommand) -> "Change":
        """What one delivery of `command` has to do with holders. Nothing is read yet."""
        return Change(self, command, f"{self._prefix}-{next(self._numbers)}")

    async def before(self, known: Known, command: AnyCommand, token: str) -> LivePins | None:
        """The live pins on what `command` touches, noted as about to change. None if it touches nothing.

        A context that may get a tombstone is noted for the sweeper here, in the same round trip: before the
        commit, so that no crash can lose it.

        Raises:
            Unavailable: the registry did not answer. Unknown is not zero, so nothing is decided.
        """
        if isinstance(command, Append):
            if known.tree.revision == 0:
                await self._born(command.context_id)
            return None
        versions = touched(known.tree, command)
        if not versions:
            return None
        lookup = self._registry.change(command.context_id, versions, token)
        if isinstance(command, Rewrite | Prune):
            live, _ = await asyncio.gather(lookup, self._index.note([command.context_id]))
            return live
        return await lookup

    def held(self, live: LivePins) -> Held:
        """What the registry says, and whether that is all."""
        return Held(live.pins, whole=live.age_ms >= self._longest_lease_ms)

    def clear(self, context_id: str, token: str) -> None:
        """Clears a note, beside everything else."""
        self._spawn(self._cleared(context_id, token))

    async def _cleared(self, context_id: str, token: str) -> None:
        try:
            await self._registry.changed(context_id, token)
        except Unavailable as e:
            log.info("holdings.note_left_to_run_out", reason=e.message)

    async def _born(self, context_id: str) -> None:
        """A new context: nothing can have been pinned before, so the registry is whole from the start.

        The generation is read first and the log after: if the log is still empty then, the registry of that
        generation has seen all there ever was to pin.
        """
        try:
            generation = await self._registry.generation(context_id)
            if (await self._contexts.refresh(context_id)).tree.revision == 0:
                await self._registry.born(context_id, generation)
        except Unavailable as e:
            # The first rewrites will keep more than they must; nothing else comes of it.
            log.warning("holdings.birth_not_noted", reason=e.message)


class Change:
    """One delivery of a command, as far as holders are concerned: what they hold, and the note for them.

    The note says what is about to change. It is written with the reading of the pins, before the log; a pin
    is written before the log is read: so one of the two always sees the other (`docs/decisions/0022`).
    """

    def __init__(self, holdings: Holdings, command: AnyCommand, token: str) -> None:
        self._holdings = holdings
        self._command = command
        self._token = token
        self._read_at: Moment | None = None
        """When the last reading was sent; None if there is no note."""
        self._sent: int | None = None
        """After which sequence a record of ours may still be stored."""

    async def read(self, known: Known) -> Held:
        """What is held of what the command touches. Notes it as about to change, or renews the note.

        Raises:
            Unavailable: the registry did not answer.
        """
        if known.sequence != self._sent:
            # The log has moved on: what was sent before that can no longer be stored.
            self._sent = None
        sent_at = self._holdings.now()
        live = await self._holdings.before(known, self._command, self._token)
        if live is None:
            return _NOTHING
        self._read_at = sent_at
        return self._holdings.held(live)

    @property
    def is_fresh(self) -> bool:
        """Whether a record that is sent now is stored while the note stands."""
        return self._age_s() <= FRESH_S

    def sending(self, known: Known) -> None:
        """A record is sent on `known`. From now on it may be stored, answered or not."""
        self._sent = known.sequence

    def stored(self) -> None:
        """It is."""
        self._sent = None
        if self._age_s() * 1000 > CHANGING_MS:
            # A pin may have been granted on a version that was changed without regard to it.
            log.warning("holdings.note_outlived", age_s=round(self._age_s(), 1))

    def over(self, known: Known | None = None) -> None:
        """The command is through, or given up, with the log last seen at `known`: nobody need wait for it any
        more, unless a record of it may still be on its way.
        """
        if known is not None and known.sequence != self._sent:
            self._sent = None
        if self._read_at is not None and self._sent is None:
            self._holdings.clear(self._command.context_id, self._token)

    def _age_s(self) -> float:
        return 0.0 if self._read_at is None else elapsed_s(self._read_at, self._holdings.now())
