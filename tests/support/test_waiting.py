"""The waiting helpers: a bound on every wait, and a message that says what was seen."""

import asyncio

import pytest

from tests.support.waiting import DeadlineExceeded, deadline, eventually


async def test_deadline_names_what_took_too_long() -> None:
    """A block that outlasts its deadline fails the test with the name of the block."""
    with pytest.raises(DeadlineExceeded, match=r"^the reply took longer than 0\.01 s$"):
        async with deadline(0.01, "the reply"):
            await asyncio.Event().wait()


async def test_deadline_passes_a_timeout_of_the_block_through() -> None:
    """A time-out raised inside is the code's own answer and not the deadline's."""
    with pytest.raises(TimeoutError, match="from inside"):
        async with deadline(5):
            raise TimeoutError("from inside")


async def test_eventually_returns_the_value_that_satisfied() -> None:
    """The probe is called again until its value is right, and that value is returned."""
    values = iter([1, 2, 3, 4])
    assert await eventually(lambda: next(values), until=lambda value: value == 3) == 3


async def test_eventually_reports_the_last_value() -> None:
    """A failure says what was seen last."""
    with pytest.raises(DeadlineExceeded, match=r"^the head did not come within 0\.05 s; last seen: 7$"):
        await eventually(lambda: 7, until=lambda head: head == 8, within_s=0.05, what="the head")


async def test_eventually_bounds_a_probe_that_hangs() -> None:
    """An async probe that never answers fails the test in time too."""
    with pytest.raises(DeadlineExceeded, match="the probe never answered"):
        await eventually(asyncio.Event().wait, within_s=0.05)


async def test_eventually_does_not_hide_an_error_of_the_probe() -> None:
    """What the probe raises is the test's to see, at once."""
    with pytest.raises(ZeroDivisionError):
        await eventually(lambda: 1 // 0)
