"""No secret and no content where it does not belong: a run of everything, with canaries in all of them (I9).

Programs of their own, at DEBUG, through failures of each kind; then everything they have said is searched.
"""

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import nats
import pytest
from nats.aio.client import Client
from nats.js.errors import NotFoundError

from sexton.holder import Context, Holder, HolderSettings, SextonError
from sexton.schemas import subjects
from sexton.schemas.dead import DEAD_LETTER_HEADER
from sexton.schemas.rpc import Verb
from sexton.schemas.span import Labels
from sexton.worker.embedded import EmbeddedServers
from tests.pager_kit.receiver import Receiver, receiving
from tests.secure_kit.guarded import guarded
from tests.support.processes import Program, Programs
from tests.support.waiting import deadline, eventually
from tests.tracing_kit.collector import Collector, collecting

CONTENT: Final = "C4NARY-content"
SECRETS: Final = {
    "nats": "C4NARY-nats",
    "redis": "C4NARY-redis",
    "wrong": "C4NARY-wrong",
    # The receiver's URL has these two.
    "page user's": "S3CRET-word",
    "page": "S3CRET-path",
}
CANARIES: Final = ("C4NARY", "S3CRET", base64.b64encode(CONTENT.encode()).decode()[:16])
PARTITIONS: Final = "2"


class Site:
    """The service as programs, and all that was heard of them."""

    def __init__(self, servers: EmbeddedServers, programs: Programs, folder: Path, traces: Collector) -> None:
        self.servers = servers
        self.programs = programs
        self.folder = folder
        self.heard: dict[str, str] = {}
        self.env = {
            "SEXTON_NATS_URL": servers.nats_url.replace("://", f"://service:{SECRETS['nats']}@"),
            "SEXTON_REDIS_URL": servers.redis_url.replace("://", f"://sexton:{SECRETS['redis']}@"),
            "SEXTON_COLD_URL": (folder / "cold").as_uri(),
            "SEXTON_PARTITIONS": PARTITIONS,
            "SEXTON_LOG_LEVEL": "DEBUG",
            "SEXTON_HTTP_PORT": "0",
            "SEXTON_ACK_WAIT_S": "1",
            "SEXTON_IO_TIMEOUT_S": "2",
            "SEXTON_RETRY_DELAY_S": "0.02",
            "SEXTON_RETRY_DELAY_MAX_S": "0.1",
            "SEXTON_MAX_DELIVERIES": "3",
            "SEXTON_SUMMARISE_ATTEMPTS": "2",
            "SEXTON_HOT_MAX_BYTES": "0",
            "SEXTON_PAGER_POLL_S": "0.1",
            # What it is given it says on stderr, and fails.
            "SEXTON_SUMMARISER": "command:sh -c 'cat >&2; exit 1'",
            "SEXTON_TRACING": "true",
            "SEXTON_CONTEXT": "ctx",
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }

    def start(self, *arguments: str, **env: str) -> Program:
        """A program of Sexton's."""
        return self.programs.sexton(*arguments, env=self.env | env)

    async def run(self, *arguments: str, **env: str) -> int:
        """A command, to its end. What it says is kept; its data, where they are content, are not."""
        program = self.start(*arguments, **env)
        return await program.exit_code(within_s=60)

    async def end(self) -> None:
        """Ends the programs in order, and keeps what they have said."""
        for program in self.programs.started:
            if program.running:
                program.send_signal(15)
                await program.exit_code(within_s=30)

    def said(self) -> Iterator[tuple[str, str]]:
        """Everything, by where it was."""
        for program in self.programs.started:
            yield f"stderr of {program.name}", program.stderr
            # A tree shows labels to who asks for it; resolve writes bytes.
            if not program.name.startswith(("sexton-resolve", "sexton-tree")):
                yield f"stdout of {program.name}", program.stdout
        yield from self.heard.items()


