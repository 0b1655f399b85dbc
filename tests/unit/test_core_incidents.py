"""What a pager does about a failure: counted once, told once, told again, told when it is over (I9)."""

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sexton.core.incidents import (
    PageRules,
    Report,
    accepted,
    acknowledge,
    attempted,
    claim,
    failure_fingerprint,
    fold,
    letter_fingerprint,
    of_failure,
    of_letter,
    resolve,
    settled,
)
from sexton.schemas.failure import FailureKind, FailureReason
from sexton.schemas.incidents import Incident, IncidentStatus, PageKind
from tests.pager_kit.scene import identity, letter, over, record

RULES: Final = PageRules(repeat_ms=1000, attempt_ms=50, retry_first_ms=10, retry_max_ms=80)
TARGETS: Final = ("json-1", "slack-2")
T0: Final = 1_000_000


def seen(sequence: int = 1, count: int | None = None, stored_ms: int | None = None) -> Report:
    return of_failure(
        record(observations=count),
        sequence=sequence,
        stored_ms=T0 + sequence if stored_ms is None else stored_ms,
    )


def ended(sequence: int) -> Report:
    return of_failure(over(), sequence=sequence, stored_ms=T0 + sequence)


def folded(*reports: Report) -> Incident:
    incident: Incident | None = None
    for report in reports:
        incident = fold(incident, report)
    assert incident is not None
    return incident


def told(incident: Incident, at_ms: int = T0 + 500, *, kind: PageKind) -> Incident:
    """The page that is due, claimed and accepted by all."""
    claimed = claim(incident, at_ms, RULES)
    assert claimed is not None
    assert claimed.page is not None
    assert kind is claimed.page.kind
    for target in TARGETS:
        claimed = accepted(claimed, claimed.pages, target, TARGETS, at_ms)
    assert claimed.page is None
    return claimed


def paged() -> Incident:
    """Open, and told at T0 + 500."""
    return told(folded(seen(1)), kind=PageKind.OPENED)


# --- fingerprints ------------------------------------------------------------------------------------


def test_a_fingerprint_is_over_reason_context_span_version_and_hash() -> None:
    """Each of them makes another incident; what was found instead, and who noticed, does not."""
    base = failure_fingerprint(FailureReason.LOST, "ctx", identity())
    others = [
        failure_fingerprint(FailureReason.CORRUPT, "ctx", identity()),
        failure_fingerprint(FailureReason.LOST, "other", identity()),
        failure_fingerprint(FailureReason.LOST, "ctx", identity("b")),
        failure_fingerprint(FailureReason.LOST, "ctx", identity(version=2)),
        failure_fingerprint(
            FailureReason.LOST, "ctx", identity().model_copy(update={"content_hash": "sha256:" + 64 * "b"})
        ),
        failure_fingerprint(FailureReason("lostctx"), "l0", identity()),
    ]
    assert len(others) + 1 == len({base, *others})
    assert base == failure_fingerprint(
        FailureReason.LOST, "ctx", identity().model_copy(update={"size_bytes": 9})
    )


def test_a_fingerprint_is_always_the_same() -> None:
    """C75: golden; incidents outlive a release."""
    assert "sha256:f88dae7941e11fe018461c43c22ce591372de58b354e88e26302d843330e811b" == failure_fingerprint(
        FailureReason.LOST, "ctx", identity()
    )


def test_dead_letters_are_one_incident_by_stream_and_reason() -> None:
    """Not by what they were."""
    assert letter_fingerprint(letter(sequence=1)) == letter_fingerprint(letter(sequence=2))
    assert letter_fingerprint(letter("a")) != letter_fingerprint(letter("b"))
    assert letter_fingerprint(letter(stream="A")) != letter_fingerprint(letter(stream="B"))


# --- what is counted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("last", ["seen", "ended"])
def test_a_record_counts_once_though_the_time_steps_back(last: str) -> None:
    """Another leader's clock, or a correction: what was counted is known again, and opens nothing again."""
    first, second = seen(1, stored_ms=T0 + 100), seen(2, stored_ms=T0 + 50)
    records = [first, second]
    if last == "ended":
        records.append(of_failure(over(), sequence=3, stored_ms=T0 + 60))
    incident = folded(*records)
    assert 2 == incident.count
    for again in (first, second, first, *records):
        assert incident == fold(incident, again)


