import asyncio, time
from sexton.core.pins import PinCost
from sexton.schemas.span import NewSpan, Strategy
from sexton.worker.embedded import EmbeddedServers
from tests.leases_kit.servers import *
from tests.support.processes import Programs
from tests.worker_kit.service import serving

async def test_killed(own_servers: EmbeddedServers, programs: Programs, context_id: str) -> None:
    t=time.perf_counter()
    def lap(w): print(w, round(time.perf_counter()-t,2))
    async with serving(own_servers, **QUICK) as (_, sender), holding(own_servers, context_id) as context:
        lap("up")
        await context.append([NewSpan(name=f"s{i}", content=f"span {i}") for i in range(1000)])
        lap("appended")
        program = start_holder(programs, own_servers, context_id, ttl_s=1.0, cost=PinCost.EXPENSIVE)
        await program.line("^pinned 1000$", within_s=60)
        lap("pinned")
        outcomes = await asyncio.gather(*(context.rewrite(f"l0:s{i}", f"other {i}") for i in range(1000)))
        lap("rewritten")
        assert {Strategy.COPY_ON_REWRITE} == {o.strategy for o in outcomes}
        assert 2000 == len(stored(own_servers, context_id))
        program.kill()
        lap("killed")
        tree = await until_collected(sender, context_id, [(f"l0:s{i}", 1) for i in range(1000)])
        lap("collected")
        assert 1000 == len(stored(own_servers, context_id))
    lap("down")
