"""Every command that talks to the service, against one `sexton up`: what it does, writes and ends with."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Ran, running_up


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def up_url(folder: Path) -> Iterator[str]:
    """URL of a `sexton up` that all tests of this module share."""
    with running_up(folder) as (_, url):
        yield url


@pytest.fixture
def cli(
    up_url: str,
    context_id: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Runs commands on a context of the test's own."""
    monkeypatch.setenv("SEXTON_NATS_URL", up_url)
    monkeypatch.setenv("SEXTON_CONTEXT", context_id)
    return Cli(capfdbinary, monkeypatch)


def messages(*texts: str) -> bytes:
    """A transcript of chat messages."""
    return b"".join(
        json.dumps({"role": "user", "content": text}, ensure_ascii=False).encode() + b"\n" for text in texts
    )


def ingest(cli: Cli, *texts: str) -> list[str]:
    """The ids of the leaves of a small transcript."""
    assert 0 == cli("ingest", "-", stdin=messages(*texts)).code
    return [span["span_id"] for span in tree(cli)["spans"]]


def tree(cli: Cli, *options: str) -> Any:
    return cli("tree", "--json", *options).value


def pointer(cli: Cli, span_id: str, *options: str) -> str:
    return cli("pointer", span_id, *options).out.decode()


def ended(ran: Ran, code: int, what: str) -> None:
    """It failed as documented: nothing on stdout, one line on stderr, and that begins with the code."""
    assert (code, b"") == (ran.code, ran.out), ran.err
    assert ran.err.startswith(f"sexton: {what}: "), ran.err
    assert 1 == ran.err.count("\n"), ran.err


# --- ingest ---


def test_a_transcript_becomes_leaves_byte_for_byte(cli: Cli) -> None:
    """Each line is a leaf; its bytes are the line's, line end included."""
    data = b'{"role":"user","content":"caf\xc3\xa9 \xf0\x9f\x98\x80"}\r\n{"role":"assistant","content":"b"}\n'

    report = cli("ingest", "-", "--json", stdin=data).value

    assert (2, 2, 0) == (report["rows"], report["added"], report["present"])
    spans = tree(cli)["spans"]
    assert ["user", "assistant"] == [span["labels"]["role"] for span in spans]
    assert data == b"".join(cli("resolve", pointer(cli, span["span_id"])).out for span in spans)


def test_ingesting_twice_counts_once(cli: Cli) -> None:
    """I8: the second time says how many were there, and nothing is appended."""
    data = messages("a", "b", "c")
    cli("ingest", "-", stdin=data)

    again = cli("ingest", "-", stdin=data)

    assert b"3 (0 sent and committed, 3 already there)" in again.out
    assert (1, 3) == (tree(cli)["revision"], tree(cli)["view_count"])


def test_a_file_that_has_grown_adds_what_is_new(cli: Cli, tmp_path: Path) -> None:
    """And what was pruned since does not come back."""
    file = tmp_path / "session.jsonl"
    file.write_bytes(messages("a", "b"))
    cli("ingest", str(file))
    cli("prune", tree(cli)["spans"][0]["span_id"])
    file.write_bytes(messages("a", "b", "c"))

    report = cli("ingest", str(file), "--json").value

    assert (1, 2) == (report["added"], report["present"])
    assert 2 == tree(cli)["view_count"]


def test_batches_keep_the_order_of_the_file(cli: Cli) -> None:
    """However small they are."""
    data = messages(*(str(i) for i in range(20)))

    report = cli("ingest", "-", "--batch", "3", "--json", stdin=data).value

    assert 7 == report["appends"]
    ids = [span["span_id"] for span in tree(cli)["spans"]]
    assert [str(line) for line in range(1, 21)] == [span_id[3:].partition("-")[0] for span_id in ids]


def test_a_line_that_is_too_long_to_travel_inline_is_a_leaf_like_any_other(cli: Cli) -> None:
    """It goes ahead as a claim check, and comes back in parts."""
    data = messages("x" * 1_500_000, "b")

    assert 0 == cli("ingest", "-", stdin=data).code

    first = tree(cli)["spans"][0]["span_id"]
    assert messages("x" * 1_500_000) == cli("resolve", pointer(cli, first)).out


