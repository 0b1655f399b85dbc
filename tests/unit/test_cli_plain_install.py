"""The script of a plain install, which has what a holder needs and no command line."""

import subprocess
import sys

import pytest

TIMEOUT_S = 30


def python(code: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )


@pytest.mark.parametrize("missing", ["typer", "rich", "pydantic_settings"])
def test_without_its_extra_the_script_says_what_to_install(missing: str) -> None:
    """One line on stderr and the code of a usage error; no traceback."""
    done = python(f"import sys; sys.modules[{missing!r}] = None; from sexton.worker.cli import main; main()")

    assert 2 == done.returncode
    assert "" == done.stdout
    assert (
        f"sexton: the command line needs: pip install 'sexton[worker]' ({missing} is missing)\n"
        == done.stderr
    )


def test_a_part_of_sexton_that_is_missing_is_not_passed_off_as_an_extra() -> None:
    """That is a broken installation, and the traceback says where."""
    done = python(
        "import sys; sys.modules['sexton.core.plan'] = None; from sexton.worker.cli import main; main()"
    )

    assert 1 == done.returncode
    assert "Traceback" in done.stderr


def test_help_imports_no_worker() -> None:
    """The client commands start without FastStream, which takes a second to import."""
    done = python(
        "import sys; from sexton.worker.cli.app import run; run(['--help']);"
        "sys.stderr.write(str([m for m in ('faststream', 'obstore', 'redis') if m in sys.modules]))"
    )

    assert (0, "[]") == (done.returncode, done.stderr)
