"""Judging what Redis or Valkey says of itself. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from sexton.worker.doctor.findings import Finding, fault, ok, unknown, warning

OLDEST = (7, 0)
"""The oldest Redis that the registry's script runs on; Valkey began later."""


def judge_redis(info: Mapping[str, Any], config: Mapping[str, str] | None) -> Iterator[Finding]:
    """Findings about a server.

    Args:
        info: what `INFO` gave.
        config: what `CONFIG GET` gave, or None if that is not permitted, as it should be.
    """
    yield _version(info)
    yield _role(info)
    yield _eviction(info)
    yield from _persistence(info, config)
    yield from _replicas(info, config)


def _version(info: Mapping[str, Any]) -> Finding:
    name = "Valkey" if "valkey_version" in info else "Redis"
    version = str(info.get("valkey_version") or info.get("redis_version", "?"))
    speaks = str(info.get("redis_version", "0")).split(".")
    try:
        old = (int(speaks[0]), int(speaks[1])) < OLDEST
    except (ValueError, IndexError):
        return unknown("redis.version", f"{name} {version}", "use Redis 7.0 or newer, or Valkey")
    if old:
        return fault("redis.version", f"{name} {version}", "use Redis 7.0 or newer, or Valkey")
    return ok("redis.version", f"{name} {version}")


def _role(info: Mapping[str, Any]) -> Finding:
    role = str(info.get("role", "?"))
    if role == "master":
        return ok("redis.role", "a primary")
    return fault("redis.role", f"a {role}", "let SEXTON_REDIS_URL lead to the primary: leases are written")


def _eviction(info: Mapping[str, Any]) -> Finding:
    policy = str(info.get("maxmemory_policy", "?"))
    if policy == "noeviction":
        return ok("redis.eviction", "keys are never evicted")
    advice = "set maxmemory-policy noeviction: a pin that is evicted is a pin that nobody knows of"
    if policy == "?":
        return unknown("redis.eviction", "the eviction policy is not told", advice)
    return fault("redis.eviction", f"keys are evicted by {policy}", advice)


def _persistence(info: Mapping[str, Any], config: Mapping[str, str] | None) -> Iterator[Finding]:
    if not int(info.get("aof_enabled", 0)):
        yield warning(
            "redis.persistence",
            "the append-only file is off: a restart forgets every lease and pin, "
            "and collection waits for the longest lease",
            "set appendonly yes and appendfsync everysec, and make quiet_s more than a restart can lose",
        )
        return
    fsync = (config or {}).get("appendfsync")
    if fsync == "no":
        yield warning(
            "redis.persistence",
            "the append-only file is on, and when it reaches the disk is left to the system",
            "set appendfsync everysec",
        )
    else:
        yield ok("redis.persistence", f"the append-only file is on, appendfsync {fsync or 'not told'}")
    for name in ("aof_last_write_status", "aof_last_bgrewrite_status"):
        if info.get(name, "ok") != "ok":
            yield fault(
                "redis.disk", f"{name} is {info[name]}", "look at the server's log: mostly its disk is full"
            )


def _replicas(info: Mapping[str, Any], config: Mapping[str, str] | None) -> Iterator[Finding]:
    replicas = int(info.get("connected_slaves", 0))
    if not replicas:
        return
    guarded = int((config or {}).get("min-replicas-to-write", 0)) or "min_slaves_good_slaves" in info
    if guarded:
        yield ok("redis.replicas", f"{replicas} replicas, and no write without one")
    else:
        yield warning(
            "redis.replicas",
            f"{replicas} replicas, and an old primary that is cut off goes on taking writes",
            "set min-replicas-to-write 1 and min-replicas-max-lag below quiet_s",
        )
