"""The pager as a FastStream application: a composition root, where the streams meet the targets.

It needs NATS and nothing else: Redis and the cold store may be what is on fire. What it knows is kept in a
stream, so it may be killed at any moment. Run one of it; two at once, as in a rolling update, lose nothing.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, Self

import structlog
from faststream.nats import JStream, PullSub
from faststream.nats.message import NatsMessage
from nats.js.api import AckPolicy as StreamAckPolicy
from nats.js.api import ConsumerConfig, DeliverPolicy

from sexton.schemas import subjects
from sexton.schemas.codec import decode
from sexton.schemas.failure import HardFailureRecord
from sexton.tracing import Tracer
from sexton.worker.adapters.intake import add_intake_checks, end_intake
from sexton.worker.adapters.nats_broker import make_broker
from sexton.worker.adapters.nats_client import HardenedClient, connect_once
from sexton.worker.adapters.nats_options import nats_options
from sexton.worker.adapters.nats_refusals import Refusals
from sexton.worker.background import Background, Provisioning
from sexton.worker.delivery import Delivery
from sexton.worker.gauges import incidents
from sexton.worker.health import Health
from sexton.worker.in_flight import InFlight
from sexton.worker.pager.incidents import DURABLE, Incidents, report_of
from sexton.worker.pager.pages import Pages
from sexton.worker.pager.targets import Target, open_targets
from sexton.worker.provision import ensure, failure_streams
from sexton.worker.settings import Settings
from sexton.worker.web.routes import Refresh

log: Final = structlog.get_logger("sexton.pager")

_PULL_S: Final = 1.0
_PULL_INBOX: Final = f"{subjects.PAGER_INBOX}.".encode()
_UNLIMITED: Final = -1
_SUBJECTS: Final = {
    subjects.STREAM_FAILURES: "sexton.failure.{context_id}",
    subjects.STREAM_DEAD: "sexton.dead.{stream}",
}
_LAST_S: Final = 1.0
_CONSUMER_DELETED: Final = f"$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.{DURABLE}"
_STREAM_DELETED: Final = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"


def wall_clock_ms() -> int:
    """Unix time."""
    return time.time_ns() // 1_000_000


def consumers(settings: Settings) -> list[tuple[str, ConsumerConfig]]:
    """The durable consumers of a pager, each with its stream."""
    return [
        (
            stream,
            ConsumerConfig(
                durable_name=DURABLE,
                filter_subject=subject,
                ack_policy=StreamAckPolicy.EXPLICIT,
                deliver_policy=DeliverPolicy.ALL,
                ack_wait=settings.pager_ack_wait_s,
                # Records wait here for their page; what comes behind them is counted all the same.
                max_ack_pending=settings.pager_lanes,
                max_deliver=_UNLIMITED,
            ),
        )
        for stream, subject in _sources(settings)
    ]


class Pager:
    """One pager process, put together. Use it as a context manager, or `program.run` it."""

    def __init__(
        self,
        settings: Settings,
        targets: Sequence[Target] | None = None,
        *,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """Args: the settings; targets in the place of those that they name; and the time.

        Raises:
            InvalidInput: the settings name no address, or one that cannot be used.
        """
        self.settings = settings
        self._targets = (
            open_targets(settings.page_targets, attempt_s=settings.pager_attempt_s)
            if targets is None
            else targets
        )
        self._clock_ms = clock_ms
        self.health = Health()
        self._options = nats_options(settings, subjects.PAGER_INBOX)
        self.refusals = Refusals(self.health.refused)
        self.broker = make_broker(
            settings, "sexton-pager", self._options, self.refusals, on_reconnect=self._on_reconnect
        )
        # Nothing waits in a buffer for a server that is away: a late write of a state would be a wrong one.
        self._client = HardenedClient(self.refusals)
        self._tracer = Tracer("sexton.pager", on=settings.tracing)
        self._stack = contextlib.AsyncExitStack()
        self._background = Background("pager")
        self._spawn = self._background.spawn
        self._in_flight = InFlight()
        self._provisioning = Provisioning(
            "pager",
            self._provision,
            first_s=settings.retry_delay_s,
            longest_s=settings.retry_delay_max_s,
        )
        self.ended = self._provisioning.failed
        """Set when the pager cannot go on."""
        self.refresh: list[Refresh] = []
        """What brings its gauges up to date."""

    async def prepare(self) -> None:
        """Connects, provisions, and reads what is known. Nothing is taken yet.

        Raises:
            Unavailable: NATS cannot be reached.
            PermissionRefused: NATS refuses who we are, or something that a pager needs.
            ProvisionError: a stream or consumer is not as meant.
        """
        await self._connect()
        await self._provision()
        settings = self.settings
        self._incidents = Incidents(self._client, settings.io_timeout_s)
        for stream, _ in _sources(settings):
            await self._incidents.start(stream)
        await self._incidents.load()
        self._pages = Pages(
            self._incidents,
            self._targets,
            streams=[stream for stream, _ in _sources(settings)],
            rules=settings.page_rules,
            parallel=settings.pager_parallel,
            poll_s=settings.pager_poll_s,
            delay_s=settings.retry_delay_s,
            delay_max_s=settings.retry_delay_max_s,
            clock_ms=self._clock_ms,
            spawn=self._spawn,
        )
        add_intake_checks(
            self.health, self.broker, [self._client], settings, *(stream for stream, _ in _sources(settings))
        )
        self.health.add_live("background", self._background.check)
        self.refresh.append(incidents(lambda: self._incidents, self._clock_ms))
        self._subscribe()
        await self._client.subscribe(_CONSUMER_DELETED, cb=self._on_deleted)
        await self._client.subscribe(_STREAM_DELETED, cb=self._on_deleted)
        # An answer comes after the refusals of what was sent before it.
        await self._client.flush(self.settings.io_timeout_s)
        self.refusals.check()
        self._spawn(self._provisioning.run(), lasting="provisioning")

    async def listen(self) -> None:
        """Begins to page, once the broker takes records."""
        self._spawn(self._pages.run(), lasting="paging")
        self.health.started()
        log.info("pager.ready", targets=len(self._targets), incidents=sum(1 for _ in self._incidents))

    async def end(self) -> None:
        """Takes nothing more, waits for attempts under way, and gives back what waits for its page."""
        self.health.stopping()
        await end_intake(self.broker)
        if hasattr(self, "_pages"):
            await self._pages.end(self.settings.grace_s)
        await self._in_flight.finish(_LAST_S)

    def hurry(self) -> None:
        """Ends the grace time at once."""
        self._in_flight.hurry()
        if hasattr(self, "_pages"):
            self._spawn(self._pages.hurry())

    async def close(self) -> None:
        """Lets go of everything."""
        await self._background.close()
        await self._stack.aclose()
        log.info("pager.stopped")

    async def __aenter__(self) -> Self:
        try:
            await self.prepare()
            await self.broker.start()
            await self.listen()
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await self.end()
            await self.broker.stop()
        finally:
            await self.close()
        if self._provisioning.error is not None:
            raise self._provisioning.error

    # --- putting it together -------------------------------------------------------------------------

    async def _connect(self) -> None:
        self._stack.push_async_callback(self._client.close)
        await connect_once(
            self._client,
            self.settings.nats_servers,
            within_s=self.settings.io_timeout_s,
            name="sexton-pager-state",
            pending_size=0,
            **self._options,
        )

    def _subscribe(self) -> None:
        self.broker.add_middleware(Delivery(_Rules(self.settings), self._js, self._in_flight).middleware())
        for stream, subject in _sources(self.settings):
            for lane in range(self.settings.pager_lanes):
                self.broker.subscriber(
                    subject,
                    stream=JStream(stream, declare=False),
                    durable=DURABLE,
                    pull_sub=PullSub(batch_size=1, timeout=_PULL_S),
                    inbox_prefix=_PULL_INBOX,
                    title=f"{stream.lower()}-{lane}",
                )(self._on_record)

    # --- what arrives --------------------------------------------------------------------------------

    async def _on_record(self, message: NatsMessage) -> None:
        raw = message.raw_message
        stream = raw.metadata.stream
        with self._tracer.receive(
            "sexton.page", _SUBJECTS[stream], raw.headers, deliveries=raw.metadata.num_delivered
        ):
            report = report_of(raw)
            if report is None:
                # Says what is wrong with it, to the rules of delivery.
                decode(HardFailureRecord, raw.data)
                return
            await self._pages.called_for(stream, report)

    async def _on_deleted(self, raw: Any) -> None:
        log.error("pager.deleted", subject=raw.subject)
        self._provisioning.again()

    async def _on_reconnect(self) -> None:
        log.info("pager.reconnected")
        self.health.reconnected()
        self._provisioning.again()

    async def _provision(self) -> None:
        await ensure(self._js(), failure_streams(self.settings), consumers(self.settings))

    def _js(self) -> Any:
        return self._client.jetstream(timeout=self.settings.io_timeout_s)


class _Rules:
    """A pager's rules of delivery."""

    max_deliveries: Final = sys.maxsize
    """A record is never given up, however often it could not be handled."""

    def __init__(self, settings: Settings) -> None:
        self.ack_wait_s: Final = settings.pager_ack_wait_s
        self.retry_delay_s: Final = settings.retry_delay_s
        self.retry_delay_max_s: Final = settings.retry_delay_max_s


def _sources(settings: Settings) -> list[tuple[str, str]]:
    letters = [(subjects.STREAM_DEAD, subjects.DEAD_LETTERS)] if settings.pager_dead_letters else []
    return [(subjects.STREAM_FAILURES, subjects.FAILURES), *letters]
