"""Every bound of a holder: what it waits, tries and keeps. Units are last in the names."""

from dataclasses import dataclass, fields

from sexton.schemas.errors import InvalidInput
from sexton.schemas.leases import MAX_TTL_MS, MIN_TTL_MS
from sexton.schemas.limits import MAX_OPEN_CONTEXTS


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderSettings:
    """How a holder follows, asks and remembers. The defaults suit a local network.

    Raises:
        InvalidInput: a bound that is not positive, or bounds that contradict each other.
    """

    max_contexts: int = MAX_OPEN_CONTEXTS
    """Contexts open at once; one more is `TooManyContexts`."""

    # --- following ---
    staleness_bound_s: float = 15.0
    """Nothing is served from memory unless the head was confirmed within this time."""
    sync_interval_s: float = 5.0
    """How often the head is asked for, broadcast or not."""
    sync_jitter: float = 0.2
    """By which share the interval varies, so that a fleet does not ask in step."""
    gap_buffer_records: int = 256
    """Bumps kept while the ones before them are fetched."""
    recent_spans: int = 20_000
    """Recent records kept for readers of bumps and to tell repeats, measured in the spans they name."""
    read_your_writes_s: float = 0.5
    """How long to wait for the bump of an own command before asking for it."""

    # --- leases ---
    lease_ttl_s: float = 15.0
    """How long the registry keeps this holder's pins without hearing of it; a heartbeat is sent three times
    in that time. The service has a longest one; a holder that asks for more gets that, and logs it."""

    # --- asking ---
    connect_timeout_s: float = 5.0
    """For the first connection. Later ones are tried for as long as it takes."""
    rpc_timeout_s: float = 2.0
    """The longest silence before the next part of a reply."""
    rpc_tries: int = 3
    """How often a request is sent before `Unavailable`."""
    backoff_s: float = 0.1
    """Wait after a first failed try, at most; doubled with each."""
    backoff_cap_s: float = 2.0
    """The longest of these waits."""

    # --- commands ---
    ack_timeout_s: float = 2.0
    """For the command to be stored."""
    outcome_timeout_s: float = 5.0
    """For its outcome, before it is sent again."""
    summary_timeout_s: float = 120.0
    """The same, for a compaction whose summary the service makes."""
    command_tries: int = 4
    """How often a command is sent before `OutcomeUnknown`."""

    # --- bytes ---
    cache_bytes: int = 64 * 1024 * 1024
    """Bytes of spans kept in memory, over all contexts."""
    cache_span_bytes: int = 256 * 1024
    """Spans up to this size are fetched whole and kept; of larger ones only the range asked for."""
    fetches_in_flight: int = 8
    """Fetches at a time while a view is rendered."""
    settle_tries: int = 5
    """How often to start over because the context changed meanwhile, before `Unsettled`."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value < 0 or (value == 0 and field.name not in ("sync_jitter", "cache_bytes")):
                raise InvalidInput(f"{field.name} is {value}, must be positive", field=field.name)
        if not MIN_TTL_MS <= self.lease_ttl_s * 1000 <= MAX_TTL_MS:
            raise InvalidInput(
                f"lease_ttl_s is {self.lease_ttl_s:g}, must be {MIN_TTL_MS // 1000} to {MAX_TTL_MS // 1000}",
                field="lease_ttl_s",
            )
        if self.sync_jitter >= 1:
            raise InvalidInput("sync_jitter must be below 1", field="sync_jitter")
        if self.sync_interval_s * (1 + self.sync_jitter) >= self.staleness_bound_s:
            raise InvalidInput(
                f"asking for the head every {self.sync_interval_s:g} s does not fit a staleness bound of "
                f"{self.staleness_bound_s:g} s",
                field="sync_interval_s",
            )
