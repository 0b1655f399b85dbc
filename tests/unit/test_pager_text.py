"""What a page says, and what cannot get into one."""

import pytest

from sexton.core.incidents import Report, claim, fold, of_failure, of_letter
from sexton.schemas.dead import DeadLetter
from sexton.schemas.incidents import Incident, PageKind, PageState
from sexton.worker.pager import text
from tests.pager_kit.scene import letter, over, record, settings

RULES = settings("nats://127.0.0.1:1").page_rules
T0 = 1_790_000_000_000


def paged(*reports: Report) -> tuple[Incident, PageState]:
    """An incident, and its first page."""
    incident: Incident | None = None
    for report in reports:
        incident = fold(incident, report)
    assert incident is not None
    claimed = claim(incident, T0, RULES)
    assert claimed is not None
    assert claimed.page is not None
    return claimed, claimed.page


def test_a_page_has_one_id_for_all_its_attempts() -> None:
    """And another one than the next page, and than a page of another incident."""
    incident, page = paged(of_failure(record(), sequence=1, stored_ms=T0))
    again = claim(incident, T0 + 10**6, RULES)
    assert again is not None
    assert again.page is not None
    assert text.page_id(incident, page) == text.page_id(again, again.page)
    assert text.page_id(incident, page) != text.page_id(incident, page.model_copy(update={"number": 2}))
    other, its = paged(of_failure(record("b"), sequence=1, stored_ms=T0))
    assert text.page_id(incident, page) != text.page_id(other, its)


def test_what_was_found_instead_is_told() -> None:
    """As a size and a hash."""
    found = record(found_size_bytes=3, found_hash="sha256:" + 64 * "b")
    _, body = text.page(*paged(of_failure(found, sequence=1, stored_ms=T0)))
    assert f"found: 3 bytes, sha256:{64 * 'b'}" in body.splitlines()


def test_the_count_is_that_of_the_page() -> None:
    """What comes while it is on its way is told with the next one."""
    incident, page = paged(of_failure(record(observations=3), sequence=1, stored_ms=T0))
    later = fold(incident, of_failure(record(), sequence=2, stored_ms=T0 + 1))
    assert later is not None
    assert "seen: 3 times" in text.page(later, page)[1].splitlines()


def test_an_end_asks_for_nothing() -> None:
    """There is nothing to do any more."""
    incident, page = paged(
        of_failure(record(), sequence=1, stored_ms=T0), of_failure(over(), sequence=2, stored_ms=T0 + 5000)
    )
    title, body = text.page(incident, page.model_copy(update={"kind": PageKind.RESOLVED}))
    assert "Sexton: resolved: lost bytes: ctx l0:a version 1" == title
    assert "resolved: 2026-09-21 14:13:25Z" in body.splitlines()
    assert "sexton failures" not in body


@pytest.mark.parametrize(
    "hostile", ["\x1b[31mred", "a\nSubject: b", "a\r\nb", "\u202eevil", "<@everyone> " + "x" * 500, "日本"]
)
def test_words_of_others_are_plain_and_short(hostile: str) -> None:
    """A dead letter's words may be anybody's: one line, ASCII, and no message of what was in it."""
    about: DeadLetter = letter(reason=hostile).model_copy(update={"stream": hostile, "message": "C0NTENT"})
    incident, page = paged(of_letter(about, sequence=1, stored_ms=T0))
    title, body = text.page(incident, page)
    assert title.isascii()
    assert title.isprintable()
    assert body.replace("\n", "").isprintable()
    assert body.isascii()
    assert all(len(line) < 200 for line in [title, *body.splitlines()])
    assert "C0NTENT" not in title + body
    assert "\nSubject:" not in title + body
