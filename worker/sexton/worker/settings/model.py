"""The settings object, put together from its parts."""

from typing import Final

from pydantic_settings import BaseSettings, SettingsConfigDict

from sexton.worker.settings.connections import ConnectionSettings
from sexton.worker.settings.pager import PagerSettings
from sexton.worker.settings.process import ProcessSettings
from sexton.worker.settings.worker import WorkerSettings

PREFIX: Final = "SEXTON_"
"""Of each variable; the rest of its name is the field's, in capitals."""


class Settings(ConnectionSettings, WorkerSettings, PagerSettings, ProcessSettings, BaseSettings):
    """Settings of a worker and of a pager, from the environment (`SEXTON_NATS_URL` …) or from arguments."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        # Compose files and charts pass a variable that is not set on as an empty one.
        env_ignore_empty=True,
        frozen=True,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )
