"""The manifests: valid, whole, and told only what there is."""

import io
import shutil
import subprocess
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any, Final

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml

from sexton.worker.settings import PREFIX
from tests.deploy_kit import DEPLOY, K8S, documents, load, settings

OTHERS: Final = frozenset({"SEXTON_SECRETS_DIR"})
"""Ours, and no setting."""
CUSTOM: Final = frozenset({"ServiceMonitor", "PrometheusRule", "ScaledObject"})
"""Kinds that an operator brings, with a schema of its own."""
FOLDERS: Final = ("base", "components/monitoring", "components/autoscaling", "overlays/example")
MANIFESTS: Final = sorted(path for path in K8S.rglob("*.yaml") if path.name != "kustomization.yaml")
DEPLOYMENTS: Final = ("worker", "pager")


def deployment(name: str) -> dict[str, Any]:
    """The Deployment of a program."""
    found: dict[str, Any] = load(K8S / f"base/{name}.yaml")
    return found


def pod(name: str) -> dict[str, Any]:
    """What its pods are made from."""
    spec: dict[str, Any] = deployment(name)["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    """Its one container."""
    [found] = pod(name)["containers"]
    assert isinstance(found, dict)
    return found


def env_file(path: Path) -> dict[str, str]:
    """The variables of a file for a ConfigMap."""
    lines = (line for line in path.read_text().splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.relative_to(K8S).as_posix())
def test_every_manifest_is_valid(path: Path) -> None:
    """By Kubernetes's own schema, strictly; and in the group that an operator's kind belongs to."""
    for document in documents(path):
        if document["kind"] in CUSTOM:
            assert document["apiVersion"] in {"monitoring.coreos.com/v1", "keda.sh/v1alpha1"}
            assert document["spec"]
            continue
        for version in ("1.30", "1.34"):
            with redirect_stderr(io.StringIO()):
                kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("folder", FOLDERS)
def test_kustomize_takes_every_file_and_no_other(folder: str) -> None:
    """What is named is there, and what is there is named."""
    kustomization = load(K8S / folder / "kustomization.yaml")
    generators = kustomization.get("configMapGenerator", [])
    named = [
        *kustomization["resources"],
        *kustomization.get("components", []),
        *(file for generator in generators for file in generator["envs"]),
    ]
    assert len(named) == len(set(named))
    for name in named:
        assert (K8S / folder / name).exists(), name
    here = {path.name for path in (K8S / folder).iterdir() if path.is_file()} - {"kustomization.yaml"}
    assert here == {name for name in named if "/" not in name}


def test_every_folder_is_looked_at() -> None:
    """None is left out above."""
    assert sorted(FOLDERS) == sorted(
        p.parent.relative_to(K8S).as_posix() for p in K8S.rglob("kustomization.yaml")
    )


def test_the_overlay_can_be_built() -> None:
    """`kubectl kustomize`, where there is one; the ConfigMap and the image are put in everywhere."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH")
    ran = subprocess.run(
        [kubectl, "kustomize", K8S / "overlays/example"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert 0 == ran.returncode, ran.stderr
    built = list(yaml.safe_load_all(ran.stdout))
    [config] = [one for one in built if one["kind"] == "ConfigMap"]
    assert "3" == config["data"]["SEXTON_REPLICAS"]
    for one in built:
        if one["kind"] == "Deployment":
            [made] = one["spec"]["template"]["spec"]["containers"]
            assert config["metadata"]["name"] == made["envFrom"][0]["configMapRef"]["name"]
            assert "registry.example.com/sexton:0.1.0" == made["image"]


@pytest.mark.parametrize("overlay", [None, "overlays/example"])
def test_every_variable_is_a_setting(overlay: str | None) -> None:
    """And its value is one that the setting takes; secrets are not among them."""
    values = env_file(K8S / "base/sexton.env") | (
        {} if overlay is None else env_file(K8S / overlay / "sexton.env")
    )
    ours = {name: value for name, value in values.items() if name.startswith(PREFIX) and name not in OTHERS}
    settings(ours)
    assert [] == [name for name in ours if name.endswith(("PASSWORD", "TOKEN", "PAGER_URLS"))]


def test_every_secret_is_a_setting_and_is_mounted() -> None:
    """Named as its variable would be, in the folder that SEXTON_SECRETS_DIR names."""
    examples = {
        s["metadata"]["name"]: s["stringData"] for s in documents(K8S / "overlays/example/secret.yaml")
    }
    folder = env_file(K8S / "base/sexton.env")["SEXTON_SECRETS_DIR"]
    variables = env_file(K8S / "overlays/example/sexton.env")
    files = {value for name, value in variables.items() if name.endswith("_FILE")}
    for name in DEPLOYMENTS:
        [volume] = [v for v in pod(name)["volumes"] if "secret" in v]
        [mount] = [m for m in container(name)["volumeMounts"] if m["name"] == volume["name"]]
        assert folder == mount["mountPath"]
        values = examples.pop(volume["secret"]["secretName"])
        # A file that a client library reads itself is named by a variable.
        assert {f"{folder}/{key}" for key in values if "." in key} == files
        settings({key: value for key, value in values.items() if "." not in key})
    assert {} == examples


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_probes_ask_where_the_program_listens(name: str) -> None:
    """Three paths, three questions, one port; liveness is given more time than readiness."""
    values = env_file(K8S / "base/sexton.env")
    [port] = container(name)["ports"]
    assert values["SEXTON_HTTP_PORT"] == str(port["containerPort"])
    service = load(K8S / f"base/{name}-service.yaml")
    assert port["name"] == service["spec"]["ports"][0]["targetPort"]
    probes = {kind: container(name)[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")}
    assert {"startup": "/startupz", "liveness": "/livez", "readiness": "/readyz"} == {
        kind: probe["httpGet"]["path"] for kind, probe in probes.items()
    }
    assert {port["name"]} == {probe["httpGet"]["port"] for probe in probes.values()}
    patience = {kind: probe["periodSeconds"] * probe["failureThreshold"] for kind, probe in probes.items()}
    assert patience["readiness"] < patience["liveness"] < patience["startup"]


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_what_is_in_flight_can_be_finished(name: str) -> None:
    """Kubernetes waits for longer than the program does."""
    grace_s = float(env_file(K8S / "base/sexton.env")["SEXTON_GRACE_S"])
    assert pod(name)["terminationGracePeriodSeconds"] >= grace_s + 10


@pytest.mark.parametrize("name", DEPLOYMENTS)
def test_pods_are_locked_down(name: str) -> None:
    """As the standard `restricted` asks, and a little more."""
    assert not pod(name)["automountServiceAccountToken"]
    assert not pod(name)["enableServiceLinks"]
    assert {"runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001} == {
        key: value for key, value in pod(name)["securityContext"].items() if key != "seccompProfile"
    }
    assert {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    } == container(name)["securityContext"]
    assert "memory" in container(name)["resources"]["limits"]
    assert not load(K8S / "base/serviceaccount.yaml")["automountServiceAccountToken"]


def test_selectors_find_their_pods() -> None:
    """Deployment, service, disruption budget and network policy mean the same pods."""
    for name in DEPLOYMENTS:
        labels = deployment(name)["spec"]["template"]["metadata"]["labels"]
        assert labels == deployment(name)["spec"]["selector"]["matchLabels"]
        assert labels == load(K8S / f"base/{name}-service.yaml")["spec"]["selector"]
        policy = load(K8S / "base/networkpolicy.yaml")["spec"]["podSelector"]["matchLabels"]
        assert policy.items() <= labels.items()
    budget = load(K8S / "base/worker-disruption.yaml")["spec"]["selector"]["matchLabels"]
    assert deployment("worker")["spec"]["template"]["metadata"]["labels"] == budget


def test_scaling_is_bounded() -> None:
    """It aims at the workers, leaves one beside the one that goes, and stops where lanes run out."""
    spec = load(K8S / "components/autoscaling/scaledobject.yaml")["spec"]
    assert deployment("worker")["metadata"]["name"] == spec["scaleTargetRef"]["name"]
    assert "replicas" not in deployment("worker")["spec"]
    lanes = int(env_file(K8S / "base/sexton.env")["SEXTON_PARTITIONS"])
    assert 2 <= spec["minReplicaCount"] < spec["maxReplicaCount"] <= lanes


def test_both_ways_to_deploy_run_the_same_image() -> None:
    """Compose and Kubernetes."""
    compose = load(DEPLOY / "compose.yaml")["services"]
    assert {compose[name]["image"] for name in DEPLOYMENTS} == {
        container(name)["image"] for name in DEPLOYMENTS
    }


def test_the_example_s_user_of_redis_is_the_one_that_the_acl_has() -> None:
    """Another would be refused at the start."""
    [secret] = [
        found
        for found in documents(K8S / "overlays/example/secret.yaml")
        if found["metadata"]["name"] == "sexton-worker"
    ]
    user = secret["stringData"]["sexton_redis_username"]
    assert f"\nuser {user} on " in (DEPLOY / "valkey/users.acl").read_text()
