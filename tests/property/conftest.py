"""How hard hypothesis tries.

`moderate` is what everybody runs: the same examples each time, so that a change never fails on what somebody
else broke. `thorough` searches on, at random, and keeps what it found in `.hypothesis`::

    SEXTON_HYPOTHESIS=thorough make test ARGS=tests/property
"""

import os

from hypothesis import HealthCheck, settings

# No deadlines: a slow machine is no failure.
_COMMON = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("moderate", _COMMON, max_examples=100, derandomize=True)
settings.register_profile("thorough", _COMMON, max_examples=400, stateful_step_count=100, print_blob=True)
settings.load_profile(os.environ.get("SEXTON_HYPOTHESIS", "moderate"))
