"""Commands as processes: signals, pipes, terminals, and several at once."""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cli import Cli, running_up
from tests.support.processes import Programs

SEXTON = str(Path(sys.executable).with_name("sexton"))
TIMEOUT_S = 40
FULL = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is full")


@pytest.fixture(scope="module")
def up_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """URL of a `sexton up` that all tests of this module share."""
    with running_up(tmp_path_factory.mktemp("up")) as (_, url):
        yield url


@pytest.fixture
def env(up_url: str, context_id: str) -> dict[str, str]:
    return {"SEXTON_NATS_URL": up_url, "SEXTON_CONTEXT": context_id}


@pytest.fixture
def cli(
    env: dict[str, str], capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> Cli:
    """Runs commands in this process, where a process of their own would show nothing more."""
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    return Cli(capfdbinary, monkeypatch)


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A transcript of a thousand lines."""
    file = tmp_path / "session.jsonl"
    rows = ({"role": "user", "content": f"{i} " + "words " * 40} for i in range(1000))
    file.write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows))
    return file


def test_watch_prints_each_change_as_it_comes(
    programs: Programs, cli: Cli, env: dict[str, str], session: Path
) -> None:
    """One JSON line for each record, and with `--count` it ends."""
    watch = programs.sexton("watch", "--json", "--count", "2", env=env)
    asyncio.run(watch.line("following .* from revision 1", stream="stderr"))
    cli("ingest", str(session), "--batch", "1000")
    cli("prune", cli("tree", "--json").value["spans"][0]["span_id"])

    assert 0 == asyncio.run(watch.exit_code())

    records = [json.loads(line) for line in watch.stdout.splitlines()]
    assert [("appended", 1, 0), ("pruned", 2, 1)] == [
        (record["kind"], record["revision"], record["epoch"]) for record in records
    ]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
async def test_a_watch_that_is_ended_says_nothing(
    programs: Programs, env: dict[str, str], number: signal.Signals, code: int
) -> None:
    """Ctrl-C is no error: the code says it, and no traceback does."""
    watch = programs.sexton("watch", env=env)
    await watch.line("following", stream="stderr")

    watch.send_signal(number)

    assert code == await watch.exit_code()
    assert ("", 1) == (watch.stdout, watch.stderr.count("\n"))


def test_a_pipe_that_is_closed_early_is_no_error_to_show(
    cli: Cli, env: dict[str, str], session: Path
) -> None:
    """`sexton tree | head -1`: nothing on stderr, and the code that a shell gives to a broken pipe."""
    cli("ingest", str(session))
    with subprocess.Popen(
        [SEXTON, "tree"], env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as tree:
        assert tree.stdout is not None
        assert tree.stderr is not None
        tree.stdout.readline()
        tree.stdout.close()
        told = tree.stderr.read()

    assert (141, b"") == (tree.returncode, told)


@pytest.mark.parametrize(
    ("words", "code", "error"),
    [
        ("resolve - <&-", 7, "bad_input: standard input is closed"),
        ("rewrite l0:a - <&-", 7, "bad_input: standard input is closed"),
        ("ingest - <&-", 7, "bad_input: standard input is closed"),
        ("resolve ''", 7, "bad_input: the name of a file is empty"),
        ("tree >&-", 12, "output: standard output is closed"),
        ("tree --json >&-", 12, '{"error": "output"'),
        pytest.param("tree >/dev/full", 12, "output: cannot write to standard output: No space", marks=FULL),
        pytest.param("tree --json >/dev/full", 12, '{"error": "output"', marks=FULL),
    ],
)
def test_trouble_with_a_standard_stream_is_one_line_and_a_code(
    env: dict[str, str], words: str, code: int, error: str
) -> None:
    """It is the reader's own, and no fault of Sexton's: no traceback."""
    done = subprocess.run(
        ["sh", "-c", f'"$0" {words}', SEXTON],
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=False,
    )

    told = done.stderr.decode()
    assert (code, 1) == (done.returncode, told.count("\n")), told
    assert error in told


def test_without_any_standard_stream_the_code_is_left(env: dict[str, str]) -> None:
    """And nothing of it ends up in a connection that took the number of one of them."""
    done = subprocess.run(
        ["sh", "-c", '"$0" tree <&- >&- 2>&-', SEXTON],
        env={**os.environ, **env},
        timeout=TIMEOUT_S,
        check=False,
    )

    assert 12 == done.returncode


def test_two_ingests_at_the_same_time_count_once(
    programs: Programs, cli: Cli, env: dict[str, str], session: Path
) -> None:
    """I8: both succeed, and each line is there once, in order."""
    both = [programs.sexton("ingest", str(session), "--batch", "50", env=env) for _ in range(2)]

    assert [0, 0] == [asyncio.run(ingest.exit_code(within_s=TIMEOUT_S)) for ingest in both]
    told = [re.search(r"1000 \((\d+) sent and committed, (\d+) already there", one.stdout) for one in both]
    assert [1000, 1000] == [int(found[1]) + int(found[2]) for found in told if found is not None]

    spans = cli("tree", "--json").value["spans"]
    assert list(range(1, 1001)) == [int(span["span_id"][3:].partition("-")[0]) for span in spans]


def test_a_terminal_gets_a_progress_bar(env: dict[str, str], session: Path) -> None:
    """On stderr, so that stdout stays the report's. What is no terminal gets none: see the other tests."""
    parent, child = pty.openpty()
    ingest = subprocess.Popen(
        [SEXTON, "ingest", str(session), "--json"],
        env={**os.environ, **env, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=child,
    )
    os.close(child)
    drawn = _read_all(parent)
    out, _ = ingest.communicate(timeout=TIMEOUT_S)

    assert (0, 1000) == (ingest.returncode, json.loads(out)["added"])
    assert b"ingesting" in drawn


def test_data_are_utf8_where_the_locale_is_not(cli: Cli, env: dict[str, str]) -> None:
    """Bytes go through as they are."""
    cli("ingest", "-", "--format", "text", stdin="Zoë 😀\n".encode())
    pointer = cli("pointer", cli("tree", "--json").value["spans"][0]["span_id"]).out

    resolved = subprocess.run(
        [SEXTON, "resolve"],
        env={**os.environ, **env, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"},
        input=pointer,
        stdout=subprocess.PIPE,
        timeout=TIMEOUT_S,
        check=True,
    )

    assert "Zoë 😀\n".encode() == resolved.stdout


def _read_all(descriptor: int) -> bytes:
    """What a terminal was sent, until its other side is closed."""
    data = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how Linux says that it is over
            part = b""
        if not part:
            os.close(descriptor)
            return data
        data += part
