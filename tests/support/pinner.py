"""A holder as a program: pins what it is told to, and holds it until it is told otherwise.

`python -m tests.support.pinner NATS_URL CONTEXT NAME LEASE_S [SPAN@VERSION=COST]...` prints `holding` once
all is pinned. SIGUSR1 makes it let go of everything and print `released`; its lease stays. SIGTERM ends it in
order, SIGKILL leaves its lease to run out.
"""

import asyncio
import signal
import sys
from contextlib import AsyncExitStack

from sexton.holder import Holder, HolderSettings
from sexton.schemas.leases import PinCost


async def main(url: str, context_id: str, name: str, lease_s: str, *wanted: str) -> None:
    """Pins, and waits to be told."""
    loop = asyncio.get_running_loop()
    to_release, to_end = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, to_release.set)

    def end() -> None:
        to_release.set()
        to_end.set()

    loop.add_signal_handler(signal.SIGTERM, end)
    async with Holder.connect(url, name=name, settings=HolderSettings(lease_ttl_s=float(lease_s))) as holder:
        context = await holder.open(context_id)
        async with AsyncExitStack() as pins:
            for pin in wanted:
                version, _, cost = pin.partition("=")
                span_id, _, number = version.partition("@")
                await pins.enter_async_context(context.pin(span_id, version=int(number), cost=PinCost(cost)))
            print("holding", flush=True)
            await to_release.wait()
        print("released", flush=True)
        await to_end.wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
