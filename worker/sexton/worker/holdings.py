"""What a commit must know of live holders, and tell the collector, before it decides."""

import asyncio
from dataclasses import dataclass
from typing import Final

import structlog

from sexton.core.decide import touched
from sexton.core.pins import NO_PINS, Pins
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Append, Prune, Rewrite
from sexton.schemas.errors import Unavailable
from sexton.worker.contexts import Contexts, Known
from sexton.worker.ports import Registry, SweepIndex

log: Final = structlog.get_logger("sexton.holdings")


@dataclass(frozen=True, slots=True)
class Held:
    """The live pins on what a command touches."""

    pins: Pins
    whole: bool
    """These are all: the registry has lost nothing within the longest lease."""


_NOTHING: Final = Held(NO_PINS, whole=True)


class Holdings:
    """Looks up live pins before a decision."""

    def __init__(
        self, registry: Registry, index: SweepIndex, contexts: Contexts, *, longest_lease_s: float
    ) -> None:
        self._registry = registry
        self._index = index
        self._contexts = contexts
        self._longest_lease_ms = int(longest_lease_s * 1000)

    async def before(self, known: Known, command: AnyCommand) -> Held:
        """What is held of what `command` touches.

        A context that may get a tombstone is noted for the sweeper here, in the same round trip: before the
        commit, so that no crash can lose it.

        Raises:
            Unavailable: the registry did not answer. Unknown is not zero, so nothing is decided.
        """
        if isinstance(command, Append):
            if known.tree.revision == 0:
                await self._born(command.context_id)
            return _NOTHING
        versions = touched(known.tree, command)
        if not versions:
            return _NOTHING
        lookup = self._registry.live(command.context_id, versions)
        if isinstance(command, Rewrite | Prune):
            live, _ = await asyncio.gather(lookup, self._index.note([command.context_id]))
        else:
            live = await lookup
        return Held(live.pins, whole=live.age_ms >= self._longest_lease_ms)

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
