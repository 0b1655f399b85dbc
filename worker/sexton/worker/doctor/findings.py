"""What the doctor says: one finding for each thing that was looked at."""

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    """How a finding is to be taken, from good to bad."""

    OK = "ok"
    UNKNOWN = "unknown"
    """It could not be seen from here."""
    WARNING = "warning"
    """It works, and something may be lost, or nobody may notice."""
    FAULT = "fault"
    """It does not work, or breaks a promise of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at."""

    check: str
    """What it was: `nats.version`."""
    level: Level
    found: str
    """What is there, in one line."""
    mend: str | None = None
    """What to do about it; not for what is well."""


def ok(check: str, found: str) -> Finding:
    """All is well."""
    return Finding(check=check, level=Level.OK, found=found)


def unknown(check: str, found: str, mend: str) -> Finding:
    """It could not be seen; `mend` says how it could."""
    return Finding(check=check, level=Level.UNKNOWN, found=found, mend=mend)


def warning(check: str, found: str, mend: str) -> Finding:
    """It works, for now."""
    return Finding(check=check, level=Level.WARNING, found=found, mend=mend)


def fault(check: str, found: str, mend: str) -> Finding:
    """It does not do."""
    return Finding(check=check, level=Level.FAULT, found=found, mend=mend)
