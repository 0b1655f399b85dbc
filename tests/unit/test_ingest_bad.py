"""Bad lines: each kind has its reason and its line number, and spoils no other line."""

import json

import pytest

from sexton.worker.ingest import (
    BadLine,
    BadReason,
    Limits,
    Row,
    TranscriptFormat,
    read_transcript,
)

GOOD = b'{"role":"user","content":"hello"}\n'

BAD = [
    (b"not json at all\n", BadReason.NOT_JSON),
    (b'{"role":"user"\n', BadReason.NOT_JSON),
    (b'{"role":"user"} {"role":"user"}\n', BadReason.NOT_JSON),
    (b'{"role":"us\x01er"}\n', BadReason.NOT_JSON),
    (b'\xef\xbb\xbf\xef\xbb\xbf{"role":"user"}\n', BadReason.NOT_JSON),
    (b"[1,2]\n", BadReason.NOT_AN_OBJECT),
    (b'"text"\n', BadReason.NOT_AN_OBJECT),
    (b"null\n", BadReason.NOT_AN_OBJECT),
    (b"17\n", BadReason.NOT_AN_OBJECT),
    (b"true\n", BadReason.NOT_AN_OBJECT),
    (b'{"role":"\xff\xfe"}\n', BadReason.NOT_UTF8),
    (b'{"role":"\xed\xa0\x80"}\n', BadReason.NOT_UTF8),
    (b'{"role":"\xc0\xaf"}\n', BadReason.NOT_UTF8),
    (b'{"role":"a\x00b"}\n', BadReason.NUL_BYTE),
    (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", BadReason.TOO_DEEP),
    (b'{"s":"\\ud800","a":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n", BadReason.TOO_DEEP),
]


@pytest.mark.parametrize(("line", "reason"), BAD, ids=[f"{i}-{reason}" for i, (_, reason) in enumerate(BAD)])
def test_a_bad_line_is_reported_and_its_neighbours_are_read(line: bytes, reason: BadReason) -> None:
    """Bad input: a bad line among good ones has a number, a reason and its bytes; the rest is read."""
    transcript = read_transcript(GOOD + line + GOOD, fmt=TranscriptFormat.OPENAI)
    first, bad, last = transcript
    assert isinstance(first, Row)
    assert isinstance(last, Row)
    assert isinstance(bad, BadLine)
    assert (2, reason, line, len(line)) == (bad.line_number, bad.reason, bad.raw, bad.size_bytes)
    assert [(2, reason)] == [(note.line_number, note.reason) for note in transcript.report.bad_lines]
    assert 2 == transcript.report.rows


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_line_over_the_limit_is_bad_wherever_it_is(at: int) -> None:
    """A line too large is skipped without being held in memory, and its size is known."""
    lines = [GOOD, GOOD]
    lines.insert(at, b'{"role":"user","content":"' + b"x" * 10_000 + b'"}\n')
    data = b"".join(lines)
    limits = Limits(row_bytes=5_000)
    transcript = read_transcript(data, fmt=TranscriptFormat.OPENAI, limits=limits)
    (bad,) = (item for item in transcript if isinstance(item, BadLine))
    assert (at + 1, BadReason.TOO_LARGE, len(lines[at])) == (bad.line_number, bad.reason, bad.size_bytes)
    assert lines[at].startswith(bad.raw)
    assert len(bad.raw) < 5_000
    assert [GOOD, GOOD] == [item.raw for item in transcript if isinstance(item, Row)]
    assert len(data) == transcript.report.size_bytes


def test_a_line_of_just_the_limit_is_good() -> None:
    """The limit itself is allowed, with and without a line end."""
    for line in (GOOD, GOOD.rstrip()):
        limits = Limits(row_bytes=len(line))
        assert () == read_transcript(line, fmt=TranscriptFormat.OPENAI, limits=limits).report.bad_lines


def test_a_last_line_without_an_end_over_the_limit_is_one_bad_line() -> None:
    """The end of the file ends a line too."""
    transcript = read_transcript(b"x" * 100, fmt=TranscriptFormat.PI, limits=Limits(row_bytes=10))
    assert [100] == [item.size_bytes for item in transcript if isinstance(item, BadLine)]


def test_an_escaped_lone_surrogate_is_kept_and_its_labels_can_be_encoded_c85() -> None:
    """C85: the bytes of such a line are fine; what is made from its ids is UTF-8 all the same."""
    line = (
        b'{"type":"message","id":"\\ud800x","parentId":"\\udfff","timestamp":"t","message":'
        b'{"role":"assistant\\ud83d","content":[{"type":"toolCall","id":"call\\udc00"}]}}\n'
    )
    transcript = read_transcript(line, fmt=TranscriptFormat.PI)
    (row,) = transcript
    assert isinstance(row, Row)
    assert line == row.raw
    assert ("\\ud800x", "\\udfff", "assistant_") == (row.entry_id, row.parent_id, row.kind)
    assert row.group is not None
    for text in (row.entry_id, row.parent_id, row.kind, row.group, *transcript.report.kinds):
        assert text is not None
        text.encode()


def test_surrogates_that_differ_give_groups_that_differ_c85() -> None:
    """C85: ids are compared as they are, not as they look when they are made printable."""
    lines = [
        json.dumps({"role": "assistant", "tool_calls": [{"id": f"call{mark}"}]}).encode()
        for mark in ("\ud800", "\ud801", "\\ud800")
    ]
    rows = [row for row in read_transcript(b"\n".join(lines)) if isinstance(row, Row)]
    assert 3 == len({row.group for row in rows})


def test_a_pair_of_surrogates_is_one_character() -> None:
    """An emoji written as two escapes is no lone surrogate."""
    (row,) = read_transcript(b'{"role":"user","id":"\\ud83d\\ude00"}')
    assert isinstance(row, Row)
    assert "😀" == row.entry_id


def test_long_labels_are_cut_and_cleaned() -> None:
    """A type of 10 KB with dots, stars, blanks and line ends becomes a short plain label."""
    (row,) = read_transcript(
        json.dumps({"type": "a.b*c d\n>" + "é" * 10_000}).encode(), fmt=TranscriptFormat.PI
    )
    assert isinstance(row, Row)
    assert "a.b_c_d_" == row.kind


def test_a_number_of_any_length_is_json() -> None:
    """An integer of 5000 digits and a float out of range are no reason to refuse a line."""
    line = b'{"role":"user","n":' + b"9" * 5000 + b',"m":1e999}'
    assert () == read_transcript(line).report.bad_lines


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"good\n\xff\xfe\nalso good\n", BadReason.NOT_UTF8),
        (b"good\nb\x00d\nalso good\n", BadReason.NUL_BYTE),
    ],
)
def test_a_line_of_plain_text_that_is_no_text_is_bad_alone(data: bytes, reason: BadReason) -> None:
    """In a text the line that is not UTF-8 is bad, and the lines around it are blocks."""
    before, bad, after = read_transcript(data, fmt=TranscriptFormat.TEXT)
    assert isinstance(bad, BadLine)
    assert (2, reason) == (bad.line_number, bad.reason)
    assert (b"good\n", b"also good\n", 3) == (before.raw, after.raw, after.line_number)


