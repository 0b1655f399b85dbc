"""Logging: structlog, one event per line on stderr, named `component.event`.

Ids are bound as context, so that every line of a command's way carries them. Span content is never logged.
"""

import logging
import sys

import structlog
from structlog.tracebacks import ExceptionDictTransformer

from sexton.tracing import log_ids


def configure(level: str = "INFO", *, json: bool = True) -> None:
    """Sends structlog and the standard library's logging to stderr in one form."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        log_ids,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    render: list[structlog.types.Processor] = (
        # Either way without the local variables of each frame: they hold content.
        [
            structlog.processors.ExceptionRenderer(ExceptionDictTransformer(show_locals=False)),
            structlog.processors.JSONRenderer(),
        ]
        if json
        else [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *render],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # The client logs each reconnect attempt with a traceback; the worker says so itself, once.
    logging.getLogger("nats").setLevel(logging.CRITICAL)
    logging.getLogger("sexton.faststream").setLevel(logging.WARNING)
    # What it says of its start and end, the program says itself.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
