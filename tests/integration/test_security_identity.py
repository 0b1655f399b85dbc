"""As whom one connects: nkeys, credentials files, passwords, tokens, certificates; and over what."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from sexton.holder import Holder, HolderSettings, PermissionRefused, Unavailable
from sexton.schemas.errors import InvalidInput
from sexton.worker.adapters.nats_options import nats_options
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from sexton.worker.settings import Settings
from tests.secure_kit.certificates import Authority, authority
from tests.secure_kit.fenced import INBOXES, fenced
from tests.secure_kit.keys import Key, creds_file, jwt, new_account_key, new_key, new_operator_key
from tests.support.processes import Programs
from tests.support.waiting import deadline
from tests.worker_kit.service import settings

QUICK: Final = HolderSettings(outcome_timeout_s=3.0, command_tries=2, rpc_tries=2, lease_ttl_s=3.0)

SHORT: Final = HolderSettings(connect_timeout_s=1.0)


async def works(config: Settings, url: str, **options: Any) -> None:
    """A worker and a holder do their work over it."""
    connecting = Holder.connect(url, settings=QUICK, **options)
    async with deadline(30, "the work"), Worker(config), connecting as holder:
        context = await holder.open("ctx")
        await context.append("Some words.")
        assert "Some words." == await context.render()


@asynccontextmanager
async def serving(folder: Path, config: str) -> AsyncIterator[EmbeddedServers]:
    """Servers, the NATS one with more configuration."""
    servers = EmbeddedServers(folder / "servers")
    servers.nats.extra_config = config
    async with servers:
        yield servers


# --- who ------------------------------------------------------------------------------------------------


async def test_a_user_with_a_password(tmp_path: Path) -> None:
    """From the settings of a worker, and as arguments of a holder."""
    config = 'authorization { user: "me", password: "right" }'
    async with serving(tmp_path, config) as servers:
        chosen = settings(servers, nats_user="me", nats_password="right")
        await works(chosen, servers.nats_url, user="me", password="right")


async def test_a_token(tmp_path: Path) -> None:
    """The same."""
    async with serving(tmp_path, 'authorization { token: "right" }') as servers:
        await works(settings(servers, nats_token="right"), servers.nats_url, token="right")


async def test_a_wrong_password_ends_a_worker_at_its_start(tmp_path: Path) -> None:
    """At once, with the reason, and without the password."""
    async with serving(tmp_path, 'authorization { user: "me", password: "right" }') as servers:
        chosen = settings(servers, nats_user="me", nats_password="S3CRET", io_timeout_s=60.0)
        with pytest.raises(PermissionRefused, match="authorization violation") as caught:
            async with deadline(3, "the refusal"), Worker(chosen):
                pass
    assert "S3CRET" not in repr(caught.value) + str(caught.value.fields)


UNLIMITED: Final = dict.fromkeys(("subs", "data", "payload", "imports", "exports", "conn", "leaf"), -1)
STREAMS: Final = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}
SERVICES: Final = ("sexton.cmd.*.*", "sexton.rpc.*.*")
BROADCASTS: Final = ("sexton.epoch.*", "sexton.outcome.*.*", "_INBOX.>")
USER: Final = {"subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2}
ALICE: Final = {
    "pub": {"allow": ["sexton.cmd.ctx.*", "sexton.rpc.ctx.*"]},
    "sub": {"allow": ["sexton.epoch.ctx", "_INBOX.alice.>"]},
}


class Signed:
    """An operator, its accounts and their users: what `nsc` keeps. As deploy/nats/accounts.conf."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.operator, self.system = new_operator_key(), new_account_key()
        self.service, self.holders = new_account_key(), new_account_key()

    def user(self, account: Key, name: str, **permissions: Any) -> Path:
        """A credentials file."""
        key = new_key()
        return creds_file(self.folder, name, jwt(account, key.public, name, USER | permissions), key)

    def _account(self, key: Key, name: str, **claims: Any) -> str:
        limits = UNLIMITED | {"wildcards": True} | claims.pop("more", {})
        nats = {"limits": limits, "type": "account", "version": 2, **claims}
        return f"{key.public}: {jwt(self.operator, key.public, name, nats)}"

    def config(self) -> str:
        """A server that trusts the operator, with the accounts in its memory."""
        exports = [{"subject": s, "type": "service", "response_type": "Stream"} for s in SERVICES]
        exports += [{"subject": s, "type": "stream"} for s in BROADCASTS]
        imports = [
            {"subject": s, "type": kind, "account": self.service.public, "name": s}
            for kind, names in (("service", SERVICES), ("stream", BROADCASTS))
            for s in names
        ]
        root = {"type": "operator", "version": 2, "system_account": self.system.public}
        return "\n".join(
            [
                f"operator: {jwt(self.operator, self.operator.public, 'operator', root)}",
                f"system_account: {self.system.public}",
                "resolver: MEMORY",
                "resolver_preload: {",
                self._account(self.system, "SYS"),
                self._account(self.service, "SERVICE", more=STREAMS, exports=exports),
                self._account(self.holders, "HOLDERS", imports=imports),
                "}",
            ]
        )


