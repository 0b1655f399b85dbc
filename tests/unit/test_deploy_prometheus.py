"""Alert rules and the dashboard: that they speak of metrics that there are, and say what to do."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.deploy_kit import (
    DASHBOARD,
    DEPLOY,
    K8S,
    ROOT,
    RULES,
    TARGET_LABELS,
    alerts,
    anchors,
    exposed,
    load,
    matched_labels,
    metrics_in,
    panels,
    rules,
)

RULE_TESTS: Final = sorted((DEPLOY / "prometheus/tests").glob("*.yaml"))
OPERATIONS: Final = ROOT / "docs/operations.md"
RECORDED: Final = {rule["record"] for rule in rules() if "record" in rule}


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs promtool, which Debian and Ubuntu have in the package `prometheus`."""
    binary = shutil.which("promtool")
    if binary is None:
        pytest.skip("no promtool on PATH")
    return subprocess.run(
        [binary, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )


def expressions() -> list[str]:
    """Every query of the rules, of the dashboard and of KEDA."""
    dashboard = json.loads(DASHBOARD.read_text())
    keda = load(K8S / "components/autoscaling/scaledobject.yaml")["spec"]["triggers"]
    return [
        *(rule["expr"] for rule in rules()),
        *(target["expr"] for panel in panels() for target in panel.get("targets", [])),
        *(annotation["expr"] for annotation in dashboard["annotations"]["list"]),
        *(v["definition"] for v in dashboard["templating"]["list"] if v["type"] == "query"),
        *(trigger["metadata"]["query"] for trigger in keda),
    ]


def test_every_metric_is_one_that_is_exposed() -> None:
    """Also its labels: a misspelt one matches nothing, and nothing says so."""
    known = exposed()
    for expression in expressions():
        for metric in metrics_in(expression):
            assert metric in known or metric in RECORDED, metric
        for metric, label in matched_labels(expression):
            assert label in known[metric] | TARGET_LABELS, (metric, label)


def test_every_check_that_is_asked_for_is_one() -> None:
    """`docs/metrics.md` names them."""
    named = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    for expression in expressions():
        for value in re.findall(r'check=~?"([^"]+)"', expression):
            for check in value.split("|"):
                assert f"`{check}`" in named


@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_what_it_is_and_what_to_do(name: str) -> None:
    """Its runbook is a heading of docs/operations.md."""
    alert = alerts()[name]
    assert name.startswith("Sexton")
    assert alert["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == set(alert["annotations"])
    page, _, anchor = alert["annotations"]["runbook_url"].partition("#")
    assert page.endswith("/docs/operations.md")
    assert name.lower() == anchor
    assert anchor in anchors(OPERATIONS)


def test_every_runbook_is_of_an_alert() -> None:
    """None is left over."""
    headings = re.findall(r"(?m)^#+ (Sexton[A-Z]\w+)$", OPERATIONS.read_text(encoding="utf-8"))
    assert sorted(alerts()) == sorted(headings)


def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not() -> None:
    """In deploy/prometheus/tests."""
    fires: set[str] = set()
    quiet: set[str] = set()
    for path in RULE_TESTS:
        for case in load(path)["tests"]:
            for check in case["promql_expr_test"]:
                if named := re.search(r'alertname="(\w+)"', check["expr"]):
                    (fires if check["exp_samples"] else quiet).add(named[1])
    assert set(alerts()) == fires == quiet


def test_the_rules_hold_what_their_tests_say() -> None:
    """`promtool test rules`."""
    ran = promtool("test", "rules", *RULE_TESTS)
    assert 0 == ran.returncode, ran.stdout + ran.stderr


def test_prometheus_takes_its_configuration() -> None:
    """`promtool check config`, the rules with it."""
    ran = promtool("check", "config", DEPLOY / "prometheus/prometheus.yaml")
    assert 0 == ran.returncode, ran.stdout + ran.stderr


def test_every_query_can_be_parsed(tmp_path: Path) -> None:
    """Those of the dashboard and of KEDA, with Grafana's variables put in."""
    queries = [
        expression.replace("$__rate_interval", "5m")
        for expression in expressions()
        if not expression.startswith("label_values(")
    ]
    group = {"name": "all", "rules": [{"record": f"q{i}", "expr": q} for i, q in enumerate(queries)]}
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [group]}))
    ran = promtool("check", "rules", path)
    assert 0 == ran.returncode, ran.stdout + ran.stderr
    assert len(queries) > 60


def test_kubernetes_has_the_same_rules() -> None:
    """`make rules` was not forgotten."""
    made = load(K8S / "components/monitoring/prometheusrule.yaml")
    assert "PrometheusRule" == made["kind"]
    assert load(RULES) == made["spec"]


def test_the_jobs_are_those_that_are_scraped() -> None:
    """By compose and, as names of services, by Kubernetes."""
    asked = {job for q in expressions() for job in re.findall(r'job=~?"(sexton[^"]+)"', q)}
    asked = {job for jobs in asked for job in jobs.split("|")}
    scraped = {job["job_name"] for job in load(DEPLOY / "prometheus/prometheus.yaml")["scrape_configs"]}
    services = {load(K8S / f"base/{name}-service.yaml")["metadata"]["name"] for name in ("worker", "pager")}
    assert asked == scraped == services


def test_the_dashboard_takes_any_data_source() -> None:
    """A variable, and no id of somebody's own Grafana."""
    dashboard = json.loads(DASHBOARD.read_text())
    assert "id" not in dashboard
    assert "datasource" == dashboard["templating"]["list"][0]["name"]

    def sources(node: Any) -> list[Any]:
        if isinstance(node, dict):
            own = [node["datasource"]] if "datasource" in node else []
            return own + [found for value in node.values() for found in sources(value)]
        return [found for value in node for found in sources(value)] if isinstance(node, list) else []

    assert {"${datasource}"} == {source["uid"] for source in sources(dashboard)}


def test_the_panels_are_told_apart_and_do_not_overlap() -> None:
    """Each has an id of its own, a title, and a place of its own on the grid."""
    ids = [panel["id"] for panel in panels()]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        assert panel["title"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not taken & cells
        taken |= cells
