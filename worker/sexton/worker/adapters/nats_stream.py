"""Reading streams other than the log: all that is behind a sequence, and where the end is."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from datetime import datetime
from typing import Final, NamedTuple

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from sexton.schemas.errors import Unavailable

OUTAGES: Final = (nats.errors.Error, asyncio.TimeoutError, OSError)

_BATCH: Final = 256
_INACTIVE_S: Final = 30.0
"""The server drops a reader's consumer that was not removed."""


async def last_sequence(js: JetStreamContext, stream: str) -> int:
    """The sequence of the last message that the stream ever had; 0 for none. Raises `Unavailable`."""
    try:
        return (await js.stream_info(stream)).state.last_seq
    except OUTAGES as e:
        raise unavailable(stream, e) from None


class Waiting(NamedTuple):
    """What a stream holds."""

    messages: int
    oldest_s: float
    """Age of its oldest message, on the server's clock; 0 if there is none."""


async def waiting_in(client: Client, stream: str, timeout_s: float) -> Waiting:
    """How many messages a stream holds, and since when. Raises `Unavailable`.

    Both times are in the server's answer; nats-py leaves them out.
    """
    try:
        reply = await client.request(f"$JS.API.STREAM.INFO.{stream}", b"", timeout=timeout_s)
        answer = json.loads(reply.data)
        state = answer["state"]
        if not state["messages"]:
            return Waiting(0, 0.0)
        age = datetime.fromisoformat(answer["ts"]) - datetime.fromisoformat(state["first_ts"])
    except OUTAGES as e:
        raise unavailable(stream, e) from None
    except (ValueError, KeyError) as e:
        # An error of the API has no state.
        raise unavailable(stream, e) from None
    return Waiting(state["messages"], max(0.0, age.total_seconds()))


async def read_stream(
    js: JetStreamContext, stream: str, after: int, *, timeout_s: float
) -> AsyncIterator[list[Msg]]:
    """All messages behind the sequence `after`, in order, in batches of at least one.

    Raises:
        Unavailable: no such stream, or no answer within `timeout_s`. Not all was read.
    """
    config = ConsumerConfig(
        ack_policy=AckPolicy.NONE,
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
        opt_start_seq=after + 1,
        inactive_threshold=_INACTIVE_S,
        mem_storage=True,
        num_replicas=1,
    )
    try:
        reader = await js.pull_subscribe(">", stream=stream, config=config, inbox_prefix=_inbox_prefix(js))
        try:
            waiting = (await reader.consumer_info()).num_pending or 0
            while waiting:
                messages = await reader.fetch(min(waiting, _BATCH), timeout=timeout_s)
                if not messages:
                    raise Unavailable(f"{stream}: no answer", operation=stream)
                waiting = messages[-1].metadata.num_pending
                yield messages
        finally:
            with suppress(*OUTAGES):
                await reader.unsubscribe()
                await js.delete_consumer(stream, config.name or "")
    except OUTAGES as e:
        raise unavailable(stream, e) from None


def _inbox_prefix(js: JetStreamContext) -> bytes:
    """The connection's own: nats-py does not use it for pulls by itself."""
    return bytes(js._nc._inbox_prefix) + b"."  # noqa: SLF001 - it has no other way


def unavailable(what: str, error: Exception) -> Unavailable:
    """An outage of NATS, as the port's error."""
    if isinstance(error, nats.js.errors.NotFoundError):
        return Unavailable(f"there is no {what}; a worker or a pager makes it", operation=what)
    return Unavailable(f"{what}: {type(error).__name__}", operation=what)
