"""The doctor's judgements: pure functions of what was seen."""

from typing import Any

import pytest
from pydantic import SecretStr

from sexton.worker.doctor.findings import Finding, Level
from sexton.worker.doctor.judge_clocks import judge_clock
from sexton.worker.doctor.judge_nats import (
    StreamSeen,
    judge_permissions,
    judge_server,
    judge_streams,
    judge_sync,
    judge_work,
)
from sexton.worker.doctor.judge_redis import judge_redis
from sexton.worker.doctor.judge_settings import judge_settings
from sexton.worker.settings import Settings

WELL: dict[str, Any] = {
    "redis_version": "7.2.4",
    "valkey_version": "9.1.2",
    "role": "master",
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "aof_last_bgrewrite_status": "ok",
    "connected_slaves": 0,
}
EARNEST: dict[str, Any] = {
    "nats_url": "tls://nats.example:4222",
    "nats_creds_file": "worker.creds",
    "cold_url": "s3://bucket/prefix",
    "pager_urls": SecretStr("json://x"),
}


def bad(findings: Any) -> list[tuple[str, Level]]:
    """What is not well. Each says how to mend it, and what is well does not."""
    found: list[Finding] = list(findings)
    assert [] == [f for f in found if (f.mend is None) != (f.level is Level.OK)]
    return [(f.check, f.level) for f in found if f.level is not Level.OK]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"redis_version": "6.2.0", "valkey_version": None}, [("redis.version", Level.FAULT)]),
        ({"redis_version": "7.0.15", "valkey_version": None}, []),
        ({"redis_version": "odd", "valkey_version": None}, [("redis.version", Level.UNKNOWN)]),
        ({"role": "slave"}, [("redis.role", Level.FAULT)]),
        ({"maxmemory_policy": "allkeys-lru"}, [("redis.eviction", Level.FAULT)]),
        ({"maxmemory_policy": "volatile-ttl"}, [("redis.eviction", Level.FAULT)]),
        ({"maxmemory_policy": "?"}, [("redis.eviction", Level.UNKNOWN)]),
        ({"aof_enabled": 0}, [("redis.persistence", Level.WARNING)]),
        ({"aof_last_write_status": "err"}, [("redis.disk", Level.FAULT)]),
        ({"connected_slaves": 2}, [("redis.replicas", Level.WARNING)]),
        ({"connected_slaves": 2, "min_slaves_good_slaves": 2}, []),
    ],
)
def test_redis(changed: dict[str, Any], expected: list[tuple[str, Level]]) -> None:
    """What Redis may lose or evict is told; what it says of its settings need not be permitted."""
    assert expected == bad(judge_redis(WELL | changed, None))


@pytest.mark.parametrize(
    ("config", "replicas", "expected"),
    [
        ({"appendfsync": "everysec", "min-replicas-to-write": "1"}, 1, []),
        ({"appendfsync": "no", "min-replicas-to-write": "0"}, 0, [("redis.persistence", Level.WARNING)]),
        ({"appendfsync": "always", "min-replicas-to-write": "0"}, 1, [("redis.replicas", Level.WARNING)]),
    ],
)
def test_redis_s_own_settings(
    config: dict[str, str], replicas: int, expected: list[tuple[str, Level]]
) -> None:
    """Where they may be read, they count."""
    assert expected == bad(judge_redis(WELL | {"connected_slaves": replicas}, config))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"cold_url": "memory:///"}, [("settings.cold_url", Level.FAULT)]),
        ({"cold_url": "file:///data"}, [("settings.cold_url", Level.WARNING)]),
        ({"nats_creds_file": None}, [("settings.credentials", Level.WARNING)]),
        ({"nats_creds_file": None, "nats_url": "nats://worker:pw@nats.example"}, []),
        ({"nats_creds_file": None, "nats_url": "127.0.0.1:4222", "cold_url": "file:///data"}, []),
        ({"pager_urls": SecretStr("")}, [("settings.pager_urls", Level.WARNING)]),
        ({"collect": False}, [("settings.collect", Level.WARNING)]),
        ({"orphan_min_age_s": 60.0}, [("settings.orphan_min_age", Level.WARNING)]),
    ],
)
def test_settings(changed: dict[str, Any], expected: list[tuple[str, Level]]) -> None:
    """What is allowed, and yet not what one would want in earnest."""
    assert expected == bad(judge_settings(Settings(**EARNEST | changed), []))


def test_variables_that_are_none() -> None:
    """Each is told."""
    found = bad(judge_settings(Settings(**EARNEST), ["SEXTON_A", "SEXTON_B"]))
    assert 2 * [("settings.unknown", Level.WARNING)] == found


