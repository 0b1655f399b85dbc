"""One request, one or more parts in reply; every request gets an answer, if only an error."""

from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import structlog

from sexton import tracing
from sexton.core.answer import error_part
from sexton.schemas import subjects
from sexton.schemas.errors import SextonError, Unavailable
from sexton.schemas.rpc import ReplyPart

log: Final = structlog.get_logger("sexton.replies")

Send = Callable[[bytes], Awaitable[None]]


async def reply(subject: str, send: Send, make: Callable[[str], Awaitable[Iterable[ReplyPart]]]) -> None:
    """Sends what `make` gives for the subject's context, part by part, or the error that it raises."""
    context_id = "unknown"
    parts: Iterable[ReplyPart]
    try:
        context_id = subjects.context_of(subject)
        tracing.current().set(context_id=context_id)
        parts = await make(context_id)
    except SextonError as e:
        tracing.current().set(error=e.code)
        parts = [error_part(context_id, e)]
    except Exception as e:
        log.exception("replies.failed", verb=subject.rsplit(".", 1)[-1])
        tracing.current().failed(e)
        parts = [error_part(context_id, Unavailable(f"internal error: {type(e).__name__}"))]
    for part in parts:
        await send(part.wire())
