"""The raw bytes of a transcript: whatever is in a file, its pieces put together are the file."""

import io
import json
from pathlib import Path

import pytest

from sexton.schemas.errors import InvalidInput
from sexton.worker.ingest import (
    BadLine,
    Limits,
    Role,
    Row,
    Transcript,
    TranscriptChangedError,
    TranscriptFormat,
    TranscriptTooLargeError,
    TranscriptUnreadableError,
    read_transcript,
)

SESSION = b'{"type":"session","id":"s","timestamp":"t","cwd":"d"}'


def glued(transcript: Transcript) -> bytes:
    return b"".join(item.raw for item in transcript)


@pytest.mark.parametrize(
    "data",
    [
        SESSION,
        SESSION + b"\n",
        SESSION + b"\r\n" + SESSION + b"\n" + SESSION + b"\r\n",
        b"\xef\xbb\xbf" + SESSION + b"\r\n" + SESSION,
        SESSION + b" \t \r\n\n\r\n  \n" + SESSION + b"   ",
        b"\n\n" + SESSION + b"\n\n",
        b"\xef\xbb\xbf\n" + SESSION,
        b"\xef\xbb\xbf" + SESSION + b"\n\xef\xbb\xbf" + SESSION + b"\n",
        b'{"type":"session","id":"\xe2\x80\xa8\xc2\x85\x7f\\u0000\\u0007"}\n',
    ],
    ids=[
        "no-end",
        "lf",
        "crlf",
        "bom",
        "trailing-blanks",
        "blank-ends",
        "bom-alone",
        "bom-again",
        "controls",
    ],
)
def test_every_byte_of_a_jsonl_file_is_kept_c77(data: bytes) -> None:
    """C77: line ends, a byte order mark, trailing blanks and control characters stay as they are."""
    transcript = read_transcript(data, fmt=TranscriptFormat.PI)
    assert data == glued(transcript)
    assert len(data) == transcript.report.size_bytes
    assert () == transcript.report.bad_lines


def test_a_line_is_a_row() -> None:
    """Rows are lines, blank ones too, and their numbers count from one."""
    rows = list(read_transcript(SESSION + b"\r\n\n" + SESSION + b"\n"))
    assert [1, 2, 3] == [row.line_number for row in rows]
    assert [SESSION + b"\r\n", b"\n", SESSION + b"\n"] == [row.raw for row in rows]


def test_a_blank_line_is_a_row_of_its_own() -> None:
    """A line of blanks has no body, and is no JSON."""
    _, blank = read_transcript(SESSION + b"\n \t\r\n", fmt=TranscriptFormat.PI)
    assert isinstance(blank, Row)
    assert (Role.BLANK, b" \t\r\n", b"", "text/plain") == (
        blank.role,
        blank.raw,
        blank.body,
        blank.media_type,
    )


def test_the_body_is_the_json_value_alone() -> None:
    """`body` leaves out the byte order mark, the blanks and the line end."""
    (row,) = read_transcript(b"\xef\xbb\xbf \t" + SESSION + b"  \r\n")
    assert isinstance(row, Row)
    assert SESSION == row.body
    assert 5 == row.body_offset


def test_an_empty_file_has_no_rows() -> None:
    """Nothing in, nothing out: there are no empty spans."""
    transcript = read_transcript(b"")
    assert [] == list(transcript)
    assert 0 == transcript.report.rows == len(transcript)


def test_other_line_ends_do_not_cut() -> None:
    """Only LF ends a line: U+2028, U+0085, form feeds and lone CRs within one do not."""
    line = '{"role":"user","content":"a\u2028b\u0085c"}'.encode()
    assert 1 == len(read_transcript(line + b"\r" + b"\n", fmt=TranscriptFormat.OPENAI))


def test_a_long_line_is_one_row(tmp_path: Path) -> None:
    """A line of 5 MB is read like any other."""
    line = json.dumps({"role": "tool", "tool_call_id": "c", "content": "é😀" * 400_000}).encode()
    path = tmp_path / "long.jsonl"
    path.write_bytes(line + b"\n")
    (row,) = read_transcript(path)
    assert line + b"\n" == row.raw


def test_a_transcript_can_be_read_again(tmp_path: Path) -> None:
    """Iterating twice gives the same rows twice."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(SESSION + b"\n")
    transcript = read_transcript(path)
    assert list(transcript) == list(transcript)


def test_rows_added_meanwhile_are_not_seen(tmp_path: Path) -> None:
    """A live session that grows while it is read gives the rows that were there at first."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(SESSION + b"\n")
    transcript = read_transcript(path)
    path.write_bytes(SESSION + b"\n" + SESSION + b"\n")
    assert [SESSION + b"\n"] == [row.raw for row in transcript]


