"""Judging clocks: how far apart they are, and whom that hurts. Pure."""

from sexton.worker.doctor.findings import Finding, ok, warning

_APART_S = 2.0


def judge_clock(whose: str, offset_s: float, uncertain_s: float) -> Finding:
    """A finding about one clock against this machine's.

    Args:
        whose: `nats`, `redis` or `cold`.
        offset_s: that clock minus this one.
        uncertain_s: how long the question was under way, which bounds the error.
    """
    check, apart_s = f"clocks.{whose}", max(0.0, abs(offset_s) - uncertain_s)
    if apart_s <= _APART_S:
        return ok(check, f"within {_APART_S:g} s of this machine's")
    way = "ahead of" if offset_s > 0 else "behind"
    return warning(
        check,
        f"{apart_s:.1f} s {way} this machine's",
        "let an NTP client slew the clocks; leases run on Redis's own clock alone, so a step of it ends them "
        "early, and the age of bytes without a record is told by the cold store's",
    )
