"""What the tests of leases on real servers share: short times, holders, what the log and the store hold."""

import shutil
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from sexton.core.apply import apply
from sexton.core.collection import Version
from sexton.core.pins import PinCost
from sexton.core.tree import ContextTree
from sexton.holder import Context, Holder, HolderSettings
from sexton.schemas import subjects
from sexton.schemas.base import Message
from sexton.schemas.codec import AnyRecord, decode
from sexton.schemas.leases import PinInfo
from sexton.schemas.ops import (
    OpsRequest,
    OpsVerb,
    PinsPart,
    TombstoneInfo,
    TombstonesPart,
)
from sexton.schemas.records import Collected
from sexton.schemas.rpc import ReplyPart, RpcError
from sexton.schemas.wire_errors import error_from
from sexton.worker.embedded import EmbeddedServers, ValkeyServer
from tests.core_kit.audit import audit
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender
from tests.worker_kit.service import ROOT, cold_folder, settings

P = TypeVar("P", bound=ReplyPart)

QUICK: Final[dict[str, Any]] = {"lease_ttl_max_s": 2.0, "quiet_s": 0.3, "sweep_interval_s": 0.2}
"""A worker that collects within a second or two."""

BY_HAND: Final[dict[str, Any]] = {**QUICK, "sweep_interval_s": 3600.0}
"""The same, but it sweeps only when it is told to."""

TTL_S: Final = 2.0
"""Of holders in the tests' own process, which may be slow: twice what a stopped or killed one gets."""

WITHIN_S: Final = 15.0


@asynccontextmanager
async def holding(
    servers: EmbeddedServers, context_id: str, *, name: str | None = None, **settings: Any
) -> AsyncIterator[Context]:
    """A context open in a holder of its own."""
    chosen = HolderSettings(**{"lease_ttl_s": TTL_S, **settings})
    async with Holder.connect(servers.nats_url, name=name, settings=chosen) as holder:
        yield await holder.open(context_id)


def on_redis_server(servers: EmbeddedServers) -> bool:
    """Has the servers run a redis-server in the place of Valkey. False if there is none on PATH."""
    binary = shutil.which("redis-server")
    if binary is None:
        return False
    servers.valkey = ValkeyServer(servers.valkey.data_dir, binary=Path(binary))
    return True


# --- asking as an operator -----------------------------------------------------------------------------


async def ops(sender: Sender, verb: OpsVerb, request: Message, model: type[P], context_id: str) -> list[P]:
    """The parts of an answer to an operator. Raises the error that it is instead."""
    inbox = sender.client.new_inbox()
    heard = await sender.client.subscribe(inbox)
    parts: list[P] = []
    try:
        await sender.client.publish(subjects.ops(context_id, verb), request.wire(), reply=inbox)
        async with deadline(WITHIN_S, f"the answer to {verb.value}"):
            while not parts or not parts[-1].last:
                data = (await heard.next_msg(timeout=None)).data
                if b'"status":"error"' in data:
                    raise error_from(decode(RpcError, data))
                parts.append(decode(model, data))
    finally:
        await heard.unsubscribe()
    assert list(range(len(parts))) == [part.index for part in parts]
    return parts


async def pins(sender: Sender, context_id: str) -> dict[Version, list[PinInfo]]:
    """All live pins, as operators see them."""
    found: dict[Version, list[PinInfo]] = {}
    for part in await ops(sender, OpsVerb.PINS, OpsRequest(context_id=context_id), PinsPart, context_id):
        for info in part.pins:
            found.setdefault((info.span_id, info.version), []).append(info)
    return found


async def tombstones(sender: Sender, context_id: str) -> dict[Version, TombstoneInfo]:
    """All tombstones, as operators see them."""
    request = OpsRequest(context_id=context_id)
    parts = await ops(sender, OpsVerb.TOMBSTONES, request, TombstonesPart, context_id)
    return {(info.span_id, info.version): info for part in parts for info in part.tombstones}


async def sweep(sender: Sender, context_id: str) -> TombstonesPart:
    """One sweep, now; the last part says what came of it, and all tombstones are in it."""
    request = OpsRequest(context_id=context_id)
    parts = await ops(sender, OpsVerb.SWEEP, request, TombstonesPart, context_id)
    stones = tuple(info for part in parts for info in part.tombstones)
    return parts[-1].model_copy(update={"tombstones": stones})


# --- what is there -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """What the log says of a context, read once and checked against the rules."""

    records: Sequence[AnyRecord]
    tree: ContextTree
    collected: frozenset[Version]
    freed_bytes: int
    """The sum over all `collected` records."""


async def history(sender: Sender, context_id: str) -> History:
    """The context as the log says. No version is collected twice, and what a record counts is right."""
    tree, freed_bytes = ContextTree.empty(context_id), 0
    gone: set[Version] = set()
    records = await sender.records(context_id)
    for record in records:
        if isinstance(record, Collected):
            versions = [(version.span_id, version.version) for version in record.versions]
            assert gone.isdisjoint(versions), "collected twice"
            sizes = [tree.tombstones[version].identity.size_bytes for version in versions]
            assert sum(sizes) == record.size_freed_bytes
            gone |= set(versions)
            freed_bytes += record.size_freed_bytes
        tree = apply(tree, record)
    audit(tree, gone)
    return History(records, tree, frozenset(gone), freed_bytes)


async def until_collected(
    sender: Sender, context_id: str, versions: Iterable[Version], *, within_s: float = WITHIN_S
) -> History:
    """Waits until none of these is a tombstone any more; all are collected then, as the log says."""
    wanted = set(versions)
    await eventually(
        lambda: tombstones(sender, context_id),
        until=wanted.isdisjoint,
        within_s=within_s,
        what=f"the collection of {len(wanted)} versions",
    )
    found = await history(sender, context_id)
    assert wanted <= found.collected
    return found


def stored(servers: EmbeddedServers, context_id: str) -> set[str]:
    """The files of a context in the cold store, by span name and version: `name/1`."""
    root = cold_folder(servers) / "blobs" / context_id
    files = [path.relative_to(root) for path in root.rglob("*") if path.is_file()]
    return {f"{path.parts[1]}/{path.name.split('-', 1)[0]}" for path in files}


def start_holder(
    programs: Programs, servers: EmbeddedServers, context_id: str, *, ttl_s: float, cost: PinCost
) -> Program:
    """A holder as a program, which pins all spans of a context."""
    name = f"holder-{len(programs.started)}"
    env = {
        "SEXTON_TEST_NATS_URL": servers.nats_url,
        "SEXTON_TEST_CONTEXT": context_id,
        "SEXTON_TEST_HOLDER": name,
        "SEXTON_TEST_TTL_S": str(ttl_s),
        "SEXTON_TEST_COST": cost.value,
        "PYTHONPATH": str(ROOT),
    }
    return programs.python("-m", "tests.leases_kit.program", name=name, env=env)


def start_collector(programs: Programs, servers: EmbeddedServers, **more: Any) -> Program:
    """A worker as a program, whose sweeps hang where the names of contexts say."""
    config = settings(servers, **more)
    env = {
        f"SEXTON_{name.upper()}": str(value)
        for name, value in config.model_dump(exclude_defaults=True).items()
        if name != "redis_url"
    }
    env |= {"SEXTON_REDIS_URL": servers.redis_url, "PYTHONPATH": str(ROOT)}
    return programs.python("-m", "tests.leases_kit.worker_program", name="collector", env=env)
