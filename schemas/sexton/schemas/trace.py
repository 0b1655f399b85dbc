"""How a trace travels: two optional headers of any message, in the form of the W3C's Trace Context.

They say whose doing a message is, to those who look at traces, and nothing else: no message means anything
else for having them. What a stranger writes into them is bounded here, in one place for all readers.
"""

import re
from collections.abc import Mapping
from typing import Final

TRACEPARENT: Final = "traceparent"
"""Which span of which trace sent the message, and whether the trace is recorded."""
TRACESTATE: Final = "tracestate"
"""What the tools of those who take part add. Passed on as it is; without `traceparent` it says nothing."""

TRACEPARENT_PATTERN: Final = r"^00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}$"
MAX_TRACESTATE_BYTES: Final = 512
"""As much as a sender may count on. A longer one is dropped whole, and the trace goes on without."""

_TRACEPARENT: Final = re.compile(TRACEPARENT_PATTERN)
_TRACESTATE: Final = re.compile(rf"[ -~]{{1,{MAX_TRACESTATE_BYTES}}}")


def trace_headers(headers: Mapping[str, str] | None) -> dict[str, str]:
    """The trace that a message carries, fit to be put on another; empty if it carries none, or no proper one.

    Args:
        headers: all headers of a message, from anybody. Names as written here, or with a capital letter, as
            some libraries send them.
    """
    if not headers:
        return {}
    parent = _found(headers, TRACEPARENT)
    if parent is None or _TRACEPARENT.fullmatch(parent) is None:
        return {}
    state = _found(headers, TRACESTATE)
    if state is None or _TRACESTATE.fullmatch(state) is None:
        return {TRACEPARENT: parent}
    return {TRACEPARENT: parent, TRACESTATE: state}


def _found(headers: Mapping[str, str], name: str) -> str | None:
    found = headers.get(name)
    return found if found is not None else headers.get(name.capitalize())
