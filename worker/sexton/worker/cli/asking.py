"""How the commands for operators ask the service: one request, a reply in parts."""

from typing import Final, TypeVar

import nats
import nats.errors

from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.errors import MalformedMessage, PeerError, Unavailable
from sexton.schemas.ops import OpsRequest, OpsVerb
from sexton.schemas.rpc import ReplyPart, RpcError
from sexton.schemas.wire_errors import error_from

P = TypeVar("P", bound=ReplyPart)

SILENCE_S: Final = 30.0
"""The longest wait for the next part: a sweep or a check of many bytes takes its time."""


async def ask(nats_url: str, verb: OpsVerb, request: OpsRequest, model: type[P]) -> list[P]:
    """All parts of one reply.

    Raises:
        Unavailable: NATS cannot be reached, no worker serves it, or the reply stays away.
        PeerError: a reply that breaks the contract.
        SextonError: whatever the service says is wrong.
    """
    try:
        client = await nats.connect(nats_url, name="sexton-operator", allow_reconnect=False)
    except (nats.errors.Error, OSError, TimeoutError) as e:
        raise Unavailable(f"NATS cannot be reached: {type(e).__name__}") from e
    parts: list[P] = []
    try:
        inbox = client.new_inbox()
        replies = await client.subscribe(inbox)
        await client.publish(subjects.ops(request.context_id, verb), request.wire(), reply=inbox)
        while not parts or not parts[-1].last:
            message = await replies.next_msg(SILENCE_S)
            if (message.headers or {}).get("Status") == "503":
                raise Unavailable("no worker is there to answer")
            part = _part(model, message.data)
            if part.index != len(parts):
                raise PeerError(f"part {len(parts)} of the reply is missing")
            parts.append(part)
    except (TimeoutError, nats.errors.Error) as e:
        raise Unavailable(f"no answer to {verb.value}: {type(e).__name__}") from e
    finally:
        await client.close()
    return parts


def _part(model: type[P], data: bytes) -> P:
    try:
        return decode(model, data)
    except MalformedMessage:
        failed = decode(RpcError, data)
    raise error_from(failed)
