"""How hard the searches try: `moderate` the same each time, `thorough` at random and for longer.

The switch is the same as for `tests/property`: `SEXTON_HYPOTHESIS=thorough`.
"""

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

THOROUGH: Final = os.environ.get("SEXTON_HYPOTHESIS") == "thorough"


def effort(moderate: int, thorough: int) -> int:
    """How many examples, seeds or steps."""
    return thorough if THOROUGH else moderate


PATIENCE: Final = pytest.mark.timeout(effort(120, 7_200))
"""For a test that is one long search."""


def search(moderate: int, thorough: int, *, steps: int = 50) -> settings:
    """Settings of a hypothesis search."""
    return settings(
        max_examples=effort(moderate, thorough),
        stateful_step_count=effort(steps, 2 * steps),
        deadline=None,
        derandomize=not THOROUGH,
        print_blob=THOROUGH,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
