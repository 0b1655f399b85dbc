"""The settings: from variables, files of secrets and arguments, shown without their secrets."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sexton.schemas.errors import InvalidInput
from sexton.worker.settings import PREFIX, Settings, describe, read_settings, secrets_dir, unknown_variables
from tests.support.cli import Cli

CANARY = "canary-7f3a"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variable of ours is set, and there are no secrets but those of the test."""
    import os

    for name in list(os.environ):
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setenv("SEXTON_SECRETS_DIR", str(folder))
    return folder


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Runs commands in this process."""
    return Cli(capfdbinary, monkeypatch)


def test_every_setting_says_what_it_is_for() -> None:
    """`sexton config --json` shows it."""
    assert [] == [s.name for s in describe(read_settings()) if not s.about.endswith(".")]


def test_an_argument_comes_before_a_variable_a_file_and_the_default(
    nothing_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And `describe` says which it was."""
    seen = []
    for step in ("default", "file", "environment", "argument"):
        if step == "file":
            (nothing_set / "sexton_nats_user").write_text("from-file\n")
            (nothing_set / "SEXTON_NATS_PASSWORD").write_text(f"{CANARY}\n")
        if step == "environment":
            monkeypatch.setenv("SEXTON_NATS_USER", "from-environment")
        given = {"nats_user": "from-argument"} if step == "argument" else {}
        settings = read_settings(**given)
        [user] = [s for s in describe(settings, secrets=secrets_dir(), given=given) if s.name == "nats_user"]
        seen.append((settings.nats_user, user.origin))
    assert [
        (None, "default"),
        ("from-file", str(nothing_set / "sexton_nats_user")),
        ("from-environment", "environment"),
        ("from-argument", "argument"),
    ] == seen
    password = read_settings().nats_password
    assert password is not None
    assert CANARY == password.get_secret_value()


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compose files pass it on so."""
    monkeypatch.setenv("SEXTON_HTTP_PORT", "")
    monkeypatch.setenv("SEXTON_PARTITIONS", "")
    settings = read_settings()
    assert (None, 16) == (settings.http_port, settings.partitions)


def test_no_secret_is_shown(cli: Cli, nothing_set: Path) -> None:
    """Not one from a variable, a file or an address; that it is set is shown."""
    (nothing_set / "sexton_nats_password").write_text(CANARY)
    env = {
        "SEXTON_NATS_URL": f"nats://user:{CANARY}@one:4222,nats://{CANARY}@two:4222",
        "SEXTON_NATS_USER": "worker",
        "SEXTON_REDIS_URL": f"redis://:{CANARY}@redis:6379/0",
        "SEXTON_REDIS_PASSWORD": CANARY,
        "SEXTON_PAGER_URLS": f"json://{CANARY}@host",
        "SEXTON_COLD_URL": f"az://account/box?sig={CANARY}",
    }
    for arguments in (["config"], ["config", "--json"], ["config", "--changed"]):
        ran = cli(*arguments, env=env)
        assert 0 == ran.code
        assert CANARY.encode() not in ran.out
        assert CANARY not in ran.err
    shown = {s["name"]: (s["value"], s["origin"]) for s in cli("config", "--json", env=env).values}
    hidden = "**********"
    assert (f"nats://{hidden}@one:4222,nats://{hidden}@two:4222", "environment") == shown["nats_url"]
    assert (hidden, "environment") == shown["redis_password"]
    assert (hidden, str(nothing_set / "sexton_nats_password")) == shown["nats_password"]
    assert (f"az://account/box?{hidden}", "environment") == shown["cold_url"]
    assert ("worker", "environment") == shown["nats_user"]
    assert (None, "default") == shown["nats_token"]
    assert set(Settings.model_fields) == set(shown)


@pytest.mark.parametrize(
    ("name", "given", "shown"),
    [
        ("nats_url", f"nats://u:p@{CANARY}@h:1", "nats://**********@h:1"),
        ("nats_url", f"nats://u:{CANARY}/x@h:1", "nats://**********@h:1"),
        ("nats_url", f"u:{CANARY}@h:1", "**********@h:1"),
        ("nats_url", f"u:{CANARY}@h:1, nats://{CANARY}@h:2", "**********@h:1, nats://**********@h:2"),
        ("nats_url", f"h:1,u:{CANARY}@h:2,nats://h:3", "h:1,**********@h:2,nats://h:3"),
        ("nats_url", "nats://h:1,tls://h:2", "nats://h:1,tls://h:2"),
        ("cold_url", f"s3://{CANARY}:{CANARY}@bucket/a?key={CANARY}", "s3://**********@bucket/a?**********"),
        ("cold_url", "file:///a/b", "file:///a/b"),
        ("summariser", f"command:/bin/sum --key {CANARY}", "command:/bin/sum **********"),
        ("summariser", "command:/bin/sum", "command:/bin/sum"),
        ("summariser", "extractive", "extractive"),
    ],
)
def test_what_an_address_or_a_command_may_hold_is_hidden(name: str, given: str, shown: str) -> None:
    """A password may hold an @ or a slash, and an address may have no scheme."""
    fields: dict[str, Any] = {name: given}
    # Past the checks, which would refuse some of them.
    settings = Settings().model_copy(update=fields)
    [found] = [s for s in describe(settings) if s.name == name]
    assert shown == found.value


def test_only_what_was_changed(cli: Cli) -> None:
    """In a form that can be read by people and by a shell."""
    ran = cli("config", "--changed", env={"SEXTON_PARTITIONS": "4"})
    assert (0, b"SEXTON_PARTITIONS=4  # environment\n", "") == (ran.code, ran.out, ran.err)


def test_a_misspelt_variable_is_told(cli: Cli) -> None:
    """It would do nothing, silently."""
    ran = cli("config", "--changed", env={"SEXTON_PARTITION": "4", "SEXTON_CONTEXT": "c"})
    assert (0, b"") == (ran.code, ran.out)
    assert "SEXTON_PARTITION is no setting" in ran.err
    assert "SEXTON_CONTEXT" not in ran.err
    assert ["SEXTON_A"] == unknown_variables({"SEXTON_A": "", "OTHER": "", "SEXTON_NATS_URL": ""})


@pytest.mark.parametrize(
    ("env", "told"),
    [
        ({"SEXTON_PARTITIONS": CANARY}, "SEXTON_PARTITIONS: Input should be a valid integer"),
        ({"SEXTON_LOG_LEVEL": CANARY}, "SEXTON_LOG_LEVEL: "),
        ({"SEXTON_NATS_URL": f"nats://u:{CANARY}@127.0.0.1:1x"}, "SEXTON_NATS_URL: "),
        ({"SEXTON_NATS_URL": "nats://one:4222,http://two"}, "SEXTON_NATS_URL: "),
        ({"SEXTON_HTTP_PORT": "65536"}, "SEXTON_HTTP_PORT: "),
        ({"SEXTON_RETRY_DELAY_S": "60"}, "retry_delay_max_s must not be below"),
        ({"SEXTON_NATS_USER": CANARY}, "nats_user and nats_password are given together"),
        ({"SEXTON_NATS_PASSWORD": CANARY}, "nats_user and nats_password are given together"),
        ({"SEXTON_NATS_TOKEN": CANARY, "SEXTON_NATS_CREDS_FILE": "a"}, "NATS takes one of them"),
        ({"SEXTON_NATS_TLS_CERT_FILE": "a"}, "nats_tls_cert_file and nats_tls_key_file"),
        ({"SEXTON_SECRETS_DIR": "/nowhere"}, "SEXTON_SECRETS_DIR is not a folder"),
    ],
)
def test_what_cannot_be_is_named_without_its_value(cli: Cli, env: dict[str, str], told: str) -> None:
    """Exit code of a wrong use; a value may be a secret in the wrong place."""
    for arguments in (["config"], ["worker"], ["pager"]):
        ran = cli(*arguments, "--json", env=env)
        assert (2, b"") == (ran.code, ran.out)
        assert told in json.loads(ran.err.splitlines()[-1])["message"]
        assert CANARY not in ran.err


def test_a_level_is_taken_in_any_case() -> None:
    """As it was before levels were checked."""
    assert "DEBUG" == Settings(log_level="debug").log_level


def test_the_folder_of_secrets_need_not_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless it is named."""
    monkeypatch.delenv("SEXTON_SECRETS_DIR")
    monkeypatch.setattr("sexton.worker.settings.reading._MOUNTED", Path("/nowhere"))
    assert secrets_dir() is None
    monkeypatch.setenv("SEXTON_SECRETS_DIR", "/nowhere")
    with pytest.raises(InvalidInput, match="SEXTON_SECRETS_DIR"):
        read_settings()


def test_targets_are_secrets_one_by_one() -> None:
    """Separated by any white space."""
    settings = Settings(pager_urls=SecretStr("json://a\n  json://b "))
    assert ["json://a", "json://b"] == [url.get_secret_value() for url in settings.page_targets]
    assert "json" not in repr(settings.page_targets)
