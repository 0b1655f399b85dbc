"""Addresses of NATS servers, checked before a client is given them: it may fail on them in any way."""

from collections.abc import Sequence
from typing import Final

from pydantic_core import Url

from sexton.schemas.errors import InvalidInput

_SCHEMES: Final = frozenset({"nats", "tls", "ws", "wss"})


def check_nats_urls(urls: Sequence[str], field: str) -> None:
    """Checks that each is the address of a NATS server: `nats://HOST:PORT`, or without the scheme.

    Raises:
        InvalidInput: one is not, or there is none. The message does not repeat it: a password may be in it.
    """
    if not urls or not all(map(_is_address, urls)):
        raise InvalidInput(
            f"{field} is not the address of a NATS server, such as nats://HOST:PORT", field=field
        )


def _is_address(url: str) -> bool:
    try:
        parts = Url(url if "://" in url else f"nats://{url}")
        known = parts.scheme in _SCHEMES and not (parts.path or "").strip("/")
        return known and bool(parts.host) and parts.port != 0
    except ValueError:  # brackets that do not close, a port that is no number
        return False
