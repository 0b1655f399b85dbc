"""`sexton pager` and `sexton failures`: what they say, and what they never say."""

import asyncio
import logging
import signal
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from sexton.schemas import subjects
from sexton.schemas.errors import InvalidInput
from sexton.schemas.failure import FailureReason
from sexton.schemas.incidents import IncidentStatus
from sexton.worker.cli.codes import ExitCode
from sexton.worker.embedded import NatsServer
from sexton.worker.pager.targets import open_targets, trust_own_logs
from tests.pager_kit.receiver import Receiver, broken, cut_off, never, receiving, receiving_aside
from tests.pager_kit.scene import (
    Scene,
    letter,
    over,
    paging,
    ready,
    record,
    scene,
    settings,
    start_pager,
)
from tests.support.cli import Cli
from tests.support.processes import Programs
from tests.support.waiting import eventually

SECRETS = ("S3CRET", "s3cret")


@pytest.fixture
def cli(
    own_nats: NatsServer,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    monkeypatch.setenv("SEXTON_NATS_URL", own_nats.url)
    return Cli(capfdbinary, monkeypatch)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving_aside() as found:
        yield found


def at(nats_url: str, work: Callable[[Scene], Awaitable[Any]]) -> Any:
    """Does something with the streams, in a loop of its own."""

    async def run() -> Any:
        async with scene(nats_url) as found:
            return await work(found)

    return asyncio.run(run())


def clean(*texts: str | bytes) -> None:
    """Nothing of an address but its scheme was shown."""
    for text in texts:
        shown = text if isinstance(text, str) else text.decode()
        assert not [secret for secret in SECRETS if secret in shown], shown


# --- sexton pager --test -----------------------------------------------------------------------------


def test_a_test_page_goes_to_each_address(cli: Cli, receiver: Receiver) -> None:
    """It says that nothing is wrong; no NATS is needed."""
    ran = cli("pager", "--test", env={"SEXTON_PAGER_URLS": f"{receiver.url}  {receiver.url}?x=1"})

    assert (0, b"json-1: accepted\njson-2: accepted\n", "") == (ran.code, ran.out, ran.err)
    assert ["Sexton: a test page"] * 2 == [page.title for page in receiver.received]
    assert {"info"} == {page.kind for page in receiver.received}


def test_a_test_page_that_is_not_accepted_is_an_error(cli: Cli, receiver: Receiver) -> None:
    """It names the address by its position, and says the status."""
    receiver.usual = broken
    ran = cli("pager", "--test", "--json", env={"SEXTON_PAGER_URLS": receiver.url})

    assert ExitCode.UNAVAILABLE == ran.code
    assert {"target": "json-1", "accepted": False} == ran.value
    assert "HTTP 500" in ran.err
    assert "1 of 1 targets did not accept the test page" in ran.err
    clean(ran.out, ran.err)


@pytest.mark.parametrize(
    "urls", ["", "  ", "S3CRET", "nonsense://S3CRET@host", "json://127.0.0.1:1 slack://S3CRET", "json://"]
)
def test_an_address_that_cannot_be_used_is_named_by_its_position(cli: Cli, urls: str) -> None:
    """And never shown: it may be a secret with a slip of the pen."""
    for options in ([], ["--test"]):
        ran = cli("pager", *options, env={"SEXTON_PAGER_URLS": urls})

        assert (ExitCode.USAGE, b"") == (ran.code, ran.out)
        assert "SEXTON_PAGER_URLS" in ran.err
        clean(ran.err)


def test_a_setting_that_cannot_be_is_named(cli: Cli) -> None:
    """Without the values of others."""
    ran = cli("pager", "--test", env={"SEXTON_PAGER_URLS": "json://S3CRET", "SEXTON_PAGER_LANES": "many"})

    assert ExitCode.USAGE == ran.code
    assert "SEXTON_PAGER_LANES" in ran.err
    clean(ran.err)


def test_without_apprise_it_says_what_to_install(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is an extra."""
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    ran = cli("pager", "--test")

    assert ExitCode.USAGE == ran.code
    assert "sexton[pager]" in ran.err


# --- sexton pager ------------------------------------------------------------------------------------


async def test_a_pager_as_a_program_shows_no_secret_and_ends_in_order(
    programs: Programs, own_nats: NatsServer
) -> None:
    """At DEBUG, with receivers that misbehave. On SIGTERM what waits is given back, and the code is 0."""
    async with scene(own_nats.url) as found, receiving() as receiver:
        receiver.answers.extend([broken, cut_off])
        receiver.usual = never
        pager = start_pager(
            programs, own_nats.url, receiver.url, "json://S3CRET:S3CRET@127.0.0.1:1/S3CRET", log_level="DEBUG"
        )
        await ready(pager)
        await found.failed(record())
        await found.buried(letter(reason="S0RRY"), b"C0NTENT")
        await receiver.until_arrived(4)
        pager.send_signal(signal.SIGTERM)

        assert 0 == await pager.exit_code()

        clean(pager.stdout, pager.stderr)
        assert "C0NTENT" not in pager.stderr
        for word in ("pager.ready", "pager.not_accepted", "HTTP 500", "the pager ends", "pager.stopped"):
            assert word in pager.stderr
        assert "Traceback" not in pager.stderr
        # Given back, and not acknowledged.
        info = await found.consumer()
        assert 0 == (info.ack_floor.stream_seq if info.ack_floor else 0)


async def test_what_apprise_logs_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It writes addresses, and answers; so do the libraries under it."""
    caplog.set_level("DEBUG")
    async with receiving() as receiver:
        receiver.usual = broken
        (target,) = open_targets([SecretStr(receiver.url)], attempt_s=5.0)
        assert not await target.send("title", "body", None)
    with pytest.raises(InvalidInput):
        open_targets([SecretStr("nonsense://S3CRET@host")], attempt_s=5.0)
    assert [] == [r.name for r in caplog.records if r.name.partition(".")[0] in ("apprise", "urllib3")]
    clean(caplog.text)


def test_what_other_libraries_log_is_not_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are plugins for everything, and each may bring one."""
    seen: list[str] = []

    class Noting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record.name)

    monkeypatch.setattr(logging.getLogger(), "handlers", [Noting()])
    trust_own_logs()
    for name in ("sexton.pager", "some_plugin.client", "nats.aio"):
        logging.getLogger(name).critical("what it says")
    assert ["sexton.pager", "nats.aio"] == seen


def test_settings_do_not_show_the_addresses() -> None:
    """However they are printed."""
    config = settings("nats://127.0.0.1:1", "json://S3CRET")
    clean(repr(config), str(config), config.model_dump_json(), repr(config.page_targets))


# --- sexton failures ---------------------------------------------------------------------------------


def test_nothing_is_wrong(cli: Cli, own_nats: NatsServer) -> None:
    """An empty list is no error."""
    at(own_nats.url, lambda found: found.failed())
    ran = cli("failures")

    assert (0, b"") == (ran.code, ran.out)
    assert "nothing is wrong" in ran.err


def test_without_the_streams_it_is_unavailable(cli: Cli) -> None:
    """No worker and no pager has ever run here."""
    assert ExitCode.UNAVAILABLE == cli("failures").code


async def _some(found: Scene) -> None:
    await found.failed(record(), record(), record("b", FailureReason.CORRUPT), record("c"), over("c"))
    await found.buried(letter())


def test_what_no_pager_has_seen_is_listed_too(cli: Cli, own_nats: NatsServer) -> None:
    """It reads the records itself; looking changes nothing."""
    at(own_nats.url, _some)
    ran = cli("failures")

    shown = [line.split(maxsplit=6) for line in ran.out.decode().splitlines()]
    assert [
        (record().fingerprint[7:19], "open", "2", "lost bytes: ctx l0:a version 1"),
        (
            record("b", FailureReason.CORRUPT).fingerprint[7:19],
            "open",
            "1",
            "damaged bytes: ctx l0:b version 1",
        ),
    ] == [(line[0], line[1], line[2], line[6]) for line in shown[:2]]
    assert "dead letters: SEXTON_COMMANDS, malformed" == shown[2][6]
    assert 3 == len(shown)
    assert 4 == len(cli("failures", "--all").out.splitlines())
    assert 2 == len(cli("failures", "--context", "ctx").out.splitlines())
    assert 0 == len(cli("failures", "--context", "other").out)
    assert {"open"} == {value["status"] for value in cli("failures", "--json").values}
    assert None is at(own_nats.url, lambda found: found.incident(record()))


def test_one_is_shown_by_its_first_digits(cli: Cli, own_nats: NatsServer) -> None:
    """With all that is known."""
    at(own_nats.url, _some)
    ran = cli("failures", record().fingerprint[7:15])

    assert 0 == ran.code
    for words in (b"lost bytes: ctx l0:a version 1", b"2 times", b"nobody yet", b"11 bytes"):
        assert words in ran.out
    assert record().fingerprint == cli("failures", record().fingerprint, "--json").value["fingerprint"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["ffffffff"],
        ["abc"],
        ["--acknowledge"],
        ["--resolve"],
        ["FINGERPRINT", "--acknowledge", "--resolve"],
        ["--context", "no context"],
        ["\x1b[31mxxx"],
    ],
)
def test_what_cannot_be_meant_is_a_matter_of_usage(
    cli: Cli, own_nats: NatsServer, arguments: list[str]
) -> None:
    """Nothing has changed."""
    at(own_nats.url, _some)
    ran = cli("failures", *(record().fingerprint if a == "FINGERPRINT" else a for a in arguments))

    assert (ExitCode.USAGE, b"") == (ran.code, ran.out)
    assert "\x1b" not in ran.err


def test_an_operator_acknowledges_and_resolves(cli: Cli, own_nats: NatsServer) -> None:
    """Before any pager has seen it: then it does not page, and the record is done with."""
    at(own_nats.url, _some)
    first = cli("failures", record().fingerprint[7:19], "--acknowledge", "--json")
    again = cli("failures", record().fingerprint[7:19], "--acknowledge")
    done = cli("failures", record("b", FailureReason.CORRUPT).fingerprint[7:19], "--resolve", "--json")

    assert (0, "acknowledged", 2) == (first.code, first.value["status"], first.value["count"])
    assert 0 == again.code
    assert "nothing to do: it is acknowledged" in again.err
    assert (0, "resolved") == (done.code, done.value["status"])

    async def page(found: Scene) -> list[str]:
        async with receiving() as receiver, paging(own_nats.url, receiver.url):
            await found.until_done()
            await found.until_done(subjects.STREAM_DEAD)
            await eventually(lambda: len(receiver.accepted), until=lambda n: n >= 4)
        kept = await found.incident(record())
        assert kept is not None
        assert (IncidentStatus.ACKNOWLEDGED, 2) == (kept.status, kept.count)
        return sorted(page.title for page in receiver.received)

    # The end that the operator stated is told. What came and went by itself is, too.
    assert [
        "Sexton: dead letters: SEXTON_COMMANDS, malformed",
        "Sexton: lost bytes: ctx l0:c version 1",
        "Sexton: resolved: damaged bytes: ctx l0:b version 1",
        "Sexton: resolved: lost bytes: ctx l0:c version 1",
    ] == at(own_nats.url, page)


def test_no_nats_is_unavailable(cli: Cli, tmp_path: Path) -> None:
    """At once."""
    ran = cli("failures", "--nats", "nats://127.0.0.1:1")

    assert (ExitCode.UNAVAILABLE, b"") == (ran.code, ran.out)


def test_an_address_is_given_the_time_that_the_settings_say() -> None:
    """Apprise itself gives up after four seconds; unless the address says how long."""
    hidden = [SecretStr("json://127.0.0.1:1/x"), SecretStr("json://127.0.0.1:1/x?rto=7")]
    usual, own = (next(iter(target._service)) for target in open_targets(hidden, attempt_s=30.0))
    assert (30.0, 7.0) == (usual.socket_read_timeout, own.socket_read_timeout)


def test_addresses_without_a_blank_between_them_are_targets_of_their_own() -> None:
    """Else one that is broken would have the other paged again and again."""
    targets = open_targets([SecretStr("json://127.0.0.1:1/x,json://127.0.0.1:2/x")], attempt_s=1.0)
    assert ["json-1", "json-2"] == [target.name for target in targets]
