"""Any bytes at all are read into rows and bad lines that are the bytes again, and never into a crash."""

import json
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from sexton.schemas.ids import GroupId
from sexton.worker.ingest import (
    BadLine,
    BadReason,
    FormatUnclearError,
    Limits,
    Row,
    Transcript,
    TranscriptFormat,
    read_transcript,
)

GROUP = TypeAdapter(GroupId)
IDS = st.sampled_from(["a", "b", "c", "d", "a b", "é", "\ud800"])

_json = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=True) | st.text(st.characters(), max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
FIELDS = """
    type message role content id parentId uuid parentUuid logicalParentUuid toolCallId tool_calls messages
    tool_call_id tool_use_id subtype isCompactSummary isSidechain function_call name
"""
WORDS = """
    session message user assistant toolResult tool toolCall tool_use tool_result compaction system
"""
_keys = st.sampled_from(FIELDS.split())
_words = st.sampled_from(WORDS.split())
_rows = st.recursive(
    st.dictionaries(_keys, _words | IDS | _json, max_size=6),
    lambda inner: st.dictionaries(_keys, inner | st.lists(inner, max_size=3) | _words | IDS, max_size=6),
    max_leaves=8,
)
_row_bytes = _rows.map(lambda row: json.dumps(row).encode())
_noise = st.sampled_from(
    [
        b"\n",
        b"\r\n",
        b"\r",
        b"\xef\xbb\xbf",
        b" ",
        b"\x00",
        b"\xff",
        b"[",
        b"]",
        b"{",
        b"}",
        b",",
        b'"',
        b"\\",
    ]
)
_files = st.binary(max_size=400) | st.lists(
    _row_bytes | _noise | st.text(max_size=20).map(str.encode), max_size=12
).map(b"".join)


def check(data: bytes, transcript: Transcript) -> None:
    """What must hold of any transcript."""
    items = list(transcript)
    assert data == b"".join(item.raw for item in items)
    assert len(items) == len(transcript)
    report = transcript.report
    assert len(data) == report.size_bytes
    numbers = [item.line_number for item in items]
    assert numbers == sorted(numbers)
    rows = [item for item in items if isinstance(item, Row)]
    assert len(rows) == report.rows == sum(report.roles.values())
    latest: dict[str, bool] = {}
    for row in rows:
        assert row.raw
        row.raw.decode()
        assert row.raw.find(row.body) >= 0
        row.labels.model_dump_json()
        for text in (row.entry_id, row.parent_id, row.kind):
            (text or "").encode()
        if row.group is not None:
            GROUP.validate_python(row.group)
            latest[row.group] = row.open
        assert row.group is not None or not row.open
    assert (report.groups, report.open_groups) == (len(latest), sum(latest.values()))
    bad = [(item.line_number, item.reason) for item in items if isinstance(item, BadLine)]
    assert bad == [(note.line_number, note.reason) for note in report.bad_lines]


@pytest.mark.parametrize("fmt", list(TranscriptFormat))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=_files)
def test_any_bytes_in_any_format_c77(fmt: TranscriptFormat, data: bytes) -> None:
    """C77, bad input: whatever the bytes and the format said, they come out again, and nothing is raised."""
    check(data, read_transcript(data, fmt=fmt))


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=_files)
def test_any_bytes_without_a_format(data: bytes) -> None:
    """Detection tells a format, or says that it cannot."""
    try:
        transcript = read_transcript(data)
    except FormatUnclearError:
        return
    check(data, transcript)


@settings(deadline=None)
@given(lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b"")), max_size=8))
def test_a_limit_on_rows_loses_no_line(lines: list[bytes]) -> None:
    """With any lines over the limit among them, each line is one item, of its own size."""
    data = b"\n".join(lines)
    items = list(read_transcript(data, fmt=TranscriptFormat.PI, limits=Limits(row_bytes=20)))
    expected = data.splitlines(keepends=True) if data.isascii() and b"\r" not in data else None
    sizes = [item.size_bytes if isinstance(item, BadLine) else len(item.raw) for item in items]
    assert len(data) == sum(sizes)
    assert data.count(b"\n") + (not data.endswith(b"\n") and bool(data)) == len(items)
    if expected is not None and not any(c in data for c in b"\x0b\x0c\x1c\x1d\x1e"):
        assert [len(line) for line in expected] == sizes
    for item, size in zip(items, sizes, strict=True):
        assert (isinstance(item, BadLine) and item.reason is BadReason.TOO_LARGE) == (size > 20)


@settings(deadline=None)
@given(messages=st.lists(_rows, max_size=6), indent=st.sampled_from([None, 0, 3]), wrapped=st.booleans())
def test_messages_of_a_document_come_out_as_they_went_in(
    messages: list[dict[str, Any]], indent: int | None, wrapped: bool
) -> None:
    """The body of each row of a document parses to the message that was written."""
    value = {"model": [{}], "messages": messages, "n": "]"} if wrapped else messages
    data = json.dumps(value, indent=indent).encode()
    transcript = read_transcript(data, fmt=TranscriptFormat.OPENAI)
    check(data, transcript)
    rows = [item for item in transcript if isinstance(item, Row)]
    if messages:
        assert repr(messages) == repr([json.loads(row.body) for row in rows])


@st.composite
def _conversations(draw: st.DrawFn) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(0, 14))):
        made = draw(st.lists(IDS, max_size=3))
        answered = draw(IDS)
        lines.append(
            draw(
                st.sampled_from(
                    [
                        {"role": "assistant", "tool_calls": [{"id": id_} for id_ in made]},
                        {"role": "tool", "tool_call_id": answered},
                        {"role": "user", "content": "text"},
                    ]
                )
            )
        )
    return lines


@settings(deadline=None)
@given(lines=_conversations())
def test_no_cut_divides_a_group_that_says_it_is_closed_c38(lines: list[dict[str, Any]]) -> None:
    """C38 to C43: cut anywhere, a call and its first answer are on one side, or the group says it is open."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    rows = [row for row in read_transcript(data, fmt=TranscriptFormat.OPENAI) if isinstance(row, Row)]
    waiting: dict[str, int] = {}  # a call that waits, by id, and the row it was first made in
    early: set[str] = set()  # ids with a result before any call, which may then count as that call's
    open_after: list[dict[str | None, bool]] = []
    state: dict[str | None, bool] = defaultdict(bool)
    for index, (line, row) in enumerate(zip(lines, rows, strict=True)):
        state[row.group] = row.open
        open_after.append(dict(state))
        for call in line.get("tool_calls", ()):
            waiting.setdefault(call["id"], index)
        answered = line.get("tool_call_id")
        if answered is None:
            continue
        made_in = waiting.pop(answered, None)
        if made_in is None:
            early.add(answered)
        else:
            assert row.group == rows[made_in].group
            for cut in range(made_in, index):
                assert open_after[cut][row.group]
    for id_, index in waiting.items():
        assert state[rows[index].group] or id_ in early
