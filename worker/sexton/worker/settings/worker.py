"""How commands are committed, texts are kept, and tombstones are collected."""

from datetime import timedelta
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from sexton.schemas.leases import MAX_TTL_MS, MIN_TTL_MS
from sexton.schemas.limits import MAX_COMMAND_BYTES


class WorkerSettings(BaseModel):
    """Of the worker; `replicas` of the pager, too."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    partitions: Annotated[int, Field(ge=1, le=256)] = 16
    """Ordered lanes of the command stream. Fixed when the stream is made."""
    replicas: Annotated[int, Field(ge=1, le=5)] = 1
    """Copies of each stream."""

    waiting_max_bytes: Annotated[int, Field(ge=2**20)] = 512 * 2**20
    """What may wait in the command stream, and as much in the one for summaries. When it is full, commands
    are refused at once; without a bound a flood would leave the log no room. Fixed when a stream is made."""
    dead_max_bytes: Annotated[int, Field(ge=2**20)] = 256 * 2**20
    """Dead letters that are kept; the oldest go first. Fixed when the stream is made; the same for pagers."""

    ack_wait_s: Annotated[float, Field(gt=0.3, le=3600)] = 5.0
    """A worker that says nothing for this long has lost its message to another."""
    max_deliveries: Annotated[int, Field(ge=1)] = 50
    """A message that still fails after this many tries goes to the dead letters."""
    commit_attempts: Annotated[int, Field(ge=1)] = 16
    """Lost races for one commit before the command is given back."""

    registry_timeout_s: Annotated[float, Field(gt=0)] = 1.0
    """How long a command that must know who holds what waits for Redis, before it is rejected as
    `registry_unavailable`. For as long, others are rejected at once."""
    hot_timeout_s: Annotated[float, Field(gt=0)] = 0.25
    """One answer of Redis. What it holds only saves time, so nobody waits for it for long."""
    fetch_budget_s: Annotated[float, Field(gt=0)] = 2.0
    """Latency budget of a fetch, if the request names none."""
    rpc_concurrency: Annotated[int, Field(ge=1)] = 64
    """Requests of one verb answered at once by one process."""

    cached_contexts: Annotated[int, Field(ge=1)] = 1024
    """Trees kept in memory."""
    cached_spans: Annotated[int, Field(ge=1)] = 1_000_000
    """Spans kept in memory over all trees."""
    cached_snapshot_bytes: Annotated[int, Field(ge=0)] = 64 * 1024 * 1024
    """Answers for holders that need a whole context, kept in memory for the next ones that do."""
    snapshot_every: Annotated[int, Field(ge=1)] = 200
    """Records between two stored snapshots of a context; in a long one, as many as an eighth of its spans."""
    hot_ttl: timedelta = timedelta(hours=1)
    """How long new bytes stay in Redis."""
    hot_max_bytes: Annotated[int, Field(ge=0)] = 256 * 1024
    """Larger spans are served from the cold store only."""

    lease_ttl_max_s: Annotated[float, Field(ge=MIN_TTL_MS / 1000, le=MAX_TTL_MS / 1000)] = 60.0
    """The longest lease that a holder may ask for. After the registry was lost, nothing is collected for so
    long: so it is the same on all workers, and is lowered on all of them at once."""
    quiet_s: Annotated[float, Field(gt=0)] = 5.0
    """How long a version must have been without a pin before its collection is announced: more than Redis can
    lose in a fail-over. Every live holder must have been heard from since, too."""
    collect: bool = True
    """Whether bytes may be deleted: tombstones, and what no record names. False while a backup is made, on
    all workers; pins and rewrites work as ever."""
    sweep_interval_s: Annotated[float, Field(gt=0)] = 10.0
    """Between two sweeps for tombstones."""
    orphan_interval_s: Annotated[float, Field(gt=0)] = 6 * 3600.0
    """Between two sweeps for bytes that no record names."""
    orphan_min_age_s: Annotated[float, Field(ge=0)] = 24 * 3600.0
    """Younger bytes may belong to a commit that is under way. Far above any commit's time."""
    stuck_after_s: Annotated[float, Field(gt=0)] = 3600.0
    """A collection that was announced and is not done after so long is reported as a failure."""

    failure_repeat_s: Annotated[float, Field(gt=0)] = 10.0
    """Between the first two records of the same hard failure; doubles up to ten minutes while it is noticed
    again. What is noticed meanwhile is counted."""
    failure_attempts: Annotated[int, Field(ge=1)] = 20
    """Tries to record a hard failure before it is left to the log."""

    summariser: str = "extractive"
    """`extractive`, or `command:PROGRAM ARGS`: reads the sources on stdin, writes the summary to stdout."""
    summariser_env: str = ""
    """Names of variables that a `command:` program gets, with commas between: `OPENAI_API_KEY,HTTPS_PROXY`.
    Beside `PATH`, `HOME`, `LANG`, `LC_ALL`, `LC_CTYPE` and `TMPDIR` it gets no others."""
    summarise_concurrency: Annotated[int, Field(ge=1)] = 4
    """Summaries in the making at once, in one process."""
    summarise_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """One call of the summariser."""
    summarise_attempts: Annotated[int, Field(ge=1)] = 5
    """Calls that may fail for one compaction, in one process, before it is rejected as `summary_failed`."""
    breaker_failures: Annotated[int, Field(ge=1)] = 5
    """Failures in a row after which the summariser is left alone for a while."""
    breaker_reset_s: Annotated[float, Field(gt=0)] = 30.0
    """How long it is left alone."""

    max_command_bytes: Annotated[int, Field(ge=1024, le=MAX_COMMAND_BYTES)] = MAX_COMMAND_BYTES
    """One command on the wire."""
