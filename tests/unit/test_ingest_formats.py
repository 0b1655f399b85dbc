"""What is read from the rows of each format."""

import json
from typing import Any

import pytest

from sexton.worker.ingest import ParentStatus, Report, Role, Row, TranscriptFormat, read_transcript

Line = dict[str, Any]


def read(fmt: TranscriptFormat, *lines: Line) -> tuple[list[Row], Report]:
    transcript = read_transcript(b"\n".join(json.dumps(line).encode() for line in lines), fmt=fmt)
    rows = [item for item in transcript if isinstance(item, Row)]
    assert len(lines) == len(rows)
    return rows, transcript.report


PI_ROWS: list[tuple[Line, Role, str | None]] = [
    ({"type": "session", "version": 3, "id": "s", "cwd": "d"}, Role.META, "session"),
    ({"type": "message", "message": {"role": "user", "content": "hi"}}, Role.USER, None),
    ({"type": "message", "message": {"role": "assistant", "content": []}}, Role.ASSISTANT, None),
    ({"type": "message", "message": {"role": "toolResult", "toolCallId": "x"}}, Role.TOOL, None),
    ({"type": "message", "message": {"role": "bashExecution"}}, Role.USER, "bashExecution"),
    ({"type": "message", "message": {"role": "custom"}}, Role.USER, "custom"),
    ({"type": "message", "message": {"role": "hookMessage"}}, Role.USER, "hookMessage"),
    ({"type": "message", "message": {"role": "branchSummary"}}, Role.SUMMARY, "branchSummary"),
    ({"type": "message", "message": {"role": "oracle"}}, Role.OTHER, "oracle"),
    ({"type": "model_change", "modelId": "m"}, Role.META, "model_change"),
    ({"type": "thinking_level_change"}, Role.META, "thinking_level_change"),
    ({"type": "custom", "customType": "x"}, Role.META, "custom"),
    ({"type": "custom_message", "content": "x"}, Role.USER, "custom_message"),
    ({"type": "label", "label": "here"}, Role.META, "label"),
    ({"type": "session_info", "name": "x"}, Role.META, "session_info"),
    ({"type": "compaction", "summary": "x", "firstKeptEntryIndex": 3}, Role.SUMMARY, "compaction"),
    ({"type": "branch_summary", "summary": "x"}, Role.SUMMARY, "branch_summary"),
    ({"type": "hologram"}, Role.OTHER, "hologram"),
    ({"message": {"role": "user"}}, Role.OTHER, "untyped"),
]

