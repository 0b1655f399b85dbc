"""A holder in the simulator: the real `PinBook`, and a driver that sends what it says.

As the real driver does, it sends one operation on pins at a time, and again, unchanged, when no answer comes;
heartbeats go beside. Unlike it, it never hurries: it may be paused anywhere, and an announcement may overtake
an operation.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from sexton.core.collection import Version
from sexton.core.lease import PinBook
from sexton.schemas.errors import Fenced, LeaseLost, SextonError, Unavailable
from sexton.schemas.leases import (
    HeartbeatRequest,
    HolderRequest,
    LeaseReply,
    Pin,
    PinCost,
    PinRequest,
    ReleaseRequest,
)
from sexton.worker.leases import Leases
from tests.sim.gates import ACTOR, Gates, Way
from tests.sim.ports import CONTEXT

NETWORK = (Way.THROUGH, Way.LOST)


class Server(Protocol):
    """A worker, as far as a holder's request meets it."""

    leases: Leases

    def start(self, work: Coroutine[Any, Any, None]) -> object:
        """Runs a part of the worker. It ends with the worker."""
        ...


class SimHolder:
    """One process of one holder id.

    Args:
        name: the holder id.
        incarnation: of this process.
        ttl_ms: its lease.
        gates: where its requests and their answers wait.
        now_s: its own monotonic clock.
        route: picks a worker for each request.
        losses: how often the registry has lost something so far.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        ttl_ms: int,
        *,
        gates: Gates,
        now_s: Callable[[], float],
        route: Callable[[], Server],
        losses: Callable[[], int],
    ) -> None:
        self.name = name
        self.book = PinBook(CONTEXT, name, incarnation, ttl_ms)
        self._gates = gates
        self._now_s = now_s
        self._route = route
        self._losses = losses
        self.granted_in: dict[Version, int] = {}
        """How often the registry had lost something when a pin was asked for that was granted then."""
        self.asking: dict[str, asyncio.Future[LeaseReply]] = {}
        """What is waited for, by actor; whoever waits may give up."""
        self.tasks: dict[str, asyncio.Task[None]] = {}

    # --- what it may do ---

    def is_busy(self, actor: str) -> bool:
        task = self.tasks.get(self.actor(actor))
        return task is not None and not task.done()

    def actor(self, what: str) -> str:
        return f"{self.name}.{what}"

    def pin(self, *versions: Version, cost: PinCost = PinCost.CHEAP, tries: int = 1) -> None:
        """Asks for pins, with as many tries."""
        pins = [Pin(span_id=span_id, version=version, cost=cost) for span_id, version in versions]
        self._start("op", self._operate(self.book.ask(pins), tries))

    def let_go(self, *versions: Version, tries: int = 1) -> None:
        request = self.book.let_go(versions)
        if request is not None:
            self._start("op", self._operate(request, tries))

    def beat(self, lane: str = "beat") -> None:
        """Sends a heartbeat. Two lanes are two heartbeats at once."""
        self._start(lane, self._beat())

    def give_up(self, actor: str) -> None:
        """No answer came in time."""
        asked = self.asking.pop(actor)
        self._gates.say(f"{actor}: gives up")
        asked.set_exception(Unavailable("no answer in time"))
        self._gates.loop.settle()

    def die(self) -> None:
        """SIGKILL. What it has asked for is under way all the same."""
        self._gates.say(f"{self.name}: dies")
        for task in self.tasks.values():
            task.cancel()
        self._gates.loop.settle()

    # --- what it believes ---

    def proven(self) -> list[Version]:
        """What it holds to be safe from collection at this moment."""
        now = self._now_s()
        return [version for version in self.book._claims if self.book.is_proven(version, now)]

    def counts_on(self, version: Version, losses: int) -> PinCost | None:
        """With which cost class it holds a version to be safe from change, if the registry has lost nothing
        since that was granted.
        """
        now = self._now_s()
        if self.granted_in.get(version) != losses:
            return None
        classes = (PinCost.IMMOVABLE, PinCost.EXPENSIVE, PinCost.CHEAP)
        return next((cost for cost in classes if self.book.is_proven(version, now, cost)), None)

    # --- inside ---

    def _start(self, what: str, work: Coroutine[Any, Any, None]) -> None:
        actor = self.actor(what)
        token = ACTOR.set(actor)
        self.tasks[actor] = self._gates.loop.create_task(work)
        ACTOR.reset(token)
        self._gates.loop.settle()

    async def _operate(self, request: PinRequest | ReleaseRequest, tries: int) -> None:
        for _ in range(tries):
            losses = self._losses()
            try:
                self._take_in(reply := await self._call(request), losses)
                self.book.on_pins(reply)
            except LeaseLost:
                self.book.on_lease_lost()
            except Fenced as e:
                self.book.on_fenced(int(e.fields["incarnation"]))
            except Unavailable:
                continue
            return
        self.book.on_no_answer()

    async def _beat(self) -> None:
        sent_at, losses = self._now_s(), self._losses()
        request = self.book.heartbeat(sent_at)
        try:
            reply = await self._call(request)
        except LeaseLost:
            self.book.on_lease_lost()
        except Fenced as e:
            self.book.on_fenced(int(e.fields["incarnation"]))
        except Unavailable:
            return
        else:
            self._take_in(reply, losses)
            self.book.on_heartbeat(request, reply, sent_at)

    def _take_in(self, reply: LeaseReply, losses: int) -> None:
        self.granted_in.update({(pin.span_id, pin.version): losses for pin in reply.granted})

    async def _call(self, request: HolderRequest) -> LeaseReply:
        actor = ACTOR.get()
        answer: asyncio.Future[LeaseReply] = self._gates.loop.create_future()
        self.asking[actor] = answer
        worker = self._route()
        worker.start(self._served(worker.leases, request, answer))
        try:
            return await answer
        finally:
            self.asking.pop(actor, None)

    async def _served(
        self, leases: Leases, request: HolderRequest, answer: "asyncio.Future[LeaseReply]"
    ) -> None:
        """The request's way: over the network, through a worker, and back."""
        try:
            await self._gates.call("net.request", lambda: None, _lost, NETWORK)
            error: SextonError | None = None
            reply: LeaseReply | None = None
            try:
                reply = await _answered(leases, request)
            except SextonError as e:
                error = e
            await self._gates.call("net.reply", lambda: None, _lost, NETWORK)
        except _LostError:
            return
        if answer.done():
            return
        if error is not None:
            answer.set_exception(error)
        elif reply is not None:
            answer.set_result(reply)


class _LostError(Exception):
    """A message that did not arrive."""


def _lost() -> Exception:
    return _LostError()


async def _answered(leases: Leases, request: HolderRequest) -> LeaseReply:
    match request:
        case HeartbeatRequest():
            return await leases.heartbeat(request)
        case PinRequest():
            return await leases.pin(request)
        case ReleaseRequest():
            return await leases.release(request)
        case _:
            raise TypeError(type(request))
