"""The digest of a set of pins, kept up as the set changes."""

from hypothesis import given
from hypothesis import strategies as st

from sexton.core.pins import EMPTY_DIGEST, PinsDigest, pins_digest
from sexton.schemas.leases import Pin, PinCost


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 12), st.sampled_from([None, *PinCost]))))
def test_a_running_digest_is_that_of_the_whole_set(steps: list[tuple[str, int, PinCost | None]]) -> None:
    """Whatever was put, put again with another cost class, and dropped, or dropped without being there."""
    running, pins = PinsDigest(), dict[tuple[str, int], PinCost]()
    for name, version, cost in steps:
        key = (f"l0:{name}", version)
        if cost is None:
            running.drop(key)
            pins.pop(key, None)
        else:
            running.put(key, cost)
            pins[key] = cost
        whole = [Pin(span_id=span_id, version=number, cost=kept) for (span_id, number), kept in pins.items()]
        assert pins_digest(whole) == running.value()
    running.clear()
    assert EMPTY_DIGEST == running.value()