def test_the_report_says_what_is_odd(cli: Cli) -> None:
    """Open groups, results without a call, parents that are missing, types that are unknown."""
    rows: list[dict[str, Any]] = [
        {"type": "session", "version": 3, "id": "s", "timestamp": "t", "cwd": "/"},
        {
            "type": "message",
            "id": "m1",
            "parentId": "gone",
            "message": {"role": "assistant", "content": [{"type": "toolCall", "id": "c1", "name": "read"}]},
        },
        {
            "type": "message",
            "id": "m2",
            "parentId": "m1",
            "message": {"role": "toolResult", "toolCallId": "c9"},
        },
        {"type": "from_the_future", "id": "m3", "parentId": "m2"},
    ]

    ran = cli("ingest", "-", stdin=b"".join(json.dumps(row).encode() + b"\n" for row in rows))

    report = dict(line.split(maxsplit=1) for line in ran.out.decode().replace("s  ", "s ").splitlines())
    assert "pi" == report["format"]
    assert "2 (2 open)" == report["groups"] or "2 (1 open)" == report["groups"]
    assert b"orphan results   1 (line 3)" in ran.out
    assert b"missing parents  1 (line 2)" in ran.out
    assert b"unknown types    1 from_the_future" in ran.out


def test_bad_lines_are_named_and_nothing_is_ingested(cli: Cli) -> None:
    """Each with its number and reason; the context is as it was."""
    data = messages("a", "b") + b"{not json\n" + b"[1]\n" + b'{"role":"\xff"}\n' + messages("c")

    ran = cli("ingest", "-", stdin=data)

    assert (7, b"") == (ran.code, ran.out)
    for line, reason in ((3, "not_json"), (4, "not_an_object"), (5, "not_utf8")):
        assert f"sexton: line {line}: {reason}: " in ran.err
    assert "sexton: bad_input: 3 lines cannot be a span" in ran.err
    assert 0 == tree(cli)["revision"]


def test_bad_lines_are_left_out_if_that_is_asked_for(cli: Cli) -> None:
    """They are named all the same."""
    ran = cli("ingest", "-", "--skip-bad", stdin=messages("a", "b") + b"{not json\n" + messages("c"))

    assert 0 == ran.code
    assert "line 3: not_json" in ran.err
    assert 3 == tree(cli)["view_count"]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x00\x01\x02", "format_unclear"),
        (b"\xff\xfea\x00", "format_unclear"),
        (b'{"a":1}\n{"b":2}\n', "format_unclear"),
    ],
)
def test_a_file_of_no_known_format_is_bad_input(cli: Cli, data: bytes, what: str) -> None:
    """Binary, UTF-16, JSON of another kind."""
    ended(cli("ingest", "-", stdin=data), 7, what)


def test_a_file_that_is_not_there_is_bad_input(cli: Cli, tmp_path: Path) -> None:
    """Missing, or a folder."""
    ended(cli("ingest", str(tmp_path / "missing")), 7, "bad_input")
    ended(cli("ingest", str(tmp_path)), 7, "bad_input")


def test_an_empty_file_is_nothing_to_do(cli: Cli) -> None:
    """No rows, no append, no error."""
    ran = cli("ingest", "-", "--format", "text", "--json", stdin=b"")

    assert (0, 0, 0) == (ran.code, ran.value["rows"], ran.value["appends"])


# --- rewrite, prune, pointer, resolve ---


def test_a_rewritten_span_refuses_its_old_pointer(cli: Cli) -> None:
    """Seed: stale span. The error names the current identity; no byte comes out."""
    (span_id,) = ingest(cli, "Ship on Friday.")
    old = pointer(cli, span_id)

    ran = cli("rewrite", span_id, "-", stdin=b"Ship on Monday.")

    assert (0, f"rewrite: {span_id} v2 at epoch 1, revision 2\n".encode()) == (ran.code, ran.out)
    ended(cli("resolve", old), 4, "stale_span")
    told = cli("resolve", "--json", "-", stdin=old.encode()).error
    assert (4, 2) == (told["exit_code"], told["fields"]["current"]["version"])
    assert b"Ship on Monday." == cli("resolve", pointer(cli, span_id)).out


