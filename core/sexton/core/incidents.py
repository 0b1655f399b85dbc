"""What a pager does about a failure: what it counts, whom it tells and when. The time is passed in.

Records are folded into incidents (`fold`), one for each fingerprint, in the order of their streams. An
incident then says what it needs:

- the first page at once; while it lasts another one after `repeat_ms`; one more when it is over;
- repeats only add to the count, so a flood of them is one page;
- an end that comes before the first page got through is told after it: every incident is paged;
- what begins again before its end was told goes on as the same incident;
- whoever acknowledges has been told. Nothing more is sent until it is over.

A page is claimed before it is sent (`claim`), and the claim is kept with the incident. It says when the next
attempt may be made: that is the backoff, and it keeps two pagers from sending the same page. A page that one
target has accepted has been told; the targets that have not are tried until they do, or until a newer page
takes its place.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from sexton.core.hash import framed_digest
from sexton.schemas.dead import DeadLetter
from sexton.schemas.failure import FailureKind, FailureReason, HardFailureRecord
from sexton.schemas.incidents import Incident, IncidentStatus, PageKind, PageState
from sexton.schemas.span import Identity

_MAX_DOUBLINGS: Final = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class PageRules:
    """The times that a pager keeps, in milliseconds."""

    repeat_ms: int
    """Between two pages of an incident that lasts."""
    attempt_ms: int
    """The longest that one attempt may take."""
    retry_first_ms: int
    """Between the first attempt and the second; doubles."""
    retry_max_ms: int
    """The longest time between two attempts."""

    def delay_ms(self, attempts: int) -> int:
        """How long to wait after so many attempts."""
        return min(self.retry_first_ms << min(attempts - 1, _MAX_DOUBLINGS), self.retry_max_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A record as it counts for an incident: a failure record, or a dead letter."""

    fingerprint: str
    kind: FailureKind
    count: int
    sequence: int
    """Its sequence in its stream."""
    stored_ms: int
    """When it was stored, in Unix time, by the server's clock."""
    failure: HardFailureRecord | None = None
    letter: DeadLetter | None = None


def failure_fingerprint(reason: FailureReason, context_id: str, identity: Identity) -> str:
    """What makes two observations of a failure the same incident."""
    return framed_digest(
        [reason.value, context_id, identity.span_id, str(identity.version), identity.content_hash]
    )


def letter_fingerprint(letter: DeadLetter) -> str:
    """Dead letters of one stream and one reason are one incident."""
    return framed_digest(["dead_letter", letter.stream, letter.reason])


def of_failure(record: HardFailureRecord, *, sequence: int, stored_ms: int) -> Report:
    """A failure record as a report."""
    return Report(
        fingerprint=record.fingerprint,
        kind=record.kind or FailureKind.OBSERVED,
        count=record.observations or 1,
        sequence=sequence,
        stored_ms=stored_ms,
        failure=record,
    )


def of_letter(letter: DeadLetter, *, sequence: int, stored_ms: int) -> Report:
    """A dead letter as a report."""
    return Report(
        fingerprint=letter_fingerprint(letter),
        kind=FailureKind.OBSERVED,
        count=1,
        sequence=sequence,
        stored_ms=stored_ms,
        letter=letter,
    )


# --- what is counted ---------------------------------------------------------------------------------


def fold(incident: Incident | None, report: Report) -> Incident | None:
    """The incident after a record; the same one if the record changes nothing. Idempotent."""
    if incident is not None and _counted(incident, report):
        return incident
    if report.kind is FailureKind.RESOLVED:
        return None if incident is None else _ended(_at(incident, report), report.stored_ms)
    if incident is None:
        return _opened(report)
    again = incident.status is IncidentStatus.RESOLVED
    if again and incident.told is PageKind.RESOLVED:
        # The numbers of pages go on: what came of an old page is never taken for a new one's.
        return _opened(report, pages=incident.pages)
    return _at(incident, report).model_copy(
        update={
            "count": incident.count + report.count,
            "last_ms": report.stored_ms,
            "failure": report.failure,
            "letter": report.letter,
            **({"status": IncidentStatus.OPEN, "settled_ms": None} if again else {}),
        }
    )


def acknowledge(incident: Incident, now_ms: int) -> Incident:
    """Somebody is at it. Whoever says so has been told; pages under way are called off."""
    if incident.status is not IncidentStatus.OPEN:
        return incident
    return _known(incident, now_ms).model_copy(
        update={"status": IncidentStatus.ACKNOWLEDGED, "settled_ms": now_ms, "page": None}
    )


def resolve(incident: Incident, now_ms: int) -> Incident:
    """An operator says that it is over. Whoever was paged is told."""
    if incident.status is IncidentStatus.RESOLVED:
        return incident
    return _ended(_known(incident, now_ms), now_ms)


