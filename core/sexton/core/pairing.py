"""The log and the cold store belong together: each names the other, or nothing is done.

A log names bytes, and only the cold store has them; what no record names, a sweep deletes. So a log beside a
cold store that is not its own is dangerous in both directions: an empty log (the wrong server, a volume that
was not mounted, a backup that was not put back) makes every byte an orphan, and an empty cold store (a folder
that was not mounted, a wrong prefix) makes every byte a loss. Both carry one name, made with the first of
them.

| log | its name | cold store's name | what is done |
|---|---|---|---|
| is not there | | none | both are new: make a name, make the log with it, then name the cold store |
| is not there | | some | refused: the log of these bytes is gone, or elsewhere |
| is there | some | the same | all is well |
| is there | some | another | refused: these bytes belong to another log |
| is there, empty | some | none | the first start was cut short: name the cold store |
| is there, with records | some | none | refused: the bytes of this log are elsewhere |
| is there | none | none | made by hand or before there were names: name both |
| is there | none | some | refused: the log was made anew by hand, beside the bytes of another |
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True, slots=True)
class LogSeen:
    """A log that is there."""

    name: str | None
    """The name that it carries."""
    empty: bool
    """Whether it has never had a record."""


class Pairing(Enum):
    """What is to be done. The value of a refusal says why, and how to mend it."""

    PAIRED = "the log and the cold store belong together"
    MAKE = "both are new"
    NAME_STORE = "the log is new, and the cold store is not named yet"
    NAME_BOTH = "neither is named yet"
    LOG_GONE = (
        "the cold store belongs to a log that is not here. Put that log back, or lead to it. "
        "To begin anew, name a cold store that is empty"
    )
    OTHER_LOG = (
        "the cold store belongs to another log than the one here. Lead to the cold store of this log, "
        "or to the log of this cold store"
    )
    STORE_GONE = (
        "the log has records, and this cold store is not the one that has their bytes. "
        "Mount it, or lead to it"
    )

    @property
    def refused(self) -> bool:
        """Whether nothing may be done."""
        return self in (Pairing.LOG_GONE, Pairing.OTHER_LOG, Pairing.STORE_GONE)


def pair(log: LogSeen | None, store_name: str | None) -> Pairing:
    """What is to be done about a log and a cold store; see the table above."""
    if log is None:
        return Pairing.MAKE if store_name is None else Pairing.LOG_GONE
    if log.name is None:
        return Pairing.NAME_BOTH if store_name is None else Pairing.OTHER_LOG
    if store_name is None:
        return Pairing.NAME_STORE if log.empty else Pairing.STORE_GONE
    return Pairing.PAIRED if store_name == log.name else Pairing.OTHER_LOG
