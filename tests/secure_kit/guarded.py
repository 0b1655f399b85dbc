"""A Valkey with the users of `deploy/valkey`."""

import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from sexton.worker.embedded import EmbeddedServers, ValkeyServer

DEPLOY: Final = Path(__file__).parents[2] / "deploy/valkey"
PASSWORD: Final = "right"
LOOKING: Final = "user probe on nopass ~* &* +@all\n"
"""A user for the test to look with, beside those that are shipped."""


class Guarded(ValkeyServer):
    """A Valkey that asks for a user; its readiness is seen by a refusal."""

    async def _probe(self, pid: int, port: int) -> int | None:
        admin = Redis(port=port, username="probe", password="any", socket_timeout=2)
        try:
            found: Any = await admin.info("server")
        except (ResponseError, OSError, ConnectionError):
            return None
        finally:
            await admin.aclose()
        return port if found["process_id"] == pid else None


def users(folder: Path, password: str = PASSWORD) -> Path:
    """The users that are shipped, with a password; and one for the test to look with."""
    path = folder / "users.acl"
    digest = hashlib.sha256(password.encode()).hexdigest()
    shipped = (DEPLOY / "users.acl").read_text().replace("PASSWORD_SHA256", digest)
    path.write_text(shipped + LOOKING)
    return path


@asynccontextmanager
async def guarded(folder: Path, password: str = PASSWORD, nats: str = "") -> AsyncIterator[EmbeddedServers]:
    """Servers: that Valkey, and a NATS with more configuration."""
    servers = EmbeddedServers(folder / "servers")
    servers.nats.extra_config = nats
    servers.valkey = Guarded(folder / "servers/valkey", extra_config=f'aclfile "{users(folder, password)}"')
    async with servers:
        yield servers
