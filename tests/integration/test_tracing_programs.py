"""Traces leave a worker and a pager that run as programs; a collector that is away costs spans, no more."""

import json
import signal
import socket
from collections.abc import Mapping
from typing import Any

import pytest

from sexton.worker.embedded import EmbeddedServers, NatsServer
from tests.core_kit.build import append
from tests.pager_kit.receiver import receiving
from tests.pager_kit.scene import environment, record, scene
from tests.pager_kit.scene import settings as pager_settings
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline, eventually
from tests.tracing_kit.collector import collecting
from tests.worker_kit.sender import sending
from tests.worker_kit.service import cold_folder, ready

pytestmark = pytest.mark.slow

QUICK = {"OTEL_BSP_SCHEDULE_DELAY": "50", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}


def traced(
    programs: Programs, servers: EmbeddedServers, endpoint: str, more: Mapping[str, str] | None = None
) -> Program:
    """The installed command, told to export to `endpoint`."""
    return programs.sexton(
        "worker",
        env={
            "SEXTON_NATS_URL": servers.nats_url,
            "SEXTON_REDIS_URL": servers.redis_url,
            "SEXTON_COLD_URL": cold_folder(servers).as_uri(),
            "SEXTON_PARTITIONS": "2",
            "SEXTON_TRACING": "true",
            "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint,
            **QUICK,
            **(more or {}),
        },
    )


def lines(program: Program) -> list[dict[str, Any]]:
    """Its log."""
    return [json.loads(line) for line in program.stderr.splitlines() if line.startswith("{")]


def events(program: Program) -> list[str]:
    return [line["event"] for line in lines(program)]


async def commits(servers: EmbeddedServers, count: int, *, first: int = 0) -> None:
    """Commands that carry no trace, so that it is the worker that samples."""
    async with deadline(60, f"{count} commits"), sending(servers.nats_url) as sender:
        for number in range(first, first + count):
            await sender.commit(append(f"e{number}", f"x{number}"))


async def test_a_worker_exports_over_http_and_names_itself(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """With the resource that the conventions want; what is left is sent at the end. Log lines name spans."""
    with collecting() as collector:
        worker = traced(
            programs,
            own_servers,
            collector.url,
            {
                "OTEL_BSP_SCHEDULE_DELAY": "60000",
                "OTEL_RESOURCE_ATTRIBUTES": "service.namespace=test",
            },
        )
        await ready(worker)
        await commits(own_servers, 2)
        worker.send_signal(signal.SIGTERM)
        assert 0 == await worker.exit_code()

    assert {"/v1/traces"} == collector.paths
    assert {"sexton.handle", "sexton.commit", "sexton.publish"} <= set(collector.names)
    resource = collector.resources[0]
    assert ("sexton-worker", "test") == (resource["service.name"], resource["service.namespace"])
    assert resource["service.version"]
    assert resource["service.instance.id"]
    [first, *_] = [line for line in lines(worker) if line["event"] == "commit.done"]
    assert (32, 16) == (len(first["trace_id"]), len(first["span_id"]))


@pytest.mark.parametrize("fault", ["nobody listens", "never answers", "answers 503"])
async def test_a_collector_that_is_away_stops_no_commit_and_fills_no_log(
    own_servers: EmbeddedServers, programs: Programs, fault: str
) -> None:
    """One line says that it is away. The end waits for it only for a bounded time."""
    with collecting() as collector, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = collector.url
        if fault == "nobody listens":
            endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        elif fault == "never answers":
            collector.hold.clear()
        else:
            collector.status = 503
        worker = traced(
            programs,
            own_servers,
            endpoint,
            {"OTEL_BSP_MAX_QUEUE_SIZE": "64", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "16"},
        )
        await ready(worker)
        await commits(own_servers, 100)
        await eventually(lambda: "tracing.export_failed" in events(worker), within_s=30)
        await commits(own_servers, 10, first=100)
        worker.send_signal(signal.SIGTERM)
        assert 0 == await worker.exit_code(within_s=25)

    said = events(worker)
    assert 110 == said.count("commit.done")
    assert 1 == said.count("tracing.export_failed")
    assert [] == [line["event"] for line in lines(worker) if line["level"] == "error"]
    assert "Traceback" not in worker.stderr
    assert [] == [line for line in worker.stderr.splitlines() if not line.startswith("{")]


async def test_a_collector_that_comes_back_is_told_once(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """With the number of spans that were lost meanwhile."""
    with collecting() as collector:
        collector.status = 400
        worker = traced(programs, own_servers, collector.url)
        await ready(worker)
        await commits(own_servers, 3)
        await eventually(lambda: "tracing.export_failed" in events(worker), within_s=20)
        collector.status = 200
        await commits(own_servers, 3, first=3)
        await eventually(lambda: "tracing.export_resumed" in events(worker), within_s=20)

    [resumed] = [line for line in lines(worker) if line["event"] == "tracing.export_resumed"]
    assert resumed["spans_lost"] > 0


async def test_a_variable_that_cannot_be_is_told_at_the_start(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """As a usage error, without what the variable holds."""
    worker = traced(programs, own_servers, "http://127.0.0.1:1", {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"})
    assert 2 == await worker.exit_code()
    assert "OTEL_" in worker.stderr
    assert "Traceback" not in worker.stderr


async def test_a_worker_without_the_extra_says_what_to_install(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """If it is to be traced. If not, it does not miss it."""
    code = (
        "import sys; sys.modules['opentelemetry'] = None;"
        "from sexton.worker.cli import main; sys.argv = ['sexton', 'worker']; main()"
    )
    env = {
        "SEXTON_NATS_URL": own_servers.nats_url,
        "SEXTON_REDIS_URL": own_servers.redis_url,
        "SEXTON_COLD_URL": "memory:///",
    }
    told = programs.python("-c", code, env={**env, "SEXTON_TRACING": "true"})
    assert 2 == await told.exit_code()
    assert "tracing needs: pip install 'sexton[otel]'" in told.stderr

    quiet = programs.python("-c", code, env=env)
    await ready(quiet)
    await commits(own_servers, 1)
    quiet.send_signal(signal.SIGTERM)
    assert 0 == await quiet.exit_code()


async def test_a_pager_exports_too(own_nats: NatsServer, programs: Programs) -> None:
    """Under a name of its own."""
    with collecting() as collector:
        env = {"SEXTON_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, **QUICK}
        async with scene(own_nats.url) as streams, receiving() as receiver:
            config = pager_settings(own_nats.url, receiver.url)
            pager = programs.sexton("pager", env={**environment(config), **env})
            await pager.line("pager.ready", stream="stderr", within_s=30)
            await streams.failed(record())
            await streams.until_done()
            pager.send_signal(signal.SIGTERM)
            assert 0 == await pager.exit_code(within_s=25)

    assert ["sexton.page"] == collector.names
    assert "sexton-pager" == collector.resources[0]["service.name"]
