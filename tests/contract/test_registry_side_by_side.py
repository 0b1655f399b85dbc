"""The script and its second implementation, side by side: the same operations, the same answers.

Any operations, in any order, right or wrong: older numbers and gaps, newer and older processes, sets that do
not agree, leases that run out, servers that take over with all there is, or with an older copy. Compared is
everything but points in time: the server's clock is real, the other one is not.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from redis.asyncio import Redis

from sexton.core.collection import Version
from sexton.core.sweep import Observation
from sexton.schemas.errors import SextonError
from sexton.schemas.leases import PinCost
from tests.sim.effort import PATIENCE, search
from tests.sim.registry_bench import A, B, Bench, C, Client, MemoryBench, ServerBench

HOLDERS = st.sampled_from(["h1", "h1", "h2"])
STEPS = st.sampled_from([1] * 8 + [0, 0, 2, 2, -1])
"""From the holder's last number: mostly the next one; or the same again, one after a gap, an older one."""
VERSIONS = st.lists(st.sampled_from([A, A, B, C]), min_size=1, max_size=3)
COSTS = st.sampled_from([PinCost.CHEAP, PinCost.CHEAP, PinCost.EXPENSIVE])
TOKENS = st.sampled_from(["one", "two"])
SELDOM = st.sampled_from([False] * 7 + [True])


