"""The transcript that ships with Sexton: what it holds, and that it is what its maker makes."""

import unicodedata
from importlib.resources import files

import pytest

from sexton.worker.ingest import ParentStatus, Report, Row, TranscriptFormat, read_transcript
from tests.golden.make_demo_transcript import make

SHIPPED = files("sexton.worker") / "data" / "demo-transcript.jsonl"


@pytest.fixture(scope="module")
def data() -> bytes:
    return SHIPPED.read_bytes()


@pytest.fixture(scope="module")
def rows(data: bytes) -> list[Row]:
    items = list(read_transcript(data))
    rows = [item for item in items if isinstance(item, Row)]
    assert items == rows
    return rows


@pytest.fixture(scope="module")
def report(data: bytes) -> Report:
    return read_transcript(data).report


def test_the_shipped_file_is_what_its_maker_makes(data: bytes) -> None:
    """Nobody edits it by hand: `python -m tests.golden.make_demo_transcript` writes it."""
    assert make() == data


def test_it_is_a_pi_session_of_some_length(data: bytes, rows: list[Row], report: Report) -> None:
    """Long enough for two levels of summaries, and every byte of it is in a row."""
    assert TranscriptFormat.PI is report.format
    assert 120 <= report.rows <= 200
    assert data == b"".join(row.raw for row in rows)
    assert () == report.bad_lines


def test_it_has_calls_of_every_sort_c39_c40_c41_c43(rows: list[Row], report: Report) -> None:
    """C39, C40, C41, C43: answered in another order, later, never, and a result without a call."""
    assert report.calls > report.groups > 30
    assert 2 == report.open_groups
    assert 1 == len(report.orphan_results)
    answers = [row for row in rows if row.role == "tool"]
    apart = [row for row in answers if rows[row.line_number - 2].group != row.group and row.group is not None]
    assert len(apart) > len(report.orphan_results)
    assert rows[-1].open


def test_it_has_parents_of_every_sort_c62_c63(rows: list[Row], report: Report) -> None:
    """C62, C63: one parent is missing, one is in another file, and the others are there."""
    assert 1 == len(report.missing_parents)
    assert (1,) == report.external_parents
    present = sum(row.parent_status is ParentStatus.PRESENT for row in rows)
    assert len(rows) - 3 == present


def test_it_has_rows_of_every_sort(report: Report) -> None:
    """A compaction, a branch summary, rows of types that nobody knows, and the usual bookkeeping."""
    assert {"compaction", "branch_summary", "label", "model_change"} < set(report.kinds)
    assert {"handoff", "presence"} == set(report.unknown_kinds)
    assert {"user", "assistant", "tool", "summary", "meta", "other"} == set(report.roles)


def test_it_has_bytes_of_every_sort_c77_c81(data: bytes) -> None:
    """C77, C81: CR LF beside LF, a line of 200 KB, emoji, combining characters, right to left."""
    lines = data.split(b"\n")[:-1]
    assert 5 <= sum(line.endswith(b"\r") for line in lines) < len(lines) / 2
    assert [True] == [True for line in lines if len(line) >= 200_000]
    text = data.decode()
    assert text != unicodedata.normalize("NFC", text)
    assert {"Mn", "So", "Sk", "Lo", "Cf"} <= {unicodedata.category(character) for character in text}
    assert any(unicodedata.bidirectional(character) == "AL" for character in text)
