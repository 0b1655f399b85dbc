"""Where a holder's log goes: to the program's structlog if it has set one up, else warnings to stderr.

structlog on its own prints to stdout, which may be the data of the program that a holder is embedded in.
"""

import logging
import sys
from typing import Any

import structlog


def logger(**bound: Any) -> Any:
    """A logger that says `bound` with every event. Ask for it at run time, not at import."""
    if structlog.is_configured():
        return structlog.get_logger().bind(**bound)
    return structlog.wrap_logger(
        structlog.PrintLogger(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    ).bind(**bound)
