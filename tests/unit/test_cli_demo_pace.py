"""The demo's times: every wait has an end and a name, and worker and holders are told what fits together."""

import asyncio

import pytest

from sexton.schemas.errors import Unavailable
from sexton.worker.demo.pace import WORKER, holder_settings, within
from sexton.worker.settings import Settings


async def test_a_wait_that_is_over_names_what_was_waited_for() -> None:
    """And for how long."""
    with pytest.raises(Unavailable, match="the demo waited 0 s for ada to answer"):
        async with within(0.01, "ada to answer"):
            await asyncio.Event().wait()


async def test_what_ends_in_time_passes_and_so_does_its_own_time_out() -> None:
    """A time-out of something inside is not taken for the wait's own."""
    async with within(10, "nothing"):
        pass
    with pytest.raises(TimeoutError, match="inside"):
        async with within(10, "nothing"):
            raise TimeoutError("inside")


def test_the_worker_takes_the_holders_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    """A longer lease than the worker's longest would be refused, and nobody would hold anything."""
    for name, value in WORKER.items():
        monkeypatch.setenv(name, value)

    worker, holder = Settings(), holder_settings(summary_timeout_s=20.0)

    assert holder.lease_ttl_s <= worker.lease_ttl_max_s
    assert worker.sweep_interval_s < worker.quiet_s < holder.lease_ttl_s / 3
    assert 20.0 == holder.summary_timeout_s