def test_a_rewrite_names_its_base(cli: Cli) -> None:
    """Another version than the current one is rejected as `stale_source`."""
    (span_id,) = ingest(cli, "a")
    cli("rewrite", span_id, "-", stdin=b"b")

    ended(cli("rewrite", span_id, "-", "--base-version", "1", stdin=b"c"), 3, "rejected: stale_source")
    assert 0 == cli("rewrite", span_id, "-", "--base-version", "2", stdin=b"c").code


def test_a_rewrite_with_the_same_bytes_is_no_change(cli: Cli) -> None:
    """And no error: code 0, no epoch."""
    (span_id,) = ingest(cli, "a")

    ran = cli("rewrite", span_id, "-", "--json", stdin=messages("a"))

    assert (0, "no_change") == (ran.code, ran.value["status"])
    assert 0 == tree(cli)["epoch"]


@pytest.mark.parametrize("data", [b"", b"\xff\xfe", b"\xed\xa0\x80"])
def test_text_that_can_be_no_span_changes_nothing(cli: Cli, data: bytes) -> None:
    """Empty, not UTF-8, a lone surrogate."""
    (span_id,) = ingest(cli, "a")

    ended(cli("rewrite", span_id, "-", stdin=data), 7, "bad_input")
    assert 1 == tree(cli)["revision"]


def test_a_pruned_span_is_gone_for_good(cli: Cli) -> None:
    """Its pointer raises, and a second prune is rejected."""
    first, _ = ingest(cli, "a", "b")
    old = pointer(cli, first)

    assert 0 == cli("prune", first).code

    ended(cli("resolve", old), 4, "unreachable")
    ended(cli("pointer", first), 4, "unreachable")
    ended(cli("prune", first), 3, "rejected: pruned")
    rejected = cli("prune", first, "--json").error
    assert ("rejected", "pruned") == (rejected["error"], rejected["fields"]["outcome"]["code"])


def test_a_part_of_a_span_is_resolved_to_the_byte(cli: Cli) -> None:
    """Offsets and lengths are bytes of UTF-8."""
    (span_id,) = ingest(cli, "zé😀x")
    at = messages("zé😀x").index("😀".encode())

    part = pointer(cli, span_id, "--offset", str(at), "--length", "4")

    assert "😀".encode() == cli("resolve", part).out


@pytest.mark.parametrize(
    ("offset", "length"), [(-1, 1), (0, 0), (0, -5), (10_000, 1), (0, 10_000), (2**70, 1)]
)
def test_a_range_outside_the_span_is_a_matter_of_usage(cli: Cli, offset: int, length: int) -> None:
    """Negative, empty, past the end, absurd."""
    (span_id,) = ingest(cli, "abc")

    ended(cli("pointer", span_id, "--offset", str(offset), "--length", str(length)), 2, "boundary")


def test_a_cut_inside_a_character_names_the_nearest_cuts(cli: Cli) -> None:
    """The message says where the characters around begin and end."""
    (span_id,) = ingest(cli, "😀")
    at = messages("😀").index("😀".encode())

    ran = cli("pointer", span_id, "--offset", str(at + 1), "--length", "3", "--json")

    assert (2, "boundary", [at, at + 4]) == (ran.code, ran.error["error"], ran.error["fields"]["nearest"])


def test_a_pointer_with_a_forged_hash_gives_nothing(cli: Cli) -> None:
    """I1: the bytes in place are whole, and not those that the pointer claims."""
    (span_id,) = ingest(cli, "abc")
    forged = json.loads(pointer(cli, span_id)) | {"content_hash": "sha256:" + "0" * 64}

    ended(cli("resolve", json.dumps(forged)), 4, "hash_mismatch")


