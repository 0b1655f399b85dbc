"""The commands for operators, against one `sexton up` and holders in processes of their own.

The workers' own sweeps are turned off, so that a test sees each step of a collection when it orders it.
"""

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Cli, Ran, running_up
from tests.support.processes import Program, Programs

SEXTON = str(Path(sys.executable).with_name("sexton"))
ROOT = Path(__file__).parents[2]
LEASE_S = 4.0
SHORT_LEASE_S = 1.0
QUIET_S = 0.2
WITHIN_S = 20.0
BY_HAND = {
    "SEXTON_SWEEP_INTERVAL_S": "3600",
    "SEXTON_QUIET_S": str(QUIET_S),
    "SEXTON_LEASE_TTL_MAX_S": str(LEASE_S),
}
OPERATORS = [("holders",), ("pins",), ("tombstones",), ("gc",), ("gc", "--dry-run"), ("verify",)]

Hold = Callable[..., Program]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("up")


@pytest.fixture(scope="module")
def up_url(folder: Path) -> Iterator[str]:
    """URL of a `sexton up` that all tests of this module share."""
    with running_up(folder, env=BY_HAND) as (_, url):
        yield url


@pytest.fixture
def cli(
    up_url: str,
    context_id: str,
    capfdbinary: pytest.CaptureFixture[bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """Runs commands on a context of the test's own."""
    monkeypatch.setenv("SEXTON_NATS_URL", up_url)
    monkeypatch.setenv("SEXTON_CONTEXT", context_id)
    return Cli(capfdbinary, monkeypatch)


@pytest.fixture
def hold(up_url: str, context_id: str, programs: Programs) -> Hold:
    """Starts a holder that pins what it is told to, such as `l0:a@1=cheap`."""

    def start(name: str, *pins: str, lease_s: float = LEASE_S) -> Program:
        arguments = (up_url, context_id, name, str(lease_s), *pins)
        return programs.python(
            "-m", "tests.support.pinner", *arguments, name=name, env={"PYTHONPATH": str(ROOT)}
        )

    return start


def holding(*holders: Program) -> None:
    """Waits until all of them hold what they are to hold."""
    for holder in holders:
        asyncio.run(holder.line("^holding$", within_s=WITHIN_S))


def release(holder: Program) -> None:
    """Has a holder let go of everything."""
    holder.send_signal(signal.SIGUSR1)
    asyncio.run(holder.line("^released$"))


def texts(*words: str) -> bytes:
    rows = ({"role": "user", "content": word} for word in words)
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def ingest(cli: Cli, *words: str) -> list[str]:
    """The ids of the leaves of a small transcript."""
    assert 0 == cli("ingest", "-", stdin=texts(*words)).code
    return [span["span_id"] for span in cli("tree", "--json").value["spans"]]


def stones(cli: Cli) -> dict[str, Any]:
    """What `tombstones --json` says, by span id."""
    return {value["span_id"]: value for value in cli("tombstones", "--json").values}


def until(ask: Callable[[], Any], enough: Callable[[Any], Any], what: str) -> Any:
    """Asks again and again, with a bound. `eventually` has a loop of its own, and so has each command."""
    give_up_at = time.monotonic() + WITHIN_S
    while not enough(answer := ask()):
        assert time.monotonic() < give_up_at, f"{what} did not come; last seen: {answer}"
        time.sleep(QUIET_S / 4)
    return answer


def sweep_until_collected(cli: Cli) -> Any:
    """Orders sweeps until one collects something, and gives what it said."""
    return until(lambda: cli("gc", "--json").value, lambda swept: swept["collected"], "a sweep that collects")


def stored(folder: Path, context_id: str) -> dict[str, Path]:
    """The files of a context in the cold store, by span name."""
    cold = folder / "data" / "cold" / "blobs" / context_id
    return {path.parent.name: path for path in cold.rglob("*") if path.is_file()}


def ended(ran: Ran, code: int, what: str) -> None:
    """It failed as documented: nothing on stdout, and one line on stderr that begins with the code."""
    assert (code, b"") == (ran.code, ran.out), ran.err
    assert ran.err.startswith(f"sexton: {what}: "), ran.err
    assert 1 == ran.err.count("\n"), ran.err


# --- holders, pins ---


def agreed(leases: list[Any]) -> int:
    """How many of them have agreed on their pins with their latest heartbeat."""
    return sum(lease["agreed_ms_ago"] == lease["beat_ms_ago"] for lease in leases)


def test_holders_are_listed_with_their_leases(cli: Cli, hold: Hold) -> None:
    """Id, pins, when the lease ends, when it was heard of; sorted, and the same as JSON."""
    first, second = ingest(cli, "a", "b")
    holding(hold("zoe"), hold("ada", f"{first}@1=cheap", f"{second}@1=expensive"))

    told = until(lambda: cli("holders", "--json").values, lambda leases: agreed(leases) == 2, "both leases")
    shown = cli("holders")

    assert 0 == shown.code, shown.err
    rows = [re.split(r"  +", line) for line in shown.out.decode().splitlines()]
    assert [("ada", "2 pins"), ("zoe", "0 pins")] == [(row[0], row[1]) for row in rows]
    for row in rows:
        assert re.fullmatch(r"lease ends in (\d+ ms|\d\.\d s), heard (\d+ ms|\d\.\d s) ago", row[2])
    assert [("ada", 2), ("zoe", 0)] == [(lease["holder_id"], lease["pins"]) for lease in told]
    for lease in told:
        names = {"holder_id", "incarnation", "expires_in_ms", "beat_ms_ago", "agreed_ms_ago", "pins"}
        assert names == set(lease)
        assert 0 < lease["expires_in_ms"] <= LEASE_S * 1000
        assert 0 <= lease["beat_ms_ago"] <= LEASE_S * 1000
        assert 0 < lease["incarnation"]


def test_a_holder_that_was_killed_holds_until_its_lease_has_run_out(cli: Cli, hold: Hold) -> None:
    """Then it is said so, and its pins are gone; one that ends in order is gone at once."""
    (span_id,) = ingest(cli, "a")
    orderly, killed = hold("orderly"), hold("killed", f"{span_id}@1=cheap", lease_s=SHORT_LEASE_S)
    holding(orderly, killed)
    until(lambda: cli("holders", "--json").values, lambda leases: len(leases) == 2, "both leases")

    orderly.send_signal(signal.SIGTERM)
    assert 0 == asyncio.run(orderly.exit_code())
    assert ["killed"] == [lease["holder_id"] for lease in cli("holders", "--json").values]
    killed.kill()

    ran = until(lambda: cli("holders"), lambda ran: b"has run out" in ran.out, "the end of the lease")
    assert re.match(r"killed +1 pins  lease has run out, heard \d\.\d s ago\n", ran.out.decode())
    assert b"" == cli("pins").out


def test_pins_are_listed_with_who_and_since_when(cli: Cli, hold: Hold) -> None:
    """Span, version, cost class, holder, time; several holders of one version stand side by side."""
    first, second = ingest(cli, "a", "b")
    holding(
        hold("ben", f"{first}@1=immovable"),
        hold("ada", f"{first}@1=cheap", f"{second}@1=expensive"),
    )

    shown = cli("pins")
    told = cli("pins", "--json").values

    expected = [(first, "cheap", "ada"), (first, "immovable", "ben"), (second, "expensive", "ada")]
    rows = [line.split() for line in shown.out.decode().splitlines()]
    assert sorted(expected) == [(row[0], row[2], row[3].rstrip(",")) for row in rows]
    assert {"v1"} == {row[1] for row in rows}
    assert all(re.search(r", for (\d+ ms|\d+\.\d s)$", line) for line in shown.out.decode().splitlines())
    assert sorted(expected) == [(pin["span_id"], pin["cost"], pin["holder_id"]) for pin in told]
    assert {1} == {pin["version"] for pin in told}
    assert all(0 <= pin["held_for_ms"] < WITHIN_S * 1000 for pin in told)


# --- tombstones, gc ---


def test_tombstones_say_what_became_of_them_and_who_holds_them(cli: Cli, hold: Hold) -> None:
    """Invalidated, copied for its holder, pruned; size, epoch, and under each its pins."""
    free, held, pruned = ingest(cli, "a" * 10, "b" * 20, "c" * 30)
    holding(hold("ada", f"{held}@1=expensive"), hold("ben", f"{pruned}@1=cheap"))
    cli("rewrite", free, "-", stdin=b"new")
    cli("rewrite", held, "-", stdin=b"new")
    cli("prune", pruned)

    lines = cli("tombstones").out.decode().splitlines()
    told = stones(cli)

    def about(span_id: str) -> str:
        at = next(i for i, line in enumerate(lines) if line.startswith(span_id))
        return " ".join(" ".join(lines[at : at + 2]).split())

    assert (
        f"{free} v1 {len(texts('a' * 10))} B invalidate_and_rekey, epoch 1: free; the next sweep marks it"
        in about(free)
    )
    assert re.match(
        rf"{held} v1 {len(texts('b' * 20))} B copy_on_rewrite, epoch 2: held expensive ada, for [\d.]+ m?s$",
        about(held),
    )
    assert re.match(
        rf"{pruned} v1 {len(texts('c' * 30))} B pruned, epoch 3: held cheap ben, for [\d.]+ m?s$",
        about(pruned),
    )
    assert 5 == len(lines)
    assert {free: "mark", held: "keep", pruned: "keep"} == {s: stone["step"] for s, stone in told.items()}
    assert [("ada", "expensive", 1)] == [
        (pin["holder_id"], pin["cost"], told[held]["pin_count"]) for pin in told[held]["pins"]
    ]
    assert ("copy_on_rewrite", 2, len(texts("b" * 20)), "tombstone", "held") == tuple(
        told[held][name] for name in ("strategy", "epoch", "size_bytes", "state", "waits")
    )
    assert "strategy" not in told[pruned]


def test_a_dry_run_changes_nothing(cli: Cli, hold: Hold) -> None:
    """It says what `tombstones` says, however often; nothing is marked, nothing committed."""
    free, held = ingest(cli, "a", "b")
    holding(hold("ada", f"{held}@1=expensive"))
    cli("rewrite", free, "-", stdin=b"new")
    cli("rewrite", held, "-", stdin=b"new")
    before = cli("tree", "--json").value["revision"]

    first, told = cli("gc", "--dry-run"), cli("gc", "--dry-run", "--json").value

    assert (0, "") == (first.code, first.err)
    assert cli("tombstones").out.splitlines()[0] == first.out.splitlines()[0]
    assert (True, 0, 0, 0) == tuple(
        told[name] for name in ("dry_run", "collected", "size_freed_bytes", "called_off")
    )
    assert {free: "mark", held: "keep"} == {s["span_id"]: s["step"] for s in told["tombstones"]}
    assert [["ada"]] == [
        [pin["holder_id"] for pin in s["pins"]] for s in told["tombstones"] if s["span_id"] == held
    ]
    assert before == cli("tree", "--json").value["revision"]


def test_gc_collects_what_is_free_and_keeps_what_is_held(
    cli: Cli, hold: Hold, folder: Path, context_id: str
) -> None:
    """I4, I5: marked, waited for, collected with its bytes; the held one stays until it is let go of."""
    free, held = ingest(cli, "a" * 10, "b" * 20)
    holder = hold("ada", f"{held}@1=expensive")
    holding(holder)
    old = cli("pointer", held).out.decode()
    cli("rewrite", free, "-", stdin=b"new")
    cli("rewrite", held, "-", stdin=b"new")
    cold = folder / "data" / "cold" / "blobs" / context_id
    assert 2 == len(list(cold.rglob("1-sha256-*")))

    first = cli("gc", "--json").value
    swept = sweep_until_collected(cli)

    assert (0, "wait_quiet") == (first["collected"], _step(first, free))
    assert (1, len(texts("a" * 10)), "collected", "keep") == (
        swept["collected"],
        swept["size_freed_bytes"],
        _step(swept, free),
        _step(swept, held),
    )
    assert [held] == list(stones(cli))
    assert texts("b" * 20) == cli("resolve", "--accept-superseded", old).out

    release(holder)
    swept = sweep_until_collected(cli)

    assert (1, len(texts("b" * 20)), {}) == (swept["collected"], swept["size_freed_bytes"], stones(cli))
    assert [] == list(cold.rglob("1-sha256-*"))
    ended(cli("resolve", "--accept-superseded", old), 4, "stale_span")


def test_gc_says_in_words_what_it_did(cli: Cli) -> None:
    """The tombstones on stdout, what came of it on stderr."""
    (span_id,) = ingest(cli, "a" * 10)
    cli("rewrite", span_id, "-", stdin=b"new")

    waiting = cli("gc")
    done = until(lambda: cli("gc"), lambda ran: b": collected" in ran.out, "a sweep that collects")

    assert b"free; waits for the quiet time, and until every live holder" in waiting.out
    assert "sexton: 0 collected, 0 B freed, 0 called off\n" == waiting.err
    was = f"{len(texts('a' * 10))} B"
    assert f"{span_id:<44} v1    {was:>9}  invalidate_and_rekey, epoch 1: collected\n" == done.out.decode()
    assert f"sexton: 1 collected, {was} freed, 0 called off\n" == done.err


def _step(swept: Any, span_id: str) -> str:
    (step,) = (stone["step"] for stone in swept["tombstones"] if stone["span_id"] == span_id)
    return str(step)


# --- verify ---


def test_verify_reads_all_that_must_be_there(cli: Cli, hold: Hold) -> None:
    """View, covered leaves, tombstones; what was collected is not looked for."""
    first, second, third = ingest(cli, "a" * 50, "b" * 50, "c" * 50)
    cli("compact", "--sources", f"{first},{second}", "--summary", "-", stdin=b"s")
    holding(hold("ada", f"{third}@1=expensive"))
    cli("rewrite", third, "-", stdin=b"new")
    cli("rewrite", third, "-", stdin=b"newer")
    sweep_until_collected(cli)

    size_bytes = len(texts("a" * 50, "b" * 50, "c" * 50) + b"s" + b"newer")

    shown, told = cli("verify"), cli("verify", "--json")

    assert (0, b"") == (shown.code, shown.out)
    assert f"sexton: 5 versions, {size_bytes} B looked at, 0 lost or damaged\n" == shown.err
    assert (0, 5, size_bytes, []) == (
        told.code,
        *(told.value[name] for name in ("checked", "size_checked_bytes", "damaged")),
    )


def test_verify_names_what_is_lost_or_damaged(cli: Cli, folder: Path, context_id: str) -> None:
    """I9: gone, other bytes, too few, too many; the rest is whole. Code 5, whatever was told on the way."""
    spans = ingest(cli, *"abcdef")
    files = stored(folder, context_id)
    lost, other, short, long, *_ = (files[span_id[3:]] for span_id in spans)
    lost.unlink()
    other.write_bytes(b"x" * other.stat().st_size)
    short.write_bytes(short.read_bytes()[:-1])
    long.write_bytes(long.read_bytes() + b"x")

    shown, told = cli("verify"), cli("verify", "--json")

    reasons = dict(zip(spans, ("lost", "corrupt", "corrupt", "corrupt"), strict=False))
    assert 5 == shown.code
    assert reasons == {line.split()[0]: line.split()[2] for line in shown.out.decode().splitlines()}
    assert f"sexton: 6 versions, {len(texts(*'abcdef'))} B looked at, 4 lost or damaged\n" in shown.err
    assert f"sexton: lost: 4 of 6 versions of {context_id} are lost or damaged\n" in shown.err
    assert 5 == told.code
    assert reasons == {damage["span_id"]: damage["reason"] for damage in told.value["damaged"]}
    whole_bytes = len(texts("a"))
    found = {damage["span_id"]: damage.get("found_size_bytes") for damage in told.value["damaged"]}
    assert (whole_bytes, whole_bytes + 1) == (found[spans[1]], found[spans[3]])
    assert (5, {"lost": 1, "corrupt": 3}) == (told.error["exit_code"], told.error["fields"])


def test_damage_alone_is_told_as_damage(cli: Cli, folder: Path, context_id: str) -> None:
    """Nothing is lost: another code."""
    (span_id,) = ingest(cli, "a")
    stored(folder, context_id)[span_id[3:]].write_bytes(b"x")

    ran = cli("verify")

    assert (5, 1) == (ran.code, ran.out.count(b"\n"))
    assert "sexton: corrupt: 1 of 1 versions" in ran.err


def test_verify_goes_over_any_number_of_versions(cli: Cli, folder: Path, context_id: str) -> None:
    """In pages: each version once, the first and the last of them too."""
    spans = ingest(cli, *(str(i) for i in range(1100)))
    files = stored(folder, context_id)
    victims = {min(spans), max(spans), spans[700]}
    for span_id in victims:
        files[span_id[3:]].unlink()

    told = cli("verify", "--json")

    assert (5, 1100) == (told.code, told.value["checked"])
    assert victims == {damage["span_id"] for damage in told.value["damaged"]}


@pytest.mark.parametrize(("options", "drawn"), [((), True), (("--no-progress",), False)])
def test_only_a_terminal_gets_a_progress_bar(
    cli: Cli, up_url: str, context_id: str, options: tuple[str, ...], drawn: bool
) -> None:
    """On stderr, so that stdout stays the data's. What is no terminal gets none: see the other tests."""
    ingest(cli, "a")
    parent, child = pty.openpty()
    verify = subprocess.Popen(
        [SEXTON, "verify", "--nats", up_url, "--context", context_id, "--json", *options],
        env={**os.environ, "TERM": "xterm"},
        stdout=subprocess.PIPE,
        stderr=child,
    )
    os.close(child)
    shown = _read_all(parent)
    out, _ = verify.communicate(timeout=WITHIN_S)

    assert (0, 1) == (verify.returncode, json.loads(out)["checked"])
    assert drawn is (b"verifying" in shown)


def _read_all(descriptor: int) -> bytes:
    """What a terminal was sent, until its other side is closed."""
    data = b""
    while True:
        try:
            part = os.read(descriptor, 4096)
        except OSError:  # how Linux says that it is over
            part = b""
        if not part:
            os.close(descriptor)
            return data
        data += part


# --- nothing there, and nobody there ---


@pytest.mark.parametrize("command", OPERATORS, ids=" ".join)
@pytest.mark.parametrize("known", [True, False], ids=["empty", "unknown"])
def test_a_context_without_anything_is_no_error(cli: Cli, command: tuple[str, ...], known: bool) -> None:
    """Nothing on stdout, a word on stderr; and the question makes no context."""
    if known:
        ingest(cli, "a")
    before = cli("tree", "--json").value["revision"]

    shown, told = cli(*command), cli(*command, "--json")

    assert (0, b"", 1) == (shown.code, shown.out, shown.err.count("\n")), shown.err
    assert (0, "") == (told.code, told.err)
    assert before == cli("tree", "--json").value["revision"]


@pytest.mark.parametrize("command", OPERATORS, ids=" ".join)
def test_nobody_there_is_unavailable(cli: Cli, nats_url: str, command: tuple[str, ...]) -> None:
    """Code 6 without a server, and with one that no worker serves."""
    ended(cli(*command, "--nats", "nats://127.0.0.1:9"), 6, "unavailable")
    ended(cli(*command, "--nats", nats_url), 6, "unavailable")
    told = cli(*command, "--nats", nats_url, "--json")
    assert (b"", 6, "unavailable") == (told.out, told.error["exit_code"], told.error["error"])


@pytest.mark.parametrize("command", OPERATORS, ids=" ".join)
def test_what_can_be_no_context_or_no_address_is_a_matter_of_usage(
    cli: Cli, command: tuple[str, ...]
) -> None:
    """Refused before anything is sent; a password in an address is not repeated."""
    ended(cli(*command, "--context", "a.b"), 2, "invalid")
    ran = cli(*command, "--nats", "nats://user:secret@host:port")
    ended(ran, 2, "invalid")
    assert "secret" not in ran.err
