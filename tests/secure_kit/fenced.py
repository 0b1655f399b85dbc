"""A NATS server with the accounts of `deploy/nats`, and whoever may connect to it."""

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from nats.aio.client import Client

from sexton.holder import Holder, HolderSettings
from sexton.schemas.refusal import Refusal, parse_refusal
from sexton.worker.adapters.nats_client import HardenedClient
from sexton.worker.app import Worker
from sexton.worker.embedded import NatsServer, ValkeyServer
from sexton.worker.settings import Settings
from tests.secure_kit.keys import Key, new_key

ROOT: Final = Path(__file__).parents[2]
ACCOUNTS: Final = ROOT / "deploy/nats/accounts.conf"
ROLES: Final = ("worker", "pager", "operator", "alice", "bob", "observer")
INBOXES: Final = {
    "worker": "_SEXTON.worker",
    "pager": "_SEXTON.pager",
    "operator": "_INBOX_OPS",
    "alice": "_INBOX.alice",
    "bob": "_INBOX.bob",
    "observer": "_INBOX.observer",
}
QUICKLY: Final[dict[str, Any]] = {"outcome_timeout_s": 2.0, "command_tries": 2, "rpc_tries": 2}
"""A holder that gives up soon."""
IN_PARTS: Final[dict[str, Any]] = {
    "partitions": 2,
    "ack_wait_s": 1.0,
    "summarise_concurrency": 1,
    "retry_delay_s": 0.02,
    "io_timeout_s": 2.0,
}


def include(server_folder: Path, path: Path) -> str:
    """A line of configuration that includes a file. The server takes the path relative to its own."""
    return f'include "{os.path.relpath(path, server_folder)}"'


@dataclass
class Fenced:
    """The servers, and a key for each role."""

    nats: NatsServer
    valkey: ValkeyServer
    folder: Path
    keys: dict[str, Key]
    clients: list[Client] = field(default_factory=list)

    def settings(self, role: str = "worker", **more: Any) -> Settings:
        """Settings of a worker, a pager or an operator, with that role's key."""
        fields: dict[str, Any] = {
            "nats_url": self.nats.url,
            "nats_nkey_file": self.keys[role].seed_file(self.folder),
            "redis_url": self.valkey.url,
            "cold_url": (self.folder / "cold").as_uri(),
            **IN_PARTS,
        }
        return Settings(**(fields | more))

    def worker(self, **more: Any) -> Worker:
        """A worker with the worker's key."""
        return Worker(self.settings(**more))

    def holder(self, role: str, **more: Any) -> Holder:
        """A holder with that role's key and inbox."""
        chosen = HolderSettings(**{"lease_ttl_s": 3.0, **QUICKLY, **more})
        return Holder.connect(
            self.nats.url,
            name=role,
            settings=chosen,
            inbox_prefix=INBOXES[role],
            nkeys_seed=str(self.keys[role].seed_file(self.folder)),
        )

    async def plain(self, role: str, inbox: str | None = None) -> "Plain":
        """A plain client with that role's key, as somebody would use who means harm."""
        refused: list[Refusal] = []

        async def failed(error: Exception) -> None:
            refusal = parse_refusal(str(error))
            assert refusal is not None, error
            refused.append(refusal)

        client = HardenedClient()
        await client.connect(
            self.nats.url,
            nkeys_seed=str(self.keys[role].seed_file(self.folder)),
            inbox_prefix=inbox or INBOXES[role],
            error_cb=failed,
        )
        self.clients.append(client)
        return Plain(client, refused)


@dataclass
class Plain:
    """A client, and what it was refused."""

    client: Client
    refused: list[Refusal]

    async def may_publish(self, subject: str, data: bytes = b"{}", **more: Any) -> bool:
        """Publishes; whether the server let it."""
        self.refused.clear()
        await self.client.publish(subject, data, **more)
        await self.client.flush()
        return not self.refused

    async def may_subscribe(self, subject: str) -> bool:
        """Subscribes; whether the server let it."""
        self.refused.clear()
        subscription = await self.client.subscribe(subject)
        await self.client.flush()
        await subscription.unsubscribe()
        return not self.refused

    async def may(self, publish: Sequence[str] = (), subscribe: Sequence[str] = ()) -> set[str]:
        """Those of the subjects that the server let it publish on, or subscribe to."""
        return {s for s in publish if await self.may_publish(s)} | {
            s for s in subscribe if await self.may_subscribe(s)
        }


@asynccontextmanager
async def fenced(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, extra: str = "", valkey: ValkeyServer | None = None
) -> AsyncIterator[Fenced]:
    """NATS with exactly the accounts that are shipped, its keys in the environment; and a Valkey."""
    keys = {role: new_key() for role in ROLES}
    for role, key in keys.items():
        monkeypatch.setenv(f"SEXTON_{role.upper()}_NKEY", key.public)
    where = folder / "nats"
    server = NatsServer(where, extra_config=include(where, ACCOUNTS) + "\n" + extra)
    redis = valkey or ValkeyServer(folder / "valkey")
    async with server, redis:
        found = Fenced(server, redis, folder, keys)
        try:
            yield found
        finally:
            await asyncio.gather(*(client.close() for client in found.clients))
