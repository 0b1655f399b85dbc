"""What the worker and the pager count, in Prometheus's conventions. No label ever holds an id.

One registry of this process, apart from the library's global one, so that an embedding program's metrics and
these do not meet by accident. `docs/metrics.md` says what each is for, and how several workers add up; a test
holds the two together.
"""

import platform
from importlib.metadata import version
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector

REGISTRY: Final = CollectorRegistry(auto_describe=True)

_FAST_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)

# --- the program -------------------------------------------------------------------------------------

ProcessCollector(registry=REGISTRY)

BUILD: Final = Info("sexton_build", "What runs here.", registry=REGISTRY)
BUILD.info({"version": version("sexton"), "python": platform.python_version()})

READY: Final = Gauge("sexton_ready", "Whether the program is ready, as /readyz says.", registry=REGISTRY)
CHECK_OK: Final = Gauge(
    "sexton_check_ok", "Whether one check of /readyz is satisfied.", ["check"], registry=REGISTRY
)

# --- commands and commits ----------------------------------------------------------------------------

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

COMMIT_SECONDS: Final = Histogram(
    "sexton_commit_seconds",
    "From the publish of a record to the log's acknowledgement.",
    buckets=_FAST_S,
    registry=REGISTRY,
)
BUMP_SECONDS: Final = Histogram(
    "sexton_bump_seconds",
    "From the publish of a record to its broadcast's arrival at the worker that published it.",
    buckets=_FAST_S,
    registry=REGISTRY,
)
CONFLICTS: Final = Counter(
    "sexton_commit_conflicts",
    "Commits whose compare-and-swap was lost or unanswered, and that were planned again.",
    registry=REGISTRY,
)
PENDING: Final = Gauge(
    "sexton_pending_messages",
    "Messages of a work queue that are not finished, those being handled included.",
    ["stream"],
    registry=REGISTRY,
)

OLDEST_PENDING_SECONDS: Final = Gauge(
    "sexton_oldest_pending_seconds",
    "Age of the oldest message of a work queue that is not finished; 0 if there is none.",
    ["stream"],
    registry=REGISTRY,
)

# --- fetches -----------------------------------------------------------------------------------------

FETCHES: Final = Counter(
    "sexton_fetches", "Pointers resolved, by where the bytes came from.", ["tier"], registry=REGISTRY
)
RE_EXPANSIONS: Final = Counter(
    "sexton_re_expansions", "Those of the fetches whose leaf is under a summary.", registry=REGISTRY
)
FETCH_SECONDS: Final = Histogram(
    "sexton_fetch_seconds", "One fetch that was answered.", ["tier"], buckets=_FAST_S, registry=REGISTRY
)
FETCH_ERRORS: Final = Counter(
    "sexton_fetch_errors",
    "Fetches that were refused or failed, by the error's code.",
    ["code"],
    registry=REGISTRY,
)
HARD_FAILURES: Final = Counter(
    "sexton_hard_failures", "Observations of a proven loss of committed bytes.", ["reason"], registry=REGISTRY
)

# --- holders and tombstones --------------------------------------------------------------------------

LIVE_HOLDERS: Final = Gauge(
    "sexton_live_holders", "Good leases of holders on contexts, over all workers.", registry=REGISTRY
)
LIVE_PINS: Final = Gauge("sexton_live_pins", "Pins of live holders, over all workers.", registry=REGISTRY)
TOMBSTONES: Final = Gauge(
    "sexton_tombstones", "Tombstones that are not collected yet, over all workers.", registry=REGISTRY
)
SWEEPS: Final = Counter("sexton_sweeps", "Sweeps of one context for tombstones.", registry=REGISTRY)
COLLECTED: Final = Counter("sexton_collected_versions", "Tombstones collected.", registry=REGISTRY)
FREED_BYTES: Final = Counter("sexton_freed_bytes", "Bytes of collected tombstones.", registry=REGISTRY)
CALLED_OFF: Final = Counter(
    "sexton_called_off_versions", "Collections called off for a pin that came in time.", registry=REGISTRY
)
ORPHAN_BYTES: Final = Counter("sexton_orphan_bytes", "Bytes deleted that no record named.", registry=REGISTRY)

# --- what went wrong ---------------------------------------------------------------------------------

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
REFUSED: Final = Counter(
    "sexton_refused_operations",
    "Operations that NATS refused this program.",
    ["operation"],
    registry=REGISTRY,
)

# --- the pager ---------------------------------------------------------------------------------------

PAGES: Final = Counter(
    "sexton_pages", "Pages accepted by at least one target, by kind.", ["kind"], registry=REGISTRY
)
PAGE_ATTEMPTS: Final = Counter(
    "sexton_page_attempts",
    "Attempts to send a page to one target: accepted, or failed.",
    ["outcome"],
    registry=REGISTRY,
)
OPEN_INCIDENTS: Final = Gauge(
    "sexton_open_incidents", "Incidents that are not over, by status.", ["status"], registry=REGISTRY
)
OLDEST_UNPAGED_SECONDS: Final = Gauge(
    "sexton_oldest_unpaged_seconds",
    "Age of the oldest incident that no target has been told of; 0 if there is none.",
    registry=REGISTRY,
)
