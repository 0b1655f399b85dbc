"""A context, as soon as there is a worker to serve it."""

import asyncio
from typing import Final

from sexton.holder import Context, Holder
from sexton.schemas.errors import Unavailable

_AGAIN_S: Final = 0.05


async def open_served(holder: Holder, context_id: str, *, within_s: float) -> Context:
    """Opens a context, again and again until a worker answers. Raises `Unavailable` if none does in time."""
    loop = asyncio.get_running_loop()
    give_up_at = loop.time() + within_s
    while True:
        try:
            return await holder.open(context_id)
        except Unavailable as error:
            if loop.time() >= give_up_at:
                raise Unavailable(
                    f"no worker served {context_id} within {within_s:g} s: {error}", context_id=context_id
                ) from error
        await asyncio.sleep(_AGAIN_S)
