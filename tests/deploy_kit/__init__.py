"""What the tests of `deploy/` share: its files, read."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from sexton.worker import metrics
from sexton.worker.settings import PREFIX, Settings

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
K8S: Final = DEPLOY / "k8s"
RULES: Final = DEPLOY / "prometheus/sexton.rules.yaml"
DASHBOARD: Final = DEPLOY / "grafana/dashboards/sexton.json"

TARGET_LABELS: Final = frozenset({"job", "instance"})
"""What Prometheus adds to each series."""

_METRIC: Final = re.compile(r"\b(?:sexton|process)_\w+|\bsexton:[\w:]+")
_MATCHERS: Final = re.compile(r"\b((?:sexton|process)_\w+)\{([^}]*)\}")


def load(path: Path) -> Any:
    """The one document of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def documents(path: Path) -> list[Any]:
    """All documents of a YAML file."""
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"(?m)^#{1,6} (.+)$", page.read_text(encoding="utf-8"))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def settings(variables: Mapping[str, str]) -> Settings:
    """The settings that these variables make. Fails if one is none, or cannot be."""
    given: dict[str, Any] = {
        name.lower().removeprefix(PREFIX.lower()): value for name, value in variables.items()
    }
    assert set(given) <= set(Settings.model_fields)
    return Settings(**given)


def rules() -> list[dict[str, Any]]:
    """The rules for Prometheus, of all groups."""
    return [rule for group in load(RULES)["groups"] for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Those of them that alert, by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def panels() -> list[dict[str, Any]]:
    """The panels of the dashboard, the rows among them."""
    return [
        panel
        for top in json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]
        for panel in (top, *top.get("panels", []))
    ]


def metrics_in(expression: str) -> set[str]:
    """The metrics of ours that an expression reads, and what rules record of them."""
    return set(_METRIC.findall(re.sub(r'"[^"]*"', '""', expression)))


def matched_labels(expression: str) -> Iterator[tuple[str, str]]:
    """Each metric with a label that the expression matches."""
    for metric, matchers in _MATCHERS.findall(expression):
        for label in re.findall(r"(\w+)\s*[!=]", re.sub(r'"[^"]*"', "", matchers)):
            yield metric, label


def exposed() -> dict[str, set[str]]:
    """Every name that `/metrics` shows, with its labels."""
    suffixes = {"counter": ("_total",), "info": ("_info",), "histogram": ("_bucket", "_count", "_sum")}
    found: dict[str, set[str]] = {}
    for collector in metrics.REGISTRY._collector_to_names:
        labels = set(getattr(collector, "_labelnames", ()))
        for family in getattr(collector, "describe", list)() or collector.collect():
            of_kind = {"histogram": {"le"}, "info": {"version", "python"}}.get(family.type, set())
            for suffix in suffixes.get(family.type, ("",)):
                found[family.name + suffix] = labels | of_kind
    return found
