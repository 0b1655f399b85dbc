"""A holder as a program of its own: it pins all that is in the view, and can be killed or stopped.

Run as `python -m tests.leases_kit.program`, told by `SEXTON_TEST_` variables where the service is and what to
follow. It prints `pinned N`, and answers on `test.HOLDER`: `quote` reads the first span as it was pinned, and
`use` an artifact of the second one. The answer is the text, or the code of the error.
"""

import asyncio
import json
import os

import nats
from nats.aio.msg import Msg

from sexton.core.pins import PinCost
from sexton.holder import Context, Holder, HolderSettings
from sexton.holder.pins import Pinned
from sexton.schemas.errors import SextonError


async def hold(context: Context) -> None:
    """Pins everything, says so, and answers for ever."""
    name, cost = os.environ["SEXTON_TEST_HOLDER"], PinCost(os.environ["SEXTON_TEST_COST"])
    spans = [node.span_id for node in context.tree.view()]
    pointer = await context.mint(spans[0])
    await context.resolve(pointer)
    artifact = context.derived(spans[-1], str.upper, cost=cost)
    await artifact.use()
    pinned: list[Pinned] = await asyncio.gather(
        *(context.pin(span_id, cost=cost).__aenter__() for span_id in spans[:-1])
    )

    async def answer(message: Msg) -> None:
        try:
            if message.data == b"use":
                text = await artifact.use()
            else:
                text = (await context.resolve(pointer, accept_superseded=True)).text
            said = {"text": text}
        except SextonError as e:
            said = {"error": e.code}
        proven = sum(pin.proven for pin in pinned)
        await message.respond(json.dumps({**said, "proven": proven}).encode())

    client = await nats.connect(os.environ["SEXTON_TEST_NATS_URL"])
    await client.subscribe(f"test.{name}", cb=answer)
    await client.flush()
    print("pinned", 1 + sum(pin.proven for pin in pinned), flush=True)
    await asyncio.Event().wait()


async def main() -> None:
    """Follows one context."""
    settings = HolderSettings(lease_ttl_s=float(os.environ["SEXTON_TEST_TTL_S"]))
    url, name = os.environ["SEXTON_TEST_NATS_URL"], os.environ["SEXTON_TEST_HOLDER"]
    async with Holder.connect(url, name=name, settings=settings) as holder:
        await hold(await holder.open(os.environ["SEXTON_TEST_CONTEXT"]))


if __name__ == "__main__":
    asyncio.run(main())