async def test_credentials_files(tmp_path: Path) -> None:
    """Of users that an account has signed, in two accounts: the server knows none of them by name."""
    signed = Signed(tmp_path)
    async with serving(tmp_path, signed.config()) as servers:
        chosen = settings(servers, nats_creds_file=signed.user(signed.service, "worker"))
        alice = signed.user(signed.holders, "alice", **ALICE)
        await works(chosen, servers.nats_url, user_credentials=alice, inbox_prefix="_INBOX.alice")


async def test_credentials_of_strangers_are_refused(tmp_path: Path) -> None:
    """By worker and holder alike, at once."""
    signed, strangers = Signed(tmp_path), Signed(tmp_path)
    stranger = strangers.user(strangers.service, "worker")
    async with serving(tmp_path, signed.config()) as servers:
        with pytest.raises(PermissionRefused):
            async with deadline(3, "the refusal"), Worker(settings(servers, nats_creds_file=stranger)):
                pass
        with pytest.raises(PermissionRefused):
            async with Holder.connect(servers.nats_url, user_credentials=stranger):
                pass


# --- over what ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return authority(tmp_path_factory.mktemp("ca"))


def tls_config(ca: Authority, *, verify: bool = False) -> str:
    server = ca.sign("server", host="127.0.0.1")
    return (
        f'tls {{ cert_file: "{server.cert}", key_file: "{server.key}", ca_file: "{ca.own.cert}", '
        f"verify: {str(verify).lower()} }}"
    )


async def test_tls(tmp_path: Path, ca: Authority) -> None:
    """Worker and holder trust the authority that they are told of."""
    async with serving(tmp_path, tls_config(ca)) as servers:
        chosen = settings(servers, nats_tls_ca_file=ca.own.cert)
        context = ssl.create_default_context(cafile=ca.own.cert)
        await works(chosen, servers.nats_url, tls=context)
        with pytest.raises(Unavailable, match="certificate is not accepted"):
            async with Worker(settings(servers, io_timeout_s=1.0)):
                pass


async def test_client_certificates(tmp_path: Path, ca: Authority) -> None:
    """A server that asks for one is given one; without one there is no connection."""
    own = ca.sign("worker")
    async with serving(tmp_path, tls_config(ca, verify=True)) as servers:
        trusting = {"nats_tls_ca_file": ca.own.cert}
        chosen = settings(servers, **trusting, nats_tls_cert_file=own.cert, nats_tls_key_file=own.key)
        tls = nats_options(chosen)["tls"]
        await works(chosen, servers.nats_url, tls=tls)
        with pytest.raises(Unavailable):
            async with Worker(settings(servers, **trusting, io_timeout_s=1.0)):
                pass


