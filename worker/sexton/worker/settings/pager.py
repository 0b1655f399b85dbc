"""How pages are sent."""

from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from sexton.core.incidents import PageRules

_WEEK_S = 7 * 24 * 3600.0


class PagerSettings(BaseModel):
    """Of the pager alone."""

    model_config = ConfigDict(use_attribute_docstrings=True)

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

    @model_validator(mode="after")
    def _pager_consistent(self) -> Self:
        if self.pager_retry_max_s < self.pager_retry_first_s:
            raise ValueError("pager_retry_max_s must not be below pager_retry_first_s")
        return self

    @property
    def page_targets(self) -> list[SecretStr]:
        """The addresses of `pager_urls`, one by one."""
        return [SecretStr(url) for url in self.pager_urls.get_secret_value().split()]

    @property
    def page_rules(self) -> PageRules:
        """The times that the core's rules keep."""
        return PageRules(
            repeat_ms=_ms(self.pager_repeat_s),
            attempt_ms=_ms(self.pager_attempt_s),
            retry_first_ms=_ms(self.pager_retry_first_s),
            retry_max_ms=_ms(self.pager_retry_max_s),
        )


def _ms(seconds: float) -> int:
    return max(1, round(1000 * seconds))