@pytest.mark.parametrize(
    "row",
    [
        {"type": ["x"], "message": 3, "id": 5, "parentId": {}},
        {"type": "message", "message": {"role": ["user"], "content": 4}},
        {
            "type": "message",
            "message": {"role": "assistant", "content": [1, None, {"type": 7}, {"type": "toolCall"}]},
        },
        {"type": "message", "message": {"role": "toolResult", "toolCallId": ""}},
        {"type": "user", "uuid": 7, "message": {"content": [{"type": "tool_result", "tool_use_id": 4}]}},
        {"type": "system", "subtype": {}, "parentUuid": False, "logicalParentUuid": []},
        {"role": {}, "tool_calls": {"id": "x"}, "function_call": "f", "content": {"type": "tool_use"}},
        {"role": "assistant", "tool_calls": [None, {"id": None}, {}], "function_call": {"name": 3}},
        {},
    ],
)
@pytest.mark.parametrize("fmt", [TranscriptFormat.PI, TranscriptFormat.CLAUDE_CODE, TranscriptFormat.OPENAI])
def test_fields_of_a_wrong_type_count_as_absent(row: dict[str, object], fmt: TranscriptFormat) -> None:
    """A field that is not what it should be costs its information, not the row."""
    (item,) = read_transcript(json.dumps(row).encode(), fmt=fmt)
    assert isinstance(item, Row)
    assert (None, None, None, False) == (item.entry_id, item.parent_id, item.group, item.open)
