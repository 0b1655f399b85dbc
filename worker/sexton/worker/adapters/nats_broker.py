"""FastStream's broker on the hardened client."""

from typing import Any

from faststream.nats import NatsBroker
from nats.aio.client import Client

from sexton.worker.adapters.nats_client import HardenedClient, OnRefusal


class HardenedBroker(NatsBroker):
    """FastStream's broker on that client.

    Args:
        client_options: for nats-py's `connect`; FastStream would not take all of them.
        on_refusal: see `HardenedClient`.
        more: for FastStream.
    """

    def __init__(
        self,
        servers: list[str],
        *,
        client_options: dict[str, Any],
        on_refusal: OnRefusal | None = None,
        **more: Any,
    ) -> None:
        super().__init__(servers, **more)
        self._client_options = client_options
        self._on_refusal = on_refusal

    async def _connect(self) -> Client:
        connection = HardenedClient(self._on_refusal)
        await connection.connect(**{**self._connection_kwargs, **self._client_options})
        self.config.connect(connection)
        return connection