@pytest.mark.parametrize(
    ("version", "payload", "in_cluster", "replicas", "expected"),
    [
        ("2.15.1", 1000, False, 1, []),
        ("2.10.0-beta.1", 1001, True, 3, []),
        ("2.9.25", 1000, False, 1, [("nats.version", Level.FAULT)]),
        ("2.15.1", 999, False, 1, [("nats.max_payload", Level.FAULT)]),
        ("2.15.1", 1000, True, 1, [("nats.replicas", Level.WARNING)]),
    ],
)
def test_the_server(
    version: str, payload: int, in_cluster: bool, replicas: int, expected: list[tuple[str, Level]]
) -> None:
    """Its version, the size of a message, and the copies of a stream."""
    assert expected == bad(judge_server(version, payload, 1000, in_cluster=in_cluster, replicas=replicas))


@pytest.mark.parametrize(
    ("config", "replicas", "expected"),
    [
        (None, 1, [("nats.sync", Level.UNKNOWN)]),
        ({"sync_interval": 120_000_000_000, "sync_always": True}, 1, []),
        ({"sync_interval": 120_000_000_000}, 1, [("nats.sync", Level.FAULT)]),
        ({"sync_interval": 120_000_000_000}, 3, [("nats.sync", Level.WARNING)]),
    ],
)
def test_when_a_record_is_on_the_disk(
    config: dict[str, Any] | None, replicas: int, expected: list[tuple[str, Level]]
) -> None:
    """The default interval lets a power cut take what was reported as committed."""
    assert expected == bad([judge_sync(config, replicas=replicas, why_not="not asked")])


def test_streams_and_consumers() -> None:
    """Missing ones are told together, and each that is not as meant by itself."""
    there = StreamSeen(name="there", differences={})
    missing = StreamSeen(name="missing", differences=None)
    wrong = StreamSeen(name="wrong", differences={"max_age": {"is": 1, "must_be": 0}})
    assert [] == bad(judge_streams([there], [there]))
    findings = list(judge_streams([there, missing, wrong], [missing]))
    assert [Level.FAULT, Level.FAULT] == [f.level for f in findings]
    assert "missing, missing" in findings[0].found
    assert "wrong: max_age is 1, must be 0" == findings[1].found


@pytest.mark.parametrize(
    ("waiting", "pulls", "pager_pulls", "dead", "expected"),
    [
        ((0, 0), (1, 1), 1, 0, []),
        ((5, 0), (1, 1), 1, 0, []),
        ((5, 0), (0, 0), 1, 0, [("work.workers", Level.FAULT)]),
        ((5, 5), (0, 0), 1, 0, [("work.workers", Level.FAULT)]),
        ((0, 0), (1, 1), 0, 0, [("work.pager", Level.WARNING)]),
        ((0, 0), (1, 1), None, 0, [("work.pager", Level.WARNING)]),
        ((0, 0), (1, 1), 1, 3, [("work.dead_letters", Level.WARNING)]),
    ],
)
def test_who_works(
    waiting: tuple[int, int],
    pulls: tuple[int, int],
    pager_pulls: int | None,
    dead: int,
    expected: list[tuple[str, Level]],
) -> None:
    """A worker pulls whenever it is not busy; a pager too."""
    commands = [
        StreamSeen(name=f"c{i}", differences={}, last=last, pulls=pull)
        for i, (last, pull) in enumerate(zip(waiting, pulls, strict=True))
    ]
    pager = None if pager_pulls is None else StreamSeen(name="pager", differences={}, pulls=pager_pulls)
    assert expected == bad(judge_work(commands, pager, dead))


def test_permissions() -> None:
    """What was refused is named, up to a bound."""
    assert [] == bad([judge_permissions([])])
    finding = judge_permissions([f'publish to "s{i}"' for i in range(9)])
    assert Level.FAULT is finding.level
    assert 'publish to "s4" and 4 more' in finding.found


@pytest.mark.parametrize(
    ("offset_s", "uncertain_s", "expected"),
    [
        (0.0, 0.0, Level.OK),
        (1.9, 0.0, Level.OK),
        (-1.9, 0.0, Level.OK),
        (2400.0, 0.1, Level.WARNING),
        (-2400.0, 0.1, Level.WARNING),
        (2.5, 1.0, Level.OK),
    ],
)
def test_clocks(offset_s: float, uncertain_s: float, expected: Level) -> None:
    """C106: far apart is told, either way; not what the question's own time may explain."""
    assert expected is judge_clock("redis", offset_s, uncertain_s).level