def test_repeats_add_to_the_count() -> None:
    """A record may tell of several observations."""
    incident = folded(seen(1), seen(2, count=5), seen(4))
    assert (7, T0 + 1, T0 + 4) == (incident.count, incident.first_ms, incident.last_ms)


@pytest.mark.parametrize("again", [1, 2, 3])
def test_a_record_that_comes_again_counts_once(again: int) -> None:
    """I8: also one that is older than the last."""
    incident = folded(seen(1), seen(2), seen(3))
    assert incident is fold(incident, seen(again))


def test_a_low_sequence_of_a_stream_that_was_made_anew_counts() -> None:
    """It was stored later than the last record of the old one."""
    incident = fold(folded(seen(100)), seen(1, stored_ms=T0 + 200))
    assert incident is not None
    assert 2 == incident.count


def test_the_end_of_what_is_not_known_is_nothing() -> None:
    """Several workers may find the bytes again."""
    assert fold(None, ended(1)) is None


def test_what_begins_again_before_its_end_was_told_goes_on() -> None:
    """A store that flaps is one incident."""
    incident = folded(seen(1), ended(2), seen(3))
    assert (IncidentStatus.OPEN, 2, T0 + 1, None) == (
        incident.status,
        incident.count,
        incident.first_ms,
        incident.settled_ms,
    )


def test_what_begins_again_after_its_end_was_told_is_a_new_incident() -> None:
    """Counted anew, and its pages have other numbers."""
    incident = fold(paged(), ended(2))
    assert incident is not None
    incident = fold(told(incident, kind=PageKind.RESOLVED), seen(3))
    assert incident is not None
    assert (IncidentStatus.OPEN, 1, T0 + 3, None, 2) == (
        incident.status,
        incident.count,
        incident.first_ms,
        incident.told,
        incident.pages,
    )
    assert 3 == told(incident, kind=PageKind.OPENED).pages


# --- who is told -------------------------------------------------------------------------------------


def test_a_page_is_due_at_once_and_repeats_are_not() -> None:
    """One page, with the count at the time that it is sent."""
    incident = folded(seen(1), seen(2))
    claimed = claim(incident, T0 + 2, RULES)
    assert claimed is not None
    assert claimed.page is not None
    assert (PageKind.OPENED, 1, 2) == (claimed.page.kind, claimed.page.number, claimed.page.count)
    repeated = fold(paged(), seen(3))
    assert repeated is not None
    assert claim(repeated, T0 + 501, RULES) is None


def test_a_claim_belongs_to_who_wrote_it_until_an_attempt_must_be_over() -> None:
    """Two pagers do not send the same page; one that dies holds it up for one attempt and a delay."""
    claimed = claim(folded(seen(1)), T0, RULES)
    assert claimed is not None
    assert claim(claimed, T0 + 59, RULES) is None
    again = claim(claimed, T0 + 60, RULES)
    assert again is not None
    assert again.page is not None
    assert (1, 2) == (again.page.number, again.page.attempts)


def test_attempts_go_on_with_growing_and_bounded_delays() -> None:
    """For as long as it takes."""
    incident, now_ms, waits = folded(seen(1)), T0, []
    for _ in range(200):
        claimed = claim(incident, now_ms, RULES)
        assert claimed is not None
        incident = attempted(claimed, 1, TARGETS, now_ms, RULES)
        assert incident.page is not None
        waits.append(incident.page.next_ms - now_ms)
        now_ms = incident.page.next_ms
    assert [10, 20, 40, 80, 80] == waits[:5]
    assert {80} == set(waits[3:])


def test_one_target_is_enough_to_be_told_and_the_others_are_owed_the_page() -> None:
    """One address that is broken must not keep others from being paged."""
    claimed = claim(folded(seen(1)), T0, RULES)
    assert claimed is not None
    one = attempted(accepted(claimed, 1, "slack-2", TARGETS, T0 + 1), 1, TARGETS, T0 + 1, RULES)
    assert (PageKind.OPENED, T0 + 1) == (one.told, one.told_ms)
    later = claim(one, T0 + 11, RULES)
    assert later is not None
    assert later.page is not None
    assert (1, ("slack-2",)) == (later.page.number, later.page.accepted_by)
    both = accepted(later, 1, "json-1", TARGETS, T0 + 12)
    assert (None, T0 + 1) == (both.page, both.told_ms)


