"""Servers for the tests.

`nats_url` and `redis_url` are one set of servers for the whole run; a test keeps to names of its own on
them, such as `context_id`. A test that stops, freezes or floods a server, or that needs streams of its own,
takes `own_servers` or `own_nats`: they start in milliseconds.
"""

import shutil
import uuid
from collections.abc import AsyncIterator, Generator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
import structlog

from sexton.worker.embedded import EmbeddedServer, EmbeddedServers, NatsServer, ValkeyServer
from tests.support.processes import Programs


@pytest.fixture(autouse=True)
def logging_unset() -> Iterator[None]:
    """Each test starts as a program does: with nothing said about logging, whatever was said before."""
    structlog.reset_defaults()
    structlog.contextvars.clear_contextvars()
    yield
    structlog.reset_defaults()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def shared_servers(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[EmbeddedServers]:
    """NATS and Valkey for the whole run. Not to be stopped, flushed or frozen."""
    async with EmbeddedServers(tmp_path_factory.mktemp("servers")) as servers:
        yield servers


@pytest.fixture(scope="session")
def nats_url(shared_servers: EmbeddedServers) -> str:
    """URL of the shared nats-server."""
    return shared_servers.nats_url


@pytest.fixture(scope="session")
def redis_url(shared_servers: EmbeddedServers) -> str:
    """URL of the shared Valkey."""
    return shared_servers.redis_url


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["valkey", "redis-server"])
async def any_redis_url(
    request: pytest.FixtureRequest, redis_url: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """URL of the shared Valkey and, if one is on PATH, of a redis-server: the test runs on each."""
    if request.param == "valkey":
        yield redis_url
        return
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on PATH")
    async with ValkeyServer(tmp_path_factory.mktemp("redis-server"), binary=Path(binary)) as server:
        yield server.url


@pytest.fixture
def context_id() -> str:
    """A context id that no other test uses."""
    return f"t_{uuid.uuid4().hex}"


@pytest_asyncio.fixture
async def own_servers(tmp_path: Path) -> AsyncIterator[EmbeddedServers]:
    """NATS and Valkey of this test's own, with a data folder of their own: free to kill, freeze and flush."""
    async with EmbeddedServers(tmp_path / "servers") as servers:
        yield servers


@pytest_asyncio.fixture
async def own_nats(tmp_path: Path) -> AsyncIterator[NatsServer]:
    """A nats-server of this test's own."""
    async with NatsServer(tmp_path / "own-nats") as server:
        yield server


@pytest.fixture
def programs(tmp_path: Path) -> Iterator[Programs]:
    """Starts programs as child processes; the end of their output is shown if the test fails."""
    programs = Programs(tmp_path / "programs")
    yield programs
    programs.kill_all()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show what the test's own servers and programs said last, if it failed."""
    report = yield
    if report.failed and report.when == "call":
        for title, text in _last_words(getattr(item, "funcargs", {})):
            report.sections.append((title, text))
    return report


def _last_words(fixtures: dict[str, object]) -> Iterator[tuple[str, str]]:
    for value in fixtures.values():
        if isinstance(value, Programs):
            yield from ((program.name, program.report()) for program in value.started)
        elif isinstance(value, EmbeddedServers):
            yield from ((server.executable, server.log_tail()) for server in (value.nats, value.valkey))
        elif isinstance(value, EmbeddedServer):
            yield value.executable, value.log_tail()
