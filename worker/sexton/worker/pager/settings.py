"""Everything a pager can be told: `SEXTON_` variables, those that it shares with the worker among them."""

import sys
from typing import Annotated, Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from sexton.core.incidents import PageRules

_WEEK_S = 7 * 24 * 3600.0


class PagerSettings(BaseSettings):
    """Settings of a pager, from the environment (`SEXTON_PAGER_URLS` …) or from arguments."""

    model_config = SettingsConfigDict(
        env_prefix="SEXTON_", frozen=True, use_attribute_docstrings=True, hide_input_in_errors=True
    )

    nats_url: str = "nats://127.0.0.1:4222"
    """Where NATS is; several addresses are separated by commas."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Copies of each stream; the same as the workers'."""

    pager_urls: SecretStr = SecretStr("")
    """Where pages go: Apprise URLs, separated by white space. They hold secrets and are never shown."""
    pager_dead_letters: bool = True
    """Whether dead letters page, too."""
    pager_repeat_s: Annotated[float, Field(gt=0, le=_WEEK_S)] = 4 * 3600.0
    """An incident that lasts and is not acknowledged pages again after so long."""
    pager_attempt_s: Annotated[float, Field(gt=0, le=600)] = 30.0
    """One attempt to send a page."""
    pager_retry_first_s: Annotated[float, Field(gt=0)] = 1.0
    """Between the first attempt and the second; doubles up to `pager_retry_max_s`. Attempts never end."""
    pager_retry_max_s: Annotated[float, Field(gt=0)] = 300.0
    """The longest time between two attempts."""
    pager_parallel: Annotated[int, Field(ge=1, le=64)] = 8
    """Pages sent at once."""
    pager_poll_s: Annotated[float, Field(gt=0, le=60)] = 1.0
    """How often it is looked what is due."""
    pager_lanes: Annotated[int, Field(ge=1, le=256)] = 8
    """Records of each stream that may wait for their page at once. Fixed when the consumer is made."""
    pager_ack_wait_s: Annotated[float, Field(gt=0.3, le=3600)] = 30.0
    """A pager that is silent for so long has lost its record to another. Fixed when the consumer is made."""

    io_timeout_s: Annotated[float, Field(gt=0)] = 5.0
    """One answer of NATS."""
    retry_delay_s: Annotated[float, Field(gt=0)] = 0.1
    """First delay after a fault of NATS; doubles up to `retry_delay_max_s`."""
    retry_delay_max_s: Annotated[float, Field(gt=0)] = 15.0
    """Longest delay after a fault of NATS."""
    grace_s: Annotated[float, Field(gt=0)] = 15.0
    """Time to finish what is in flight after SIGTERM."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING, ERROR."""
    log_json: bool = True
    """JSON lines on stderr; False for people."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.pager_retry_max_s < self.pager_retry_first_s:
            raise ValueError("pager_retry_max_s must not be below pager_retry_first_s")
        if self.retry_delay_max_s < self.retry_delay_s:
            raise ValueError("retry_delay_max_s must not be below retry_delay_s")
        return self

    @property
    def ack_wait_s(self) -> float:
        """For `Delivery`."""
        return self.pager_ack_wait_s

    @property
    def max_deliveries(self) -> int:
        """For `Delivery`: a record is never given up, however often it could not be handled."""
        return sys.maxsize

    @property
    def nats_servers(self) -> list[str]:
        """The addresses of `nats_url`, one by one."""
        return [url.strip() for url in self.nats_url.split(",") if url.strip()]

    @property
    def urls(self) -> list[SecretStr]:
        """The addresses of `pager_urls`, one by one."""
        return [SecretStr(url) for url in self.pager_urls.get_secret_value().split()]

    @property
    def rules(self) -> PageRules:
        """The times that the core's rules keep."""
        return PageRules(
            repeat_ms=_ms(self.pager_repeat_s),
            attempt_ms=_ms(self.pager_attempt_s),
            retry_first_ms=_ms(self.pager_retry_first_s),
            retry_max_ms=_ms(self.pager_retry_max_s),
        )


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