def _counted(incident: Incident, report: Report) -> bool:
    return report.sequence <= incident.sequence and report.stored_ms <= incident.stored_ms


def _opened(report: Report, *, pages: int = 0) -> Incident:
    return Incident(
        fingerprint=report.fingerprint,
        status=IncidentStatus.OPEN,
        failure=report.failure,
        letter=report.letter,
        count=report.count,
        first_ms=report.stored_ms,
        last_ms=report.stored_ms,
        pages=pages,
        sequence=report.sequence,
        stored_ms=report.stored_ms,
    )


def _at(incident: Incident, report: Report) -> Incident:
    # The time may step back: by another leader's clock, or a correction. It is never taken back here, or an
    # earlier record that comes again would count as a new one.
    stored_ms = max(incident.stored_ms, report.stored_ms)
    return incident.model_copy(update={"sequence": report.sequence, "stored_ms": stored_ms})


def _ended(incident: Incident, at_ms: int) -> Incident:
    if incident.status is IncidentStatus.RESOLVED:
        return incident
    return incident.model_copy(update={"status": IncidentStatus.RESOLVED, "settled_ms": at_ms})


def _known(incident: Incident, now_ms: int) -> Incident:
    if incident.told in (PageKind.OPENED, PageKind.REPEATED):
        return incident
    return incident.model_copy(update={"told": PageKind.OPENED, "told_ms": now_ms})


# --- who is told -------------------------------------------------------------------------------------


def claim(incident: Incident, now_ms: int, rules: PageRules) -> Incident | None:
    """Takes the page that is due, for one attempt. None if none is due, or another attempt is still on.

    The claim must be written before the page is sent; `Incident.page` is what to send, and `accepted_by` says
    to whom no more.
    """
    page = _due(incident, now_ms, rules)
    if page is None:
        return None
    attempts = page.attempts + 1
    taken = page.model_copy(
        update={
            "count": incident.count,
            "attempts": attempts,
            "next_ms": now_ms + rules.attempt_ms + rules.delay_ms(attempts),
        }
    )
    return incident.model_copy(update={"page": taken, "pages": page.number})


def accepted(incident: Incident, number: int, target: str, targets: Collection[str], now_ms: int) -> Incident:
    """A target has accepted a page.

    Args:
        incident: as it is now; a newer page may be under way by now, and then this changes nothing.
        number: of the page that was sent.
        target: who accepted it.
        targets: all targets there are.
        now_ms: the time now.
    """
    page = incident.page
    if page is None or page.number != number:
        return incident
    by = {*page.accepted_by, target}
    return incident.model_copy(
        update={
            **({} if page.accepted_by else {"told": page.kind, "told_ms": now_ms}),
            "page": None
            if by.issuperset(targets)
            else page.model_copy(update={"accepted_by": tuple(sorted(by))}),
        }
    )


def attempted(
    incident: Incident, number: int, targets: Collection[str], now_ms: int, rules: PageRules
) -> Incident:
    """An attempt is over: whoever has not accepted the page is tried again after a while."""
    page = incident.page
    if page is None or page.number != number:
        return incident
    if set(page.accepted_by).issuperset(targets):
        # Whoever was still owed it is no target any more.
        return incident.model_copy(update={"page": None})
    later = page.model_copy(update={"next_ms": now_ms + rules.delay_ms(page.attempts)})
    return incident.model_copy(update={"page": later})


def settled(incident: Incident | None, kind: FailureKind) -> bool:
    """Whether the page that a record of `kind` called for was accepted: its message may be acknowledged."""
    if incident is None:
        return True
    if kind is FailureKind.RESOLVED:
        return incident.status is not IncidentStatus.RESOLVED or incident.told is PageKind.RESOLVED
    return not _untold(incident)


def _untold(incident: Incident) -> bool:
    # Told to be over, and open: it began again while that page was on its way.
    again = incident.status is IncidentStatus.OPEN and incident.told is PageKind.RESOLVED
    return incident.told is None or again


def _due(incident: Incident, now_ms: int, rules: PageRules) -> PageState | None:
    """The page to send now: a new one that is called for, or the one under way if its time has come."""
    wanted, page = _wanted(incident, now_ms, rules), incident.page
    if wanted is not None and (page is None or page.accepted_by or page.kind is not wanted):
        return PageState(kind=wanted, number=incident.pages + 1, count=incident.count, next_ms=now_ms)
    return None if page is None or now_ms < page.next_ms else page


def _wanted(incident: Incident, now_ms: int, rules: PageRules) -> PageKind | None:
    if _untold(incident):
        return PageKind.OPENED
    match incident.status:
        case IncidentStatus.RESOLVED:
            return None if incident.told is PageKind.RESOLVED else PageKind.RESOLVED
        case IncidentStatus.OPEN if now_ms - (incident.told_ms or 0) >= rules.repeat_ms:
            return PageKind.REPEATED
    return None
