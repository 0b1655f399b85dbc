"""What the worker counts, in Prometheus's conventions. No label ever holds an id.

One registry of this process, apart from the library's global one, so that an embedding program's metrics and
these do not meet by accident.
"""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

REGISTRY: Final = CollectorRegistry(auto_describe=True)

_FAST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

COMMANDS: Final = Counter(
    "sexton_commands",
    "Commands that came to an outcome.",
    ["kind", "outcome"],
    registry=REGISTRY,
)
"""`kind` as in the subject; `outcome` is committed, no_change, deferred, or a rejection code."""

COMMAND_SECONDS: Final = Histogram(
    "sexton_command_seconds",
    "From the delivery of a command to its outcome.",
    ["kind"],
    buckets=_FAST_S,
    registry=REGISTRY,
)

LOST_RACES: Final = Counter(
    "sexton_lost_races", "Commits whose compare-and-swap was lost or unanswered.", registry=REGISTRY
)

FETCHES: Final = Counter(
    "sexton_fetches", "Pointers resolved, by where the bytes came from.", ["tier"], registry=REGISTRY
)
RE_EXPANSIONS: Final = Counter(
    "sexton_re_expansions", "Fetches of leaves under a summary.", registry=REGISTRY
)
FETCH_ERRORS: Final = Counter(
    "sexton_fetch_errors",
    "Fetches that were refused or failed, by the error's code.",
    ["code"],
    registry=REGISTRY,
)
HARD_FAILURES: Final = Counter(
    "sexton_hard_failures", "Proven losses of committed bytes.", ["reason"], registry=REGISTRY
)

SWEEPS: Final = Counter("sexton_sweeps", "Sweeps of one context for tombstones.", registry=REGISTRY)
COLLECTED: Final = Counter("sexton_collected_versions", "Tombstones collected.", registry=REGISTRY)
FREED_BYTES: Final = Counter("sexton_freed_bytes", "Bytes of collected tombstones.", registry=REGISTRY)
CALLED_OFF: Final = Counter(
    "sexton_called_off_versions", "Collections called off for a pin that came in time.", registry=REGISTRY
)
WAITING: Final = Gauge(
    "sexton_waiting_tombstones",
    "Tombstones that the last turn of this worker's sweeps left where they were.",
    registry=REGISTRY,
)
ORPHAN_BYTES: Final = Counter("sexton_orphan_bytes", "Bytes deleted that no record named.", registry=REGISTRY)

DEAD_LETTERS: Final = Counter(
    "sexton_dead_letters", "Messages given up, by reason.", ["reason"], registry=REGISTRY
)
GIVEN_BACK: Final = Counter(
    "sexton_given_back",
    "Messages given back to be delivered again, by stream.",
    ["stream"],
    registry=REGISTRY,
)
SUMMARISE_FAILURES: Final = Counter(
    "sexton_summarise_failures", "Calls of the summariser that failed.", registry=REGISTRY
)
