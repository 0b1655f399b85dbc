"""Writes the published schemas, or says where they differ from the models.

    python -m sexton.schemas.generate            writes schemas/json/*.schema.json and schemas/asyncapi.json
    python -m sexton.schemas.generate --check    writes nothing; exits 1 and names each file that is not right

A file in `json/` that no message stands for is removed, and named by `--check`.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from sexton.schemas import asyncapi
from sexton.schemas.json_schema import Document, json_schemas

_FOLDER: Final = "json"
_PACKAGE: Final = Path(__file__).parent


def files() -> dict[str, str]:
    """Every published file by its path below the folder of schemas. The same models give the same bytes."""
    schemas = {f"{_FOLDER}/{name}.schema.json": _text(body) for name, body in json_schemas().items()}
    return {"asyncapi.json": _text(asyncapi.document()), **schemas}


def differences(out: Path) -> Iterator[str]:
    """What is not right in the folder `out`: one line for each file, `differs: json/append.schema.json`."""
    expected = files()
    for name, text in sorted(expected.items()):
        path = out / name
        if not path.is_file():
            yield f"missing: {name}"
        elif path.read_bytes() != text.encode():
            yield f"differs: {name}"
    for name in _left_over(out, expected):
        yield f"left over: {name}"


def write(out: Path) -> list[str]:
    """Makes the folder `out` right. Returns a line for each file that was not, as `differences` does."""
    found = list(differences(out))
    expected = files()
    (out / _FOLDER).mkdir(parents=True, exist_ok=True)
    for name, text in expected.items():
        (out / name).write_bytes(text.encode())
    for name in _left_over(out, expected):
        (out / name).unlink()
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0, or 1 if `--check` found something."""
    description, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="python -m sexton.schemas.generate", description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is not right")
    parser.add_argument(
        "--out", type=Path, default=_home(), help="folder of the schemas (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.out is None:
        parser.error("not run from a checkout: say where to write with --out")
    if not options.check:
        for line in write(options.out):
            _say(line)
        return 0
    found = list(differences(options.out))
    for line in found:
        _say(line)
    if found:
        _say("The published schemas are not what the models say. Write them anew with: make schemas")
    return 1 if found else 0


def _left_over(out: Path, expected: dict[str, str]) -> list[str]:
    present = {path.relative_to(out).as_posix() for path in (out / _FOLDER).glob("*") if path.is_file()}
    return sorted(present - expected.keys())


def _home() -> Path | None:
    """The folder of schemas of the checkout that this runs from; none in an installed copy."""
    folder = _PACKAGE.parents[1]
    return folder if folder.name == "schemas" and (folder.parent / "pyproject.toml").is_file() else None


def _text(document: Document) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
