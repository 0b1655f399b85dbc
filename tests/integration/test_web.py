"""Health, metrics and the contract over HTTP: of a worker and a pager, on real servers."""

import json
import re
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from sexton.schemas import subjects
from sexton.worker import metrics
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers, NatsServer
from sexton.worker.health import Check
from sexton.worker.program import exposed
from tests.core_kit.build import append
from tests.support.http import Response, fetch
from tests.support.processes import Programs
from tests.support.waiting import eventually
from tests.worker_kit.sender import Sender, sending
from tests.worker_kit.service import cold_folder, ready, settings, start_worker

SCHEMAS = Path(__file__).parents[2] / "schemas"


@asynccontextmanager
async def served(servers: EmbeddedServers, **more: object) -> AsyncIterator[tuple[Worker, str, Sender]]:
    """A worker that is ready, with HTTP, and the URL of it."""
    worker = Worker(settings(servers, http_port=0, **more))
    async with exposed(worker) as endpoint, worker, sending(servers.nats_url) as sender:
        assert endpoint is not None
        await until_ready(endpoint.url)
        yield worker, endpoint.url, sender


async def until_ready(url: str) -> None:
    await eventually(lambda: fetch(f"{url}/readyz"), until=lambda found: found.status == 200, within_s=15)


async def until_unready(url: str, check: str) -> str:
    """Waits until a check fails; gives its reason."""

    def fails(found: Response) -> bool:
        return found.status == 503 and not found.json["checks"].get(check, {"ok": True})["ok"]

    found = await eventually(lambda: fetch(f"{url}/readyz"), until=fails, within_s=20)
    return str(found.json["checks"][check]["reason"])


async def test_a_worker_is_ready_when_everything_answers(own_servers: EmbeddedServers) -> None:
    """Each check is named; the answer is JSON that nobody keeps."""
    async with served(own_servers) as (_, url, _):
        found = await fetch(f"{url}/readyz")
        assert ("application/json", "no-store") == (
            found.headers["content-type"],
            found.headers["cache-control"],
        )
        names = ["phase", "pulls", "broker", "registry", "cold_store", "permissions"]
        assert {"status": "ok", "checks": {n: {"ok": True} for n in names}} == found.json | {
            "checks": {n: found.json["checks"][n] for n in names}
        }
        for route in ("livez", "startupz"):
            assert 200 == (await fetch(f"{url}/{route}")).status
        assert 200 == (await fetch(f"{url}/livez", method="HEAD")).status
        assert 404 == (await fetch(f"{url}/nothing")).status
        assert 405 == (await fetch(f"{url}/livez", method="POST")).status


async def test_a_frozen_registry_makes_it_unready_and_not_dead(own_servers: EmbeddedServers) -> None:
    """Whoever would restart it for that would make it worse. It is ready again when the registry is."""
    async with served(own_servers) as (_, url, _):
        await own_servers.valkey.pause()
        assert "no answer within 2 s" == await until_unready(url, "registry")
        assert 200 == (await fetch(f"{url}/livez")).status
        await own_servers.valkey.resume()
        await until_ready(url)


async def test_a_lost_registry_is_told_without_its_address(own_servers: EmbeddedServers) -> None:
    """The reason is a kind of error, not what the client says of it."""
    async with served(own_servers) as (_, url, _):
        await own_servers.valkey.kill()
        assert re.fullmatch(r"registry\.write: \w+", await until_unready(url, "registry"))


async def test_a_lost_broker_makes_it_unready(own_servers: EmbeddedServers) -> None:
    """The connection and the pulls say so."""
    async with served(own_servers, ready_pull_s=2.0) as (_, url, _):
        await own_servers.nats.kill()
        assert "not connected to NATS" == await until_unready(url, "broker")
        reason = await until_unready(url, "pulls")
        pulls = r"no pull of SEXTON_COMMANDS/\S+?(, and of \d+ more)? was answered for 2 s"
        assert re.fullmatch(pulls, reason)
        assert 200 == (await fetch(f"{url}/livez")).status


async def test_a_frozen_broker_is_noticed_by_the_pulls(own_servers: EmbeddedServers) -> None:
    """The connection still stands, and nobody answers."""
    async with served(own_servers, ready_pull_s=2.0) as (_, url, _):
        await own_servers.nats.pause()
        try:
            reason = await until_unready(url, "pulls")
        finally:
            await own_servers.nats.resume()
        assert reason.endswith("was answered for 2 s")
        await until_ready(url)