async def provoke(context: Context, holder: Holder, client: Client) -> list[str]:
    """Commands and requests of all kinds, good and bad; gives what the errors of the holder say."""
    errors: list[str] = []

    async def tried(work: Any) -> Any:
        try:
            return await work
        except SextonError as e:
            errors.append(f"{e!r} {e} {e.fields}")

    labels = Labels(role=CONTENT, kind=CONTENT)
    spans = [
        (await context.append(f"{CONTENT} number {i}, {'x' * 300}", name=f"s{i}", labels=labels))
        .spans[0]
        .span_id
        for i in range(6)
    ]
    await context.append(CONTENT * 30_000, name="large")
    await tried(context.append(CONTENT, name="s0"))
    await tried(context.rewrite(spans[0], f"{CONTENT} rewritten", base_version=9))
    await tried(context.compact(spans[:2], CONTENT * 1000))
    await tried(context.compact([spans[0], spans[3]], CONTENT))
    await tried(context.compact(spans[:2]))
    pointer = await context.mint(spans[2])
    await context.rewrite(spans[2], f"{CONTENT} other")
    await tried(context.resolve(pointer, consistency="latest"))
    js = client.jetstream()
    for body in (
        CONTENT.encode(),
        json.dumps({"event_id": "e1", "kind": "append", "context_id": "ctx", "spans": CONTENT}).encode(),
        json.dumps({"event_id": CONTENT * 20, "context_id": "ctx", CONTENT: CONTENT}).encode(),
        b'{"schema_version": 99, "event_id": "e2", "context_id": "ctx", "x": "' + CONTENT.encode() + b'"}',
    ):
        for kind in ("append", "compact", "rewrite"):
            await js.publish(f"sexton.cmd.ctx.{kind}", body)
        for verb in Verb:
            await client.publish(subjects.rpc("ctx", verb), body, reply=client.new_inbox())
        await client.publish(subjects.epoch("ctx"), body)
        await client.publish(subjects.failure("ctx"), body)
        await client.publish("sexton.ops.ctx.verify", body, reply=client.new_inbox())
    await client.publish("sexton.rpc.ctx.sync", CONTENT.encode(), reply=f"sexton.{CONTENT}")
    await client.flush()
    return errors


async def damage(site: Site, context: Context, receiver: Receiver) -> list[str]:
    """Bytes are lost, and others are not what they were; readers are told, and somebody is paged."""
    errors = []
    blobs = sorted(p for p in (site.folder / "cold/blobs/ctx").rglob("*") if p.is_file())
    named = {name: next(p for p in blobs if f"/{name}/" in str(p)) for name in ("s3", "s4", "s5")}
    named["s3"].unlink()
    named["s4"].write_bytes(f"{CONTENT} which is another".encode())
    named["s5"].write_bytes(b"")
    async with Holder.connect(site.env["SEXTON_NATS_URL"], settings=HolderSettings()) as other:
        again = await other.open("ctx")
        for name in named:
            try:
                await again.resolve(await again.mint(f"l0:{name}"))
            except SextonError as e:
                errors.append(f"{e!r} {e} {e.fields}")
    assert 3 == len(errors)
    await receiver.until(3)
    return errors


async def records(client: Client) -> str:
    """What is kept about failures: records, incidents, and the reasons of dead letters. Not the letters."""
    js = client.jetstream()
    found = []
    for stream in (subjects.STREAM_FAILURES, subjects.STREAM_DEAD, subjects.STREAM_INCIDENTS):
        state = (await js.stream_info(stream)).state
        for sequence in range(state.first_seq, state.last_seq + 1):
            try:
                message = await js.get_msg(stream, sequence)
            except NotFoundError:  # only the latest of each incident is kept
                continue
            if stream == subjects.STREAM_DEAD:
                found.append((message.headers or {}).get(DEAD_LETTER_HEADER, ""))
            elif b"fingerprint" in (message.data or b""):
                found.append((message.data or b"").decode())
    assert len(found) > 6
    return "\n".join(found)


async def fetched(program: Program, *paths: str) -> str:
    """What a program serves over HTTP."""
    line = await program.line(r'"port": \d+', stream="stderr", within_s=20)
    port = json.loads(line.string)["port"]
    found = []
    for path in paths:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        found.append((await reader.read()).decode())
        writer.close()
    return "\n".join(found)