def test_a_target_that_is_no_more_is_owed_nothing() -> None:
    """The addresses were changed while a page was under way."""
    claimed = claim(folded(seen(1)), T0, RULES)
    assert claimed is not None
    one = accepted(claimed, 1, "slack-2", TARGETS, T0 + 1)
    assert attempted(one, 1, ("slack-2",), T0 + 2, RULES).page is None


def test_it_is_told_again_after_the_set_time_while_it_lasts() -> None:
    """From the time that the last page was accepted."""
    assert claim(paged(), T0 + 1499, RULES) is None
    again = told(paged(), T0 + 1500, kind=PageKind.REPEATED)
    assert claim(again, T0 + 2499, RULES) is None
    assert 3 == told(again, T0 + 2500, kind=PageKind.REPEATED).pages


def test_a_newer_page_takes_the_place_of_one_that_is_owed() -> None:
    """A target that was away for long gets what is so now, not a queue of what was."""
    claimed = claim(folded(seen(1)), T0, RULES)
    assert claimed is not None
    one = accepted(claimed, 1, "slack-2", TARGETS, T0)
    again = claim(one, T0 + 1000, RULES)
    assert again is not None
    assert again.page is not None
    assert (PageKind.REPEATED, 2, ()) == (again.page.kind, again.page.number, again.page.accepted_by)
    assert again is accepted(again, 1, "json-1", TARGETS, T0 + 1001), "what came of the old one is late"
    assert again is attempted(again, 1, TARGETS, T0 + 1001, RULES)


def test_the_end_is_told_once() -> None:
    """And nothing after it."""
    incident = fold(paged(), ended(2))
    assert incident is not None
    done = told(incident, kind=PageKind.RESOLVED)
    assert claim(done, T0 + 10**9, RULES) is None
    assert done is fold(done, ended(2))


def test_an_end_that_comes_first_is_told_after_the_beginning() -> None:
    """I9: every incident is paged."""
    incident = told(folded(seen(1), ended(2)), kind=PageKind.OPENED)
    assert not settled(incident, FailureKind.RESOLVED)
    assert settled(told(incident, kind=PageKind.RESOLVED), FailureKind.RESOLVED)


def test_what_begins_again_while_its_end_is_on_its_way_is_told() -> None:
    """Else the last word would be that it is over."""
    incident = fold(paged(), ended(2))
    assert incident is not None
    claimed = claim(incident, T0 + 600, RULES)
    assert claimed is not None
    again = fold(claimed, seen(3))
    assert again is not None
    for target in TARGETS:
        again = accepted(again, 2, target, TARGETS, T0 + 601)
    assert (IncidentStatus.OPEN, PageKind.RESOLVED) == (again.status, again.told)
    assert not settled(again, FailureKind.OBSERVED)
    assert settled(told(again, kind=PageKind.OPENED), FailureKind.OBSERVED)


# --- operators ---------------------------------------------------------------------------------------


def test_acknowledged_is_quiet_until_it_is_over() -> None:
    """Repeats count; the end is told."""
    known = acknowledge(paged(), T0 + 600)
    assert (IncidentStatus.ACKNOWLEDGED, T0 + 600) == (known.status, known.settled_ms)
    repeated = fold(known, seen(5))
    assert repeated is not None
    assert (IncidentStatus.ACKNOWLEDGED, 2) == (repeated.status, repeated.count)
    assert claim(repeated, T0 + 10**9, RULES) is None
    end = fold(repeated, ended(6))
    assert end is not None
    told(end, kind=PageKind.RESOLVED)


def test_who_acknowledges_before_the_page_got_through_has_been_told() -> None:
    """It is called off, and its record may be let go."""
    claimed = claim(folded(seen(1)), T0, RULES)
    assert claimed is not None
    known = acknowledge(claimed, T0 + 1)
    assert known.page is None
    assert claim(known, T0 + 10**9, RULES) is None
    assert settled(known, FailureKind.OBSERVED)


