"""Commits per second and their latency, beside what NATS alone can do on the same machine, in the same run.

    python benchmarks/bench_commit.py [COMMANDS]

One NATS, one Valkey, one worker process, appends and rewrites of one leaf of 1 KiB, a cold store in a local
folder. The baselines do a part of the same work: a compare-and-swap publish per command and nothing else; and
a bare loop in a process of its own that fetches a command, publishes with compare-and-swap, says so and
acknowledges.
The same again with traces: of each command, and of one in ten.
Latency is from the publish of a command to its outcome in the sender's hands. Read the figures as ratios.
"""

import asyncio
import logging
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import nats
import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg

from sexton.schemas import subjects
from sexton.schemas.codec import decode_outcome
from sexton.schemas.commands import Append, Rewrite
from sexton.schemas.outcome import REPLY_HEADER, Committed
from sexton.schemas.span import NewSpan, Text
from sexton.worker.embedded import ChildProcess, EmbeddedServers
from sexton.worker.provision import partition_durable, provision
from sexton.worker.settings import Settings

CONTEXTS: Final = 16
IN_FLIGHT: Final = 64
PARTITIONS: Final = 16
CONTENT: Final = "x" * 1024
EXPECTED: Final = "Nats-Expected-Last-Subject-Sequence"


@dataclass(frozen=True)
class Figure:
    """One row."""

    name: str
    per_s: float
    latencies_s: Sequence[float]
    cpu_ms: float | None = None
    """CPU time of the worker per command; None where there is no worker, or no way to know."""

    def quantile_ms(self, share: float) -> float:
        ordered = sorted(self.latencies_s)
        return ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000


# --- the baselines -----------------------------------------------------------------------------------


