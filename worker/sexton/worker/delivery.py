"""What happens to a delivered message around its handler: beat, ack, delay, dead letter.

FastStream acknowledges nothing by itself here (`AckPolicy.MANUAL`). A handler returns, and the message is
acknowledged; or it raises, and the kind of error says what becomes of the message:

- a message that cannot be understood goes to the dead letters and is never delivered again;
- a transient fault gives it back, to be delivered again after a delay that grows with each try;
- a handler that is interrupted because the program ends gives it back at once;
- anything else is a bug: it is logged with its traceback and treated as a transient fault, so that a
  message is not lost to one; after `max_deliveries` it is a dead letter.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import nats.errors
import structlog
from faststream import BaseMiddleware
from faststream.nats.message import NatsMessage
from nats.aio.msg import Msg
from nats.js import JetStreamContext

from sexton.schemas import subjects
from sexton.schemas.dead import DEAD_LETTER_HEADER, DeadLetter
from sexton.schemas.errors import PeerError, SextonError, TransientError, UnsupportedSchema
from sexton.worker import metrics
from sexton.worker.in_flight import InFlight, Interrupted

log: Final = structlog.get_logger("sexton.delivery")

_BEATS_PER_ACK_WAIT: Final = 3
_MAX_MESSAGE_CHARACTERS: Final = 1000
"""Of a reason. The letter and the original must fit into one message together."""


class DeliverySettings(Protocol):
    """What delivery takes from a program's settings; see `Settings` for what each is."""

    @property
    def ack_wait_s(self) -> float: ...  # noqa: D102

    @property
    def max_deliveries(self) -> int: ...  # noqa: D102

    @property
    def retry_delay_s(self) -> float: ...  # noqa: D102

    @property
    def retry_delay_max_s(self) -> float: ...  # noqa: D102


Buried = Callable[[Msg, str], Awaitable[None]]
"""Hears of a message that has become a dead letter, and why."""


class Delivery:
    """The rules of delivery, for all messages that come from a stream."""

    def __init__(
        self,
        settings: DeliverySettings,
        dead_letters: Callable[[], JetStreamContext],
        in_flight: InFlight | None = None,
        *,
        buried: Buried | None = None,
    ) -> None:
        """Args: the settings; where dead letters go; who works; who hears of what became one."""
        self._settings = settings
        self._js = dead_letters
        self._in_flight = InFlight() if in_flight is None else in_flight
        self._buried = buried

    def middleware(self) -> type[BaseMiddleware[Any, Any]]:
        """A FastStream middleware that keeps them."""
        delivery = self

        class DeliveryMiddleware(BaseMiddleware[Any, Any]):
            """Applies the rules of delivery to messages of a stream; core messages pass through."""

            async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: Any) -> Any:
                if isinstance(msg, NatsMessage) and msg.raw_message.reply.startswith("$JS.ACK."):
                    return await delivery.handle(call_next, msg)
                with suppress(Interrupted):
                    # A request that is not answered: whoever asked will ask another worker.
                    async with delivery._in_flight.one():
                        return await call_next(msg)
                return None

        return DeliveryMiddleware

    async def handle(self, call_next: Callable[[Any], Awaitable[Any]], msg: NatsMessage) -> None:
        """Runs the handler and settles the message. A cancelled handler settles nothing."""
        beat = asyncio.create_task(self._beat(msg), name="delivery.beat")
        try:
            async with self._in_flight.one():
                await call_next(msg)
        except Interrupted:
            await self._hand_over(msg)
        except TransientError as e:
            await self._give_back(msg, e)
        except UnsupportedSchema as e:
            # A newer worker may be able to read it: this is what a rolling upgrade looks like.
            await self._give_back(msg, e)
        except PeerError as e:
            await self._bury(msg, e.code, e.message)
        except Exception as e:
            log.exception("delivery.handler_failed", stream=msg.raw_message.metadata.stream)
            await self._give_back(msg, e)
        else:
            with suppress(*_GONE):
                await msg.ack()
        finally:
            beat.cancel()

    async def _beat(self, msg: NatsMessage) -> None:
        """Says `in_progress` while the handler runs, so that the message is not given to another."""
        while True:
            await asyncio.sleep(self._settings.ack_wait_s / _BEATS_PER_ACK_WAIT)
            with suppress(*_GONE):
                await msg.in_progress()

    async def _give_back(self, msg: NatsMessage, error: Exception) -> None:
        deliveries = msg.raw_message.metadata.num_delivered
        if deliveries >= self._settings.max_deliveries:
            await self._bury(msg, "exhausted", f"{deliveries} deliveries; last: {_told(error)}")
            return
        delay_s = min(
            self._settings.retry_delay_s * 2 ** min(deliveries - 1, 20), self._settings.retry_delay_max_s
        )
        metrics.GIVEN_BACK.labels(msg.raw_message.metadata.stream).inc()
        delay_s *= random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing
        log.warning(
            "delivery.given_back", reason=_told(error), deliveries=deliveries, delay_s=round(delay_s, 3)
        )
        with suppress(*_GONE):
            await msg.nack(delay=delay_s)

    async def _hand_over(self, msg: NatsMessage) -> None:
        """Gives the message to whoever takes it next, at once: this program ends."""
        metrics.GIVEN_BACK.labels(msg.raw_message.metadata.stream).inc()
        log.warning("delivery.handed_over", deliveries=msg.raw_message.metadata.num_delivered)
        with suppress(*_GONE):
            await msg.nack(delay=0)

    async def _bury(self, msg: NatsMessage, reason: str, message: str) -> None:
        """Puts the message among the dead letters, then drops it. In this order: it is never in neither."""
        meta = msg.raw_message.metadata
        letter = DeadLetter(
            subject=msg.raw_message.subject,
            reason=reason,
            message=message[:_MAX_MESSAGE_CHARACTERS],
            stream=meta.stream,
            stream_sequence=meta.sequence.stream,
            deliveries=meta.num_delivered,
        )
        try:
            await self._js().publish(
                subjects.dead_letter(meta.stream),
                msg.raw_message.data,
                headers={
                    DEAD_LETTER_HEADER: letter.model_dump_json(exclude_none=True, ensure_ascii=True),
                    # With the time: a stream that was made anew begins again at one.
                    "Nats-Msg-Id": f"{meta.stream}-{meta.sequence.stream}-{meta.timestamp.timestamp()}",
                },
            )
        except (TimeoutError, nats.errors.Error, OSError) as e:
            log.warning("delivery.dead_letter_failed", reason=reason, error=type(e).__name__)
            with suppress(*_GONE):
                await msg.nack(delay=self._settings.retry_delay_max_s)
            return
        metrics.DEAD_LETTERS.labels(reason).inc()
        log.error(
            "delivery.dead_letter",
            reason=reason,
            message=letter.message,
            stream=meta.stream,
            sequence=meta.sequence.stream,
        )
        if self._buried is not None:
            try:
                await self._buried(msg.raw_message, letter.message)
            except SextonError as e:
                # It is a dead letter all the same; only nobody was told.
                log.warning("delivery.burial_not_told", error=e.message)
        with suppress(*_GONE):
            await msg.reject()


_GONE: Final = (nats.errors.Error, asyncio.TimeoutError, OSError)
"""An acknowledgement that could not be sent: the message will come again, and is safe to handle again."""


def _told(error: Exception) -> str:
    return error.message if isinstance(error, SextonError) else type(error).__name__