@pytest.mark.parametrize(
    ("update", "code", "what"),
    [
        ({"span_id": "l0:nobody"}, 4, "unreachable"),
        ({"context_id": "nowhere"}, 4, "unreachable"),
        ({"version": 7}, 4, "unreachable"),
        ({"level": 1}, 4, "level_mismatch"),
        ({"epoch": 99}, 4, "epoch_mismatch"),
        ({"length": 99}, 2, "boundary"),
        ({"offset": -1}, 7, "bad_input"),
        ({"span_id": "l0:a.*"}, 7, "bad_input"),
        ({"context_id": "a b"}, 7, "bad_input"),
        ({"schema_version": 2}, 7, "bad_input"),
    ],
    ids=str,
)
def test_a_pointer_that_cannot_be_right_gives_nothing(
    cli: Cli, update: dict[str, Any], code: int, what: str
) -> None:
    """Unknown context, span, level, version, epoch; bad ranges and ids; a newer schema."""
    (span_id,) = ingest(cli, "abc")

    ended(cli("resolve", json.dumps(json.loads(pointer(cli, span_id)) | update)), code, what)


def test_an_answer_as_json_says_what_it_is(cli: Cli) -> None:
    """Level, verbatim, tier, and the bytes in base64."""
    (span_id,) = ingest(cli, "abc")

    answer = cli("resolve", pointer(cli, span_id), "--json").value

    assert (0, True, False) == (answer["level"], answer["verbatim"], answer["superseded"])
    assert messages("abc") == base64.b64decode(answer["data_base64"])


def test_strict_refuses_what_is_of_another_epoch(cli: Cli) -> None:
    """Without it the pointer is checked again, and re-stamped."""
    first, second = ingest(cli, "a", "b")
    old = pointer(cli, first)
    cli("rewrite", second, "-", stdin=b"c")
    cli("rewrite", first, "-", stdin=b"new")
    newer = pointer(cli, first)
    cli("prune", second)

    ended(cli("resolve", "--strict", old), 4, "stale_span")
    assert 0 == cli("resolve", "--strict", newer).code  # unchanged since exactly that epoch
    assert 3 == cli("resolve", "--json", newer).value["pointer"]["epoch"]


def test_latest_asks_at_the_head(cli: Cli) -> None:
    """The same bytes, one round trip later."""
    (span_id,) = ingest(cli, "abc")

    assert messages("abc") == cli("resolve", "--latest", pointer(cli, span_id)).out


def test_an_old_version_that_is_not_kept_is_refused_whoever_asks(cli: Cli) -> None:
    """Nobody pinned it, so the rewrite invalidated it."""
    (span_id,) = ingest(cli, "abc")
    old = pointer(cli, span_id)
    cli("rewrite", span_id, "-", stdin=b"new")

    ended(cli("resolve", "--accept-superseded", old), 4, "stale_span")


# --- compact, tree ---


def test_a_covered_leaf_is_still_verbatim(cli: Cli) -> None:
    """Seed: pointer resurrection. After the compaction its pointer gives the leaf, never the summary."""
    first, second, _ = ingest(cli, "a" * 50, "b" * 50, "c")
    old = pointer(cli, first)

    ran = cli("compact", "--sources", f"{first},{second}", "--summary", "-", stdin=b"a and b")

    assert 0 == ran.code, ran.err
    assert messages("a" * 50) == cli("resolve", old).out
    told = cli("resolve", "--accept-summary", old)
    assert (0, b"a and b") == (told.code, told.out)
    assert "L1_SUMMARY, and not verbatim" in told.err
    assert not cli("resolve", "--accept-summary", "--json", old).value["verbatim"]


def test_the_service_makes_the_summary_if_none_is_given(cli: Cli) -> None:
    """Sources may be named one by one."""
    first, second = ingest(cli, "a" * 200, "b" * 200)

    ran = cli("compact", "--sources", first, "--sources", second, "--json")

    assert ("committed", "compact") == (ran.value["status"], ran.value["kind"])
    assert 1 == tree(cli)["view_count"]


