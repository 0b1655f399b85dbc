"""The Dockerfile, as far as it can be judged without an engine. `.ci/run` carries out its build stage."""

import re
import shlex
import subprocess
import sysconfig
import tomllib
from pathlib import Path
from typing import Final

import pytest

from tests.deploy_kit import ROOT, settings
from tests.deploy_kit.dockerfile import DOCKERFILE, copied, let_through, stages, steps

RUNTIME: Final = stages()[-1]


def of_runtime(word: str) -> list[str]:
    """What follows each `word` of the stage that is shipped."""
    return [step.rest for step in RUNTIME if step.word == word]


def environment() -> dict[str, str]:
    """What the image sets."""
    return dict(pair.split("=", 1) for rest in of_runtime("ENV") for pair in shlex.split(rest))


def test_the_linter_has_nothing_to_say() -> None:
    """hadolint, whose wheel brings its program on Linux."""
    binary = Path(sysconfig.get_path("scripts")) / "hadolint"
    if not binary.exists():
        pytest.skip("no hadolint here")
    ran = subprocess.run([binary, DOCKERFILE], capture_output=True, text=True, timeout=60, check=False)
    assert (0, "") == (ran.returncode, ran.stdout)


def test_the_base_is_a_version() -> None:
    """Down to the patch, and one for both stages."""
    [argument] = [step.rest for step in steps() if step.word == "ARG"]
    assert re.fullmatch(r"PYTHON=python:3\.\d+\.\d+-slim-\w+", argument)
    assert ["${PYTHON} AS build", "${PYTHON}"] == [stage[0].rest for stage in stages()]


def test_no_step_needs_a_shell() -> None:
    """Neither while it is built nor when it runs."""
    for step in steps():
        if step.word in {"RUN", "ENTRYPOINT", "CMD"}:
            assert step.argv


def test_it_runs_as_nobody_in_particular() -> None:
    """By number, which Kubernetes can check."""
    assert ["10001:10001"] == of_runtime("USER")
    written = [index for index, step in enumerate(RUNTIME) if step.word in {"RUN", "COPY"}]
    assert max(written) < next(index for index, step in enumerate(RUNTIME) if step.word == "USER")


def test_all_that_is_installed_is_hashed_or_ours() -> None:
    """Each call of pip takes hashes, or has no index."""
    for step in stages()[0]:
        if step.word == "RUN" and "pip" in step.argv:
            assert {"--require-hashes", "--no-index", "--no-deps"} & set(step.argv)
            assert ("--no-deps" not in step.argv) or "--no-build-isolation" in step.argv


def test_what_it_copies_is_there() -> None:
    """And .dockerignore lets it through: all files of all portions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    taken = {
        file.relative_to(ROOT).as_posix()
        for step in stages()[0]
        if step.word == "COPY"
        for file, _ in copied(step)
    }
    code = {
        file.relative_to(ROOT).as_posix()
        for package in packages
        for file in (ROOT / package).rglob("*")
        if file.is_file() and "__pycache__" not in file.parts
    }
    rest = {"LICENSE", "README.md", "pyproject.toml", "requirements/build.txt", "requirements/service.txt"}
    assert code | rest == taken


def test_nothing_else_gets_into_the_build() -> None:
    """No history, no secrets, no tests."""
    for path in (".git/config", "deploy/secrets/sexton_pager_urls", "tests/conftest.py", ".venv/bin/python"):
        assert not let_through(path)


def test_its_health_check_asks_where_it_listens() -> None:
    """The port is the setting's, the exposed one, and the one that is asked."""
    ours = {name: value for name, value in environment().items() if name.startswith("SEXTON_")}
    told = settings(ours)
    assert ("0.0.0.0", 8080) == (told.http_host, told.http_port)
    assert ["8080"] == of_runtime("EXPOSE")
    [check] = of_runtime("HEALTHCHECK")
    assert "http://127.0.0.1:8080/livez" in check
    [home] = of_runtime("WORKDIR")
    assert told.cold_url.startswith(f"file://{home}/")
