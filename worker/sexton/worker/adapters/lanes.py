"""Pull subscriptions that can be watched and ended.

FastStream's pull loop asks for a message, handles it, and asks again, for ever. From outside one sees neither
that nobody answers (a permission that is missing looks like an empty queue), nor that a loop has ended; and
what is fetched while the program ends is thrown away, and waits for the ack wait. A `Lane` stands in between.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import nats.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.errors import ServiceUnavailableError

from sexton.worker.cancelling import cancelled

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

END_S: Final = 1.0
"""How long the server may take to confirm that nothing more comes."""

_PAUSE_S: Final = 0.25
_GONE: Final = (nats.errors.Error, TimeoutError, OSError)


class Lane(JetStreamContext.PullSubscription):
    """A pull subscription that knows when it was answered, and gives back what comes when it is ending."""

    def __init__(
        self,
        pulled: JetStreamContext.PullSubscription,
        lanes: list["Lane"],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args: the subscription as nats-py made it, to go on with; where lanes are noted; and a clock."""
        self.__dict__.update(pulled.__dict__)
        lanes.append(self)
        self._lanes = lanes
        self._clock = clock
        self._moved_at = clock()
        self._answered_at: float | None = None
        self._answers = 0
        self._handling = False
        self._fetching: asyncio.Task[list[Msg]] | None = None
        self._ended = False

    @property
    def stream(self) -> str:
        """The stream that it pulls from."""
        return self._stream

    @property
    def name(self) -> str:
        """Stream and consumer."""
        return f"{self._stream}/{self._consumer}"

    def unanswered_s(self) -> float | None:
        """How long its pulls have been waiting for an answer; None if there was none ever.

        A lane whose message is being handled waits for nothing.
        """
        self._look()
        if self._answered_at is None:
            return None
        return 0.0 if self._handling else self._clock() - self._answered_at

    def still_s(self) -> float:
        """How long its loop has not moved. One that waits for its handler, or has been ended, may."""
        return 0.0 if self._handling or self._ended else self._clock() - self._moved_at

    async def fetch(
        self,
        batch: int = 1,
        timeout: float | None = 5,  # noqa: ASYNC109 - nats-py's own
        heartbeat: float | None = None,
    ) -> list[Msg]:
        """See nats-py. Once the lane has ended, this waits until it is cancelled."""
        self._moved_at = self._clock()
        if self._handling:
            self._handling, self._answered_at = False, self._moved_at
        if not self._ended:
            self._fetching = asyncio.create_task(super().fetch(batch, timeout, heartbeat))
            try:
                messages = await self._fetching
            except asyncio.CancelledError:
                if not self._ended or cancelled():
                    raise
            except ServiceUnavailableError:
                # No such consumer, or no JetStream. Without a pause, FastStream would ask as fast as it can.
                self._answers = self.delivered
                await asyncio.sleep(_PAUSE_S)
                raise
            else:
                if not self._ended:
                    self._fetching = None
                    self._look()
                    self._handling = True
                    return messages
            finally:
                self._moved_at = self._clock()
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def give_back(self) -> int:
        """Ends the fetch that is under way, and gives back what was fetched and not begun.

        To be called when the server sends nothing more. Gives the number of messages given back.
        """
        found: list[Msg] = []
        if self._fetching is not None and not self._handling:
            self._fetching.cancel()
            (result,) = await asyncio.gather(self._fetching, return_exceptions=True)
            found += [] if isinstance(result, BaseException) else result
        while self.pending_msgs:
            with contextlib.suppress(*_GONE):
                found.append(await self.subscription.next_msg(timeout=END_S))
        messages = [message for message in found if message.reply.startswith("$JS.ACK.")]
        for message in messages:
            with contextlib.suppress(*_GONE):
                await message.nak()
        return len(messages)

    def end(self) -> None:
        """Nothing that is fetched from here on is handled."""
        self._ended = True

    @property
    def subscription(self) -> "Subscription":
        """The subscription to the inbox that the messages come to."""
        return self._sub

    async def unsubscribe(self) -> None:
        """See nats-py; also if it is unsubscribed already."""
        with contextlib.suppress(ValueError):
            self._lanes.remove(self)
        with contextlib.suppress(nats.errors.Error):
            await super().unsubscribe()

    def _look(self) -> None:
        """Any message in the inbox is an answer, also one that says that there is nothing."""
        if self.delivered != self._answers:
            self._answers, self._answered_at = self.delivered, self._clock()


class LaneContext(JetStreamContext):
    """JetStream, with lanes in the place of pull subscriptions."""

    def __init__(self, conn: Any, lanes: list[Lane], **options: Any) -> None:
        """Args: the connection; where lanes are noted; and nats-py's own options."""
        super().__init__(conn, **options)
        self._lanes = lanes

    async def pull_subscribe(self, *args: Any, **options: Any) -> Lane:
        """See nats-py."""
        return Lane(await super().pull_subscribe(*args, **options), self._lanes)