async def test_a_password_is_not_sent_in_the_clear(own_servers: EmbeddedServers, ca: Authority) -> None:
    """A server that does not ask for TLS is none that was to be asked for it: nats-py would go on."""
    chosen = settings(own_servers, nats_tls_ca_file=ca.own.cert, io_timeout_s=1.0)
    with pytest.raises(Unavailable, match="does not speak TLS"):
        async with Worker(chosen):
            pass
    tls = nats_options(chosen)["tls"]
    with pytest.raises(Unavailable, match="does not speak TLS"):
        async with Holder.connect(own_servers.nats_url, settings=SHORT, tls=tls):
            pass
    url = own_servers.nats_url.replace("nats://", "tls://")
    with pytest.raises(Unavailable, match="does not speak TLS"):
        async with Holder.connect(url, settings=SHORT):
            pass


# --- files that cannot be ---------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["nats_creds_file", "nats_nkey_file", "nats_tls_ca_file"])
@pytest.mark.parametrize("what", ["missing", "a folder", "empty", "something else"])
def test_a_file_that_cannot_be(tmp_path: Path, field: str, what: str) -> None:
    """Is an error at the start, which names the setting and repeats nothing of the file."""
    path = tmp_path / "file"
    if what == "a folder":
        path.mkdir()
    elif what != "missing":
        path.write_text("" if what == "empty" else "S3CRET\n")
    options: dict[str, Any] = {field: path}
    chosen = Settings(**options)
    with pytest.raises(InvalidInput) as caught:
        Worker(chosen)
    assert field == caught.value.fields["field"]
    assert "S3CRET" not in str(caught.value)


def test_a_key_of_another_certificate(tmp_path: Path, ca: Authority) -> None:
    """The same, for a client's certificate."""
    one, other = ca.sign("one"), ca.sign("other")
    with pytest.raises(InvalidInput):
        nats_options(Settings(nats_tls_cert_file=one.cert, nats_tls_key_file=other.key))


# --- the command line ---------------------------------------------------------------------------------------


async def test_the_command_line_with_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: Programs
) -> None:
    """As holder, as operator, and as somebody who may not: code 11, and what was refused."""
    some = tmp_path / "some.txt"
    some.write_text("Some words.\n")
    async with fenced(tmp_path, monkeypatch) as site, site.worker():

        async def run(role: str, *arguments: str) -> tuple[int, str]:
            program = programs.sexton(
                *arguments,
                env={
                    "SEXTON_NATS_URL": site.nats.url,
                    "SEXTON_CONTEXT": "research",
                    "SEXTON_NATS_NKEY_FILE": str(site.keys[role].seed_file(tmp_path)),
                    "SEXTON_NATS_INBOX_PREFIX": INBOXES[role],
                },
            )
            return await program.exit_code(within_s=30), program.stderr

        may = [("alice", "ingest", str(some)), ("alice", "tree")]
        may += [("operator", command) for command in ("holders", "verify", "failures", "tree", "gc")]
        for who in may:
            assert 0 == (await run(*who))[0], who
        for who in [("alice", command) for command in ("holders", "failures", "gc")] + [("bob", "tree")]:
            code, said = await run(*who)
            assert (11, True) == (code, "does not permit" in said), (who, said)


# --- what is documented -----------------------------------------------------------------------------------


async def test_the_holder_of_the_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of docs/security.md, with alice's key: her context, and not another one."""
    text = (Path(__file__).parents[2] / "docs/security.md").read_text(encoding="utf-8")
    code = text.partition("<!-- holder -->\n```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {}
    exec(code, names)
    async with fenced(tmp_path, monkeypatch) as site, site.worker(), deadline(20, "the example"):
        await names["main"](site.nats.url, str(site.keys["alice"].seed_file(tmp_path)))
        said = capsys.readouterr().out
    assert "What alice found.\n" in said
    assert "\nsubscribe sexton.epoch.somebody-elses\n" in said