CLAUDE_ROWS: list[tuple[Line, Role, str | None]] = [
    ({"type": "user", "message": {"role": "user", "content": "hi"}}, Role.USER, None),
    ({"type": "user", "isMeta": True, "message": {"content": "caveat"}}, Role.USER, "meta"),
    ({"type": "user", "isSidechain": True, "message": {"content": "task"}}, Role.USER, "sidechain"),
    (
        {"type": "user", "isCompactSummary": True, "message": {"content": "s"}},
        Role.SUMMARY,
        "compact_summary",
    ),
    (
        {"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "x"}]}},
        Role.TOOL,
        None,
    ),
    ({"type": "assistant", "message": {"content": [{"type": "text"}]}}, Role.ASSISTANT, None),
    ({"type": "assistant", "isSidechain": True, "message": {}}, Role.ASSISTANT, "sidechain"),
    ({"type": "system", "subtype": "compact_boundary"}, Role.META, "compact_boundary"),
    ({"type": "system"}, Role.META, "system"),
    ({"type": "summary", "summary": "x", "leafUuid": "u"}, Role.SUMMARY, "summary"),
    ({"type": "file-history-snapshot", "messageId": "u"}, Role.META, "file-history-snapshot"),
    ({"type": "progress", "data": {}}, Role.META, "progress"),
    ({"type": "queue-operation"}, Role.META, "queue-operation"),
    ({"type": "marble-origami-commit"}, Role.OTHER, "marble-origami-commit"),
    ({"uuid": "u"}, Role.OTHER, "untyped"),
]

OPENAI_ROWS: list[tuple[Line, Role, str | None]] = [
    ({"role": "system", "content": "be kind"}, Role.SYSTEM, None),
    ({"role": "developer", "content": "be brief"}, Role.DEVELOPER, None),
    ({"role": "user", "content": [{"type": "text", "text": "hi"}]}, Role.USER, None),
    ({"role": "assistant", "content": None, "tool_calls": []}, Role.ASSISTANT, None),
    ({"role": "tool", "tool_call_id": "x"}, Role.TOOL, None),
    ({"role": "function", "name": "f"}, Role.TOOL, None),
    ({"role": "user", "content": [{"type": "tool_result", "tool_use_id": "y"}]}, Role.TOOL, None),
    ({"role": "critic", "content": "meh"}, Role.OTHER, "critic"),
    ({"type": "reasoning", "id": "r"}, Role.OTHER, "reasoning"),
    ({"content": "?"}, Role.OTHER, "untyped"),
]


@pytest.mark.parametrize(
    ("fmt", "table"),
    [
        (TranscriptFormat.PI, PI_ROWS),
        (TranscriptFormat.CLAUDE_CODE, CLAUDE_ROWS),
        (TranscriptFormat.OPENAI, OPENAI_ROWS),
    ],
)
def test_each_type_of_row_has_its_role_and_kind(
    fmt: TranscriptFormat, table: list[tuple[Line, Role, str | None]]
) -> None:
    """Every type a format has, and some it has not: all are kept, and named."""
    rows, report = read(fmt, *(line for line, _, _ in table))
    assert [(role, kind) for _, role, kind in table] == [(row.role, row.kind) for row in rows]
    unknown = [kind for _, role, kind in table if role is Role.OTHER]
    assert unknown == list(report.unknown_kinds)
    assert len(table) == report.rows == sum(report.roles.values())
    assert {"application/json"} == {row.media_type for row in rows}


@pytest.mark.parametrize(
    ("fmt", "line"),
    [
        (TranscriptFormat.PI, {"type": "compaction", "summary": "s", "firstKeptEntryId": "a"}),
        (TranscriptFormat.PI, {"type": "branch_summary", "summary": "s", "fromId": "a"}),
        (
            TranscriptFormat.PI,
            {
                "type": "compaction",
                "summary": "s",
                "retainedTail": [{"role": "assistant", "content": [{"type": "toolCall", "id": "c"}]}],
            },
        ),
        (TranscriptFormat.CLAUDE_CODE, {"type": "summary", "summary": "s", "leafUuid": "a"}),
        (TranscriptFormat.CLAUDE_CODE, {"type": "user", "isCompactSummary": True, "message": {}}),
    ],
)
def test_a_summary_in_the_file_is_a_row_and_covers_nothing(fmt: TranscriptFormat, line: Line) -> None:
    """The file's own compaction is text with a label: the rows it speaks of are all still there."""
    plain = {"type": "custom", "id": "a"}
    rows, report = read(fmt, plain, line, plain)
    assert Role.SUMMARY is rows[1].role
    assert (None, False) == (rows[1].group, rows[1].open)
    assert (3, 0) == (report.rows, report.groups)


def test_pi_entries_name_their_parents_c62() -> None:
    """C62: a parent that is not in the file is reported by line; every row is there all the same."""
    rows, report = read(
        TranscriptFormat.PI,
        {"type": "session", "version": 3, "id": "s", "cwd": "d"},
        {"type": "message", "id": "a", "parentId": None, "message": {"role": "user"}},
        {"type": "message", "id": "b", "parentId": "a", "message": {"role": "user"}},
        {"type": "message", "id": "c", "parentId": "gone", "message": {"role": "user"}},
        {"type": "message", "id": "d", "parentId": "e", "message": {"role": "user"}},
        {"type": "message", "id": "e", "parentId": "c", "message": {"role": "user"}},
    )
    none, present, missing = ParentStatus.NONE, ParentStatus.PRESENT, ParentStatus.MISSING
    assert [none, none, present, missing, present, present] == [row.parent_status for row in rows]
    assert ("c", "gone") == (rows[3].entry_id, rows[3].parent_id)
    assert (4,) == report.missing_parents
    assert () == report.external_parents


def test_pi_entries_without_ids_have_no_parents() -> None:
    """Sessions of version 1 are a plain list."""
    rows, report = read(
        TranscriptFormat.PI,
        {"type": "session", "id": "s", "cwd": "d"},
        {"type": "message", "message": {"role": "user"}},
    )
    assert (None, ParentStatus.NONE) == (rows[1].entry_id, rows[1].parent_status)
    assert () == report.missing_parents


@pytest.mark.parametrize("field", ["parentSession", "branchedFrom"])
def test_a_session_that_was_branched_off_has_its_parent_elsewhere_c63(field: str) -> None:
    """C63: the file it comes from is named and not looked for."""
    rows, report = read(TranscriptFormat.PI, {"type": "session", "id": "s", field: "/gone/other.jsonl"})
    assert (ParentStatus.EXTERNAL, "/gone/other.jsonl") == (rows[0].parent_status, rows[0].parent_id)
    assert (1,) == report.external_parents


def test_claude_code_rows_name_their_parents_c62_c63() -> None:
    """C62, C63: a parent that is not there is missing; a logical one that is not there is external."""
    rows, report = read(
        TranscriptFormat.CLAUDE_CODE,
        {"type": "user", "uuid": "a", "parentUuid": None, "message": {}},
        {"type": "user", "uuid": "b", "parentUuid": "phantom", "message": {}},
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "c",
            "parentUuid": None,
            "logicalParentUuid": "b",
        },
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "d",
            "parentUuid": None,
            "logicalParentUuid": "z",
        },
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "e",
            "parentUuid": "d",
            "logicalParentUuid": "z",
        },
        {
            "type": "system",
            "subtype": "compact_boundary",
            "uuid": "f",
            "parentUuid": "y",
            "logicalParentUuid": "z",
        },
    )
    expected = [
        (None, ParentStatus.NONE),
        ("phantom", ParentStatus.MISSING),
        ("b", ParentStatus.PRESENT),
        ("z", ParentStatus.EXTERNAL),
        ("d", ParentStatus.EXTERNAL),
        ("y", ParentStatus.MISSING),
    ]
    assert expected == [(row.parent_id, row.parent_status) for row in rows]
    assert ((2, 6), (4, 5)) == (report.missing_parents, report.external_parents)


def test_a_parent_on_a_bad_line_is_missing_c62() -> None:
    """C62: a row that could not be read is no parent."""
    data = b'{"type":"user","uuid":"a",\n{"type":"user","uuid":"b","parentUuid":"a"}\n'
    report = read_transcript(data, fmt=TranscriptFormat.CLAUDE_CODE).report
    assert (2,) == report.missing_parents
    assert [1] == [note.line_number for note in report.bad_lines]


def test_pi_calls_and_results_are_paired() -> None:
    """pi's `toolCall` parts and `toolResult` messages, ids of OpenAI's longer form among them."""
    parts = [{"type": "text", "text": "…"}, {"type": "toolCall", "id": "call_1|fc_9", "name": "bash"}]
    rows, report = read(
        TranscriptFormat.PI,
        {"type": "message", "message": {"role": "assistant", "content": parts}},
        {"type": "message", "message": {"role": "toolResult", "toolCallId": "call_1|fc_9"}},
    )
    assert rows[0].group == rows[1].group
    assert [True, False] == [row.open for row in rows]
    assert (1, 1, 0) == (report.calls, report.groups, report.open_groups)
