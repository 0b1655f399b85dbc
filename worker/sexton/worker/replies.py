"""One request, one or more parts in reply; every request gets an answer, if only an error.

An error ends the reply wherever it comes: it is a part of its own, and whoever asked reads it as the answer,
also after other parts.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final

import structlog

from sexton import tracing
from sexton.core.answer import error_part
from sexton.schemas import subjects
from sexton.schemas.errors import PayloadTooLarge, SextonError, Unavailable
from sexton.schemas.limits import MAX_PAYLOAD_BYTES
from sexton.schemas.rpc import ReplyPart, RpcError

log: Final = structlog.get_logger("sexton.replies")

Send = Callable[[bytes], Awaitable[None]]

Parts = Iterable[ReplyPart] | AsyncIterator[bytes]
"""The parts of one answer: as they are, or on the wire already."""


async def reply(subject: str, send: Send, make: Callable[[str], Awaitable[Parts]]) -> None:
    """Sends what `make` gives for the subject's context, part by part, or the error that it raises."""
    context_id = "unknown"
    verb = subject.rsplit(".", 1)[-1]
    try:
        context_id = subjects.context_of(subject)
        tracing.current().set(context_id=context_id)
        index = 0
        async for data in _on_the_wire(await make(context_id)):
            await send(_fitting(data, index, verb))
            index += 1
            # An answer may have hundreds of parts, and sending waits for nothing by itself.
            await asyncio.sleep(0)
    except SextonError as e:
        tracing.current().set(error=e.code)
        await send(_error(context_id, e))
    except Exception as e:
        log.exception("replies.failed", verb=verb)
        tracing.current().failed(e)
        await send(_error(context_id, Unavailable(f"internal error: {type(e).__name__}")))


async def _on_the_wire(parts: Parts) -> AsyncIterator[bytes]:
    if isinstance(parts, AsyncIterator):
        async for data in parts:
            yield data
    else:
        for part in parts:
            yield part.wire()


def _fitting(data: bytes, index: int, verb: str) -> bytes:
    """The bytes of a part. Raises `PayloadTooLarge` if no message can hold them."""
    if len(data) > MAX_PAYLOAD_BYTES:
        log.error("replies.too_large", verb=verb, size_bytes=len(data))
        raise PayloadTooLarge(
            f"part {index} of the answer to {verb} has {len(data)} bytes; a message has at most "
            f"{MAX_PAYLOAD_BYTES}",
            limit=MAX_PAYLOAD_BYTES,
            actual=len(data),
        )
    return data


def _error(context_id: str, error: SextonError) -> bytes:
    """An error's part; without its fields, and cut, if it would not fit."""
    data = error_part(context_id, error).wire()
    if len(data) <= MAX_PAYLOAD_BYTES:
        return data
    return RpcError(
        context_id=context_id, code=error.code, message=error.message[:_MAX_MESSAGE_CHARACTERS]
    ).wire()


_MAX_MESSAGE_CHARACTERS: Final = 1000
