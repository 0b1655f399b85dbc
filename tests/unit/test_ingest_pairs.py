"""Calls and results: paired by id into groups that are open until the last call is answered."""

import json
from collections import defaultdict
from typing import Any

import pytest
from pydantic import TypeAdapter

from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import GroupId
from sexton.worker.ingest import Row, Transcript, TranscriptFormat, read_transcript

Line = dict[str, Any]


def calls(*ids: str) -> Line:
    return {"role": "assistant", "tool_calls": [{"id": id_, "type": "function"} for id_ in ids]}


def result(id_: str) -> Line:
    return {"role": "tool", "tool_call_id": id_, "content": "ok"}


def says(text: str, role: str = "assistant") -> Line:
    return {"role": role, "content": text}


def read(*lines: Line, fmt: TranscriptFormat = TranscriptFormat.OPENAI, prefix: str = "") -> Transcript:
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return read_transcript(data, fmt=fmt, group_prefix=prefix)


def places(transcript: Transcript) -> list[tuple[str | None, bool]]:
    return [(row.group, row.open) for row in transcript if isinstance(row, Row)]


def test_a_call_and_its_result_share_a_group() -> None:
    """The group is open after the call and closed after the result."""
    assert [("a", True), ("a", False)] == places(read(calls("a"), result("a")))


def test_rows_without_calls_have_no_group() -> None:
    """Plain messages can be cut anywhere."""
    assert [(None, False)] * 2 == places(read(says("hi", "user"), says("hello")))


def test_pairs_are_made_by_id_and_not_by_neighbourhood_c40() -> None:
    """C40: call, text, result. The text between is in no group, the result is in its call's."""
    transcript = read(calls("a"), says("wait", "user"), calls("b"), result("a"), result("b"))
    assert [("a", True), (None, False), ("b", True), ("a", False), ("b", False)] == places(transcript)


def test_several_calls_of_one_message_are_one_group_whatever_the_order_of_results_c43() -> None:
    """C43: the group closes with the last missing result."""
    transcript = read(calls("a", "b", "c"), result("c"), result("a"), says("..."), result("b"))
    assert [("a", True), ("a", True), ("a", True), (None, False), ("a", False)] == places(transcript)
    assert (3, 1, 0) == (transcript.report.calls, transcript.report.groups, transcript.report.open_groups)


def test_a_call_without_an_answer_leaves_its_group_open_c41() -> None:
    """C41: every member of a group that waits says so, the answered ones too."""
    transcript = read(calls("a", "b"), result("a"), says("later", "user"))
    assert [("a", True), ("a", True), (None, False)] == places(transcript)
    assert 1 == transcript.report.open_groups


def test_a_result_without_its_call_is_a_closed_group_of_its_own_c39() -> None:
    """C39: it can be compacted, and it is reported by its line."""
    transcript = read(says("hi"), result("lost"), calls("a"), result("a"))
    assert [(None, False), ("lost", False), ("a", True), ("a", False)] == places(transcript)
    assert (2,) == transcript.report.orphan_results
    assert (2, 0, 1) == (transcript.report.groups, transcript.report.open_groups, transcript.report.calls)


def test_no_cut_at_an_index_where_no_group_is_open_divides_a_group_c38() -> None:
    """C38: at each index, members on both sides mean the last member before the cut is open."""
    lines = [
        says("go", "user"),
        calls("a", "b"),
        result("b"),
        calls("c"),
        result("a"),
        says("text"),
        result("c"),
        result("lost"),
        calls("d", "e"),
        result("e"),
    ]
    rows = [row for row in read(*lines) if isinstance(row, Row)]
    for cut in range(len(rows) + 1):
        before: dict[str, bool] = {row.group: row.open for row in rows[:cut] if row.group}
        after = {row.group for row in rows[cut:]}
        assert all(open_ for group, open_ in before.items() if group in after)


def test_a_result_may_come_before_its_call() -> None:
    """Written out of order, the two still pair, and nothing is an orphan."""
    transcript = read(result("a"), calls("a"), says("done"))
    assert [("a", True), ("a", False), (None, False)] == places(transcript)
    assert () == transcript.report.orphan_results


def test_a_result_before_its_call_does_not_close_it_if_another_follows() -> None:
    """A transcript whose start is cut off, with ids that are used again: the answer that follows counts."""
    transcript = read(result("a"), calls("a"), says("wait"), result("a"))
    assert [("a", True), ("a", True), (None, False), ("a", False)] == places(transcript)


def test_a_second_result_joins_its_call() -> None:
    """A result that is written twice stays with its group, which stays closed."""
    assert [("a", True), ("a", False), ("a", False)] == places(read(calls("a"), result("a"), result("a")))


def test_an_id_that_is_used_again_after_its_answer_is_a_new_call() -> None:
    """Programs that number calls anew in each turn do not weld their whole transcript together."""
    transcript = read(*[line for _ in range(3) for line in (calls("call_0"), result("call_0"))])
    groups = [group for group, _ in places(transcript)]
    assert "call_0" == groups[0]
    assert [2, 2, 2] == list(_sizes(groups).values())
    assert [True, False] * 3 == [open_ for _, open_ in places(transcript)]
    assert (3, 3, 0) == (transcript.report.calls, transcript.report.groups, transcript.report.open_groups)


def test_an_id_that_is_used_again_before_its_answer_is_the_same_call() -> None:
    """A call that is written twice and answered once leaves nothing open."""
    transcript = read(calls("a"), calls("a"), result("a"))
    assert [("a", True), ("a", True), ("a", False)] == places(transcript)
    assert (1, 0) == (transcript.report.calls, transcript.report.open_groups)


