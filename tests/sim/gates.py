"""Gates: where every call of a port waits until the schedule lets it through, and how it comes out.

A call is let through, or it fails: before anything happened, after it happened and its answer was lost, or
before it happens, late, when its caller has long given up. An actor is whoever the call is made for, however
many tasks it has; it goes along with the context of its tasks.
"""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TypeVar

from sexton.schemas.errors import SextonError
from sexton.worker.ports import LostRaceError
from tests.sim.loop import SteppedLoop

T = TypeVar("T")

ACTOR: ContextVar[str] = ContextVar("actor", default="nobody")


class Way(Enum):
    """How a call comes out."""

    THROUGH = auto()
    LOST = auto()
    """It fails, and nothing happened."""
    UNANSWERED = auto()
    """It happened, and fails all the same."""
    LATE = auto()
    """It fails, and happens later."""


@dataclass(eq=False)
class Waiting:
    """A call at its gate."""

    actor: str
    label: str
    ways: tuple[Way, ...]
    future: "asyncio.Future[Way]"


@dataclass(eq=False)
class Ghost:
    """A call whose caller has given up, and which is under way."""

    label: str
    effect: Callable[[], object]


@dataclass
class Gates:
    """All that wait, in the order of their coming."""

    loop: SteppedLoop
    waiting: list[Waiting] = field(default_factory=list)
    ghosts: list[Ghost] = field(default_factory=list)
    trace: list[str] = field(default_factory=list)
    """What happened, in words."""

    async def call(
        self,
        label: str,
        effect: Callable[[], T],
        failure: Callable[[], Exception],
        ways: tuple[Way, ...] = tuple(Way),
    ) -> T:
        """Waits at a gate, then does `effect` at one moment, or raises `failure`, or both."""
        here = Waiting(ACTOR.get(), label, ways, self.loop.create_future())
        self.waiting.append(here)
        try:
            way = await here.future
        finally:
            if here in self.waiting:
                self.waiting.remove(here)
        match way:
            case Way.THROUGH:
                return effect()
            case Way.UNANSWERED:
                effect()
            case Way.LATE:
                self.ghosts.append(Ghost(f"{here.actor}: {label}", effect))
        raise failure()

    def let(self, waiting: Waiting, way: Way = Way.THROUGH) -> None:
        """Lets a call through, or fail, and runs until all wait again."""
        self.say(f"{waiting.actor}: {waiting.label}" + ("" if way is Way.THROUGH else f" ({way.name})"))
        self.waiting.remove(waiting)
        waiting.future.set_result(way)
        self.loop.settle()

    def haunt(self, ghost: Ghost) -> None:
        """What was given up happens now. Nobody hears what comes of it."""
        self.say(f"{ghost.label} (at last)")
        self.ghosts.remove(ghost)
        try:
            ghost.effect()
        except (SextonError, LostRaceError) as e:
            self.say(f"  refused: {e}")

    def of(self, actor: str) -> list[Waiting]:
        """The calls of one actor that wait."""
        return [waiting for waiting in self.waiting if waiting.actor == actor]

    def say(self, what: str) -> None:
        self.trace.append(what)
