"""FastStream's broker on the hardened client."""

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

from faststream import AckPolicy
from faststream.nats import NatsBroker
from faststream.nats.message import NatsMessage
from nats.aio.client import Client

from sexton.worker.adapters.nats_client import HardenedClient, OnRefusal
from sexton.worker.settings import Settings

_LAST_S: Final = 1.0


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


def make_broker(
    settings: Settings,
    name: str,
    client_options: dict[str, Any],
    on_refusal: OnRefusal,
    *,
    on_reconnect: Callable[[], Awaitable[None]],
) -> HardenedBroker:
    """A program's broker, not yet connected. Its handlers get messages as they came, and settle them."""
    return HardenedBroker(
        settings.nats_servers,
        client_options=client_options,
        on_refusal=on_refusal,
        name=name,
        reconnected_cb=on_reconnect,
        # Handlers get the message itself and validate its bytes once, in the codec.
        decoder=_as_it_is,
        apply_types=False,
        ack_policy=AckPolicy.MANUAL,
        # What is in flight has had its grace time by then.
        graceful_timeout=_LAST_S,
        logger=logging.getLogger("sexton.faststream"),
    )


async def _as_it_is(message: NatsMessage) -> NatsMessage:
    return message