async def everything(folder: Path, programs: Programs, traces: Collector) -> Site:
    """The run."""
    users = f'authorization {{ user: "service", password: "{SECRETS["nats"]}" }}'
    async with (
        deadline(110, "the run"),
        guarded(folder, SECRETS["redis"], users) as servers,
        receiving() as receiver,
    ):
        site = Site(servers, programs, folder, traces)
        worker = site.start("worker")
        await worker.line("worker.ready", stream="stderr", within_s=30)
        pager = site.start("pager", SEXTON_PAGER_URLS=receiver.url)
        await pager.line("pager.ready", stream="stderr", within_s=30)
        client = await nats.connect(site.env["SEXTON_NATS_URL"])
        try:
            async with Holder.connect(site.env["SEXTON_NATS_URL"]) as holder:
                context = await holder.open("ctx")
                site.heard["errors"] = "\n".join(await provoke(context, holder, client))
                site.heard["errors of damage"] = "\n".join(await damage(site, context, receiver))
                site.heard["repr"] = f"{holder!r} {context!r}"
            transcript = folder / "transcript.txt"
            transcript.write_text(f"{CONTENT}\n\n{CONTENT} again\n")
            (folder / "bad.jsonl").write_text(f'{{"role": "{CONTENT}"\n')
            wrong = servers.nats_url.replace("://", f"://service:{SECRETS['wrong']}@")
            commands = [
                ("ingest", str(transcript), "--json"),
                ("ingest", str(folder / "bad.jsonl"), "--format", "pi", "-vv"),
                ("tree",),
                ("rewrite", "l0:nobody", str(transcript), "--json"),
                ("rewrite", "l0:s0", str(transcript), "--base-version", "9"),
                ("resolve", CONTENT.join(('{"x": "', '"}')), "--json"),
                ("verify", "--json"),
                ("failures",),
                ("config",),
                ("config", "--json"),
                ("doctor",),
                ("tree", "--nats", wrong),
                ("holders", "--nats", wrong, "-vv"),
                ("failures", "--nats", wrong, "--json"),
                ("tree", "--nats", f"nats://x:{SECRETS['wrong']}@h:port"),
            ]
            codes: list[int] = []
            for start in range(0, len(commands), 5):
                batch = commands[start : start + 5]
                codes += await asyncio.gather(*(site.run(*command) for command in batch))
            assert {0, 2, 3, 5, 7, 11} <= set(codes), codes
            redis = servers.redis_url.replace("://", f"://sexton:{SECRETS['wrong']}@")
            nonsense = f"nonsense://{SECRETS['wrong']}"
            codes = await asyncio.gather(
                site.run("worker", SEXTON_NATS_URL=wrong),
                site.run("worker", SEXTON_REDIS_URL=redis),
                site.run("worker", SEXTON_REDIS_URL=nonsense),
                site.run("worker", SEXTON_COLD_URL=nonsense),
                site.run("doctor", SEXTON_NATS_URL=wrong, SEXTON_REDIS_URL=redis),
                site.run("pager", SEXTON_PAGER_URLS=nonsense),
                site.run("pager", "--test", SEXTON_PAGER_URLS=f"json://u:{SECRETS['wrong']}@127.0.0.1:9/x"),
            )
            assert 0 not in codes, codes
            # The stores go away and come back, with messages in flight.
            await servers.valkey.restart()
            await servers.nats.restart()
            for program in (worker, pager):
                said = await fetched(program, "/metrics", "/readyz", "/livez", "/startupz")
                site.heard[f"HTTP of {program.name}"] = said
            await eventually(lambda: client.is_connected, within_s=10)
            site.heard["records"] = await records(client)
            site.heard["pages"] = "\n".join(f"{p.title} {p.message} {p.kind}" for p in receiver.received)
            await site.end()
        finally:
            await client.close()
    return site


@pytest.mark.slow
async def test_no_canary_gets_out(tmp_path: Path, programs: Programs) -> None:
    """Logs, metrics, health, pages, errors, records, incidents, traces: none of them holds one."""
    with collecting() as traces:
        site = await everything(tmp_path, programs, traces)
    assert len(traces.bodies) > 3
    site.heard["traces"] = "\n".join(body.decode("latin-1") for body in traces.bodies)
    found = [
        f"{where}: …{text[max(0, text.index(canary) - 200) : text.index(canary) + 60]}…"
        for where, text in site.said()
        for canary in CANARIES
        if canary in text
    ]
    assert [] == found, "\n\n".join(found)
