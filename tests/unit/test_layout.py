"""The shape of the repository: one distribution, five portions of one namespace, one lock, one version."""

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from email import message_from_bytes
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PORTIONS = ("schemas", "core", "tracing", "holder", "worker")
PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;]+)", re.MULTILINE)
TIMEOUT_S = 100


def package(portion: str) -> Path:
    return ROOT / portion / "sexton" / portion


def files_of(portion: str) -> set[str]:
    """The files of a portion as they should lie in site-packages, `sexton/core/tree.py`."""
    return {
        path.relative_to(ROOT / portion).as_posix()
        for path in (ROOT / portion / "sexton").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def project() -> dict[str, Any]:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert isinstance(table, dict)
    return table


def third_party(portion: str) -> set[str]:
    """Top-level names that a portion imports, less the standard library and the namespace itself."""

    def imported(path: Path) -> Iterator[str]:
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                yield str(node.module)

    names = {name.partition(".")[0] for path in package(portion).rglob("*.py") for name in imported(path)}
    return names - sys.stdlib_module_names - {"sexton"}


def pins(lock: str) -> dict[str, str]:
    text = (ROOT / "requirements" / lock).read_text()
    return {canonicalize_name(found["name"]): found["version"] for found in PINNED.finditer(text)}


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_adds_its_own_package_and_nothing_else(portion: str) -> None:
    """A stray `sexton/__init__.py`, in one portion, would hide the other four."""
    entries = {path.name for path in (ROOT / portion / "sexton").iterdir()} - {"__pycache__"}

    assert {portion} == entries


@pytest.mark.parametrize("portion", PORTIONS)
def test_a_portion_says_that_it_is_typed(portion: str) -> None:
    """Without `py.typed` an embedder's type checker takes everything for Any."""
    assert (package(portion) / "py.typed").is_file()


def test_the_editable_install_sees_all_five_portions(tmp_path: Path) -> None:
    """Each portion comes out of the repository, seen from elsewhere and without the help of a path."""
    code = "; ".join(f"import sexton.{portion}; print(sexton.{portion}.__file__)" for portion in PORTIONS)

    seen = run(sys.executable, "-I", "-c", code, cwd=tmp_path).splitlines()

    assert [package(portion) / "__init__.py" for portion in PORTIONS] == [Path(line) for line in seen]


@pytest.mark.parametrize(
    ("portion", "allowed"),
    [
        ("schemas", {"pydantic", "pydantic_core"}),
        ("core", {"pydantic", "pydantic_core", "rpds"}),
    ],
)
def test_the_inner_portions_import_only_what_is_listed(portion: str, allowed: set[str]) -> None:
    """import-linter can only forbid by name; a library that nobody thought of is caught here."""
    assert set() == third_party(portion) - allowed


def test_the_version_stands_in_one_place() -> None:
    """`pyproject.toml` holds it; the code asks the installed distribution."""
    version = project()["version"]
    literal = re.compile(rf"(['\"]){re.escape(version)}\1")

    assert version == metadata.version("sexton")
    assert [] == [
        str(path.relative_to(ROOT))
        for portion in PORTIONS
        for path in package(portion).rglob("*.py")
        if literal.search(path.read_text())
    ]


def test_the_lock_answers_every_requirement() -> None:
    """Each dependency, of the plain install and of every extra, is pinned within its range."""
    table = project()
    lines = table["dependencies"] + [
        line for extra in table["optional-dependencies"].values() for line in extra
    ]
    wanted = [wish for wish in map(Requirement, lines) if wish.name != table["name"]]
    locked = pins("dev.txt")

    unanswered = [
        str(wish)
        for wish in wanted
        if not wish.specifier.contains(locked.get(canonicalize_name(wish.name), "0"))
    ]

    assert [] == unanswered


def test_all_locks_pin_the_same_versions() -> None:
    """What is tested is what an agent embeds and what the image holds."""
    assert pins("holder.txt").items() <= pins("service.txt").items() <= pins("dev.txt").items()
    assert {canonicalize_name(Requirement(line).name) for line in project()["dependencies"]} <= pins(
        "holder.txt"
    ).keys()


@pytest.mark.parametrize("lock", ["dev.txt", "holder.txt", "service.txt", "build.txt"])
def test_a_lock_is_hashed_and_names_no_address(lock: str) -> None:
    """Whoever installs from it chooses the index; the hashes say whether it is the same thing."""
    text = (ROOT / "requirements" / lock).read_text()
    entries = re.split(r"(?m)^(?=[A-Za-z0-9])", text)[1:]

    assert "://" not in text
    assert [] == re.findall(r"(?m)^\s*-", text.replace("    --hash=", ""))
    assert [] == [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built from it, as for a release."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Iterator[zipfile.ZipFile]:
    """The wheel, open."""
    (path,) = built.glob("*.whl")
    with zipfile.ZipFile(path) as opened:
        yield opened


@pytest.mark.slow
def test_the_wheel_holds_all_five_portions_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    """Every file of the portions, data included; nothing generic lands in anyone's site-packages."""
    held = {name for name in wheel.namelist() if not name.partition("/")[0].endswith(".dist-info")}

    assert set().union(*map(files_of, PORTIONS)) == held


@pytest.mark.slow
def test_the_wheel_asks_a_plain_install_for_no_server_and_no_store(wheel: zipfile.ZipFile) -> None:
    """What comes without an extra is what a holder needs."""
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    described = message_from_bytes(wheel.read(name))

    asked = {
        requirement.name
        for requirement in map(Requirement, described.get_all("Requires-Dist", []))
        if requirement.marker is None
    }

    assert {"nats-py", "pydantic", "rpds-py", "structlog"} == asked
    assert "Apache-2.0" == described["License-Expression"]
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


@pytest.mark.slow
def test_the_source_distribution_holds_what_the_wheel_is_built_from(built: Path) -> None:
    """The portions, and the documents that go with them; neither tests nor the tools' left-overs."""
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    top = {name.partition("/")[0] for name in names}

    assert {f"{portion}/{file}" for portion in PORTIONS for file in files_of(portion)} <= names
    assert {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", "PKG-INFO"} <= names
    assert set() == top - {
        *PORTIONS,
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
        "pyproject.toml",
        "PKG-INFO",
        ".gitignore",
    }