class SideBySide(RuleBasedStateMachine):
    """One context on both."""

    loop: ClassVar[asyncio.Runner]
    redis: ClassVar[Redis]

    def __init__(self) -> None:
        super().__init__()
        self.server, self.memory = ServerBench(self.redis), MemoryBench()
        self.benches: tuple[Bench, Bench] = (self.server, self.memory)
        self.memory.context_id = self.server.context_id
        self.operations: dict[str, int] = {}
        self.incarnations: dict[str, int] = {}
        self.claims: dict[str, dict[Version, PinCost]] = {}
        self.copies: list[list[Any]] = []

    # --- what may happen ---

    @initialize()
    def begin(self) -> None:
        for holder in ("h1", "h2"):
            self.announce(holder, 1, register_new=True, shortly=False)

    @rule(holder=HOLDERS, told=SELDOM.map(lambda wrong: not wrong))
    def beat(self, holder: str, told: bool) -> None:
        """A plain heartbeat; `told` is whether the holder tells its true claims."""
        self.both(*(client.beat() for client in self.clients(holder, 0, told=told)))

    @rule(holder=HOLDERS, step=STEPS, register_new=st.booleans(), shortly=SELDOM)
    def announce(self, holder: str, step: int, *, register_new: bool, shortly: bool) -> None:
        """The whole set; `shortly` is for a lease that has run out by the next step."""
        clients = self.clients(holder, step, ttl_ms=1 if shortly else 60_000)
        self.both(*(client.beat(register_new=register_new, pins=client.pins()) for client in clients))
        if shortly:
            self.both(*(bench.elapse(5) for bench in self.benches))

    @rule(holder=HOLDERS)
    def register(self, holder: str) -> None:
        """A lease, and no word about pins."""
        self.both(*(client.beat(register_new=True) for client in self.clients(holder, 0)))

    @rule(holder=HOLDERS, step=STEPS, versions=VERSIONS, cost=COSTS, lost=SELDOM)
    def pin(self, holder: str, step: int, versions: list[Version], *, cost: PinCost, lost: bool) -> None:
        """Pins, or a request for them that is lost on its way."""
        self.claims.setdefault(holder, {}).update(dict.fromkeys(versions, cost))
        clients = self.clients(holder, step)
        if not lost:
            self.both(*(c.bench.registry.pin(c.pin_request(versions, cost)) for c in clients))

    @rule(holder=HOLDERS, step=STEPS, versions=VERSIONS)
    def release(self, holder: str, step: int, versions: list[Version]) -> None:
        for version in versions:
            self.claims.setdefault(holder, {}).pop(version, None)
        clients = self.clients(holder, step)
        self.both(*(c.bench.registry.release(c.release_request(versions)) for c in clients))

    @rule(holder=HOLDERS, step=st.sampled_from([0, 0, 0, -1]), versions=VERSIONS)
    def withdraw(self, holder: str, step: int, versions: list[Version]) -> None:
        self.both(*(client.withdraw(*versions) for client in self.clients(holder, step)))

    @rule(holder=HOLDERS, by=st.sampled_from([1, 1, -1]), leaves=SELDOM, told=st.booleans())
    def another_process(self, holder: str, by: int, leaves: bool, told: bool) -> None:
        """A newer process, which may register, or an older one, which may still be there."""
        incarnation = self.incarnations.get(holder, 2)
        self.incarnations[holder] = incarnation + by
        self.both(*(client.beat(leave=leaves, register_new=told) for client in self.clients(holder, 0)))
        if by < 0 or not told:
            self.incarnations[holder] = incarnation

    @rule(holder=HOLDERS, step=STEPS, chance=SELDOM)
    def leave(self, holder: str, step: int, chance: bool) -> None:
        if chance:
            self.both(*(client.beat(leave=True) for client in self.clients(holder, step)))

    @rule(versions=VERSIONS, token=TOKENS)
    def change(self, versions: list[Version], token: str) -> None:
        async def change(bench: Bench) -> tuple[Any, ...]:
            live = await bench.registry.change(bench.context_id, versions, token)
            return dict(live.pins), live.age_ms > 1_000_000

        self.both(*(change(bench) for bench in self.benches))

    @rule(token=TOKENS)
    def changed(self, token: str) -> None:
        self.both(*(bench.registry.changed(bench.context_id, token) for bench in self.benches))

    @rule(tokens=st.sets(TOKENS))
    def ask_what_stands(self, tokens: set[str]) -> None:
        self.both(*(bench.registry.standing(bench.context_id, tokens) for bench in self.benches))

    @rule(versions=VERSIONS)
    def mark(self, versions: list[Version]) -> None:
        self.both(*(self.seen(bench, versions, mark=True) for bench in self.benches))

    @rule(versions=VERSIONS)
    def unmark(self, versions: list[Version]) -> None:
        self.both(*(bench.registry.unmark(bench.context_id, versions) for bench in self.benches))

    @rule(stale=st.booleans())
    def born(self, stale: bool) -> None:
        async def born(bench: Bench) -> None:
            generation = "another" if stale else await bench.registry.generation(bench.context_id)
            await bench.registry.born(bench.context_id, generation)

        self.both(*(born(bench) for bench in self.benches))

    @rule(chance=SELDOM)
    def take_over(self, chance: bool) -> None:
        if chance:
            self.both(*(bench.take_over() for bench in self.benches))

    @rule()
    def copy(self) -> None:
        copies = self.loop.run(_each(*(bench.copy() for bench in self.benches)))
        self.copies = [*self.copies[-2:], copies]

    @rule(number=st.integers(0, 10))
    def fall_back(self, number: int) -> None:
        if self.copies:
            copies = self.copies[number % len(self.copies)]
            pairs = zip(self.benches, copies, strict=True)
            self.both(*(bench.fall_back(copy) for bench, copy in pairs))

    @rule(chance=SELDOM)
    def lose(self, chance: bool) -> None:
        if chance:
            self.both(*(bench.lose() for bench in self.benches))

    # --- what must hold ---

    @invariant()
    def sweeps_see_the_same(self) -> None:
        self.both(*(self.seen(bench, [A, B, C], mark=False) for bench in self.benches))

    def teardown(self) -> None:
        self.both(*(self.told(bench) for bench in self.benches))
        self.loop.run(self.server.lose())

    # --- inside ---

    def clients(self, holder: str, step: int, *, told: bool = True, ttl_ms: int = 60_000) -> list[Client]:
        """The same holder on both, at its next operation; `told` is whether it tells its true claims."""
        operation = max(0, self.operations.get(holder, 0) + step)
        self.operations[holder] = max(operation, self.operations.get(holder, 0))
        claims = dict(self.claims.get(holder, {})) if told else {A: PinCost.IMMOVABLE}
        incarnation = self.incarnations.get(holder, 2)
        return [Client(bench, holder, incarnation, ttl_ms, operation, dict(claims)) for bench in self.benches]

    async def told(self, bench: Bench) -> tuple[Any, ...]:
        """What operators and commits are told, without times."""
        live = await bench.registry.live(bench.context_id, [A, B, C])
        held = await bench.registry.held(bench.context_id)
        holders = await bench.registry.holders(bench.context_id)
        return (
            dict(live.pins),
            live.age_ms > 1_000_000,
            {(info.holder_id, info.span_id, info.version, info.cost) for info in held},
            {(info.holder_id, info.incarnation, info.expires_in_ms > 0, info.pins) for info in holders},
        )

    async def seen(self, bench: Bench, versions: list[Version], *, mark: bool) -> tuple[Any, ...]:
        """An observation without its times."""
        seen: Observation = await bench.registry.observe(bench.context_id, versions, mark=mark)
        oldest = seen.oldest_beat_ms
        return (
            {v: {(pin.holder_id, pin.cost) for pin in pins} for v, pins in seen.pins.items()},
            {v: found.generation == seen.generation for v, found in seen.marks.items()},
            None if oldest is None else oldest > 0,
            seen.began_ms > 0,
        )

    def both(self, *calls: Awaitable[Any]) -> None:
        server, memory = self.loop.run(_each(*calls))
        assert memory == server


async def _each(*calls: Awaitable[Any]) -> list[Any]:
    """What each gives, or the error it raises, with what that says."""
    found: list[Any] = []
    for call in calls:
        try:
            found.append(await call)
        except SextonError as e:
            found.append((e.code, dict(e.fields)))
    return found


@PATIENCE
def test_the_script_and_the_memory_answer_the_same(any_redis_url: str) -> None:
    """Whatever is done to the one and the other."""
    with asyncio.Runner() as loop:
        SideBySide.loop = loop
        SideBySide.redis = Redis.from_url(any_redis_url)
        run_state_machine_as_test(SideBySide, settings=search(40, 2000, steps=40))
        loop.run(SideBySide.redis.aclose())
