"""Judging what NATS says of itself, its streams and its consumers. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sexton.core.pairing import LogSeen, pair
from sexton.worker.doctor.findings import Finding, fault, ok, unknown, warning
from sexton.worker.provision import Differences, told

OLDEST = (2, 10)
"""The oldest nats-server whose streams transform subjects, which is what orders commands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSeen:
    """One stream or consumer, as it is there."""

    name: str
    differences: Differences | None
    """What is not as meant; None if it is not there at all."""
    last: int = 0
    """Messages in the stream, or pending of the consumer."""
    pulls: int = 0
    """Pulls that wait at a consumer."""


def judge_server(
    version: str, max_payload_bytes: int, needed_bytes: int, *, in_cluster: bool, replicas: int
) -> Iterator[Finding]:
    """Findings about the server that one is connected to."""
    try:
        old = tuple(int(part) for part in version.split("-", maxsplit=1)[0].split(".")[:2]) < OLDEST
    except ValueError:
        old = False
    if old:
        yield fault("nats.version", f"nats-server {version}", "use nats-server 2.10 or newer")
    else:
        yield ok("nats.version", f"nats-server {version}")
    if max_payload_bytes < needed_bytes:
        yield fault(
            "nats.max_payload",
            f"messages of up to {max_payload_bytes} bytes",
            f"set max_payload to {needed_bytes} or more, or lower SEXTON_MAX_COMMAND_BYTES",
        )
    else:
        yield ok("nats.max_payload", f"messages of up to {max_payload_bytes} bytes")
    if in_cluster and replicas == 1:
        yield warning(
            "nats.replicas",
            "a cluster, and one copy of each stream",
            "set SEXTON_REPLICAS=3 before the streams are made: with one copy, a lost disk is a lost log",
        )


def judge_sync(config: Mapping[str, Any] | None, *, replicas: int, why_not: str) -> Finding:
    """A finding about when a record that was acknowledged is on the disk.

    Args:
        config: `jetstream.config` of the server's `/varz`; None if that was not asked for or not answered.
        replicas: copies of the log.
        why_not: why there is no config.
    """
    advice = 'set jetstream { sync_interval: "always" }, as deploy/nats does'
    if config is None:
        return unknown(
            "nats.sync",
            f"when acknowledged records reach the disk is not known: {why_not}",
            f"give the address of the server's monitoring port with --nats-monitor; else {advice}",
        )
    if config.get("sync_always"):
        return ok("nats.sync", "each record is on the disk before it is acknowledged")
    seconds = int(config.get("sync_interval", 0)) / 1e9
    found = f"acknowledged records may be in memory only, for up to {seconds:g} s"
    if replicas > 1:
        return warning("nats.sync", f"{found}, on each of {replicas} servers", advice)
    return fault("nats.sync", f"{found}: a power cut takes commits that were reported", advice)


def judge_streams(streams: Sequence[StreamSeen], consumers: Sequence[StreamSeen]) -> Iterator[Finding]:
    """Findings about the streams and consumers, against what is meant."""
    missing = [seen.name for seen in (*streams, *consumers) if seen.differences is None]
    wrong = [seen for seen in (*streams, *consumers) if seen.differences]
    if missing:
        yield fault(
            "nats.streams",
            f"not there: {_few(missing)}",
            "start a worker, which makes them; if one runs, this user may not see them",
        )
    for seen in wrong:
        yield fault(
            "nats.streams",
            f"{seen.name}: {told(seen.differences or {})}",
            "change the settings to match it; if it holds nothing of value, delete it and start a worker",
        )
    if not missing and not wrong:
        yield ok(
            "nats.streams", f"{len(streams)} streams and {len(consumers)} consumers, all of them as meant"
        )


def judge_pairing(log: LogSeen, store_name: str | None) -> Finding:
    """A finding about whether the cold store is the one of this log."""
    pairing = pair(log, store_name)
    if pairing.refused:
        return fault("cold.pairing", pairing.value, "no worker starts like this, and that is as well")
    return ok("cold.pairing", pairing.value)


def judge_work(
    commands: Sequence[StreamSeen], pager: StreamSeen | None, dead_letters: int
) -> Iterator[Finding]:
    """Findings about who works, and what waits.

    Args:
        commands: the consumers of the command stream, one for each partition and one for what is in none.
        pager: the pager's consumer of hard failures; None if there is none.
        dead_letters: messages in the dead letters.
    """
    waiting, pulls = sum(seen.last for seen in commands), sum(seen.pulls for seen in commands)
    idle = [seen.name for seen in commands if seen.last and not seen.pulls]
    if not pulls and commands:
        yield fault(
            "work.workers", f"nobody pulls commands; {waiting} wait", "start a worker: `sexton worker`"
        )
    else:
        yield ok("work.workers", f"{pulls} pulls wait for commands, {waiting} commands wait")
    if pulls and len(idle) > len(commands) // 2:
        yield warning("work.lag", f"commands wait in {len(idle)} partitions", "look at the workers' logs")
    if pager is None or not pager.pulls:
        yield warning(
            "work.pager", "no pager runs: lost bytes would wake nobody", "start one: `sexton pager`"
        )
    else:
        yield ok("work.pager", f"a pager runs; {pager.last} records wait for their page")
    if dead_letters:
        yield warning(
            "work.dead_letters",
            f"{dead_letters} messages that no worker could handle",
            "`sexton failures` shows them with their reasons",
        )


def judge_permissions(refused: Sequence[str]) -> Finding:
    """A finding about what this user may do.

    Args:
        refused: what the server did not permit, as it said it.
    """
    if refused:
        return fault(
            "nats.permissions",
            f"not permitted: {_few(refused)}",
            "use the role `worker` of deploy/nats for this user",
        )
    return ok("nats.permissions", "all that a worker publishes and hears is permitted")


_SHOWN = 5


def _few(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
