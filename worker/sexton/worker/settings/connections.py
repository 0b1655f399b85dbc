"""Where the servers are, and as whom to talk to them."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, model_validator

from sexton.schemas.addresses import check_nats_urls
from sexton.schemas.errors import InvalidInput

_INBOX_PREFIX: Final = r"^_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*$"


def _split(urls: str) -> list[str]:
    return [url.strip() for url in urls.split(",") if url.strip()]


def _nats_url(urls: str) -> str:
    try:
        check_nats_urls(_split(urls), "nats_url")
    except InvalidInput as e:
        raise ValueError(e.message) from None
    return urls


class ConnectionSettings(BaseModel):
    """NATS, Redis and the cold store."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    nats_url: Annotated[str, AfterValidator(_nats_url)] = "nats://127.0.0.1:4222"
    """Where NATS is; several addresses are separated by commas."""
    nats_creds_file: Path | None = None
    """A credentials file: the user's JWT and seed."""
    nats_nkey_file: Path | None = None
    """A file with the seed of an nkey."""
    nats_user: str | None = None
    """User name; `nats_password` belongs to it."""
    nats_password: SecretStr | None = None
    """Password of `nats_user`."""
    nats_token: SecretStr | None = None
    """A token in the place of a user."""
    nats_tls_ca_file: Path | None = None
    """Certificates of the authorities that NATS's certificate may come from; the system's, if not given."""
    nats_tls_cert_file: Path | None = None
    """A client certificate; `nats_tls_key_file` belongs to it."""
    nats_tls_key_file: Path | None = None
    """The key of `nats_tls_cert_file`."""
    nats_tls_hostname: str | None = None
    """The name that NATS's certificate must have, if it is not the address's."""
    nats_inbox_prefix: Annotated[str, Field(pattern=_INBOX_PREFIX)] | None = None
    """Where the command line gets its answers: what its user may listen below, such as `_INBOX.alice`."""

    redis_url: SecretStr = SecretStr("redis://127.0.0.1:6379/0")
    """Where Redis or Valkey is; user and password may be in it. `rediss://` for TLS."""
    redis_username: str | None = None
    """User of Redis, if it is not in `redis_url`."""
    redis_password: SecretStr | None = None
    """Password of Redis, if it is not in `redis_url`."""
    redis_tls_ca_file: Path | None = None
    """Certificates of the authorities that Redis's certificate may come from; the system's, if not given."""

    cold_url: str = Field(default_factory=lambda: Path(".sexton/cold").resolve().as_uri())
    """The cold store: `file:///folder`, `s3://bucket/prefix`, `gs://…`, `az://…`, or `memory:///`. Keys and
    regions of a cloud come from its own variables, such as AWS_ACCESS_KEY_ID."""

    io_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """One answer of NATS or the cold store."""
    retry_delay_s: Annotated[float, Field(gt=0)] = 0.1
    """First delay after a transient fault; doubles up to `retry_delay_max_s`."""
    retry_delay_max_s: Annotated[float, Field(gt=0)] = 15.0
    """Longest delay after a transient fault."""

    @model_validator(mode="after")
    def _connections_consistent(self) -> Self:
        ways = ("nats_creds_file", "nats_nkey_file", "nats_user", "nats_token")
        given = [name for name in ways if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; NATS takes one of them")
        if (self.nats_password is None) != (self.nats_user is None):
            raise ValueError("nats_user and nats_password are given together or not at all")
        if (self.nats_tls_cert_file is None) != (self.nats_tls_key_file is None):
            raise ValueError("nats_tls_cert_file and nats_tls_key_file are given together or not at all")
        if self.retry_delay_max_s < self.retry_delay_s:
            raise ValueError("retry_delay_max_s must not be below retry_delay_s")
        return self

    @property
    def nats_servers(self) -> list[str]:
        """The addresses of `nats_url`, one by one."""
        return _split(self.nats_url)