def test_a_budget_is_met_over_several_levels(cli: Cli) -> None:
    """And the report says how."""
    ingest(cli, *(f"{i} " + "words and more words " * 20 for i in range(40)))

    ran = cli(
        *("compact", "--budget", "2000", "--fan-in", "4", "--keep-tail-bytes", "0", "--keep-tail-spans", "2"),
        "--json",
    )

    assert 0 == ran.code, ran.err
    assert ran.value["size_after_bytes"] <= 2000 < ran.value["size_before_bytes"]
    assert max(span["level"] for span in tree(cli)["spans"]) >= 2
    again = cli("compact", "--budget", "2000", "--json").value
    assert ([], tree(cli)["epoch"]) == (again["committed"], ran.value["epoch_after"])


def test_a_budget_that_cannot_be_met_is_said_so(cli: Cli) -> None:
    """`irreducible`, with what stays and why."""
    ingest(cli, "a", "b", "c")

    ended(cli("compact", "--budget", "1"), 8, "irreducible")
    assert {"fresh": 3} == cli("compact", "--budget", "1", "--json").error["fields"]["kept"]


@pytest.mark.parametrize(
    ("options", "code", "what"),
    [
        ((), 2, "invalid"),
        (("--budget", "1", "--sources", "l0:a"), 2, "invalid"),
        (("--budget", "1", "--summary", "-"), 2, "invalid"),
        (("--budget", "1", "--fan-in", "1"), 2, "invalid"),
        (("--sources", "l0:nobody", "--summary", "-"), 3, "rejected: unknown_context"),
        (("--sources", "nobody"), 2, "invalid"),
        (("--sources", "l0:" + "x" * 10_000), 2, "invalid"),
    ],
)
def test_a_compaction_that_cannot_be_right_changes_nothing(
    cli: Cli, options: tuple[str, ...], code: int, what: str
) -> None:
    """Neither or both ways, bad bounds, unknown or malformed ids."""
    ended(cli("compact", *options, stdin=b"summary"), code, what)


def test_sources_with_a_gap_are_rejected(cli: Cli) -> None:
    """The rejection's code is in the message."""
    first, _, third = ingest(cli, "a" * 50, "b" * 50, "c" * 50)

    ran = cli("compact", "--sources", f"{first},{third}", "--summary", "-", stdin=b"s")

    ended(ran, 3, "rejected: not_contiguous")


def test_the_tree_shows_what_is_under_a_summary(cli: Cli) -> None:
    """Covered spans stand under what covers them; `--level` and `--all` choose."""
    first, second, third = ingest(cli, "a" * 50, "b" * 50, "c")
    cli("compact", "--sources", f"{first},{second}", "--summary", "-", stdin=b"s")
    cli("prune", third)

    shown = tree(cli)
    assert [(1, 0, "live"), (0, 1, "covered"), (0, 1, "covered")] == [
        (span["level"], span["depth"], span["state"]) for span in shown["spans"]
    ]
    assert [1] == [span["level"] for span in tree(cli, "--level", "1")["spans"]]
    assert [] == shown["tombstones"]
    assert [third] == [stone["span_id"] for stone in tree(cli, "--all")["tombstones"]]
    lines = cli("tree", "--all").out.decode().splitlines()
    assert lines[0].endswith("revision 3  epoch 2  view 1 spans, 1 B")
    assert lines[2].startswith(f"  {first}")
    assert third in lines[4]
    assert "tombstone" in lines[4]


def test_an_unknown_context_is_empty(cli: Cli) -> None:
    """To look at it is no error; to quote from it is."""
    assert (0, []) == (tree(cli)["revision"], tree(cli)["spans"])
    ended(cli("pointer", "l0:a"), 4, "unreachable")
    ended(cli("prune", "l0:a"), 3, "rejected: unknown_context")
    ended(cli("rewrite", "l0:a", "-", stdin=b"x"), 3, "rejected: unknown_context")


# --- what can go wrong around it ---


@pytest.mark.parametrize("context_id", ["a.b", "a*", ">", "a b", "", "é", "x" * 65, "x" * 10_000])
def test_an_id_that_could_reach_another_subject_is_refused(cli: Cli, context_id: str) -> None:
    """Dots, stars, spaces, 10 KB: refused before anything is sent, and not repeated at length."""
    ran = cli("tree", "--context", context_id)

    ended(ran, 2, "invalid")
    assert len(ran.err) < 300


