"""What a program may hand on to nats-py, checked: it fails on much of it late, in silence, or by hanging."""

import importlib.util
import inspect
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nats.aio.client import Client

from sexton.schemas import subjects
from sexton.schemas.credentials import check_seed, read_credentials
from sexton.schemas.errors import InvalidInput

_KNOWN: Final = frozenset(inspect.signature(Client.connect).parameters) - {"self", "servers"}
_KEYS: Final = ("user_credentials", "nkeys_seed", "nkeys_seed_str")


def check_options(options: Mapping[str, Any]) -> None:
    """Checks options for nats-py's `connect`.

    Raises:
        InvalidInput: one that it does not have, or whose value cannot be. `field` is its name; the message
            repeats no secret.
    """
    for name, value in options.items():
        if name not in _KNOWN:
            raise InvalidInput(f"{name}: no such option of a connection to NATS", field=name)
        if value is None:
            continue
        if name in _KEYS:
            _check_key(name, value)
        elif name == "tls" and not isinstance(value, ssl.SSLContext):
            raise InvalidInput("tls: is an ssl.SSLContext", field=name)
        elif name == "inbox_prefix":
            _check_prefix(value)


def _check_key(name: str, value: Any) -> None:
    if importlib.util.find_spec("nkeys") is None:
        raise InvalidInput(f"{name}: needs pip install 'sexton[nkeys]'", field=name)
    if name == "nkeys_seed_str":
        check_seed(str(value).encode(), name)
    elif name == "nkeys_seed":
        check_seed(_content(name, value), name)
    elif isinstance(value, str | Path):
        read_credentials(_content(name, value), name)
    elif isinstance(value, tuple):
        for part in value:
            _content(name, part)


def _content(name: str, value: Any) -> bytes:
    try:
        return Path(value).read_bytes()
    except (OSError, TypeError) as e:
        why = e.strerror if isinstance(e, OSError) else "no path"
        raise InvalidInput(f"{name}: cannot read that file: {why}", field=name) from None


def _check_prefix(value: Any) -> None:
    prefix = value.decode(errors="replace") if isinstance(value, bytes) else value
    if not isinstance(prefix, str) or not subjects.is_inbox(f"{prefix}.x"):
        raise InvalidInput(
            "inbox_prefix: begins with _INBOX, such as _INBOX.alice; the service answers nowhere else",
            field="inbox_prefix",
        )
