"""The log and the cold store: the table of `sexton.core.pairing`, row by row."""

import pytest

from sexton.core.pairing import LogSeen, Pairing, pair


@pytest.mark.parametrize(
    ("log", "store", "expected"),
    [
        (None, None, Pairing.MAKE),
        (None, "a", Pairing.LOG_GONE),
        (LogSeen("a", empty=True), "a", Pairing.PAIRED),
        (LogSeen("a", empty=False), "a", Pairing.PAIRED),
        (LogSeen("a", empty=True), "b", Pairing.OTHER_LOG),
        (LogSeen("a", empty=False), "b", Pairing.OTHER_LOG),
        (LogSeen("a", empty=True), None, Pairing.NAME_STORE),
        (LogSeen("a", empty=False), None, Pairing.STORE_GONE),
        (LogSeen(None, empty=True), None, Pairing.NAME_BOTH),
        (LogSeen(None, empty=False), None, Pairing.NAME_BOTH),
        (LogSeen(None, empty=True), "a", Pairing.OTHER_LOG),
        (LogSeen(None, empty=False), "a", Pairing.OTHER_LOG),
    ],
)
def test_what_is_done(log: LogSeen | None, store: str | None, expected: Pairing) -> None:
    """Nothing is done unless each names the other, or what is missing cannot have held anything."""
    assert expected is pair(log, store)


def test_refusals_say_how_to_mend_it() -> None:
    """Each in words of its own."""
    refused = [pairing for pairing in Pairing if pairing.refused]
    assert [Pairing.LOG_GONE, Pairing.OTHER_LOG, Pairing.STORE_GONE] == refused
    for pairing in refused:
        assert "lead to" in pairing.value.lower()
