"""The rhythm of long work: everybody else has as much of the time."""

import pytest

from sexton.worker.pace import Pace


@pytest.mark.parametrize(
    ("worked_s", "rested_s"), [(0.0, 0), (0.0005, 0), (0.004, 0.004), (0.02, 0.02), (3.0, 0.02)]
)
async def test_a_step_is_followed_by_a_rest_of_its_length(
    monkeypatch: pytest.MonkeyPatch, worked_s: float, rested_s: float
) -> None:
    """A short one by one turn of the loop, and an endless one not by an endless rest; a rest is no work."""
    now, rests = 0.0, list[float]()

    async def rest(seconds: float) -> None:
        nonlocal now
        rests.append(seconds)
        now += seconds + 100

    monkeypatch.setattr("sexton.worker.pace.time.perf_counter", lambda: now)
    monkeypatch.setattr("sexton.worker.pace.asyncio.sleep", rest)
    pace = Pace()
    for _ in range(3):
        now += worked_s
        await pace.step_done()
    assert pytest.approx([rested_s] * 3) == rests
