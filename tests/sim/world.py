"""The world of the simulator: workers, holders, a log, a cold store, a registry that may be lost, and time.

All code under test is the real one: `Collector`, `Leases`, `Holdings`, `Committer` and `Contexts` of each
worker, `PinBook` of each holder. Every call that they make of a port waits at a gate. Whoever drives the
world opens the gates one at a time, and decides what happens between. After each step the world is looked at:

- I4: whatever a holder holds to be proven has its bytes in the cold store (`broken` of the checked model);
- what a holder holds to be proven and immovable is not changed, nor is what is proven and expensive made
  unreadable by a rewrite (`tests/sim/promises.py`);
- nothing but what the log has condemned is ever deleted, and every version is committed with its bytes;
- the log does not contradict itself, and no worker's tree contradicts the log.
"""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from types import TracebackType
from typing import Any, Final, Self, cast

import structlog.testing

from sexton.core.collection import Version
from sexton.core.hash import body_digest
from sexton.core.sweep import SweepRules
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import Unavailable
from sexton.schemas.span import NewSpan, SpanState, Text
from sexton.worker.collect import Collector
from sexton.worker.commit import Committer
from sexton.worker.contexts import Contexts
from sexton.worker.holdings import Holdings
from sexton.worker.leases import Leases
from sexton.worker.orphans import OrphanSweep
from sexton.worker.ports import ColdStore, Log, Registry, SweepIndex
from tests.sim.gates import ACTOR, Gates, Waiting, Way
from tests.sim.holder import SimHolder
from tests.sim.loop import SteppedLoop
from tests.sim.memory_registry import Data, MemoryRegistry
from tests.sim.ports import CONTEXT, GatedCold, GatedLog, GatedRegistry, NoHot, Stores
from tests.sim.promises import Promises

TTL_MS: Final = 10_000
"""Of every lease, and the longest there may be."""
QUIET_MS: Final = 2_000
RULES: Final = SweepRules(hold_back_ms=TTL_MS, quiet_ms=QUIET_MS)

ORPHAN_AGE: Final = timedelta(hours=1)

_MOST_STEPS: Final = 10_000


@dataclass
class SimWorker:
    """One worker process: what is in its memory, and what it does."""

    name: str
    leases: Leases
    collector: Collector
    committer: Committer
    contexts: Contexts
    orphans: OrphanSweep
    loop: SteppedLoop
    tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    def start(self, work: Coroutine[Any, Any, None], actor: str | None = None) -> None:
        """Runs a part of it, on behalf of `actor` or of whoever calls."""
        token = ACTOR.set(actor if actor is not None else ACTOR.get())
        task = self.loop.create_task(work)
        ACTOR.reset(token)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def die(self) -> None:
        for task in self.tasks:
            task.cancel()
        self.loop.settle()


