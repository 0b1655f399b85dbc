"""The worker as a FastStream application: the composition root, where adapters meet the stages."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any, Final, Self

import nats
import structlog
from faststream import AckPolicy, FastStream
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from sexton.schemas import subjects
from sexton.schemas.errors import Unavailable
from sexton.schemas.outcome import REPLY_HEADER
from sexton.schemas.rpc import Verb
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.adapters.hot import RedisHotStore
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.adapters.summarisers import make_summariser
from sexton.worker.commands import CommandHandler
from sexton.worker.commit import Committer
from sexton.worker.contexts import Contexts
from sexton.worker.delivery import Delivery
from sexton.worker.fetch import Fetcher
from sexton.worker.outbox import Outbox
from sexton.worker.ports import ColdStore, HotStore, Log
from sexton.worker.provision import SUMMARISE_DURABLE, partition_durable, provision
from sexton.worker.rpc import RpcService
from sexton.worker.settings import WorkerSettings
from sexton.worker.summarise import SummariseStage

log: Final = structlog.get_logger("sexton.worker")

WORKERS: Final = "sexton-workers"
"""Queue group of the workers: each request is answered by one of them."""

_PULL_S: Final = 1.0
"""A pull in flight dies with the server; with one second, intake is back 0.1 s after the server is."""


class Worker:
    """One worker process, put together. Run its `application()`, or use it as a context manager."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.settings = settings
        self.broker = _broker(settings, "sexton-worker", on_reconnect=self._on_reconnect)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = contextlib.AsyncExitStack()
        # The connection that commits: nothing waits in a buffer for a server that is away, to be sent
        # long after its sender gave up.
        self._client = Client()

    async def prepare(self) -> None:
        """Connects, provisions, and puts the parts together. Nothing is taken yet.

        Raises:
            Unavailable: NATS cannot be reached.
            ProvisionError: a stream or consumer is not as meant.
            InvalidInput: a setting names a store or a summariser that there is not.
        """
        await self._connect()
        await provision(self._client.jetstream(timeout=self.settings.io_timeout_s), self.settings)
        self._compose()

    async def listen(self) -> None:
        """Follows the broadcast, once the broker takes commands."""
        await self._client.subscribe(subjects.EPOCHS, cb=self._on_bump)
        await self._client.subscribe(_CONSUMER_DELETED, cb=self._on_consumer_deleted)
        log.info("worker.ready", partitions=self.settings.partitions)

    async def close(self) -> None:
        """Lets go of everything, once the broker has finished what was in flight."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        log.info("worker.stopped")

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
            await self.broker.stop()
        finally:
            await self.close()

    def application(self) -> FastStream:
        """The FastStream application: `await worker.application().run()` ends on SIGTERM or SIGINT."""

        @contextlib.asynccontextmanager
        async def lifespan() -> AsyncIterator[None]:
            try:
                await self.prepare()
                yield
            finally:
                await self.close()

        return FastStream(self.broker, lifespan=lifespan, after_startup=[self.listen], logger=None)

    # --- putting it together -------------------------------------------------------------------------

    async def _connect(self) -> None:
        settings = self.settings
        try:
            await self._client.connect(
                settings.nats_servers,
                name="sexton-worker-commit",
                pending_size=0,
                **_connection(settings),
                reconnected_cb=self._on_reconnect,
            )
        except (nats.errors.Error, TimeoutError, OSError) as e:
            raise Unavailable(f"NATS cannot be reached at {settings.nats_url}: {type(e).__name__}") from e
        self._stack.push_async_callback(self._client.close)

    def _compose(self) -> None:
        settings = self.settings
        redis = Redis.from_pool(
            BlockingConnectionPool.from_url(
                settings.redis_url.get_secret_value(),
                max_connections=32,
                timeout=settings.io_timeout_s,
                socket_timeout=settings.io_timeout_s,
                socket_connect_timeout=settings.io_timeout_s,
                # What is lost here is read elsewhere: a retry would only make the reader wait.
                retry=Retry(NoBackoff(), 0),
            )
        )
        self._stack.push_async_callback(redis.aclose)
        log_store: Log = NatsLog(self._client, settings.io_timeout_s)
        cold: ColdStore = ObjectColdStore(open_store(settings.cold_url), settings.io_timeout_s)
        hot: HotStore = RedisHotStore(redis, settings.hot_ttl, settings.hot_max_bytes)
        self._contexts = Contexts(
            log_store,
            hot,
            max_contexts=settings.cached_contexts,
            max_spans=settings.cached_spans,
            snapshot_every=settings.snapshot_every,
            spawn=self._spawn,
        )
        fetcher = Fetcher(self._contexts, cold, hot, budget_s=settings.fetch_budget_s)
        stage = SummariseStage(
            self._contexts,
            fetcher,
            make_summariser(settings.summariser),
            timeout_s=settings.summarise_timeout_s,
            attempts=settings.summarise_attempts,
            breaker_failures=settings.breaker_failures,
            breaker_reset_s=settings.breaker_reset_s,
        )
        self._handler = CommandHandler(
            Committer(log_store, cold, hot, self._contexts, attempts=settings.commit_attempts),
            stage,
            Outbox(self._client, settings.io_timeout_s),
            max_command_bytes=settings.max_command_bytes,
        )
        self._rpc = RpcService(self._contexts, fetcher, cold)
        self._subscribe()

    def _subscribe(self) -> None:
        delivery = Delivery(self.settings, lambda: self._client.jetstream(timeout=self.settings.io_timeout_s))
        self.broker.add_middleware(delivery.middleware())
        pull = PullSub(batch_size=1, timeout=_PULL_S)
        for partition in range(self.settings.partitions):
            self.broker.subscriber(
                subjects.partition_filter(partition),
                stream=JStream(subjects.STREAM_COMMANDS, declare=False),
                durable=partition_durable(partition),
                pull_sub=pull,
                title=f"commands-{partition}",
            )(self._on_command)
        for lane in range(self.settings.summarise_concurrency):
            self.broker.subscriber(
                subjects.SUMMARISE,
                stream=JStream(subjects.STREAM_SUMMARISE, declare=False),
                durable=SUMMARISE_DURABLE,
                pull_sub=pull,
                title=f"summarise-{lane}",
            )(self._on_deferred)
        for verb in Verb:
            self.broker.subscriber(
                subjects.rpc_all(verb),
                queue=WORKERS,
                max_workers=self.settings.rpc_concurrency,
                no_reply=True,
                title=verb.value,
            )(self._on_request)

    # --- what arrives --------------------------------------------------------------------------------

    async def _on_command(self, message: NatsMessage) -> None:
        raw = message.raw_message
        with structlog.contextvars.bound_contextvars():
            await self._handler.on_command(raw.subject, raw.data, _reply(message), raw.metadata.num_delivered)

    async def _on_deferred(self, message: NatsMessage) -> None:
        raw = message.raw_message
        with structlog.contextvars.bound_contextvars():
            await self._handler.on_deferred(raw.data, _reply(message), raw.metadata.num_delivered)

    async def _on_request(self, message: NatsMessage) -> None:
        raw = message.raw_message
        verb = Verb(raw.subject.rsplit(".", 1)[1])
        if not subjects.is_inbox(raw.reply):
            log.warning("rpc.no_inbox", verb=verb.value)
            return

        async def send(data: bytes) -> None:
            with contextlib.suppress(nats.errors.Error):
                await self._client.publish(raw.reply, data)

        await self._rpc.answer(verb, raw.subject, raw.data, send)

    async def _on_bump(self, raw: Any) -> None:
        headers = raw.headers or {}
        self._contexts.on_broadcast(
            subjects.context_of(raw.subject),
            int(headers.get("Nats-Sequence", 0)),
            int(headers.get("Nats-Last-Sequence", 0)),
            raw.data,
        )

    async def _on_consumer_deleted(self, raw: Any) -> None:
        log.warning("worker.consumer_deleted", subject=raw.subject)
        self._spawn(self._provision_again())

    async def _on_reconnect(self) -> None:
        """The server may be another one, or have lost what was in memory: look at everything again."""
        log.info("worker.reconnected")
        if hasattr(self, "_contexts"):
            self._contexts.forget_all()
            self._spawn(self._provision_again())

    async def _provision_again(self) -> None:
        try:
            await provision(self._client.jetstream(timeout=self.settings.io_timeout_s), self.settings)
        except Unavailable as e:
            # Another reconnect will come, and with it another try.
            log.warning("worker.provision_failed", reason=e.message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("worker.task_failed", exc_info=error)


_CONSUMER_DELETED: Final = "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*"


def _connection(settings: WorkerSettings) -> dict[str, Any]:
    return {
        "connect_timeout": settings.io_timeout_s,
        # FastStream's pull loop spins without yielding once a connection gives up for good.
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
        # A frozen server would otherwise go unnoticed for minutes.
        "ping_interval": 10,
        "max_outstanding_pings": 2,
    }


def _broker(settings: WorkerSettings, name: str, on_reconnect: Any) -> NatsBroker:
    return NatsBroker(
        settings.nats_servers,
        name=name,
        **_connection(settings),
        reconnected_cb=on_reconnect,
        # Handlers get the message itself and validate its bytes once, in the codec.
        decoder=_as_it_is,
        apply_types=False,
        ack_policy=AckPolicy.MANUAL,
        graceful_timeout=settings.grace_s,
        logger=logging.getLogger("sexton.faststream"),
    )


async def _as_it_is(message: NatsMessage) -> NatsMessage:
    return message


def _reply(message: NatsMessage) -> str | None:
    found = (message.raw_message.headers or {}).get(REPLY_HEADER)
    return found if isinstance(found, str) else None