async def cas_publishes(url: str, count: int, chains: int) -> Figure:
    """Compare-and-swap publishes of a record's size: `chains` subjects, each one after the other."""
    client = await nats.connect(url)
    js = client.jetstream()
    latencies: list[float] = []

    async def chain(number: int) -> None:
        at = 0
        for _ in range(count // chains):
            began = time.perf_counter()
            ack = await js.publish(
                subjects.log(f"bare{chains}-{number}"), RECORD, headers={EXPECTED: str(at)}
            )
            latencies.append(time.perf_counter() - began)
            at = ack.seq

    began = time.perf_counter()
    await asyncio.gather(*(chain(number) for number in range(chains)))
    took = time.perf_counter() - began
    await client.close()
    how = "in sequence" if chains == 1 else f"{chains} at once"
    return Figure(f"bare compare-and-swap publish, {how}", len(latencies) / took, latencies)


async def bare_worker(url: str) -> None:
    """Fetches, publishes with compare-and-swap, answers, acknowledges: what no worker can do without."""
    client = await nats.connect(url)
    js = client.jetstream()
    heads: dict[str, int] = {}

    async def lane(partition: int) -> None:
        durable = partition_durable(partition)
        pull = await js.pull_subscribe_bind(durable, subjects.STREAM_COMMANDS)
        while True:
            with suppress(nats.errors.TimeoutError):
                for message in await pull.fetch(1, timeout=1):
                    context_id = message.subject.split(".")[3]
                    ack = await js.publish(
                        subjects.log(context_id), RECORD, headers={EXPECTED: str(heads.get(context_id, 0))}
                    )
                    heads[context_id] = ack.seq
                    await client.publish((message.headers or {})[REPLY_HEADER], OUTCOME)
                    await message.ack()

    print("ready", flush=True)
    await asyncio.gather(*(lane(partition) for partition in range(PARTITIONS)))


# --- the sender --------------------------------------------------------------------------------------


class Sender:
    """Publishes commands and hears their outcomes."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._js = client.jetstream()
        self._waiting: dict[str, asyncio.Future[bytes]] = {}
        self._inbox = client.new_inbox()

    async def start(self) -> None:
        await self._client.subscribe(f"{self._inbox}.*", cb=self._hear)
        await self._client.flush()

    async def ask(self, command: Append | Rewrite) -> bytes:
        context_id, event_id = command.context_id, command.event_id
        heard = self._waiting[event_id] = asyncio.get_running_loop().create_future()
        await self._js.publish(
            subjects.command(context_id, command.kind),
            command.wire(),
            headers={REPLY_HEADER: f"{self._inbox}.{event_id}"},
        )
        outcome: bytes = await heard
        return outcome

    async def _hear(self, message: Msg) -> None:
        self._waiting.pop(message.subject.rsplit(".", 1)[1]).set_result(message.data)


def append(context_id: str, name: str) -> Append:
    return Append(context_id=context_id, event_id=name, spans=(NewSpan(name=name, content=CONTENT),))


def rewrite(context_id: str, name: str) -> Rewrite:
    """Of what `append` has appended under that name."""
    return Rewrite(
        context_id=context_id,
        event_id=f"{name}-rewrite",
        span_id=f"l0:{name}",
        base_version=1,
        text=Text(content=CONTENT[1:]),
    )


async def commands(
    url: str,
    worker: ChildProcess,
    name: str,
    count: int,
    in_flight: int,
    *,
    check: bool,
    make: Callable[[str, str], Append | Rewrite] = append,
) -> Figure:
    """`count` commands over the contexts, `in_flight` at a time, to a worker that is named and running."""
    client = await nats.connect(url)
    sender = Sender(client)
    await sender.start()
    numbers = iter(range(count))
    latencies: list[float] = []
    contexts = CONTEXTS if in_flight > 1 else 1
    tag = f"{'s' if check else 'b'}{in_flight}"

    async def lane() -> None:
        for number in numbers:
            began = time.perf_counter()
            data = await sender.ask(make(f"{tag}-{number % contexts}", f"{tag}-{number}"))
            latencies.append(time.perf_counter() - began)
            if check and not isinstance(decode_outcome(data), Committed):
                raise SystemExit(f"not committed: {data.decode()}")

    await sender.ask(make(f"{tag}-0", f"{tag}-warm"))
    cpu_s = _cpu_s(worker.pid)
    began = time.perf_counter()
    await asyncio.gather(*(lane() for _ in range(in_flight)))
    took = time.perf_counter() - began
    cpu_ms = None if cpu_s is None else ((_cpu_s(worker.pid) or 0) - cpu_s) / count * 1000
    await client.close()
    how = "one at a time" if in_flight == 1 else f"{in_flight} in flight over {contexts} contexts"
    return Figure(f"{name}, {how}", count / took, latencies, cpu_ms)


def _cpu_s(pid: int) -> float | None:
    """CPU time that a process has taken; None where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    user, system = stat.rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


# --- one run -----------------------------------------------------------------------------------------


def _said(out: Path) -> str:
    return out.read_text(encoding="utf-8", errors="replace")


@asynccontextmanager
async def collector() -> AsyncIterator[str]:
    """Takes what an exporter sends and throws it away; in this process, not at the worker's cost."""

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(head.split(b"content-length:")[1].split(b"\r\n")[0]))
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(take, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


@asynccontextmanager
async def program(argv: Sequence[str], out: Path, **env: str) -> AsyncIterator[ChildProcess]:
    """A program in a process of its own, from the moment it says that it is ready until its end."""
    child = ChildProcess.spawn(
        [sys.executable, *argv], stdout=out, stderr=out, env={**os.environ, **env, "PYTHONUNBUFFERED": "1"}
    )
    try:
        while "ready" not in _said(out):
            if child.poll() is not None:
                raise SystemExit(_said(out))
            await asyncio.sleep(0.01)
        yield child
    finally:
        await child.stop(grace_s=10)


async def measured(folder: Path, name: str, figures: Callable[[str], Awaitable[None]]) -> None:
    """Fresh servers for `figures`, with all streams made."""
    async with EmbeddedServers(folder / name) as servers:
        client = await nats.connect(servers.nats_url)
        await provision(client.jetstream(), _settings(servers.nats_url))
        await client.close()
        os.environ["SEXTON_REDIS_URL"] = servers.redis_url
        await figures(servers.nats_url)


def _settings(url: str) -> Settings:
    return Settings(nats_url=url, partitions=PARTITIONS)


async def run(count: int) -> list[Figure]:
    rows: list[Figure] = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)

        async def bare(url: str) -> None:
            rows.append(await cas_publishes(url, count, 1))
            rows.append(await cas_publishes(url, count * 2, CONTEXTS))
            async with program([__file__, "--bare", url], folder / "bare.out") as worker:
                rows.append(await commands(url, worker, "bare loop", count, 1, check=False))
                rows.append(await commands(url, worker, "bare loop", count * 2, IN_FLIGHT, check=False))

        async def sexton(url: str, name: str = "append", **more: str) -> None:
            env = {
                "SEXTON_NATS_URL": url,
                # Each log has a cold store of its own.
                "SEXTON_COLD_URL": (folder / f"{name}.cold").as_uri(),
                "SEXTON_PARTITIONS": str(PARTITIONS),
                "SEXTON_LOG_LEVEL": "WARNING",
            }
            async with program(["-c", WORKER], folder / f"{name}.out", **env, **more) as worker:
                rows.append(await commands(url, worker, name, count, 1, check=True))
                rows.append(await commands(url, worker, name, count * 2, IN_FLIGHT, check=True))
                if name == "append":
                    again = "rewrite"
                    rows.append(await commands(url, worker, again, count, 1, check=True, make=rewrite))
                    rows.append(
                        await commands(url, worker, again, count * 2, IN_FLIGHT, check=True, make=rewrite)
                    )

        async def traced(url: str) -> None:
            async with collector() as endpoint:
                told = {"SEXTON_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
                await sexton(url, "append, each traced", **told)

        async def sampled(url: str) -> None:
            async with collector() as endpoint:
                told = {"SEXTON_TRACING": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint}
                tenth = {"OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.1"}
                await sexton(url, "append, one in ten traced", **told, **tenth)

        await measured(folder, "bare", bare)
        await measured(folder, "sexton", sexton)
        await measured(folder, "traced", traced)
        await measured(folder, "sampled", sampled)
    return rows


WORKER: Final = """
import asyncio
from sexton.worker import logs
from sexton.worker.app import Worker
from sexton.worker.export import exporting
from sexton.worker.settings import Settings

async def serve():
    logs.configure("WARNING")
    settings = Settings()
    with exporting("sexton-worker", on=settings.tracing):
        async with Worker(settings):
            print("ready", flush=True)
            await asyncio.Event().wait()

asyncio.run(serve())
"""
RECORD: Final = b"r" * 450
"""About what the record of an append of one leaf has."""
OUTCOME: Final = b"o" * 250


def report(rows: Sequence[Figure]) -> None:
    """The table; the last column is the rate against that of the bare loop of the same kind."""
    print(f"{'':54}{'per s':>8}{'p50 ms':>8}{'p99 ms':>8}{'CPU ms':>8}{'bare loop':>11}")
    for at, row in enumerate(rows):
        cpu = "" if row.cpu_ms is None else f"{row.cpu_ms:.2f}"
        share = f"{row.per_s / rows[2 + at % 2].per_s:.0%}"
        print(
            f"{row.name:54}{row.per_s:8,.0f}{row.quantile_ms(0.5):8.2f}{row.quantile_ms(0.99):8.2f}"
            f"{cpu:>8}{share:>11}"
        )


def main() -> None:
    """Runs it, or the bare loop for it."""
    if sys.argv[1:2] == ["--bare"]:
        asyncio.run(bare_worker(sys.argv[2]))
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    report(asyncio.run(run(count)))


if __name__ == "__main__":
    main()
