"""What the worker says: outcomes, deferred compactions, compactions that got their summary."""

from collections.abc import Mapping
from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client
from nats.js.api import PubAck

from sexton import tracing
from sexton.schemas import subjects
from sexton.schemas.codec import AnyOutcome
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import REPLY_HEADER

DEFERRED: Final = "sexton.summarise.{context_id}"
"""The subject of deferred compactions, as spans name it."""
_COMMAND: Final = "sexton.cmd.{context_id}.compact"
_MESSAGE_ID: Final = "Nats-Msg-Id"


def reply_of(headers: Mapping[str, str] | None) -> str | None:
    """The inbox that a command names for its outcome; None if there is none, or it is no inbox."""
    found = (headers or {}).get(REPLY_HEADER)
    return found if found is not None and subjects.is_inbox(found) else None


class Outbox:
    """Publishes on the connection that commits."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._js = client.jetstream(timeout=timeout_s)

    async def publish(self, outcome: AnyOutcome, reply: str | None) -> None:
        """Publishes an outcome to whoever listens, and to `reply` (see `reply_of`). Raises `Unavailable`.

        Nobody may be listening: a sender that missed its outcome sends the command again.
        """
        data = outcome.wire()
        try:
            if outcome.context_id is not None and outcome.event_id is not None:
                await self._say(subjects.outcome(outcome.context_id, outcome.event_id), data)
            if reply is not None:
                await self._say(reply, data)
        except (nats.errors.Error, OSError) as e:
            raise Unavailable(f"the outcome could not be published: {type(e).__name__}") from e

    async def defer(self, context_id: str, event_id: str, data: bytes, reply: str | None) -> None:
        """Leaves a compaction to the summarise stage, as it came. Raises `Unavailable`."""
        subject = subjects.summarise(context_id)
        headers = _headers(reply) | {_MESSAGE_ID: f"{context_id}.{event_id}"}
        with tracing.send_step("sexton.defer", DEFERRED):
            ack = await self._store(subject, data, headers)
            # The id spares a second model call while the first one waits or runs. Once that has ended, the
            # server would still drop a repeat, and with it its outcome.
            if ack.duplicate and not await self._waits(ack.seq):
                await self._store(subject, data, _headers(reply))

    async def send(self, subject: str, data: bytes, reply: str | None) -> None:
        """Sends a command on its way, for whoever waits at `reply`. Raises `Unavailable`."""
        with tracing.send_step("sexton.command", _COMMAND):
            await self._store(subject, data, _headers(reply))

    async def _say(self, subject: str, data: bytes) -> None:
        await self._client.publish(subject, data, headers=tracing.headers() or None)

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> PubAck:
        try:
            return await self._js.publish(subject, data, headers=headers | tracing.headers() or None)
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise Unavailable(f"{subject.split('.')[1]}: {type(e).__name__}", operation="publish") from e

    async def _waits(self, sequence: int) -> bool:
        try:
            await self._js.get_msg(subjects.STREAM_SUMMARISE, sequence)
        except nats.js.errors.NotFoundError:
            return False
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise Unavailable(f"summarise: {type(e).__name__}", operation="get") from e
        return True


def _headers(reply: str | None) -> dict[str, str]:
    return {} if reply is None else {REPLY_HEADER: reply}