@pytest.mark.parametrize(
    ("span_id", "command"),
    [
        ("a.b", "prune"),
        ("l0:a b", "prune"),
        ("l0:*", "prune"),
        ("l8:a", "prune"),
        ("l0:" + "x" * 10_000, "prune"),
        ("l0:a.b", "pointer"),
        ("None", "pointer"),
    ],
)
def test_a_span_id_that_cannot_be_is_refused(cli: Cli, span_id: str, command: str) -> None:
    """Nothing is sent."""
    ended(cli(command, span_id), 2, "invalid")


def test_lost_and_damaged_bytes_have_a_code_of_their_own(cli: Cli, folder: Path, context_id: str) -> None:
    """I9: the store lost one leaf and damaged another; neither is an outage, and no byte comes out."""
    first, second, third = ingest(cli, "a" * 50, "b" * 50, "c" * 50)
    cli("compact", "--sources", f"{first},{second},{third}", "--summary", "-", stdin=b"s")
    cold = folder / "data" / "cold"
    files = {
        name: path
        for path in cold.rglob("*")
        if path.is_file() and context_id in str(path)
        for name in (first, second)
        if name[3:] in str(path)
    }
    files[first].unlink()
    files[second].write_bytes(b"x" * files[second].stat().st_size)

    ended(cli("resolve", pointer(cli, first)), 5, "lost")
    ended(cli("resolve", pointer(cli, second)), 5, "corrupt")
    assert messages("c" * 50) == cli("resolve", pointer(cli, third)).out


def test_no_server_is_unavailable(cli: Cli) -> None:
    """In a line, within the time that was given."""
    ended(cli("tree", "--nats", "nats://127.0.0.1:9", "--timeout", "0.3"), 6, "unavailable")
    told = cli("tree", "--nats", "nats://127.0.0.1:9", "--timeout", "0.3", "--json")
    assert (6, "unavailable", 6) == (told.code, told.error["error"], told.error["exit_code"])


def test_servers_without_a_worker_are_unavailable(cli: Cli, nats_url: str) -> None:
    """NATS answers, and nobody serves the context."""
    ended(cli("tree", "--nats", nats_url, "--timeout", "3"), 6, "unavailable")


def test_a_watch_that_hears_nothing_ends_in_time(cli: Cli) -> None:
    """Code 6 after the time that was given."""
    ran = cli("watch", "--timeout", "0.5")

    assert (6, b"") == (ran.code, ran.out)
    assert "sexton: unavailable: not done within 0.5 s" in ran.err


def test_a_watch_goes_back_to_the_first_record(cli: Cli) -> None:
    """The log has all of them, though a worker keeps only the latest in memory: code 0, none left out."""
    ingest(cli, *(f"line {i}" for i in range(3000)))
    head = tree(cli)["revision"]
    ran = cli("watch", "--json", "--since", "1", "--count", str(head))

    assert 0 == ran.code, ran.err
    assert list(range(1, head + 1)) == [json.loads(line)["revision"] for line in ran.out.splitlines()]


def test_usage_errors_are_plain_or_json(cli: Cli) -> None:
    """What is wrong is named; with `--json` as an object like any other error."""
    plain = cli("prune")
    told = cli("prune", "--json")
    unknown = cli("exhume")

    assert (2, b"") == (plain.code, plain.out)
    assert "Missing argument 'SPAN'" in plain.err
    assert (2, "usage", "Missing argument 'SPAN'.") == (
        told.code,
        told.error["error"],
        told.error["message"].strip(),
    )
    assert (2, True) == (unknown.code, "No such command 'exhume'" in unknown.err)


def test_version_and_help_are_data(cli: Cli) -> None:
    """On stdout, with code 0; the help has the exit codes."""
    assert b"sexton " in cli("--version").out
    shown = cli("--help")
    assert (0, True) == (shown.code, b"Exit codes:" in shown.out)