def test_an_operator_resolves() -> None:
    """Whoever was paged is told; to do it twice, or to acknowledge it then, changes nothing."""
    done = resolve(paged(), T0 + 600)
    assert (IncidentStatus.RESOLVED, T0 + 600) == (done.status, done.settled_ms)
    assert done == resolve(done, T0 + 700) == acknowledge(done, T0 + 700)
    told(done, kind=PageKind.RESOLVED)


def test_dead_letters_go_on_until_an_operator_says_so() -> None:
    """Nothing else ends them."""
    report = of_letter(letter(), sequence=1, stored_ms=T0)
    incident = told(folded(report), kind=PageKind.OPENED)
    told(incident, T0 + 1500, kind=PageKind.REPEATED)
    assert IncidentStatus.RESOLVED is resolve(incident, T0 + 2).status


# --- any history -------------------------------------------------------------------------------------


@dataclass
class History:
    """A run of a pager that may be killed between any two steps: what is written is all that is left."""

    incident: Incident | None = None
    now_ms: int = T0
    sequence: int = 0
    reports: list[Report] = field(default_factory=list)
    sent: list[tuple[str, int]] = field(default_factory=list)
    """Kind and number of each page that a target accepted."""

    def step(self, what: str) -> None:
        self.now_ms += 7
        match what:
            case "observe" | "end":
                self.sequence += 1
                kind = record() if what == "observe" else over()
                self.reports.append(of_failure(kind, sequence=self.sequence, stored_ms=self.now_ms))
                self.incident = fold(self.incident, self.reports[-1])
            case "redeliver" if self.reports:
                assert self.incident is fold(self.incident, self.reports[len(self.sent) % len(self.reports)])
            case "wait":
                self.now_ms += 1100
            case "acknowledge" if self.incident:
                self.incident = acknowledge(self.incident, self.now_ms)
            case "resolve" if self.incident:
                self.incident = resolve(self.incident, self.now_ms)
            case "fail" | "accept" | "half" | "killed":
                self.attempt(what)

    def attempt(self, how: str) -> None:
        incident = self.incident
        claimed = None if incident is None else claim(incident, self.now_ms, RULES)
        if claimed is None or claimed.page is None:
            return
        self.incident, page = claimed, claimed.page
        if how == "killed":
            return
        for target in {"fail": (), "half": TARGETS[:1], "accept": TARGETS}[how]:
            if target not in page.accepted_by:
                self.sent.append((page.kind, page.number))
                self.incident = accepted(self.incident, page.number, target, TARGETS, self.now_ms)
        self.incident = attempted(self.incident, page.number, TARGETS, self.now_ms, RULES)


STEPS: Final = (
    "observe",
    "end",
    "redeliver",
    "wait",
    "acknowledge",
    "resolve",
    "fail",
    "accept",
    "half",
    "killed",
)


@given(st.lists(st.sampled_from(STEPS), max_size=30))
def test_whatever_happens_the_last_word_is_right_and_each_page_is_one(steps: list[str]) -> None:
    """Pages are numbered in order, an end follows a beginning, and when all is quiet all was told."""
    history = History()
    for what in steps:
        history.step(what)
    for _ in range(4):
        history.step("accept")
        history.now_ms += 200
    kinds = {number: kind for kind, number in history.sent}
    numbers = [number for _, number in history.sent]
    assert sorted(numbers) == numbers
    assert len(history.sent) <= len(TARGETS) * len(kinds)
    assert all(len({k for k, n in history.sent if n == number}) == 1 for number in kinds)
    in_order = [kinds[number] for number in sorted(kinds)]
    # Whoever acknowledges has been told, without a page.
    if not {"acknowledge", "resolve"} & set(steps):
        assert PageKind.RESOLVED not in in_order[:1]
        assert not any(a == b == PageKind.RESOLVED for a, b in pairwise(in_order))
    incident = history.incident
    if incident is not None:
        assert incident.page is None
        last = PageKind.RESOLVED if incident.status is IncidentStatus.RESOLVED else PageKind.OPENED
        assert last is incident.told or (last, incident.told) == (PageKind.OPENED, PageKind.REPEATED)
        assert settled(incident, FailureKind.OBSERVED)
        assert settled(incident, FailureKind.RESOLVED)
