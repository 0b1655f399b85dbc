"""What a worker subscribes to, and which part of it handles what arrives."""

from collections.abc import Awaitable, Callable
from typing import Final

import nats.errors
import structlog
from faststream.nats import JStream, NatsBroker, PullSub
from faststream.nats.message import NatsMessage
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton.schemas import subjects
from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb
from sexton.tracing import Tracer
from sexton.worker.commands import CommandHandler
from sexton.worker.ops import OpsService
from sexton.worker.outbox import DEFERRED, reply_of
from sexton.worker.provision import SUMMARISE_DURABLE, UNROUTED_DURABLE, partition_durable
from sexton.worker.replies import Parts, reply
from sexton.worker.rpc import RpcService
from sexton.worker.settings import Settings

log: Final = structlog.get_logger("sexton.worker")

WORKERS: Final = "sexton-workers"
"""Queue group of the workers: each request is answered by one of them."""

OPS_CONCURRENCY: Final = 4
"""Requests of operators, of one verb, answered at once by one process."""

PULL_S: Final = 1.0
"""A pull in flight dies with the server; with one second, intake is back 0.1 s after the server is."""

_COMMAND: Final = "sexton.cmd.{context_id}.{kind}"
_PULL_INBOX: Final = f"{subjects.WORKER_INBOX}.".encode()


class Subscriptions:
    """FastStream's handlers of a worker."""

    def __init__(
        self, handler: CommandHandler, rpc: RpcService, ops: OpsService, client: Client, tracer: Tracer
    ) -> None:
        """Args: who handles commands and requests; what answers are sent with; and traces."""
        self._handler = handler
        self._rpc = rpc
        self._ops = ops
        self._client = client
        self._tracer = tracer

    def add_to(self, broker: NatsBroker, settings: Settings) -> None:
        """Subscribes, as of when the broker starts."""
        pull = PullSub(batch_size=1, timeout=PULL_S)
        for partition in range(settings.partitions):
            broker.subscriber(
                subjects.partition_filter(partition),
                stream=JStream(subjects.STREAM_COMMANDS, declare=False),
                durable=partition_durable(partition),
                pull_sub=pull,
                inbox_prefix=_PULL_INBOX,
                title=f"commands-{partition}",
            )(self._on_command)
        broker.subscriber(
            subjects.UNROUTED,
            stream=JStream(subjects.STREAM_COMMANDS, declare=False),
            durable=UNROUTED_DURABLE,
            pull_sub=pull,
            inbox_prefix=_PULL_INBOX,
            title="commands-unrouted",
        )(self._on_command)
        for lane in range(settings.summarise_concurrency):
            broker.subscriber(
                subjects.SUMMARISE,
                stream=JStream(subjects.STREAM_SUMMARISE, declare=False),
                durable=SUMMARISE_DURABLE,
                pull_sub=pull,
                inbox_prefix=_PULL_INBOX,
                title=f"summarise-{lane}",
            )(self._on_deferred)
        for verb in Verb:
            broker.subscriber(
                subjects.rpc_all(verb),
                queue=WORKERS,
                max_workers=settings.rpc_concurrency,
                no_reply=True,
                title=verb.value,
            )(self._on_request)
        for ops_verb in OpsVerb:
            broker.subscriber(
                subjects.ops_all(ops_verb),
                queue=WORKERS,
                max_workers=OPS_CONCURRENCY,
                no_reply=True,
                title=f"ops-{ops_verb.value}",
            )(self._on_ops)

    async def _on_command(self, message: NatsMessage) -> None:
        raw = message.raw_message
        deliveries = raw.metadata.num_delivered
        with (
            structlog.contextvars.bound_contextvars(),
            self._tracer.receive("sexton.handle", _COMMAND, raw.headers, deliveries=deliveries),
        ):
            await self._handler.on_command(raw.subject, raw.data, reply_of(raw.headers), deliveries)

    async def _on_deferred(self, message: NatsMessage) -> None:
        raw = message.raw_message
        deliveries = raw.metadata.num_delivered
        with (
            structlog.contextvars.bound_contextvars(),
            self._tracer.receive("sexton.summarise", DEFERRED, raw.headers, deliveries=deliveries),
        ):
            await self._handler.on_deferred(raw.data, reply_of(raw.headers))

    async def _on_request(self, message: NatsMessage) -> None:
        raw = message.raw_message
        verb = Verb(raw.subject.rsplit(".", 1)[1])
        with self._tracer.answer(verb, raw.headers):
            await self._reply(raw, lambda context_id: self._rpc.parts(verb, context_id, raw.data))

    async def _on_ops(self, message: NatsMessage) -> None:
        raw = message.raw_message
        verb = OpsVerb(raw.subject.rsplit(".", 1)[1])
        with self._tracer.answer(verb, raw.headers):
            await self._reply(raw, lambda context_id: self._ops.parts(verb, context_id, raw.data))

    async def _reply(self, raw: Msg, make: Callable[[str], Awaitable[Parts]]) -> None:
        if not subjects.is_reply(raw.reply):
            log.warning("worker.no_inbox", verb=raw.subject.rsplit(".", 1)[1])
            return

        async def send(data: bytes) -> None:
            try:
                await self._client.publish(raw.reply, data)
            except nats.errors.Error as e:
                # Whoever asked hears nothing, and asks again.
                log.warning("worker.reply_failed", size_bytes=len(data), error=type(e).__name__)

        await reply(raw.subject, send, make)
