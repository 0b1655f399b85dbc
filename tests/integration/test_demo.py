"""`sexton demo`: all of it holds on the shipped transcript and on others, and nothing is left behind."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.cli import arguments_of, descendants
from tests.support.processes import Program, Programs, alive
from tests.support.waiting import eventually

WITHIN_S = 100.0
PROCESSES = 10
"""NATS, Valkey, a worker and two holders, each with its watcher."""


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    """Where the demo makes its temporary folder."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    return folder


@pytest.fixture
def demo(programs: Programs, temporary: Path) -> Callable[..., Program]:
    def start(*arguments: str) -> Program:
        return programs.sexton("demo", *arguments, env={"TMPDIR": str(temporary)})

    return start


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def all_gone(pids: set[int]) -> None:
    await eventually(
        lambda: {pid for pid in pids if alive(pid)},
        until=lambda left: not left,
        what="the end of all processes",
    )


async def players(program: Program) -> set[int]:
    """The processes of a demo, once all have been started."""
    return await eventually(
        lambda: descendants(program.pid), until=lambda found: len(found) >= PROCESSES, within_s=WITHIN_S
    )


def transcript(folder: Path, text: str) -> str:
    file = folder / "transcript"
    file.write_bytes(text.encode())
    return str(file)


async def test_the_shipped_transcript_holds_and_leaves_nothing(
    demo: Callable[..., Program], temporary: Path
) -> None:
    """Every check, counts included; no process and no file afterwards."""
    program = demo("--json")
    started = await players(program)

    assert 0 == await program.exit_code(within_s=WITHIN_S)

    result = json.loads(program.stdout)
    assert result["held"] is True
    assert [] == [check["name"] for check in result["checks"] if not check["held"]]
    counts = {check["name"]: check["count"] for check in result["checks"]}
    rows = result["rows"]
    assert rows == counts["rows that are leaves"]
    assert rows - 3 == counts["ada: quotes exact to the byte"]
    assert rows - 3 == counts["ben: quotes exact to the byte"]
    assert (2, 2, 1, 3) == tuple(
        counts[name]
        for name in (
            "ada: old copy read while held",
            "free old versions collected",
            "released copy collected",
            "collected: changed spans refused",
        )
    )
    assert counts["ada: epochs seen"] == counts["epochs dense, one per change"]
    assert [] == left_in(temporary)
    await all_gone(started)


async def test_a_file_of_ones_own_holds_and_can_be_kept(demo: Callable[..., Program], tmp_path: Path) -> None:
    """CR LF, emoji, a blank line, a bad line that is left out, no line end at the end; told in a table."""
    lines = [json.dumps({"role": "user", "content": f"{i} 😀 " + "some words " * 30}) for i in range(40)]
    lines[7] = "{not json"
    lines[9] = ""
    kept = tmp_path / "kept"

    program = demo(transcript(tmp_path, "\r\n".join(lines)), "--keep", str(kept))

    assert 0 == await program.exit_code(within_s=WITHIN_S)
    assert "39 rows, 1 bad line left out" in program.stdout
    assert "stale offsets re-derived" in program.stdout
    assert "copy_on_rewrite, held by demo-ada" in program.stdout
    assert {"ada.log", "ben.log", "worker.log", "cold", "servers"} <= set(left_in(kept))


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGKILL, -signal.SIGKILL)]
)
async def test_a_demo_that_is_ended_takes_everyone_along(
    demo: Callable[..., Program], temporary: Path, number: signal.Signals, code: int
) -> None:
    """Also if it could not clean up; then only its temporary folder stays."""
    program = demo()
    started = await players(program)

    program.send_signal(number)

    assert code == await program.exit_code(within_s=WITHIN_S)
    await all_gone(started)
    if number != signal.SIGKILL:
        assert [] == left_in(temporary)
        assert "Traceback" not in program.stderr


@pytest.mark.parametrize("name", ["sexton.worker worker", "sexton.worker.demo.holder ben", "nats-server"])
async def test_a_player_that_ends_by_itself_ends_the_demo(demo: Callable[..., Program], name: str) -> None:
    """With an error that names it, and not with a wait for something that cannot come."""
    program = demo()
    started = await players(program)
    (pid,) = (pid for pid in started if name in arguments_of(pid))

    os.kill(pid, signal.SIGKILL)

    assert 10 == await program.exit_code(within_s=WITHIN_S)
    assert "ended by itself" in program.stderr
    assert "Traceback" not in program.stderr
    await all_gone(started)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"role":"user","content":"too short"}\n' * 5, "bad_input: the demo needs a transcript of"),
        ("\x00\x01", "format_unclear"),
    ],
)
async def test_a_file_that_is_no_transcript_for_it_is_bad_input(
    demo: Callable[..., Program], tmp_path: Path, temporary: Path, text: str, what: str
) -> None:
    """It says why, at once, and leaves nothing."""
    program = demo(transcript(tmp_path, text))

    assert 7 == await program.exit_code(within_s=WITHIN_S)
    assert what in program.stderr
    assert "Traceback" not in program.stderr
    assert [] == left_in(temporary)


async def test_a_folder_that_is_in_use_is_not_taken(demo: Callable[..., Program], tmp_path: Path) -> None:
    """The demo would find another demo's context in it."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_bytes(b"")

    program = demo("--keep", str(tmp_path / "full"))

    assert 7 == await program.exit_code(within_s=WITHIN_S)
    assert "is not empty" in program.stderr
