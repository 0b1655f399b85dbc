"""Streams and consumers: made if they are missing, compared if they are there.

Safe to run from any number of workers at once. Nothing that exists is changed: a stream that is not as
meant is an error that names each difference, for its data may depend on how it is.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import nats.errors
import nats.js.errors
import structlog
from nats.js import JetStreamContext
from nats.js.api import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    DiscardPolicy,
    RePublish,
    RetentionPolicy,
    StorageType,
    StreamConfig,
    SubjectTransform,
)

from sexton.schemas import subjects
from sexton.schemas.errors import SextonError, Unavailable
from sexton.worker.adapters.nats_client import RefusedError
from sexton.worker.settings import Settings

log: Final = structlog.get_logger("sexton.provision")

SUMMARISE_DURABLE: Final = "summarise"
UNROUTED_DURABLE: Final = "unrouted"
"""Consumer of what is in no partition: it becomes dead letters."""

STORE_NAME: Final = "sexton.store"
"""Metadata of the log: the name that its cold store carries, too."""

_HEADER_ROOM_BYTES: Final = 16 * 1024
FAILURES_KEPT_S: Final = 90 * 24 * 3600
"""How long failures, dead letters and incidents are kept. An incident that lasts is written again with each
page, so it stays."""
_DEDUPLICATION_S: Final = 120
_UNLIMITED: Final = -1


class ProvisionError(SextonError):
    """A stream or consumer exists and is not as it must be. `differences` says where."""

    code = "provision"


def partition_durable(partition: int) -> str:
    """Name of the consumer of one partition."""
    return f"commands-{partition:03d}"


def failure_streams(settings: Settings) -> list[StreamConfig]:
    """The streams of what went wrong, as they are meant to be: what a pager needs."""
    common = _common(settings.replicas) | {"retention": RetentionPolicy.LIMITS, "max_age": FAILURES_KEPT_S}
    return [
        StreamConfig(
            name=subjects.STREAM_FAILURES,
            description="Hard failures and their ends: the pager's queue.",
            subjects=[subjects.FAILURES],
            **common,
        ),
        StreamConfig(
            name=subjects.STREAM_DEAD,
            description="Messages that no worker could handle, as they came.",
            subjects=[subjects.DEAD_LETTERS],
            # They hold what anybody may send. Bounded, or a flood of them would leave the log no room.
            **common | {"max_bytes": settings.dead_max_bytes, "discard": DiscardPolicy.OLD},
        ),
        StreamConfig(
            name=subjects.STREAM_INCIDENTS,
            description="What the pager knows of each failure, and whom it has told: the latest of each.",
            subjects=[subjects.INCIDENTS],
            max_msgs_per_subject=1,
            **common,
        ),
    ]


def streams(settings: Settings, *, store_name: str | None = None) -> list[StreamConfig]:
    """All streams, as they are meant to be; the log with the name that it and its cold store carry."""
    common = _common(settings.replicas)
    return [
        StreamConfig(
            name=subjects.STREAM_LOG,
            description="The log of every context: the truth. Republished as epoch bumps.",
            subjects=[subjects.LOGS],
            retention=RetentionPolicy.LIMITS,
            allow_direct=True,
            deny_delete=True,
            republish=RePublish(src=subjects.LOGS, dest="sexton.epoch.{{wildcard(1)}}"),
            # A recreated log must not count where an older one did: a worker that still remembers the
            # older one would pass a compare-and-swap that it must lose.
            first_seq=time.time_ns() // 1000,
            metadata=None if store_name is None else {STORE_NAME: store_name},
            **common,
        ),
        StreamConfig(
            name=subjects.STREAM_COMMANDS,
            description="Commands that wait for their commit, by partition.",
            subjects=[subjects.COMMANDS],
            subject_transform=SubjectTransform(
                src=subjects.COMMANDS, dest=subjects.partition_transform(settings.partitions)
            ),
            retention=RetentionPolicy.WORK_QUEUE,
            max_msg_size=settings.max_command_bytes + _HEADER_ROOM_BYTES,
            max_bytes=settings.waiting_max_bytes,
            **common,
        ),
        StreamConfig(
            name=subjects.STREAM_SUMMARISE,
            description="Compactions that wait for a summary.",
            subjects=[subjects.SUMMARISE],
            retention=RetentionPolicy.WORK_QUEUE,
            max_bytes=settings.waiting_max_bytes,
            **common,
        ),
        *failure_streams(settings),
    ]


def consumers(settings: Settings) -> Iterator[tuple[str, ConsumerConfig]]:
    """All durable consumers, each with its stream."""
    for partition in range(settings.partitions):
        yield (
            subjects.STREAM_COMMANDS,
            ConsumerConfig(
                durable_name=partition_durable(partition),
                filter_subject=subjects.partition_filter(partition),
                ack_policy=AckPolicy.EXPLICIT,
                deliver_policy=DeliverPolicy.ALL,
                ack_wait=settings.ack_wait_s,
                # One at a time: this is what keeps a context's commands in order.
                max_ack_pending=1,
                max_deliver=_UNLIMITED,
            ),
        )
    yield (
        subjects.STREAM_COMMANDS,
        ConsumerConfig(
            durable_name=UNROUTED_DURABLE,
            filter_subject=subjects.UNROUTED,
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            ack_wait=settings.ack_wait_s,
            max_ack_pending=1,
            max_deliver=_UNLIMITED,
        ),
    )
    yield (
        subjects.STREAM_SUMMARISE,
        ConsumerConfig(
            durable_name=SUMMARISE_DURABLE,
            filter_subject=subjects.SUMMARISE,
            ack_policy=AckPolicy.EXPLICIT,
            deliver_policy=DeliverPolicy.ALL,
            ack_wait=settings.ack_wait_s,
            max_ack_pending=1000,
            max_deliver=_UNLIMITED,
        ),
    )


Differences = dict[str, dict[str, Any]]
"""What is not as meant, by name: what it `is`, and what it `must_be`."""


def stream_differences(meant: StreamConfig, found: StreamConfig) -> Differences:
    """Where a stream is not as meant, in what matters."""
    wanted = {
        "subjects": meant.subjects,
        "retention": meant.retention,
        "republish": _shown(meant.republish),
        "subject_transform": _shown(meant.subject_transform),
        "max_msg_size": meant.max_msg_size,
        "allow_direct": bool(meant.allow_direct),
        "storage": meant.storage,
        "num_replicas": meant.num_replicas,
        # Each of these could drop what was accepted, silently.
        "discard": meant.discard,
        "max_age": meant.max_age or 0,
        "max_msgs_per_subject": meant.max_msgs_per_subject or _UNLIMITED,
        "max_bytes": meant.max_bytes or _UNLIMITED,
        "deny_delete": bool(meant.deny_delete),
    }
    actual = {
        **{name: getattr(found, name) for name in wanted},
        "republish": _shown(found.republish),
        "subject_transform": _shown(found.subject_transform),
        "allow_direct": bool(found.allow_direct),
        "deny_delete": bool(found.deny_delete),
        "max_age": found.max_age or 0,
    }
    return _differences(wanted, actual)


def consumer_differences(meant: ConsumerConfig, found: ConsumerConfig) -> Differences:
    """Where a consumer is not as meant, in what matters."""
    names = ("filter_subject", "ack_policy", "deliver_policy", "ack_wait", "max_ack_pending", "max_deliver")
    return _differences(
        {name: getattr(meant, name) for name in names}, {name: getattr(found, name) for name in names}
    )


def told(differences: Differences) -> str:
    """Differences in one line."""
    return "; ".join(
        f"{name} is {pair['is']!r}, must be {pair['must_be']!r}" for name, pair in differences.items()
    )


def _differences(wanted: dict[str, Any], actual: dict[str, Any]) -> Differences:
    return {
        name: {"is": actual[name], "must_be": value}
        for name, value in wanted.items()
        if value is not None and actual[name] != value
    }


def payload_needed_bytes(settings: Settings) -> int:
    """The smallest `max_payload` of NATS that these settings can do with."""
    return settings.max_command_bytes + 2 * _HEADER_ROOM_BYTES


def check_payload(max_payload_bytes: int, settings: Settings) -> None:
    """Checks that whatever was accepted can also be passed on: a dead letter is a command and some headers.

    Raises:
        ProvisionError: the server's `max_payload` is too small for the worker's settings.
    """
    needed = payload_needed_bytes(settings)
    if max_payload_bytes < needed:
        raise ProvisionError(
            f"the NATS server's max_payload is {max_payload_bytes} bytes, commands of up to "
            f"{settings.max_command_bytes} bytes need {needed}. Raise it, or lower max_command_bytes.",
            differences={"max_payload": {"is": max_payload_bytes, "must_be": needed}},
        )


async def provision(js: JetStreamContext, settings: Settings, *, store_name: str | None = None) -> None:
    """Makes what a worker needs and is missing, and checks what is there. Raises as `ensure`.

    Whether a log may be made is for `sexton.worker.pairing` to say, which calls this.
    """
    await ensure(js, streams(settings, store_name=store_name), consumers(settings))


async def ensure(
    js: JetStreamContext,
    streams: Iterable[StreamConfig],
    consumers: Iterable[tuple[str, ConsumerConfig]],
) -> None:
    """Makes what is missing, and checks what is there.

    Raises:
        ProvisionError: something exists and is not as meant.
        Unavailable: JetStream did not answer, or is not enabled.
        PermissionRefused: this user may not do that.
    """
    with jetstream_errors():
        for stream in streams:
            await _stream(js, stream)
        for stream_name, consumer in consumers:
            await _consumer(js, stream_name, consumer)


@contextmanager
def jetstream_errors() -> Iterator[None]:
    """Within it, what goes wrong with JetStream is raised in our words. Raises as `ensure`."""
    try:
        yield
    except RefusedError as e:
        raise e.as_ours() from None
    except nats.js.errors.APIError as e:
        raise Unavailable(f"JetStream refused: {e.description or e}", operation="provision") from e
    except (TimeoutError, nats.errors.Error, OSError) as e:
        raise Unavailable(
            f"JetStream did not answer ({type(e).__name__}); is it enabled?", operation="provision"
        ) from e


async def _stream(js: JetStreamContext, meant: StreamConfig) -> None:
    assert meant.name is not None  # noqa: S101 - set above
    try:
        found = (await js.stream_info(meant.name)).config
    except nats.js.errors.NotFoundError:
        try:
            found = (await js.add_stream(meant)).config
            log.info("provision.stream_made", stream=meant.name)
        except nats.js.errors.BadRequestError as e:
            if e.err_code != _NAME_IN_USE:
                raise
            # Another worker was faster.
            found = (await js.stream_info(meant.name)).config
    _refuse(f"stream {meant.name}", stream_differences(meant, found))


async def _consumer(js: JetStreamContext, stream: str, meant: ConsumerConfig) -> None:
    assert meant.durable_name is not None  # noqa: S101 - set above
    try:
        found = (await js.consumer_info(stream, meant.durable_name)).config
    except nats.js.errors.NotFoundError:
        found = (await js.add_consumer(stream, meant)).config
        log.info("provision.consumer_made", stream=stream, consumer=meant.durable_name)
    _refuse(f"consumer {meant.durable_name} of {stream}", consumer_differences(meant, found))


def _refuse(what: str, differences: Differences) -> None:
    if differences:
        raise ProvisionError(
            f"{what} exists and is not as meant: {told(differences)}. Change the worker's settings to match "
            "it, or, if it holds nothing of value, delete it and start again.",
            differences=differences,
        )


def _common(replicas: int) -> dict[str, Any]:
    return {
        "storage": StorageType.FILE,
        "num_replicas": replicas,
        "discard": DiscardPolicy.NEW,
        "duplicate_window": _DEDUPLICATION_S,
    }


def _shown(value: RePublish | SubjectTransform | None) -> tuple[str | None, str | None] | None:
    return None if value is None else (value.src, value.dest)


_NAME_IN_USE: Final = 10058
