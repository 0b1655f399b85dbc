"""The Dockerfile, read; and its build stage carried out without an engine.

Run it to see whether what the Dockerfile installs is what a worker and a pager need:
`python -m tests.deploy_kit.dockerfile FOLDER`.
"""

import fnmatch
import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.deploy_kit import DEPLOY, ROOT

DOCKERFILE: Final = DEPLOY / "Dockerfile"


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction: `RUN`, and what follows it."""

    word: str
    rest: str

    @property
    def argv(self) -> list[str]:
        """The arguments of a form that needs no shell. Raises `ValueError` if it is none."""
        argv = json.loads(self.rest)
        if not isinstance(argv, list):
            raise ValueError(self.rest)  # noqa: TRY004 - the value is what is wrong
        return [str(word) for word in argv]


def steps() -> list[Step]:
    """All instructions, in order, with their lines joined."""
    lines = DOCKERFILE.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    words = (line.strip().partition(" ") for line in lines if line.strip() and not line.startswith("#"))
    return [Step(word, rest.strip()) for word, _, rest in words]


def stages() -> list[list[Step]]:
    """The instructions of each stage, its `FROM` first."""
    found: list[list[Step]] = []
    for step in steps():
        if step.word == "FROM":
            found.append([])
        if found:
            found[-1].append(step)
    return found


def let_through(path: str) -> bool:
    """Whether .dockerignore lets a file into the build: the last line that matches decides."""
    kept = True
    above = [path, *map(str, Path(path).parents)]
    for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        anywhere = pattern.removeprefix("**/")
        names = above if anywhere == pattern else Path(path).parts
        if line and not line.startswith("#") and any(fnmatch.fnmatch(name, anywhere) for name in names):
            kept = line.startswith("!")
    return kept


def copied(step: Step) -> Iterator[tuple[Path, str]]:
    """What a `COPY` from the repository takes: each file, and where it goes."""
    *sources, target = step.rest.split()
    for source in sources:
        top = ROOT / source
        for file in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if file.is_file() and let_through(file.relative_to(ROOT).as_posix()):
                below = file.relative_to(top) if top.is_dir() else Path(file.name)
                yield file, os.path.normpath(Path(target) / below)


def build(folder: Path) -> Path:
    """Carries out the build stage with `folder` as the root; gives the virtual environment that it made."""
    base = folder / "base"
    venv.create(base, with_pip=True, symlinks=True)
    source = folder / "src"
    source.mkdir()
    ours = {path: folder / path.lstrip("/") for path in ("/opt/sexton", "/wheels")}
    for step in stages()[0]:
        match step.word:
            case "COPY":
                for file, target in copied(step):
                    (source / target).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, source / target)
            case "RUN":
                argv = [
                    next(
                        (str(to) + word.removeprefix(at) for at, to in ours.items() if word.startswith(at)),
                        word,
                    )
                    for word in step.argv
                ]
                argv[0] = str(base / "bin/python") if argv[0] == "python" else argv[0]
                print("+", *argv, flush=True)
                subprocess.run(argv, cwd=source, check=True, env=os.environ | {"PIP_QUIET": "2"})
    return ours["/opt/sexton"]


def main() -> None:
    """Builds in a new folder, and starts what the image starts."""
    folder = Path(sys.argv[1]).resolve()
    folder.mkdir(parents=True)
    sexton = str(build(folder) / "bin/sexton")
    empty = {"PATH": os.environ["PATH"], "SEXTON_SECRETS_DIR": str(folder)}
    for argv in (["worker", "--help"], ["pager", "--help"], ["config"]):
        subprocess.run([sexton, *argv], cwd=folder, env=empty, check=True, stdout=subprocess.DEVNULL)
    # Told by the pager itself, not by a library that is missing.
    refused = subprocess.run(
        [sexton, "pager"], cwd=folder, env=empty, check=False, capture_output=True, text=True
    )
    if refused.returncode != 2 or "SEXTON_PAGER_URLS" not in refused.stderr:
        raise SystemExit(f"sexton pager without addresses: {refused.returncode}, {refused.stderr}")
    programs = "sexton.worker.app, sexton.worker.pager.app, sexton.worker.pager.targets"
    probe = f"import {programs}, opentelemetry.exporter.otlp.proto.http, opentelemetry.sdk, nkeys"
    python = str(Path(sexton).with_name("python"))
    subprocess.run([python, "-I", "-c", probe], cwd=folder, check=True)


if __name__ == "__main__":
    main()
