"""A JSON document of messages, cut into its messages and nothing lost between them."""

import json
from typing import Any

import pytest

from sexton.worker.ingest import BadLine, BadReason, Limits, Role, Row, TranscriptFormat, read_transcript

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": 'tricky: ] } , [ { " \\ \\" \\\\ é 😀 \u0301'},
    {"role": "user", "content": [{"type": "text", "text": "a, b"}, []]},
    {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}, {"id": "b"}]},
    {"role": "tool", "tool_call_id": "b", "content": "\r\n"},
    {"role": "tool", "tool_call_id": "a", "content": "{}"},
]

WRAPPED = {
    "model": "m",
    "metadata": {"messages": [{"role": "no"}]},
    "note": "messages",
    "messages": MESSAGES,
    "tools": [{"name": "],"}],
}


def dump(value: object, **options: Any) -> bytes:
    return json.dumps(value, **options).encode()


DOCUMENTS = {
    "list": dump(MESSAGES),
    "compact": dump(MESSAGES, separators=(",", ":")),
    "pretty": dump(MESSAGES, indent=2, ensure_ascii=False),
    "crlf": dump(MESSAGES, indent="\t").replace(b"\n", b"\r\n"),
    "wrapped": dump(WRAPPED),
    "wrapped-pretty": dump(WRAPPED, indent=4),
    "marked": b"\xef\xbb\xbf \n" + dump(MESSAGES) + b"\n\n",
    "comma-too-many": dump(MESSAGES)[:-1] + b" , ]",
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_each_message_is_its_own_bytes_c77(name: str) -> None:
    """C77: the body of a row is a message as it stands; all rows together are the document."""
    data = DOCUMENTS[name]
    transcript = read_transcript(data)
    assert TranscriptFormat.OPENAI is transcript.format
    rows = [item for item in transcript if isinstance(item, Row)]
    assert data == b"".join(item.raw for item in transcript)
    assert MESSAGES == [json.loads(row.body) for row in rows]
    assert [Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL, Role.TOOL] == [row.role for row in rows]
    assert [(None, False), (None, False), ("a", True), ("a", True), ("a", False)] == [
        (row.group, row.open) for row in rows
    ]
    assert () == transcript.report.bad_lines


def test_glue_goes_with_the_message_before_it_and_the_head_with_the_first() -> None:
    """Where each byte between the messages is, exactly."""
    rows = list(read_transcript(b' {"messages" : [ {"role":"user"} ,\n  {"role":"tool"}\n], "n": 1}\n'))
    assert [b' {"messages" : [ {"role":"user"} ,\n  ', b'{"role":"tool"}\n], "n": 1}\n'] == [
        row.raw for row in rows
    ]


def test_the_line_of_a_message_is_where_its_body_starts() -> None:
    """A message in a pretty-printed document has the line of its bracket."""
    data = b'\n{\n  "messages": [\n    {\n      "role": "user"\n    },\n    {"role": "tool"}\n  ]\n}\n'
    assert [4, 7] == [item.line_number for item in read_transcript(data)]


def test_a_bad_message_is_bad_alone() -> None:
    """What is no object, or no JSON, between two commas is reported; the messages around it are read."""
    data = b'[{"role":"user"},\n"text",\n{"role":"us er" x},\n{"role":"tool"},\n{"a":"\xff"},{"role":"user"}]'
    transcript = read_transcript(data)
    bad = [(item.line_number, item.reason) for item in transcript if isinstance(item, BadLine)]
    assert [(2, BadReason.NOT_AN_OBJECT), (3, BadReason.NOT_JSON), (5, BadReason.NOT_UTF8)] == bad
    assert 3 == transcript.report.rows
    assert data == b"".join(item.raw for item in transcript)


UNBROKEN = b'[{"role":"user","content":"]"}, {"role":"tool","content":"\\""}, {}]'


@pytest.mark.parametrize("size", range(20, len(UNBROKEN) + 1))
def test_a_document_that_breaks_off_gives_what_is_whole(size: int) -> None:
    """Cut anywhere, the last piece is bad, and the messages before it are rows."""
    data = UNBROKEN[:size]
    *before, last = read_transcript(data, fmt=TranscriptFormat.OPENAI)
    assert data == b"".join(item.raw for item in (*before, last))
    assert all(isinstance(item, Row) for item in before)
    assert isinstance(last, BadLine) == (size < len(UNBROKEN))


@pytest.mark.parametrize(
    "data",
    [
        b'{"messages": [{"role":"user"}], "x": }',
        b'{"messages": [{"role":"user"}], "x": "\xff"}',
        b'{"messages": [{"role":"user"}], "x": "\x00"}',
        b'[{"role":"user"}] and more',
        b'[{"role":"user"}]\n[{"role":"user"}]',
        b'{"messages": [{"role":"user"}]} {}',
    ],
)
def test_a_broken_wrapper_is_one_bad_piece(data: bytes) -> None:
    """If what is around the list is broken, it is not guessed which messages it holds."""
    (bad,) = read_transcript(data, fmt=TranscriptFormat.OPENAI)
    assert isinstance(bad, BadLine)
    assert data == bad.raw


def test_a_message_over_the_limit_is_bad_alone() -> None:
    """The limit on rows holds within a document."""
    data = b'[{"role":"user"},{"role":"user","content":"' + b"x" * 9000 + b'"},{"role":"tool"}]'
    transcript = read_transcript(data, limits=Limits(row_bytes=5000))
    kinds = [type(item) for item in transcript]
    assert [Row, BadLine, Row] == kinds
    assert [BadReason.TOO_LARGE] == [note.reason for note in transcript.report.bad_lines]
    assert len(data) == transcript.report.size_bytes


def test_a_bracket_too_many_spoils_one_message() -> None:
    """Counting brackets recovers at the next comma."""
    transcript = read_transcript(b'[{"role":"user"}}, {"role":"tool"}]')
    assert [BadLine, Row] == [type(item) for item in transcript]


@pytest.mark.parametrize(
    "line",
    [
        b'{"role":"user"} x',
        b'{"role":"user"},',
        b'{"role":"user"',
        b'{"role":"user",',
        b'{"role":"user","content":"a',
    ],
)
def test_a_bad_first_line_does_not_make_a_document_of_jsonl(line: bytes) -> None:
    """What looks like the start of an object over several lines is still a line, if JSONL follows."""
    data = line + b'\n{"role":"tool","messages":[{}]}\n{"role":"user"}\n'
    assert [BadLine, Row, Row] == [type(item) for item in read_transcript(data)]


@pytest.mark.parametrize("data", [b"[]", b'{"messages": []}\n', b"[ \n ]"])
def test_a_document_without_messages_is_one_piece(data: bytes) -> None:
    """Nothing is made up, and nothing is lost."""
    (item,) = read_transcript(data, fmt=TranscriptFormat.OPENAI)
    assert data == item.raw


def test_one_pretty_printed_message_is_a_document_of_one() -> None:
    """A single message over several lines is a row."""
    data = dump(MESSAGES[2], indent=1)
    (row,) = read_transcript(data)
    assert isinstance(row, Row)
    assert (data, Role.ASSISTANT) == (row.body, row.role)


def test_the_last_list_of_messages_counts() -> None:
    """As a JSON parser takes the last of two equal keys."""
    data = b'{"messages":[{"role":"user"}],"messages":[{"role":"tool"}]}'
    (row,) = read_transcript(data)
    assert isinstance(row, Row)
    assert b'{"role":"tool"}' == row.body


def test_deep_and_broken_documents_take_linear_time() -> None:
    """Half a megabyte of brackets, quotes or backslashes is read or refused, without recursion or blow-up."""
    for unit in (b"[", b"{", b'"', b'\\"', b'"\\', b"]", b",", b'{"messages":['):
        data = b'[{"role":"user"},' + unit * (500_000 // len(unit))
        transcript = read_transcript(data, fmt=TranscriptFormat.OPENAI)
        assert data == b"".join(item.raw for item in transcript)
        assert transcript.report.bad_lines
