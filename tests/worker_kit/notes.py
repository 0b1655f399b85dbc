"""Notes of changes that stand for a short time, for tests that wait for them to run out."""

from collections.abc import Callable
from typing import Any

from sexton.core import registry
from sexton.core.registry import CHANGING_MS
from sexton.worker import holdings
from sexton.worker.adapters import registry as adapter
from sexton.worker.holdings import FRESH_S


def brief_notes(changing_ms: int, set_: Callable[[Any, str, Any], object]) -> None:
    """Changes the limit wherever it is, with `set_`: the `setattr` of a test, or Python's own."""
    line = "local CHANGING = {}\n"
    script = adapter._SCRIPT.replace(line.format(CHANGING_MS), line.format(changing_ms))
    assert script != adapter._SCRIPT
    set_(adapter, "_SCRIPT", script)
    set_(registry, "CHANGING_MS", changing_ms)
    set_(holdings, "CHANGING_MS", changing_ms)
    set_(holdings, "FRESH_S", FRESH_S * changing_ms / CHANGING_MS)
