"""docs/limits.md says what the code says."""

import importlib
import re
from pathlib import Path
from typing import Final

import pytest

from sexton.schemas import errors, leases, limits
from sexton.schemas.outcome import RejectionCode

TEXT: Final = (Path(__file__).parents[2] / "docs/limits.md").read_text(encoding="utf-8")
ROWS: Final = re.findall(r"^\| ([^|]+) \| (\d[^|]*) \| ([^|]+) \| ([^|]+) \|$", TEXT, re.MULTILINE)
WORDS: Final = set(vars(errors)) | {code.value for code in RejectionCode}


@pytest.mark.parametrize("row", ROWS, ids=[row[2] for row in ROWS])
def test_each_limit_is_as_documented(row: tuple[str, str, str, str]) -> None:
    """The value, by its name; and errors and codes that there are."""
    _, values, names, over = row
    found = []
    for path in re.findall(r"`([\w.]+)`", names):
        module, _, name = path.rpartition(".")
        found.append(int(getattr(importlib.import_module(f"sexton.{module}"), name)))
    assert found == [int(value) for value in re.findall(r"\d+", values)]
    named = {name for name in re.findall(r"`([A-Z]\w+|[a-z_]+)`", over) if not name.startswith("SEXTON_")}
    assert named <= WORDS, named - WORDS


def test_no_limit_is_missing() -> None:
    """Every constant of `schemas.limits`, and those of leases, has its row."""
    assert len(ROWS) > 15
    named = set(re.findall(r"schemas\.limits\.(\w+)`", TEXT))
    assert {name for name in vars(limits) if name.isupper()} == named
    assert {"MAX_PINS", "MIN_TTL_MS", "MAX_TTL_MS"} <= set(re.findall(r"schemas\.leases\.(\w+)`", TEXT))
    assert {name for name in vars(leases) if name.startswith("MAX_") and name != "MAX_SAFE_INTEGER"} <= set(
        re.findall(r"schemas\.leases\.(\w+)`", TEXT)
    )
