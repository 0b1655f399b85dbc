"""Sees to it that the log and the cold store belong together, before anything is read or written.

The rules are `sexton.core.pairing`. The log carries the name in its metadata, which a backup keeps; the cold
store has it in an object of its own.
"""

from dataclasses import replace
from typing import Final

import nats.js.errors
import structlog
from nats.js import JetStreamContext
from nats.js.api import StreamInfo

from sexton.core.pairing import LogSeen, Pairing, pair
from sexton.schemas import subjects
from sexton.schemas.errors import Unavailable
from sexton.worker.ports import ColdStore
from sexton.worker.provision import STORE_NAME, ProvisionError, jetstream_errors, provision
from sexton.worker.settings import Settings

log: Final = structlog.get_logger("sexton.provision")


async def provision_pair(js: JetStreamContext, settings: Settings, cold: ColdStore, new_name: str) -> str:
    """Provisions, if the log and the cold store belong together. Safe to run from many workers at once.

    Args:
        js: to make streams and consumers with.
        settings: the worker's.
        cold: the cold store; nothing is written to it but its name.
        new_name: for a log and a cold store that are both new.

    Returns:
        The name that both carry.

    Raises:
        ProvisionError: they do not belong together, or a stream or consumer is not as meant.
        Unavailable: JetStream or the cold store did not answer.
        PermissionRefused: this user may not do that.
    """
    info = await _log(js)
    seen = None if info is None else log_seen(info)
    store_name = await cold.name()
    pairing = pair(seen, store_name)
    if pairing.refused:
        raise ProvisionError(
            f"{pairing.value}.",
            differences={"store": {"is": store_name, "must_be": seen.name if seen else None}},
        )
    if pairing is Pairing.NAME_BOTH:
        await _name_log(js, new_name)
    await provision(js, settings, store_name=new_name)
    # Of several workers that start at once, one has made the log, with its name.
    info = await _log(js)
    made = None if info is None else log_seen(info)
    if made is None or made.name is None:
        raise Unavailable("the log went away while it was looked at", operation="provision")
    if pairing is not Pairing.PAIRED:
        store_name = await cold.set_name(made.name)
        log.info("provision.paired", store=made.name)
    if store_name != made.name:
        raise ProvisionError(
            f"{Pairing.OTHER_LOG.value}.", differences={"store": {"is": store_name, "must_be": made.name}}
        )
    return made.name


async def _log(js: JetStreamContext) -> StreamInfo | None:
    with jetstream_errors():
        try:
            return await js.stream_info(subjects.STREAM_LOG)
        except nats.js.errors.NotFoundError:
            return None


async def _name_log(js: JetStreamContext, name: str) -> None:
    info = await _log(js)
    if info is not None and log_seen(info).name is None:
        metadata = {**(info.config.metadata or {}), STORE_NAME: name}
        with jetstream_errors():
            await js.update_stream(replace(info.config, metadata=metadata))


def log_seen(info: StreamInfo) -> LogSeen:
    """What counts of a log."""
    return LogSeen(name=(info.config.metadata or {}).get(STORE_NAME), empty=_is_empty(info))


def _is_empty(info: StreamInfo) -> bool:
    # A log that was purged has had records: its last sequence is not before the one that it began with.
    return info.state.messages == 0 and info.state.last_seq < max(1, info.config.first_seq or 1)
