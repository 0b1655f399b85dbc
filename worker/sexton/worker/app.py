"""The worker as a FastStream application: the composition root, where adapters meet the stages."""

import contextlib
import time
import uuid
from datetime import timedelta
from typing import Any, Final, Self

import structlog
from nats.js import JetStreamContext

from sexton.core.sweep import SweepRules
from sexton.schemas import subjects
from sexton.tracing import Tracer
from sexton.worker.adapters.cold import ObjectColdStore, open_store
from sexton.worker.adapters.hot import RedisHotStore
from sexton.worker.adapters.intake import add_intake_checks, end_intake
from sexton.worker.adapters.nats_broker import make_broker
from sexton.worker.adapters.nats_client import HardenedClient, connect_once
from sexton.worker.adapters.nats_log import NatsLog
from sexton.worker.adapters.nats_options import nats_options
from sexton.worker.adapters.nats_refusals import Refusals
from sexton.worker.adapters.redis_client import answers, check_access, open_redis
from sexton.worker.adapters.registry import RedisRegistry
from sexton.worker.adapters.summarisers import make_summariser
from sexton.worker.adapters.sweep_index import RedisSweepIndex
from sexton.worker.adapters.tally import RedisTally
from sexton.worker.background import Background, Provisioning
from sexton.worker.census import Census
from sexton.worker.collect import Collector
from sexton.worker.commands import CommandHandler
from sexton.worker.commit import Committer
from sexton.worker.contexts import Contexts
from sexton.worker.delivery import Delivery
from sexton.worker.failures import FailureReports, FailureStream
from sexton.worker.fetch import Fetcher
from sexton.worker.gauges import counted, pending
from sexton.worker.health import Health
from sexton.worker.health.probes import Probed
from sexton.worker.history import History
from sexton.worker.holdings import Holdings
from sexton.worker.in_flight import InFlight
from sexton.worker.leases import Leases
from sexton.worker.ops import OpsService
from sexton.worker.orphans import OrphanSweep
from sexton.worker.outbox import Outbox
from sexton.worker.pairing import provision_pair
from sexton.worker.ports import HotStore, Log, Registry, SweepIndex
from sexton.worker.provision import (
    check_payload,
    consumers,
    streams,
)
from sexton.worker.rpc import RpcService
from sexton.worker.settings import Settings
from sexton.worker.snapshots import Snapshots
from sexton.worker.stuck import StuckWatch
from sexton.worker.subscriptions import Subscriptions
from sexton.worker.summarise import SummariseStage
from sexton.worker.sweeper import Sweeper
from sexton.worker.sync import Sync
from sexton.worker.timed_log import TimedLog
from sexton.worker.verify import Verifier
from sexton.worker.web.routes import Refresh

log: Final = structlog.get_logger("sexton.worker")


