"""What the worker says: outcomes, deferred compactions, compactions that got their summary."""

from typing import Final

import nats.errors
import nats.js.errors
from nats.aio.client import Client

from sexton.schemas import subjects
from sexton.schemas.codec import AnyCommand, AnyOutcome
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import REPLY_HEADER

_MESSAGE_ID: Final = "Nats-Msg-Id"


class Outbox:
    """Publishes on the connection that commits."""

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._js = client.jetstream(timeout=timeout_s)

    async def publish(self, outcome: AnyOutcome, reply: str | None) -> None:
        """Publishes an outcome to whoever listens. Raises `Unavailable`.

        Nobody may be listening: a sender that missed its outcome sends the command again.
        """
        data = outcome.wire()
        try:
            if outcome.context_id is not None and outcome.event_id is not None:
                await self._client.publish(subjects.outcome(outcome.context_id, outcome.event_id), data)
            if reply is not None and subjects.is_inbox(reply):
                await self._client.publish(reply, data)
        except (nats.errors.Error, OSError) as e:
            raise Unavailable(f"the outcome could not be published: {type(e).__name__}") from e

    async def defer(self, context_id: str, event_id: str, data: bytes, reply: str | None) -> None:
        """Leaves a compaction to the summarise stage, as it came. Raises `Unavailable`."""
        # The id spares a second model call while the first one runs; nothing rests on it.
        headers = _headers(reply) | {_MESSAGE_ID: f"{context_id}.{event_id}"}
        await self._store(subjects.summarise(context_id), data, headers)

    async def send(self, command: AnyCommand, reply: str | None) -> None:
        """Sends a command on its way, for whoever waits at `reply`. Raises `Unavailable`."""
        subject = subjects.command(command.context_id, command.kind)
        await self._store(subject, command.wire(), _headers(reply))

    async def _store(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        try:
            await self._js.publish(subject, data, headers=headers or None)
        except (TimeoutError, nats.errors.Error, OSError) as e:
            raise Unavailable(f"{subject.split('.')[1]}: {type(e).__name__}", operation="publish") from e


def _headers(reply: str | None) -> dict[str, str]:
    return {} if reply is None else {REPLY_HEADER: reply}