async def test_a_cold_store_that_does_not_answer(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for a name that is not there; any error but that one counts."""
    cold_folder(own_servers).mkdir(parents=True)
    async with served(own_servers) as (_, url, _):
        (cold_folder(own_servers) / "health").write_text("in the way")
        reason = await until_unready(url, "cold_store")
        assert re.fullmatch(r"cold\.head: \w+( \(Not a directory\))?", reason)


async def test_a_cold_store_that_is_another_folder(own_servers: EmbeddedServers) -> None:
    """Its disk was unmounted: what is below answers as well as ever."""
    folder = cold_folder(own_servers)
    async with served(own_servers) as (_, url, _):
        folder.rename(folder.with_name("elsewhere"))
        assert "is it mounted" in await until_unready(url, "cold_store")
        folder.with_name("elsewhere").rename(folder)
        await until_ready(url)


async def test_a_log_that_is_not_there(own_servers: EmbeddedServers) -> None:
    """Its stream was deleted: commands are pulled as well as ever, and none can be committed."""
    async with served(own_servers) as (_, url, sender):
        await sender.js.delete_stream(subjects.STREAM_LOG)
        assert "the log stream does not exist" == await until_unready(url, "log")


async def test_a_flood_of_dead_letters_leaves_the_log_its_room(tmp_path: Path) -> None:
    """I7: whoever may publish anything must not fill the server; the oldest letters go."""
    async with EmbeddedServers(tmp_path / "small") as servers:
        await servers.nats.stop()
        folder = servers.nats.data_dir / "jetstream"
        servers.nats.extra_config = f'jetstream {{ store_dir: "{folder}", max_file_store: 16MB }}'
        await servers.nats.start()
        limits = {"dead_max_bytes": 2**20, "waiting_max_bytes": 4 * 2**20, "retry_delay_max_s": 0.1}
        async with served(servers, **limits) as (_, url, sender):
            for _ in range(10):
                for _ in range(3):
                    await sender.js.publish("sexton.cmd.ctx.append", b"{" + b"x" * 700_000)
                await eventually(sender.waiting, until=lambda left: left == 0, within_s=30)
            assert (await sender.js.stream_info(subjects.STREAM_DEAD)).state.bytes <= 2**20
            assert 1 == (await sender.commit(append("e", "a"))).revision
            await until_ready(url)


async def test_a_refused_permission_makes_it_unready(own_servers: EmbeddedServers) -> None:
    """What is reported into its health is in the answer."""
    async with served(own_servers) as (worker, url, _):
        worker.health.refused("subscribe", "sexton.epoch.*")
        assert "NATS refuses: subscribe sexton.epoch.*" == await until_unready(url, "permissions")


async def test_a_worker_without_an_answer_to_its_pulls_is_not_ready(own_servers: EmbeddedServers) -> None:
    """A permission on the inbox that is missing looks like an empty queue: it must not look like health."""
    worker = Worker(settings(own_servers, http_port=0))
    async with exposed(worker) as endpoint, worker:
        assert endpoint is not None
        for lane in worker.broker._connection.lanes:  # type: ignore[union-attr]
            lane._answers, lane._answered_at = lane.delivered, None
            object.__setattr__(lane, "_look", lambda: None)
        assert "was answered" in await until_unready(endpoint.url, "pulls")


async def test_a_pull_loop_that_has_ended_makes_it_dead(
    own_servers: EmbeddedServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but a restart would help."""
    monkeypatch.setattr("sexton.worker.adapters.intake._STILL_S", 1.5)
    async with served(own_servers) as (worker, url, _):
        subscriber = next(s for s in worker.broker.subscribers if getattr(s, "pull_sub", None))
        for task in subscriber.tasks:  # type: ignore[attr-defined]
            task.cancel()
        found = await eventually(
            lambda: fetch(f"{url}/livez"), until=lambda found: found.status == 503, within_s=15
        )
        assert re.match(
            r"the pull loop of SEXTON_\w+/\S+ does not move", found.json["checks"]["intake"]["reason"]
        )


async def test_not_started_while_it_waits_for_its_broker(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """HTTP is there from the first moment: a probe hears that it starts, and a signal calls that off."""
    await own_servers.nats.pause()
    worker = start_worker(programs, own_servers, http_port=0, io_timeout_s=30)
    url = await url_of(worker)
    for route, status in (("startupz", 503), ("readyz", 503), ("livez", 200)):
        found = await fetch(f"{url}/{route}")
        assert status == found.status
    worker.send_signal(signal.SIGTERM)
    assert 0 == await worker.exit_code()
    await own_servers.nats.resume()


async def url_of(program: object) -> str:
    """Where a program that was given port 0 serves."""
    line = await program.line(r'"port": (\d+).*web.listening|web.listening.*"port": (\d+)', stream="stderr")  # type: ignore[attr-defined]
    return f"http://127.0.0.1:{line[1] or line[2]}"


async def test_a_port_that_is_taken_is_an_error_at_start(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """As any setting that cannot be: exit code 2, one line that names the variable."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        env = {"SEXTON_NATS_URL": own_servers.nats_url, "SEXTON_HTTP_PORT": str(port)}
        worker = programs.sexton("worker", env=env)
        assert 2 == await worker.exit_code(within_s=30)
        assert f"SEXTON_HTTP_PORT: cannot listen on 127.0.0.1:{port}: Address already in use" in worker.stderr
        assert "Traceback" not in worker.stderr


async def test_metrics_are_served_in_prometheus_form(own_servers: EmbeddedServers) -> None:
    """What is there can be parsed, is in the registry, and moves."""
    async with served(own_servers) as (_, url, sender):
        before = metrics.COMMANDS.labels("append", "committed")._value.get()
        await sender.commit(append("one", "content"))
        found = await fetch(f"{url}/metrics")
        assert found.headers["content-type"].startswith("text/plain")
        samples = {
            (s.name, tuple(s.labels.items())): s.value
            for family in text_string_to_metric_families(found.body.decode())
            for s in family.samples
        }
        label = (("kind", "append"), ("outcome", "committed"))
        assert before + 1 == samples["sexton_commands_total", label]
        assert 1 == samples["sexton_ready", ()]
        assert 1 == samples["sexton_check_ok", (("check", "cold_store"),)]


async def test_metrics_are_served_in_the_newer_form_too(own_servers: EmbeddedServers) -> None:
    """Prometheus asks for OpenMetrics."""
    async with served(own_servers) as (_, url, _):
        found = await fetch(f"{url}/metrics", accept="application/openmetrics-text; version=1.0.0")
        assert found.headers["content-type"].startswith("application/openmetrics-text")
        assert found.body.endswith(b"# EOF\n")


async def test_metrics_tell_that_it_is_not_ready(own_servers: EmbeddedServers) -> None:
    """The scrape itself is answered."""
    async with served(own_servers) as (worker, url, _):
        worker.health.add_ready("registry", _down)
        found = await fetch(f"{url}/metrics")
        assert 200 == found.status
        assert b"sexton_ready 0.0" in found.body
        assert b'sexton_check_ok{check="registry"} 0.0' in found.body


async def _down() -> Check:
    return Check.failed("down")


async def test_the_contract_is_served_and_needs_no_network(own_servers: EmbeddedServers) -> None:
    """The document is the published one; the page of it loads nothing and leads to every schema."""
    async with served(own_servers) as (_, url, _):
        document = await fetch(f"{url}/asyncapi.json")
        assert json.loads((SCHEMAS / "asyncapi.json").read_text()) == document.json
        page = await fetch(f"{url}/asyncapi")
        text = page.body.decode()
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(r"<script|<link|<img|@import|https?://", text)
        assert all(
            channel["address"] is None or channel["address"] in text
            for channel in document.json["channels"].values()
        )
        references = set(re.findall(r'href="(\./json/[^"]+)"', text))
        all_there_are = set(re.findall(r'"\$ref":"(\./json/[^"]+)"', document.body.decode()))
        assert references <= all_there_are
        for reference in all_there_are:
            found = await fetch(f"{url}/{reference.removeprefix('./')}")
            assert json.loads((SCHEMAS / reference).read_text()) == found.json


async def test_no_http_without_a_port(own_servers: EmbeddedServers) -> None:
    """Nothing is opened that nobody asked for."""
    async with exposed(Worker(settings(own_servers))) as endpoint:
        assert endpoint is None


async def test_a_program_with_http_becomes_ready_and_ends(
    own_servers: EmbeddedServers, programs: Programs
) -> None:
    """`SEXTON_HTTP_PORT=0`: the port is in the log."""
    worker = start_worker(programs, own_servers, http_port=0)
    await ready(worker)
    await until_ready(await url_of(worker))
    worker.send_signal(signal.SIGTERM)
    assert 0 == await worker.exit_code()


async def test_a_worker_that_may_not_pull_is_not_ready(own_servers: EmbeddedServers, tmp_path: Path) -> None:
    """A wrong permission surfaces within seconds, with its subject, and is counted: no silence, no queue."""
    denied = "$JS.API.CONSUMER.MSG.NEXT.SEXTON_COMMANDS.*"
    rights = f'{{ publish: {{ allow: ">", deny: "{denied}" }}, subscribe: ">" }}'
    users = f'authorization {{ users: [ {{ user: "w", password: "pw", permissions: {rights} }} ] }}'
    counter = metrics.REFUSED.labels("publish")
    before = counter._value.get()
    async with NatsServer(tmp_path / "fenced", extra_config=users) as fenced:
        more = {"nats_url": fenced.url, "nats_user": "w", "nats_password": "pw", "http_port": 0}
        worker = Worker(settings(own_servers, **more))
        async with exposed(worker) as endpoint, worker:
            assert endpoint is not None
            reason = await until_unready(endpoint.url, "permissions")
            assert re.fullmatch(
                r"NATS refuses: publish \$JS\.API\.CONSUMER\.MSG\.NEXT\.\S+( and \d+ more)?", reason
            )
            assert "was answered" in await until_unready(endpoint.url, "pulls")
            assert "pw" not in (await fetch(f"{endpoint.url}/readyz")).body.decode()
    assert before < counter._value.get()
