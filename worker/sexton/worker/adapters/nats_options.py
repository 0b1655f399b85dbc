"""How a program of the service connects to NATS."""

from typing import Any

from sexton.worker.settings import Settings


def nats_options(settings: Settings) -> dict[str, Any]:
    """Arguments of nats-py's `connect`, and of FastStream's broker, besides the servers and a name."""
    return {
        "connect_timeout": settings.io_timeout_s,
        # FastStream's pull loop spins without yielding once a connection gives up for good.
        "max_reconnect_attempts": -1,
        "reconnect_time_wait": 0.2,
        # A frozen server would otherwise go unnoticed for minutes.
        "ping_interval": 10,
        "max_outstanding_pings": 2,
    }
