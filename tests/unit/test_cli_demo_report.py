"""The demo's report: a table for people, JSON for programs, and a no as soon as one check says no."""

import io

import pytest
from rich.console import Console

from sexton.worker.demo.checks import Check
from sexton.worker.demo.performance import Result
from sexton.worker.demo.report import as_json, as_table
from sexton.worker.ingest import read_transcript
from tests.support.cli import Cli

REPORT = read_transcript(b'{"role":"user"}\n').report
GOOD = Check("something [bold]holds[/]", held=True, count=3, detail="of 3")
BAD = Check("something does not", held=False, count=0)


def result(*checks: Check) -> Result:
    return Result("session[1].jsonl", REPORT, checks, {"ingest": 0.1, "all": 0.25})


@pytest.mark.parametrize(("checks", "held"), [((GOOD,), True), ((GOOD, BAD), False), ((), False)])
def test_the_demo_holds_only_if_all_checks_do(checks: tuple[Check, ...], held: bool) -> None:
    """And only if there were any."""
    assert held is result(*checks).held
    assert held is as_json(result(*checks))["held"]


@pytest.mark.parametrize(("checks", "code"), [((GOOD,), 0), ((GOOD, BAD), 9)])
def test_the_exit_code_is_the_verdict(
    checks: tuple[Check, ...],
    code: int,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A demo that ran and found something wrong has a code of its own, and shows its table all the same."""

    async def performed(*_: object, **__: object) -> Result:
        return result(*checks)

    monkeypatch.setattr("sexton.worker.demo.perform", performed)

    ran = Cli(capfdbinary, monkeypatch)("demo")

    assert code == ran.code
    assert all(check.name.encode() in ran.out for check in checks)


def test_the_table_shows_each_check_as_it_is() -> None:
    """Brackets in a name are no markup."""
    console = Console(file=io.StringIO(), width=120)

    console.print(as_table(result(GOOD, BAD)))

    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "session[1].jsonl: 1 rows" in shown
    assert "something [bold]holds[/]" in shown
    assert "NO" in shown