class Worker:
    """One worker process, put together. Use it as a context manager, or `program.run` it."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.health = Health()
        self._options = nats_options(settings)
        self.refusals = Refusals(self.health.refused)
        self.broker = make_broker(
            settings, "sexton-worker", self._options, self.refusals, on_reconnect=self._on_reconnect
        )
        self._tracer = Tracer("sexton.worker", on=settings.tracing)
        self._background = Background("worker")
        self._spawn = self._background.spawn
        self._stack = contextlib.AsyncExitStack()
        # The connection that commits: nothing waits in a buffer for a server that is away, to be sent
        # long after its sender gave up.
        self._client = HardenedClient(self.refusals)
        self._in_flight = InFlight()
        self._provisioning = Provisioning(
            "worker",
            self._provision,
            first_s=settings.retry_delay_s,
            longest_s=settings.retry_delay_max_s,
        )
        self.ended = self._provisioning.failed
        """Set when the worker cannot go on."""
        self.refresh: list[Refresh] = []
        """What brings its gauges up to date."""
        self._provisioned = {stream.name for stream in streams(settings)} | {
            f"{stream}.{consumer.durable_name}" for stream, consumer in consumers(settings)
        }

    async def prepare(self) -> None:
        """Connects, provisions, and puts the parts together. Nothing is taken yet.

        Raises:
            Unavailable: NATS or the cold store cannot be reached.
            PermissionRefused: NATS or Redis refuses who we are, or something that a worker needs.
            ProvisionError: a stream or consumer is not as meant, or the cold store belongs to another log.
            InvalidInput: a setting names a store or a summariser that there is not.
        """
        settings = self.settings
        self._cold = ObjectColdStore(open_store(settings.cold_url), settings.io_timeout_s)
        await self._connect()
        check_payload(self._client.max_payload, settings)
        await self._provision()
        self._compose()
        await check_access(self._redis)
        # Before the first tree is read, so that what is committed after that is heard.
        await self._client.subscribe(subjects.EPOCHS, cb=self._on_bump)
        await self._client.subscribe(_CONSUMER_DELETED, cb=self._on_deleted)
        await self._client.subscribe(_STREAM_DELETED, cb=self._on_deleted)
        await self._client.subscribe(subjects.FAILURES, cb=self._failures.on_record)
        # An answer comes after the refusals of what was sent before it.
        await self._client.flush(self.settings.io_timeout_s)
        self.refusals.check()
        self._spawn(self._failures.load())
        self._spawn(self._provisioning.run(), lasting="provisioning")

    async def listen(self) -> None:
        """Begins to sweep, once the broker takes commands."""
        if self.settings.collect:
            self._spawn(self._sweeper.run(), lasting="the sweeper")
            self._spawn(self._sweeper.run_orphans(self._orphans, self.settings.orphan_interval_s))
        self._spawn(self._census.run(self.settings.sweep_interval_s), lasting="the census")
        self.health.started()
        log.info("worker.ready", partitions=self.settings.partitions)

    async def close(self) -> None:
        """Lets go of everything, once the broker has finished what was in flight."""
        if hasattr(self, "_failures"):
            await self._failures.drain(self.settings.io_timeout_s)
        await self._background.close()
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
            await self.end()
            await self.broker.stop()
        finally:
            await self.close()
        if self._provisioning.error is not None:
            raise self._provisioning.error

    async def end(self) -> None:
        """Takes nothing more. Finishes what is in flight, or gives it back when the grace time is over."""
        self.health.stopping()
        handed_over = await end_intake(self.broker)
        unfinished = await self._in_flight.finish(self.settings.grace_s)
        log.info("worker.ending", not_begun=handed_over, not_finished=unfinished)

    def hurry(self) -> None:
        """Ends the grace time at once."""
        self._in_flight.hurry()

    # --- putting it together -------------------------------------------------------------------------

    async def _connect(self) -> None:
        self._stack.push_async_callback(self._client.close)
        await connect_once(
            self._client,
            self.settings.nats_servers,
            within_s=self.settings.io_timeout_s,
            name="sexton-worker-commit",
            pending_size=0,
            reconnected_cb=self._on_reconnect,
            **self._options,
        )

    def _compose(self) -> None:
        settings = self.settings
        redis = self._redis = open_redis(settings, settings.io_timeout_s)
        hot_redis = open_redis(settings, settings.hot_timeout_s)
        # Of commands: one that waits holds up its lane, and with it appends, which need no Redis.
        lane_redis = open_redis(settings, settings.registry_timeout_s, pause_s=settings.registry_timeout_s)
        self._stack.push_async_callback(redis.aclose)
        self._stack.push_async_callback(lane_redis.aclose)
        self._stack.push_async_callback(hot_redis.aclose)
        self._stream = NatsLog(self._client, settings.io_timeout_s)
        self._log = TimedLog(self._stream)
        log_store: Log = self._log
        cold = self._cold
        registry: Registry = RedisRegistry(redis)
        index: SweepIndex = RedisSweepIndex(redis)
        tally = RedisTally(redis)
        self._census = Census(RedisSweepIndex(redis, "leases"), registry, tally, new_token=_new_id)
        self.refresh += [counted(tally), pending(self._client, _QUEUES)]
        hot: HotStore = RedisHotStore(hot_redis, settings.hot_ttl, settings.hot_max_bytes)
        self._contexts = Contexts(
            log_store,
            hot,
            max_contexts=settings.cached_contexts,
            max_spans=settings.cached_spans,
            snapshot_every=settings.snapshot_every,
            spawn=self._spawn,
        )
        self._failures = FailureReports(
            FailureStream(self._client, settings.io_timeout_s),
            cold,
            every_s=settings.failure_repeat_s,
            attempts=settings.failure_attempts,
            delay_s=settings.retry_delay_s,
            delay_max_s=settings.retry_delay_max_s,
            spawn=self._spawn,
            new_id=_new_id,
        )
        fetcher = Fetcher(
            self._contexts, cold, hot, budget_s=settings.fetch_budget_s, failures=self._failures
        )
        stage = SummariseStage(
            self._contexts,
            fetcher,
            make_summariser(settings.summariser, settings.summariser_env),
            timeout_s=settings.summarise_timeout_s,
            attempts=settings.summarise_attempts,
            breaker_failures=settings.breaker_failures,
            breaker_reset_s=settings.breaker_reset_s,
        )
        self._handler = CommandHandler(
            Committer(
                log_store,
                cold,
                hot,
                self._contexts,
                Holdings(
                    RedisRegistry(lane_redis),
                    RedisSweepIndex(lane_redis),
                    self._contexts,
                    longest_lease_s=settings.lease_ttl_max_s,
                    spawn=self._spawn,
                ),
                attempts=settings.commit_attempts,
                confirm_after_s=settings.orphan_min_age_s / 4,
            ),
            stage,
            Outbox(self._client, settings.io_timeout_s),
            max_command_bytes=settings.max_command_bytes,
        )
        leases = Leases(registry, self._contexts, longest_s=settings.lease_ttl_max_s, census=self._census)
        snapshots = Snapshots(max_bytes=settings.cached_snapshot_bytes, spawn=self._spawn)
        sync = Sync(self._contexts, History(log_store), snapshots)
        self._rpc = RpcService(sync, fetcher, cold, leases)
        collector = Collector(
            log_store,
            cold,
            hot,
            registry,
            self._contexts,
            rules=SweepRules(
                hold_back_ms=int(settings.lease_ttl_max_s * 1000), quiet_ms=int(settings.quiet_s * 1000)
            ),
            new_attempt=_new_id,
        )
        self._ops = OpsService(
            registry, collector, Verifier(self._contexts, cold, self._failures), collect=settings.collect
        )
        self._orphans = OrphanSweep(
            cold,
            self._contexts,
            min_age=timedelta(seconds=settings.orphan_min_age_s),
            new_token=_new_id,
        )
        self._sweeper = Sweeper(
            index,
            log_store,
            collector,
            interval_s=settings.sweep_interval_s,
            lock_s=_SWEEP_LOCK_S,
            new_token=_new_id,
            contexts=self._contexts,
            stuck=StuckWatch(
                self._contexts, self._failures, after_s=settings.stuck_after_s, clock=time.monotonic
            ),
            tally=tally,
        )
        self._add_checks(cold)
        self._subscribe()

    def _add_checks(self, cold: ObjectColdStore) -> None:
        add_intake_checks(self.health, self.broker, [self._client], self.settings, subjects.STREAM_COMMANDS)
        self.health.add_live("background", self._background.check)
        self.health.add_ready("log", Probed(self._stream.answers, time.monotonic))
        self.health.add_ready("registry", Probed(lambda: answers(self._redis), time.monotonic))
        self.health.add_ready("cold_store", Probed(cold.answers, time.monotonic))

    def _subscribe(self) -> None:
        self.broker.add_middleware(
            Delivery(self.settings, self._js, self._in_flight, buried=self._handler.on_buried).middleware()
        )
        found = Subscriptions(self._handler, self._rpc, self._ops, self._client, self._tracer)
        found.add_to(self.broker, self.settings)

    # --- what arrives --------------------------------------------------------------------------------

    async def _on_bump(self, raw: Any) -> None:
        headers = raw.headers or {}
        try:
            context_id = subjects.context_of(raw.subject)
            sequence, previous = (int(headers.get(name, 0)) for name in _SEQUENCES)
        except ValueError:
            log.warning("worker.no_broadcast", subject=ascii(raw.subject[:_SHOWN]))
            return
        self._log.heard(context_id, previous, raw.data)
        self._contexts.on_broadcast(context_id, sequence, previous, raw.data)

    async def _on_deleted(self, raw: Any) -> None:
        name = raw.subject.split(".DELETED.")[-1]
        if name not in self._provisioned:
            return
        log.error("worker.deleted", name=name)
        if name == subjects.STREAM_LOG:
            # What was committed there counts no more. Whether there is to be a new log is for an operator
            # to say: until then, commands wait.
            self._contexts.forget_all()
        else:
            self._provisioning.again()

    async def _on_reconnect(self) -> None:
        """The server may be another one, or have lost what was in memory: look at everything again."""
        log.info("worker.reconnected")
        self.health.reconnected()
        if hasattr(self, "_contexts"):
            self._contexts.forget_all()
            self._provisioning.again()
            self._spawn(self._failures.load())

    async def _provision(self) -> None:
        self._cold.expect(await provision_pair(self._js(), self.settings, self._cold, _new_id()))

    def _js(self) -> JetStreamContext:
        return self._client.jetstream(timeout=self.settings.io_timeout_s)


_SWEEP_LOCK_S: Final = 30.0
_QUEUES: Final = (subjects.STREAM_COMMANDS, subjects.STREAM_SUMMARISE)
_CONSUMER_DELETED: Final = "$JS.EVENT.ADVISORY.CONSUMER.DELETED.*.*"
_STREAM_DELETED: Final = "$JS.EVENT.ADVISORY.STREAM.DELETED.*"
_SEQUENCES: Final = ("Nats-Sequence", "Nats-Last-Sequence")
_SHOWN: Final = 80


def _new_id() -> str:
    return uuid.uuid4().hex
