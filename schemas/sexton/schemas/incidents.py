"""Incidents: what a pager knows of a failure and whom it has told. The pager's own state, kept in a stream.

`SEXTON_INCIDENTS` holds one message for each incident, the latest; a change is a compare-and-swap on it. So a
pager that is killed goes on where it was, and an operator can acknowledge while it runs.
"""

from enum import StrEnum

from sexton.schemas.base import Count, Items, Message, Ordinal, Part
from sexton.schemas.dead import DeadLetter
from sexton.schemas.failure import HardFailureRecord
from sexton.schemas.ids import Digest


class IncidentStatus(StrEnum):
    """Where an incident is in its life."""

    OPEN = "open"
    """It lasts, and nobody has said that they know."""
    ACKNOWLEDGED = "acknowledged"
    """It lasts, and somebody is at it: no more pages until it is resolved."""
    RESOLVED = "resolved"
    """It is over."""


class PageKind(StrEnum):
    """What a page says."""

    OPENED = "opened"
    """The first page of an incident."""
    REPEATED = "repeated"
    """It still lasts."""
    RESOLVED = "resolved"
    """It is over."""


class PageState(Part):
    """A page that not every target has accepted yet."""

    kind: PageKind
    number: Ordinal
    """Counts the pages of the incident. The same page is sent under the same number, however often."""
    count: Count
    """The observations that it tells of."""
    accepted_by: Items[str] = ()
    """Targets that have accepted it."""
    attempts: Count = 0
    next_ms: Count
    """When to try again, in Unix time. Until then the page belongs to whoever wrote this."""


class Incident(Message):
    """A failure, or dead letters of one sort, from the first observation to the end."""

    fingerprint: Digest
    status: IncidentStatus
    failure: HardFailureRecord | None = None
    """The latest record. Exactly one of `failure` and `letter` is there."""
    letter: DeadLetter | None = None
    """The latest dead letter."""
    count: Count
    """Observations since it was opened."""
    first_ms: Count
    """The first observation, in Unix time, by the server's clock."""
    last_ms: Count
    """The latest one."""
    settled_ms: Count | None = None
    """When it was acknowledged or resolved."""
    told: PageKind | None = None
    """The last page that a target has accepted."""
    told_ms: Count | None = None
    pages: Count = 0
    """Pages begun so far."""
    page: PageState | None = None
    """The page under way."""
    sequence: Count
    """The last record that was counted, in its stream: a record that comes again counts once."""
    stored_ms: Count
    """When that record was stored. A stream that was made anew begins again at one."""
