"""What a check says, and what several say together."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Check:
    """One answer. A check that is not ok has a reason, which holds no address and no secret."""

    ok: bool
    reason: str | None = None

    @classmethod
    def failed(cls, reason: str) -> "Check":
        """A check that is not ok."""
        return cls(ok=False, reason=reason)


OK: Final = Check(ok=True)


@dataclass(frozen=True, slots=True)
class Report:
    """The checks of one question, by name."""

    checks: Mapping[str, Check]

    @property
    def ok(self) -> bool:
        """Whether all are."""
        return all(check.ok for check in self.checks.values())

    def to_json(self) -> dict[str, Any]:
        """The answer as it is sent."""
        return {
            "status": "ok" if self.ok else "unavailable",
            "checks": {
                name: {"ok": check.ok, **({} if check.reason is None else {"reason": check.reason})}
                for name, check in self.checks.items()
            },
        }
