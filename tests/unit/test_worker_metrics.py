"""The metrics and their table."""

import re
from pathlib import Path

from prometheus_client import Counter, Gauge, Histogram

from sexton.worker import metrics

_ROW = re.compile(r"^\| `(?P<name>\w+)` \| (?P<type>\w+) \| (?P<labels>[^|]*)\|", re.MULTILINE)
_WORKER = Path(__file__).parents[2] / "worker"
_TABLE = (Path(__file__).parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")


def described() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What the table says: type and labels by name."""
    return {
        row["name"]: (row["type"], tuple(re.findall(r"`(\w+)`", row["labels"])))
        for row in _ROW.finditer(_TABLE)
    }


def registered() -> dict[str, tuple[str, tuple[str, ...]]]:
    """What the registry holds, as it is exposed."""
    found = {}
    for collector in metrics.REGISTRY._collector_to_names:
        labels = tuple(getattr(collector, "_labelnames", ()))
        for family in getattr(collector, "describe", list)() or collector.collect():
            suffix = {"counter": "_total", "info": "_info"}.get(family.type, "")
            shown = "gauge" if family.type == "info" else family.type
            found[family.name + suffix] = (shown, labels)
    return found | {"sexton_build_info": ("gauge", ("version", "python"))}


def test_the_table_and_the_registry_agree() -> None:
    """Every metric is described, with its type and its labels, and every described one is there."""
    assert described() == registered()


def test_no_label_is_an_id() -> None:
    """Labels are kinds, codes and names of streams: their values are few."""
    allowed = {"kind", "outcome", "tier", "code", "reason", "stream", "check", "operation", "status"}
    labels = {label for name, (_, labels) in registered().items() for label in labels if "build" not in name}
    assert labels <= allowed


def test_names_follow_the_conventions() -> None:
    """A prefix, base units last, and `_total` for counters only."""
    for name, (kind, _) in registered().items():
        assert name.startswith(("sexton_", "process_"))
        assert (kind == "counter") == name.endswith("_total")
        assert not re.search(r"_(ms|millis|kb|minutes)(_|$)", name)


def test_every_metric_is_fed() -> None:
    """A name without anything behind it would be a promise that nobody keeps."""
    sources = [
        path.read_text(encoding="utf-8") for path in _WORKER.rglob("*.py") if path.name != "metrics.py"
    ]
    names = [name for name, value in vars(metrics).items() if isinstance(value, Counter | Gauge | Histogram)]
    assert names
    assert [] == [name for name in names if not any(f"metrics.{name}" in source for source in sources)]