class World:
    """Everything, and the hand that moves it."""

    def __init__(self, *, rules: SweepRules = RULES) -> None:
        self._rules = rules
        self.loop = SteppedLoop()  # type: ignore[abstract]
        self.gates = Gates(self.loop)
        self.now_ms = 1_800_000_000_000
        self.skew_ms = 0
        """By how much the registry's clock is ahead."""
        self.registry = MemoryRegistry(lambda: self.now_ms + self.skew_ms)
        self.copies: list[Data] = []
        """Older copies of the registry, one of which may take over."""
        self.promises = Promises(self)
        self.stores = Stores(sending=self.promises.sending)
        self.pruned: set[str] = set()
        self._attempts = count(1)
        self._events = count(1)
        self._logs = structlog.testing.capture_logs()
        self.workers: dict[str, SimWorker] = {}
        self.holders: dict[str, SimHolder] = {}
        self.zombies: list[SimHolder] = []
        """Processes whose place another one has been started to take. They live on, and are not believed."""

    def __enter__(self) -> Self:
        self._logs.__enter__()
        for name in ("w1", "w2"):
            self.start_worker(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self.workers.values():
            worker.die()
        for holder in (*self.holders.values(), *self.zombies):
            holder.die()
        self._logs.__exit__(kind, error, trace)

    # --- workers ---------------------------------------------------------------------------------------

    def start_worker(self, name: str) -> SimWorker:
        """A worker with nothing in memory."""
        log, cold = GatedLog(self.stores, self.gates), cast("ColdStore", GatedCold(self.stores, self.gates))
        gated = GatedRegistry(self.registry, self.gates, self.promises.on_call)
        registry, index = cast("Registry", gated), cast("SweepIndex", gated)
        hot = NoHot()
        contexts = Contexts(
            cast("Log", log),
            hot,
            max_contexts=10,
            max_spans=10_000,
            snapshot_every=1_000_000,
            spawn=self.loop.create_task,
        )
        longest_s = self._rules.hold_back_ms / 1000
        holdings = Holdings(
            registry,
            index,
            contexts,
            longest_lease_s=longest_s,
            spawn=self.loop.create_task,
            now=lambda: (self.now_ms / 1000, self.now_ms / 1000),
        )
        worker = SimWorker(
            name,
            Leases(registry, contexts, longest_s=TTL_MS / 1000, sleep=self._sleep),
            Collector(
                log,
                cold,
                hot,
                registry,
                contexts,
                rules=self._rules,
                new_attempt=lambda: f"attempt-{next(self._attempts)}",
            ),
            Committer(log, cold, hot, contexts, holdings, attempts=4, confirm_after_s=1e9),
            contexts,
            OrphanSweep(cold, contexts, min_age=ORPHAN_AGE, new_token=lambda: "token"),
            self.loop,
        )
        self.workers[name] = worker
        return worker

    async def _sleep(self, for_s: float) -> None:
        """As long as the schedule likes."""
        await self.gates.call("sleep", lambda: None, lambda: Unavailable("never"), (Way.THROUGH,))

    def crash_worker(self, name: str) -> None:
        """SIGKILL, and a new one in its place. What it was doing stays half done."""
        self.gates.say(f"{name}: dies")
        self.workers[name].die()
        self.start_worker(name)

    def sweep(self, actor: str) -> None:
        """A sweep begins: of `c1` on worker `w1`, of `c2` on `w2`."""
        worker = self.workers[f"w{actor[1:]}"]

        async def sweep() -> None:
            try:
                report = await worker.collector.sweep(CONTEXT)
            except Unavailable as e:
                self.gates.say(f"{actor}: {e}")
            else:
                steps = ", ".join(f"{s.version[0]}@{s.version[1]} {s.step.value}" for s in report.stones)
                self.gates.say(f"{actor}: swept ({steps})")

        worker.start(sweep(), actor)
        self.loop.settle()

    def command(self, worker_name: str, command: AnyCommand, *, redelivered: bool = False) -> None:
        """A worker is given a command. The actor is the command's event id."""
        worker = self.workers[worker_name]

        async def carry_out() -> None:
            try:
                done = await worker.committer.carry_out(
                    command, body_digest(command.wire()), redelivered=redelivered
                )
            except Unavailable as e:
                self.gates.say(f"{command.event_id}: {e}")
            else:
                self.gates.say(f"{command.event_id}: {done}"[:200])

        worker.start(carry_out(), command.event_id)
        self.loop.settle()

    def append(self, *names: str) -> None:
        """Leaves of a few bytes, at once."""
        spans = tuple(NewSpan(name=name, content=f"{name} as it was") for name in names)
        event_id = f"append-{next(self._events)}"
        self.command("w1", Append(context_id=CONTEXT, event_id=event_id, spans=spans))
        self.finish(event_id)

    def rewriting(self, span_id: str, base_version: int | None = None) -> Rewrite:
        """A rewrite of what is current."""
        number = next(self._events)
        base = base_version if base_version is not None else self.stores.tree.nodes[span_id].version
        return Rewrite(
            context_id=CONTEXT,
            event_id=f"rewrite-{number}",
            span_id=span_id,
            base_version=base,
            text=Text(content=f"{span_id} by event {number}"),
        )

    def rewrite(self, span_id: str) -> None:
        """A span has another version, at once."""
        command = self.rewriting(span_id)
        self.command("w1", command)
        self.finish(command.event_id)

    def pruning(self, span_id: str) -> Prune:
        return Prune(context_id=CONTEXT, event_id=f"prune-{next(self._events)}", span_id=span_id)

    def compacting(self, *span_ids: str) -> Compact:
        """A compaction of what is current, with its summary."""
        number = next(self._events)
        sources = tuple(SourceRef(span_id=span_id) for span_id in span_ids)
        summary = Text(content=f"sum {number}")
        return Compact(context_id=CONTEXT, event_id=f"compact-{number}", sources=sources, summary=summary)

    # --- holders ---------------------------------------------------------------------------------------

    def start_holder(self, name: str, *, incarnation: int = 1, offset_s: float = 1e6) -> SimHolder:
        """A holder that nobody knows of yet. Its clock is its own, and runs as fast as ours."""
        asked = count()

        def route() -> SimWorker:
            # Each request may go to another worker.
            return list(self.workers.values())[next(asked) % len(self.workers)]

        holder = SimHolder(
            name,
            incarnation,
            TTL_MS,
            gates=self.gates,
            now_s=lambda: self.now_ms / 1000 + offset_s,
            route=route,
            losses=lambda: self.promises.losses,
        )
        self.holders[name] = holder
        return holder

    def registered(self, name: str) -> SimHolder:
        """A holder with a good lease, at once."""
        holder = self.start_holder(name)
        holder.beat()
        self.finish(f"{name}.beat")
        return holder

    def restart_holder(self, name: str, *, zombie: bool = False) -> SimHolder:
        """A newer process of the same id; the older one is dead, or believes that it is not replaced."""
        before = self.holders[name]
        if zombie:
            before.name = f"{name}~{before.book.incarnation}"
            self.zombies.append(before)
        else:
            before.die()
        return self.start_holder(name, incarnation=before.book.incarnation + 1)

    # --- the registry, and time ------------------------------------------------------------------------

    def replicate(self) -> None:
        """A copy of the registry catches up with it."""
        self.copies = [*self.copies[-2:], self.registry.snapshot()]

    def fail_over(self, copy: Data | None = None, *, skew_ms: int = 0) -> None:
        """An older copy takes over, on a machine with a clock of its own."""
        self.gates.say(f"the registry fails over (clock {skew_ms:+} ms)")
        self.promises.losses += 1
        self.registry.fail_over(copy if copy is not None else self.copies[-1])
        self.skew_ms = skew_ms
        self.look()

    def flush(self) -> None:
        """The registry loses all it had."""
        self.gates.say("the registry is emptied")
        self.promises.losses += 1
        self.registry.flush()
        self.look()

    def elapse(self, ms: int) -> None:
        self.gates.say(f"{ms} ms go by")
        self.now_ms += ms
        self.look()

    # --- moving ----------------------------------------------------------------------------------------

    def let(self, waiting: Waiting, way: Way = Way.THROUGH) -> None:
        """One step of one actor."""
        self.gates.let(waiting, way)
        self.look()

    def step(self, actor: str) -> None:
        """Lets one actor through the gate where it waits."""
        self.let(self.gates.of(actor)[0])

    def pass_gate(self, actor: str, label: str) -> None:
        """Lets one actor, who waits at several, through one of them."""
        [waiting] = [waiting for waiting in self.gates.of(actor) if waiting.label == label]
        self.let(waiting)

    def run(self, actor: str, *until: str) -> None:
        """Lets one actor go on, alone, until it waits at one of the gates `until`."""
        for _ in range(_MOST_STEPS):
            waiting = self.gates.of(actor)
            assert waiting, f"{actor} is done and was never at {until}\n{self.story()}"
            if waiting[0].label in until:
                return
            self.let(waiting[0])
        raise AssertionError(f"{actor} never comes to {until}")

    def finish(self, actor: str) -> None:
        """Lets one actor go on, alone, to its end."""
        for _ in range(_MOST_STEPS):
            waiting = self.gates.of(actor)
            if not waiting:
                return
            self.let(waiting[0])
        raise AssertionError(f"{actor} never ends")

    def kill(self, actor: str) -> None:
        """Whatever this actor was doing ends here."""
        self.gates.say(f"{actor}: is stopped for good")
        for waiting in self.gates.of(actor):
            waiting.future.cancel()
        self.loop.settle()

    def look(self) -> None:
        """I4, at this moment."""
        for holder in self.holders.values():
            for version in holder.proven():
                if not self.stores.has_bytes(version):
                    self.stores.violations.append(f"I4: {holder.name} holds {version}, whose bytes are gone")

    # --- the end ---------------------------------------------------------------------------------------

    def calm_down(self) -> None:
        """No more faults: what is under way comes to its end."""
        for ghost in list(self.gates.ghosts):
            self.gates.haunt(ghost)
        for _ in range(_MOST_STEPS):
            if self.gates.waiting:
                self.let(self.gates.waiting[0])
            elif not self._give_up_one():
                return
        raise AssertionError("it never comes to an end")

    def _give_up_one(self) -> bool:
        for holder in (*self.holders.values(), *self.zombies):
            for actor in holder.asking:
                holder.give_up(actor)
                return True
        return False

    def release_all(self) -> None:
        """Every holder lets go of all it has, and says so until the registry agrees."""
        for holder in self.holders.values():
            holder.let_go(*[(pin.span_id, pin.version) for pin in holder.book.claims()])
            self.calm_down()
            for _ in range(4):
                if holder.book.fenced_by is None and holder.book.must_beat:
                    holder.beat()
                    self.calm_down()

    def all_die(self) -> None:
        for holder in (*self.holders.values(), *self.zombies):
            holder.die()
        self.holders, self.zombies = {}, []

    def tombstones(self) -> list[Version]:
        return sorted(self.stores.tree.tombstones.keys())

    def collect_all(self, most_sweeps: int = 3) -> None:
        """I5: sweeps until no tombstone is left, at most so many, one hold-back of time apart."""
        for _ in range(most_sweeps):
            for name, holder in self.holders.items():
                if holder.book.fenced_by is None:
                    holder.beat()
                    self.finish(f"{name}.beat")
            self.sweep("c1")
            self.finish("c1")
            if not self.tombstones():
                return
            self.elapse(self._rules.hold_back_ms + self._rules.quiet_ms)
        raise AssertionError(f"{self.tombstones()} are not collected\n{self.story()}")

    def sweep_orphans(self) -> None:
        """Much later, somebody looks for bytes that no record names."""
        self.stores.now_ms += 2 * int(ORPHAN_AGE.total_seconds() * 1000)
        worker = self.workers["w1"]

        async def sweep() -> None:
            report = await worker.orphans.run()
            self.gates.say(f"orphans: {report}")

        worker.start(sweep(), "orphans")
        self.loop.settle()
        self.finish("orphans")

    def story(self) -> str:
        """What happened, for whoever has to understand it."""
        return "\n".join([*self.gates.trace[-400:], *self.stores.violations[:5]])

    def assert_sound(self) -> None:
        """No violation so far, no error that nobody caught, and every worker's tree is a part of the log."""
        assert [] == self.stores.violations, self.story()
        assert [] == self.loop.errors, self.story()
        for worker in self.workers.values():
            cached = worker.contexts._cached.get(CONTEXT)
            if cached is not None and cached.known.tree.revision:
                tree = cached.known.tree
                assert self.stores.records[tree.revision - 1].chain == tree.chain

    def assert_all_freed(self) -> None:
        """I5: what is there is what must be there, and the log says of each byte that is gone that it is."""
        tree, stores = self.stores.tree, self.stores
        assert [] == self.tombstones()
        kept = stores.kept()
        named = {(span_id, version) for span_id, version, _ in kept}
        gone = stores.sizes.keys() - named
        assert sum(stores.sizes[version] for version in gone) == stores.freed_bytes, self.story()
        # What is left over are the bytes of rewrites that lost their race, and of those that came again late.
        self.sweep_orphans()
        assert kept == {key: len(data) for key, data in stores.blobs.items()}, self.story()
        for node in tree.nodes.values():
            assert node.state in (SpanState.LIVE, SpanState.COVERED, SpanState.COLLECTED)