@pytest.mark.parametrize("changed", [b"", SESSION[:-1], SESSION.replace(b"cwd", b"cWd") + b"\n"])
def test_a_changed_file_is_an_error(tmp_path: Path, changed: bytes) -> None:
    """Bytes that are not those that were looked at never come out as a row."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(SESSION + b"\n")
    transcript = read_transcript(path)
    path.write_bytes(changed)
    with pytest.raises(TranscriptChangedError) as caught:
        list(transcript)
    assert 1 == caught.value.fields["line_number"]


def test_an_open_file_is_read_to_its_end() -> None:
    """A stream such as standard input needs no seeking."""
    stream = io.BytesIO(b"skipped" + SESSION)
    stream.read(7)
    assert SESSION == glued(read_transcript(stream))


@pytest.mark.parametrize("name", ["absent.jsonl", "."])
def test_a_file_that_cannot_be_read_is_a_typed_error(tmp_path: Path, name: str) -> None:
    """A missing file and a folder are the reader's own error, with the system's as its cause."""
    with pytest.raises(TranscriptUnreadableError) as caught:
        read_transcript(tmp_path / name)
    assert isinstance(caught.value.__cause__, OSError)


def test_a_file_that_vanishes_is_a_typed_error(tmp_path: Path) -> None:
    """The second pass speaks the same language as the first."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(SESSION)
    transcript = read_transcript(path)
    path.unlink()
    with pytest.raises(TranscriptUnreadableError):
        list(transcript)


@pytest.mark.parametrize(
    "limits", [Limits(row_bytes=0), Limits(document_bytes=0), Limits(text_block_bytes=15)]
)
def test_impossible_limits_are_refused(limits: Limits) -> None:
    """A limit that lets nothing through is the caller's mistake."""
    with pytest.raises(InvalidInput):
        read_transcript(b"x", limits=limits)


TEXTS = [
    "one line",
    "one\n\ntwo\r\n\r\nthree\n",
    "\ufeffwith a mark\n" + "x" * 40,
    "😀" * 41,
    "a" + "é" * 50 + "\n" + "ab\u0301" * 30,
    "x" * 15 + "\r\n" + "y" * 14 + "\r\nz",
    "\n\n\n",
    " \t\n" * 30,
    "\u2028\u0085\x0c\x1b" * 9,
]


@pytest.mark.parametrize("block_bytes", [16, 17, 18, 19, 64])
@pytest.mark.parametrize("text", TEXTS)
def test_plain_text_is_cut_into_whole_characters_c77(text: str, block_bytes: int) -> None:
    """C77: blocks of text are within their size, decode by themselves, split no CR LF, and are the text."""
    data = text.encode()
    limits = Limits(text_block_bytes=block_bytes)
    rows = list(read_transcript(data, fmt=TranscriptFormat.TEXT, limits=limits))
    assert data == b"".join(row.raw for row in rows)
    for row in rows:
        assert isinstance(row, Row)
        assert 0 < len(row.raw) <= block_bytes
        row.raw.decode()
        assert not row.raw.startswith(b"\n") or row is rows[0] or b"\r" not in data
    starts = [sum(len(row.raw) for row in rows[:index]) for index in range(len(rows))]
    assert [1 + data.count(b"\n", 0, start) for start in starts] == [row.line_number for row in rows]


def test_plain_text_is_cut_at_paragraphs_if_it_can_be() -> None:
    """Whole paragraphs share a block while they fit; a block ends with one, not within one."""
    text = b"aaaa\nbbbb\n\ncccc\n\ndddd\neeee\nffff\n"
    rows = list(read_transcript(text, limits=Limits(text_block_bytes=25)))
    assert [b"aaaa\nbbbb\n\ncccc\n\n", b"dddd\neeee\nffff\n"] == [row.raw for row in rows]
    assert [1, 6] == [row.line_number for row in rows]
    assert {(Role.TEXT, "text/plain")} == {(row.role, row.media_type) for row in rows if isinstance(row, Row)}


def test_a_document_over_its_limit_is_refused() -> None:
    """A JSON document is held in memory, so it has a limit of its own."""
    data = b'[{"role":"user","content":"' + b"x" * 100 + b'"}]'
    with pytest.raises(TranscriptTooLargeError) as caught:
        read_transcript(data, limits=Limits(document_bytes=100))
    assert 100 == caught.value.fields["limit_bytes"]
    assert 1 == len(read_transcript(data, limits=Limits(document_bytes=len(data))))


def test_rows_make_labels_that_the_wire_accepts() -> None:
    """`labels` holds what an append says of the row."""
    line = b'{"role":"assistant","tool_calls":[{"id":"call_1"}]}'
    (row,) = read_transcript(line)
    assert isinstance(row, Row)
    assert {
        "role": "assistant",
        "group": "call_1",
        "media_type": "application/json",
        "open": True,
    } == row.labels.model_dump(exclude_none=True)


def test_a_bad_line_does_not_show_its_bytes() -> None:
    """Content stays out of texts that may be logged."""
    (bad,) = read_transcript(b'{"secret":', fmt=TranscriptFormat.PI)
    assert isinstance(bad, BadLine)
    assert "secret" not in repr(bad) + bad.message
