"""What a page says: ids, hashes, sizes, counts and times; no span content."""

from datetime import UTC, datetime
from typing import Final

from sexton.schemas.dead import DeadLetter
from sexton.schemas.failure import FailureReason, HardFailureRecord
from sexton.schemas.incidents import Incident, PageKind, PageState

TEST: Final = (
    "Sexton: a test page",
    "Sent by `sexton pager --test`. If you can read this, pages reach you. Nothing is wrong.",
)

_WHAT: Final = {
    FailureReason.LOST: "lost bytes",
    FailureReason.CORRUPT: "damaged bytes",
    FailureReason.STUCK: "stuck collection",
}
_DOCS: Final = "docs/paging.md"
_ID_DIGITS: Final = 12
_SHOWN: Final = 80


def short_id(fingerprint: str) -> str:
    """The first digits of a fingerprint, which `sexton failures` takes for all of it."""
    return fingerprint.partition(":")[2][:_ID_DIGITS]


def page_id(incident: Incident, page: PageState) -> str:
    """The same for each attempt to send a page, and for no other page: a receiver may drop what it has."""
    return f"{short_id(incident.fingerprint)}-{incident.first_ms}-{page.number}"


def page(incident: Incident, page: PageState) -> tuple[str, str]:
    """Title and body of a page."""
    what, where = _subject(incident)
    titles = {
        PageKind.OPENED: f"Sexton: {what}: {where}",
        PageKind.REPEATED: f"Sexton: still open: {what}: {where}",
        PageKind.RESOLVED: f"Sexton: resolved: {what}: {where}",
    }
    facts = [*details(incident.model_copy(update={"count": page.count})), ("page", page_id(incident, page))]
    todo = [] if page.kind is PageKind.RESOLVED else ["", _todo(incident)]
    return titles[page.kind], "\n".join([*(f"{name}: {value}" for name, value in facts), *todo])


def details(incident: Incident) -> list[tuple[str, str]]:
    """All that is known of an incident, each with its name."""
    facts = [*_facts(incident), ("seen", f"{incident.count} times" if incident.count > 1 else "once")]
    facts += [("first", time(incident.first_ms)), ("last", time(incident.last_ms))]
    if incident.settled_ms is not None:
        facts.append((incident.status.value, time(incident.settled_ms)))
    return [*facts, ("incident", short_id(incident.fingerprint))]


def summary(incident: Incident) -> str:
    """An incident in a few words."""
    what, where = _subject(incident)
    return f"{what}: {where}"


def time(unix_ms: int) -> str:
    """A time for people, to the second, in UTC."""
    return datetime.fromtimestamp(unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def _subject(incident: Incident) -> tuple[str, str]:
    if incident.failure is not None:
        record = incident.failure
        what = _WHAT.get(record.reason, record.reason.value)
        return what, f"{record.context_id} {record.span_id} version {record.version}"
    if incident.letter is not None:
        return "dead letters", f"{_plain(incident.letter.stream)}, {_plain(incident.letter.reason)}"
    return "failure of an unknown sort", short_id(incident.fingerprint)


def _facts(incident: Incident) -> list[tuple[str, str]]:
    if incident.failure is not None:
        return _of_failure(incident.failure)
    return [] if incident.letter is None else _of_letter(incident.letter)


def _of_failure(record: HardFailureRecord) -> list[tuple[str, str]]:
    facts = [
        ("context", record.context_id),
        ("span", f"{record.span_id} version {record.version}"),
        ("committed", f"{record.size_bytes} bytes, {record.content_hash}"),
    ]
    if record.found_hash is not None or record.found_size_bytes is not None:
        size = "" if record.found_size_bytes is None else f"{record.found_size_bytes} bytes"
        facts.append(("found", ", ".join(part for part in (size, record.found_hash) if part)))
    return [*facts, ("noticed by", _plain(record.component))]


def _of_letter(letter: DeadLetter) -> list[tuple[str, str]]:
    return [
        ("stream", _plain(letter.stream)),
        ("reason", _plain(letter.reason)),
        ("latest", f"sequence {letter.stream_sequence}, after {letter.deliveries} deliveries"),
    ]


def _todo(incident: Incident) -> str:
    asked = f"sexton failures {short_id(incident.fingerprint)}"
    return f"Show: {asked}. Stop pages while you are at it: {asked} --acknowledge. See {_DOCS}."


def _plain(text: str) -> str:
    """Text that somebody else chose: ASCII without control characters, and not long."""
    return ascii(text[:_SHOWN])[1:-1]
