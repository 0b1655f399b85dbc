"""What any program of the service can be told about itself."""

from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

LogLevel = Annotated[
    Literal["DEBUG", "INFO", "WARNING", "ERROR"],
    BeforeValidator(lambda given: given.upper() if isinstance(given, str) else given),
]


class ProcessSettings(BaseModel):
    """Health, metrics, traces, logs, and the end."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    http_host: str = "127.0.0.1"
    """Where health and metrics are served; `0.0.0.0` for every interface."""
    http_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    """The port of health and metrics; none is opened if this is not given. 0 takes any that is free."""
    ready_pull_s: Annotated[float, Field(gt=0)] = 10.0
    """Not ready if no pull was answered for so long."""
    tracing: bool = False
    """Whether traces are exported, to where the `OTEL_` variables say. Needs `sexton[otel]`."""

    grace_s: Annotated[float, Field(gt=0)] = 15.0
    """Time to finish what is in flight after SIGTERM."""
    log_level: LogLevel = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    log_json: bool = True
    """JSON lines on stderr; False for people."""