def test_one_row_that_answers_two_messages_makes_them_one_group() -> None:
    """A row has one group, so what it ties together is one."""
    answers = {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": id_} for id_ in ("a", "b")],
    }
    transcript = read(calls("a"), calls("b"), answers)
    assert [("a", True), ("a", True), ("a", False)] == places(transcript)


def test_a_message_in_several_rows_is_one_group_c43() -> None:
    """C43: Claude Code writes each part of an answer as a row; the message id holds them together."""

    def part(uuid: str, *content: Line, role: str = "assistant", message_id: str | None = "msg_1") -> Line:
        message = {"role": role, "id": message_id, "content": list(content)}
        return {"type": role, "uuid": uuid, "parentUuid": None, "message": message}

    def answer(uuid: str, id_: str) -> Line:
        return part(uuid, {"type": "tool_result", "tool_use_id": id_}, role="user", message_id=None)

    transcript = read(
        part("1", {"type": "thinking", "thinking": "hm"}),
        part("2", {"type": "tool_use", "id": "a"}),
        answer("3", "a"),
        part("4", {"type": "tool_use", "id": "b"}),
        answer("5", "b"),
        part("6", {"type": "tool_use", "id": "c"}, message_id="msg_2"),
        answer("7", "c"),
        fmt=TranscriptFormat.CLAUDE_CODE,
    )
    expected = [(None, False), *[("a", True)] * 3, ("a", False), ("c", True), ("c", False)]
    assert expected == places(transcript)


def test_a_history_that_is_in_the_file_twice_is_not_one_group() -> None:
    """Claude Code copies rows when a session is resumed: the copy is paired with itself."""

    def call(uuid: str, id_: str) -> Line:
        message = {"role": "assistant", "id": "msg", "content": [{"type": "tool_use", "id": id_}]}
        return {"type": "assistant", "uuid": uuid, "message": message}

    def answer(uuid: str, id_: str) -> Line:
        message = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id_}]}
        return {"type": "user", "uuid": uuid, "message": message}

    history = [call("1", "a"), call("2", "b"), answer("3", "a"), answer("4", "b")]
    groups = [group for group, _ in places(read(*history, *history, fmt=TranscriptFormat.CLAUDE_CODE))]
    assert [4, 4] == list(_sizes(groups).values())
    assert groups[:4] != groups[4:]


def test_calls_that_the_server_answers_itself_are_closed() -> None:
    """A server tool's call and result may stand in one row."""
    content = [
        {"type": "server_tool_use", "id": "srv"},
        {"type": "web_search_tool_result", "tool_use_id": "srv"},
    ]
    assert [("srv", False)] == places(read({"role": "assistant", "content": content}))


def test_functions_without_ids_are_paired_by_name() -> None:
    """The older form of calls has names only; the same function again is a new call."""
    turn: list[Line] = [
        {"role": "assistant", "function_call": {"name": "look"}},
        {"role": "function", "name": "look", "content": "1"},
    ]
    transcript = read(*turn, *turn, calls("look"))
    groups = [group for group, _ in places(transcript)]
    assert [2, 2, 1] == list(_sizes(groups).values())
    assert 1 == transcript.report.open_groups


AWKWARD_IDS = [
    "call_1",
    "call-1",
    "call 1",
    "call.1",
    "call*1",
    "call>1",
    "call|1",
    "call_1|fc_1",
    "call_1|fc_2",
    "Call_1",
    "é",
    "😀",
    "\u0301",
    " ",
    "\n",
    "x" * 64,
    "x" * 65,
    "x" * 66,
    "x" * 10_000,
    "call_1-" + "0" * 12,
    "\0",
]


def test_group_names_are_tokens_and_differ_for_ids_that_differ() -> None:
    """Ids with dots, stars, blanks, 10 KB long: each gives a name that may stand in a subject."""
    groups = [group for group, _ in places(read(*[calls(id_) for id_ in AWKWARD_IDS]))]
    for group in groups:
        TypeAdapter(GroupId).validate_python(group)
    assert len(AWKWARD_IDS) == len(set(groups))


def test_a_group_name_that_looks_like_a_made_one_is_passed_over() -> None:
    """An id that equals the name made for another id does not share its group, in either order."""
    (made,) = {group for group, _ in places(read(calls("a b")))}
    assert made is not None
    for ids in (("a b", made), (made, "a b")):
        assert 2 == len({group for group, _ in places(read(*[calls(id_) for id_ in ids]))})


def test_group_names_are_the_same_each_time() -> None:
    """The same file gives the same names, and rows before or behind a call do not change its name."""
    lines = [calls(id_) for id_ in AWKWARD_IDS]
    assert places(read(*lines)) == places(read(*lines))
    assert places(read(*lines)) == places(read(*lines, calls("more")))[:-1]
    assert places(read(*lines)) == places(read(*reversed(lines)))[::-1]


def test_a_prefix_keeps_two_files_apart() -> None:
    """Two files with the same call ids can go into one context."""
    one = {group for group, _ in places(read(calls("a"), calls("x" * 64), prefix="f1-"))}
    two = {group for group, _ in places(read(calls("a"), calls("x" * 64), prefix="f2-"))}
    assert "f1-a" in one
    assert not one & two
    for group in one | two:
        TypeAdapter(GroupId).validate_python(group)


@pytest.mark.parametrize("prefix", ["a.b", "x" * 33, "é", " "])
def test_a_prefix_that_is_no_token_is_refused(prefix: str) -> None:
    """A bad prefix is the caller's mistake, said at once."""
    with pytest.raises(InvalidInput):
        read(calls("a"), prefix=prefix)


def _sizes(groups: list[str | None]) -> dict[str | None, int]:
    sizes: dict[str | None, int] = defaultdict(int)
    for group in groups:
        sizes[group] += 1
    return sizes
