"""How a process of the service connects to NATS: as whom, over what, and what if that is lost."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import nkeys  # type: ignore[import-untyped]

from sexton.schemas import subjects
from sexton.schemas.credentials import check_seed, read_credentials
from sexton.schemas.errors import InvalidInput
from sexton.worker.settings.connections import ConnectionSettings

_LASTING: Final[Mapping[str, Any]] = {
    # FastStream's pull loop spins without yielding once a connection gives up for good.
    "max_reconnect_attempts": -1,
    "reconnect_time_wait": 0.2,
    # A frozen server would otherwise go unnoticed for minutes.
    "ping_interval": 10,
    "max_outstanding_pings": 2,
}


def nats_options(settings: ConnectionSettings, inbox_prefix: str = subjects.WORKER_INBOX) -> dict[str, Any]:
    """What nats-py's `connect` is to be given for a connection that lasts.

    Files are read here once, so that a wrong one is an error at the start. A credentials file and the seed of
    an nkey are read again at every reconnect: a new one may be put in place while the process runs.

    Raises:
        InvalidInput: a file is missing, cannot be read, or holds something else; `field` names the setting.
    """
    return {
        "connect_timeout": settings.io_timeout_s,
        **_LASTING,
        "inbox_prefix": inbox_prefix,
        **identity(settings),
        **tls(settings),
    }


def identity(settings: ConnectionSettings) -> dict[str, Any]:
    """As whom to connect. Raises `InvalidInput`."""
    if settings.nats_creds_file is not None:
        found = read_credentials(_read(settings.nats_creds_file, "nats_creds_file"), "nats_creds_file")
        _check_seed(found.seed, "nats_creds_file")
        return {"user_credentials": str(settings.nats_creds_file)}
    if settings.nats_nkey_file is not None:
        _check_seed(_read(settings.nats_nkey_file, "nats_nkey_file"), "nats_nkey_file")
        return {"nkeys_seed": str(settings.nats_nkey_file)}
    if settings.nats_user is not None and settings.nats_password is not None:
        return {"user": settings.nats_user, "password": settings.nats_password.get_secret_value()}
    if settings.nats_token is not None:
        return {"token": settings.nats_token.get_secret_value()}
    return {}


def tls(settings: ConnectionSettings) -> dict[str, Any]:
    """What TLS needs to know, if anything was said about it. Raises `InvalidInput`."""
    ca, cert, key = settings.nats_tls_ca_file, settings.nats_tls_cert_file, settings.nats_tls_key_file
    if ca is None and cert is None and settings.nats_tls_hostname is None:
        return {}
    options: dict[str, Any] = {"tls": _context(ca, cert, key)}
    if settings.nats_tls_hostname is not None:
        options["tls_hostname"] = settings.nats_tls_hostname
    return options


def _context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if ca is not None:
        _read(ca, "nats_tls_ca_file")
        try:
            context = ssl.create_default_context(cafile=ca)
        except (ssl.SSLError, OSError):
            raise InvalidInput(f"{str(ca)!a} holds no certificates", field="nats_tls_ca_file") from None
    if cert is not None and key is not None:
        _read(cert, "nats_tls_cert_file")
        _read(key, "nats_tls_key_file")
        try:
            # A password is asked for on the terminal unless there is one.
            context.load_cert_chain(cert, key, password="")
        except (ssl.SSLError, OSError):
            raise InvalidInput(
                f"{str(cert)!a} and {str(key)!a} are no certificate and its key", field="nats_tls_cert_file"
            ) from None
    return context


def _check_seed(seed: bytes, field: str) -> None:
    check_seed(seed, field)
    try:
        nkeys.from_seed(bytearray(seed.strip())).wipe()
    except (nkeys.NkeysError, ValueError):
        raise InvalidInput(f"{field}: the seed is damaged", field=field) from None


def _read(path: Path, field: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise InvalidInput(f"{field}: cannot read {str(path)!a}: {e.strerror}", field=field) from None
