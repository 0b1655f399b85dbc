"""Whether a program is alive, ready and started, and if not, why: pure state, and probes with a bound."""

from sexton.worker.health.checks import Check, Report
from sexton.worker.health.probes import Probe
from sexton.worker.health.state import Health, Phase

__all__ = ["Check", "Health", "Phase", "Probe", "Report"]
