"""The summarise stage: what the model is shown, and what becomes of whatever it answers."""

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sexton.core.hash import body_digest
from sexton.schemas.commands import Compact
from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.limits import INLINE_BYTES
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.worker.adapters.summarisers import (
    ALWAYS,
    CommandSummariser,
    ExtractiveSummariser,
    SummariserFailedError,
    make_summariser,
)
from sexton.worker.fetch import Fetcher
from sexton.worker.ports import Summariser
from sexton.worker.summarise import Summarised, SummariserDown, SummariseStage
from tests.core_kit.build import CONTEXT, append, compact, leaf, rewrite
from tests.support.processes import alive
from tests.support.waiting import deadline, eventually
from tests.worker_kit.stores import World

ASKED = compact("go", "l0:a", "l0:b", summary=None)
DIGEST = body_digest(ASKED.wire())
SOURCES = ["  first,\r\n\twith blanks  ", "second 🌍 \ufeff\x01 and its end"]
"""What must reach the model as it is."""


class Model:
    """A summariser that does what the test says, and remembers what it was shown."""

    def __init__(self, answer: Any = "short") -> None:
        self.answer = answer
        self.shown: list[list[str]] = []

    async def __call__(self, sources: Sequence[str], level: Level, size_bytes: int) -> str:
        self.shown.append(list(sources))
        assert Level.L1_SUMMARY is level
        assert sum(len(source.encode()) for source in sources) == size_bytes
        answer = self.answer
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            answer = await answer()
        return str(answer)


@pytest.fixture
async def world() -> World:
    """A context of two leaves with `SOURCES`."""
    world = World()
    await world.outcome(append("fill", leaf("a", SOURCES[0]), leaf("b", SOURCES[1])))
    return world


def stage(world: World, model: Summariser, **more: Any) -> SummariseStage:
    contexts = world.contexts()
    settings: dict[str, Any] = {
        "timeout_s": 10.0,
        "attempts": 3,
        "breaker_failures": 5,
        "breaker_reset_s": 30.0,
    }
    fetcher = Fetcher(contexts, world.cold, world.hot, budget_s=5.0)
    return SummariseStage(contexts, fetcher, model, **(settings | more))


async def run(world: World, model: Summariser, **more: Any) -> Any:
    return await stage(world, model, **more).run(ASKED, DIGEST)


async def test_every_source_s_bytes_are_in_the_prompt(world: World) -> None:
    """C48, C77: all of them, in order, with their control characters and blanks."""
    model = Model()
    await run(world, model)
    assert [SOURCES] == model.shown


async def test_the_summary_comes_back_with_the_versions_it_was_made_from(world: World) -> None:
    """C02: so that the commit can say `stale_source`; and as the answer to the command that asked."""
    result = await run(world, Model("short"))
    assert isinstance(result, Summarised)
    command = result.command
    assert [("l0:a", 1), ("l0:b", 1)] == [(source.span_id, source.version) for source in command.sources]
    assert ("short", DIGEST) == (command.summary and command.summary.content, command.requested_digest)
    outcome = await world.outcome(command)
    assert isinstance(outcome, Committed)
    assert outcome == await world.outcome(ASKED), "whoever asks again is told the same"


async def test_a_source_rewritten_meanwhile_makes_the_summary_stale(world: World) -> None:
    """C02: the summary of bytes that are no more changes nothing."""

    async def rewritten() -> str:
        await world.outcome(rewrite("rw", "l0:a", "other bytes"))
        return "short"

    result = await run(world, Model(rewritten))
    outcome = await world.outcome(result.command)
    assert isinstance(outcome, Rejected)
    assert RejectionCode.STALE_SOURCE is outcome.code
    assert 1 == (await world.tree()).epoch


async def test_an_append_meanwhile_does_not(world: World) -> None:
    """C01: its sources did not change."""

    async def appended() -> str:
        await world.outcome(append("new", "c"))
        return "short"

    result = await run(world, Model(appended))
    assert isinstance(await world.outcome(result.command), Committed)
    assert ["l1:go", "l0:c"] == [node.span_id for node in (await world.tree()).view()]


# --- answers that are none ---------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("provider down"), OSError("no program"), ValueError("?")])
async def test_a_summariser_that_raises_is_tried_again_and_then_given_up(
    world: World, error: Exception
) -> None:
    """C44: nothing is committed, the error is not a summary, and the tries are bounded."""
    tried = stage(world, Model(error), attempts=3)
    for _ in range(2):
        with pytest.raises(SummariserDown):
            await tried.run(ASKED, DIGEST)
    outcome = await tried.run(ASKED, DIGEST)
    assert isinstance(outcome, Rejected)
    assert RejectionCode.SUMMARY_FAILED is outcome.code
    assert str(error) not in outcome.message
    assert 1 == (await world.tree()).revision


@pytest.mark.parametrize("answer", ["", " ", "\n\t ", "\u3000", "\u200b", "\ufeff\u00ad"])
async def test_a_blank_answer_is_no_summary(world: World, answer: str) -> None:
    """C47, by the rule of the commit: no second rule that takes what the commit then refuses."""
    outcome = await run(world, Model(answer))
    assert isinstance(outcome, Rejected)
    assert RejectionCode.EMPTY_SUMMARY is outcome.code


@pytest.mark.parametrize("answer", ["".join(SOURCES), "x" * 1000], ids=["the sources", "larger"])
async def test_an_answer_that_is_not_smaller_is_refused_at_the_commit(world: World, answer: str) -> None:
    """C50, C51: and the epoch stays."""
    result = await run(world, Model(answer))
    outcome = await world.outcome(result.command)
    assert isinstance(outcome, Rejected)
    assert RejectionCode.NOT_SMALLER is outcome.code
    assert 0 == (await world.tree()).epoch


async def test_an_answer_beyond_the_inline_limit_is_refused(world: World) -> None:
    """A summary that long is none; another model call would not mend it."""
    outcome = await run(world, Model("x" * (INLINE_BYTES + 1)))
    assert isinstance(outcome, Rejected)
    assert RejectionCode.TOO_LARGE is outcome.code


async def test_a_lone_surrogate_in_an_answer_is_a_failure(world: World) -> None:
    """C85: it is no UTF-8."""
    with pytest.raises(SummariserDown):
        await run(world, Model("half \ud83c of it"))


async def test_a_summariser_that_hangs_is_left(world: World) -> None:
    """C09: one call has its time; then it counts as failed."""
    async with deadline(5):
        with pytest.raises(SummariserDown, match=r"within 0\.01 s"):
            await run(world, Model(asyncio.Event().wait), timeout_s=0.01)


async def test_a_source_whose_bytes_are_lost_ends_the_compaction(world: World) -> None:
    """I9: not tried again and again; the source is named."""
    identity = (await world.tree()).nodes["l0:a"].identity
    world.hot = World().hot
    await world.cold.delete(CONTEXT, identity)
    model = Model()
    outcome = await run(world, model)
    assert isinstance(outcome, Rejected)
    assert RejectionCode.SUMMARY_FAILED is outcome.code
    assert [] == model.shown


async def test_an_outage_of_the_store_is_not_the_summariser_s_fault(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C111: it is tried again, whatever the number of tries was."""

    async def away(*_: Any, **__: Any) -> bytes:
        raise Unavailable("away")

    world.hot = World().hot
    monkeypatch.setattr(world.cold, "read", away)
    with pytest.raises(Unavailable):
        await run(world, Model())


# --- not twice ---------------------------------------------------------------------------------------


async def test_a_compaction_that_is_done_already_costs_no_call(world: World) -> None:
    """C11, I8: a second delivery, or a second request for the same range."""
    model = Model()
    first = await run(world, model)
    committed = await world.outcome(first.command)
    assert committed == await run(world, model)
    other = compact("other", "l0:a", "l0:b", summary=None)
    outcome = await stage(world, model).run(other, body_digest(other.wire()))
    assert isinstance(outcome, Rejected)
    assert RejectionCode.ALREADY_COVERED is outcome.code
    assert 1 == len(model.shown)


async def test_the_breaker_opens_and_closes_again(world: World) -> None:
    """C55: a provider that is down is left alone, and asked once more after a while."""
    model = Model(RuntimeError("down"))
    tried = stage(world, model, breaker_failures=2, breaker_reset_s=0.2, attempts=99)
    for _ in range(6):
        with pytest.raises(SummariserDown):
            await tried.run(ASKED, DIGEST)
    assert 2 == len(model.shown), "four of six rounds did not bother it"
    model.answer = "short"

    async def asked_again() -> Any:
        try:
            return await tried.run(ASKED, DIGEST)
        except SummariserDown:
            return None

    assert isinstance(await eventually(asked_again), Summarised)
    assert 3 == len(model.shown)


async def test_only_calls_that_failed_use_up_the_tries(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not deliveries at which a store was away or the summariser was left alone: it was never called then."""
    model = Model(RuntimeError("down"))
    tried = stage(world, model, attempts=2, breaker_failures=1, breaker_reset_s=0.2)
    read = world.cold.read

    async def away(*_: Any, **__: Any) -> bytes:
        raise Unavailable("away")

    world.hot.blobs.clear()  # type: ignore[attr-defined]
    monkeypatch.setattr(world.cold, "read", away)
    for _ in range(5):
        with pytest.raises(Unavailable):
            await tried.run(ASKED, DIGEST)
    monkeypatch.setattr(world.cold, "read", read)
    for _ in range(5):
        with pytest.raises(SummariserDown):
            await tried.run(ASKED, DIGEST)
    assert 1 == len(model.shown)

    async def given_up() -> Any:
        try:
            return await tried.run(ASKED, DIGEST)
        except SummariserDown:
            return None

    outcome = await eventually(given_up)
    assert RejectionCode.SUMMARY_FAILED is outcome.code
    assert 2 == len(model.shown)


async def test_a_compaction_asked_for_anew_has_all_its_tries(world: World) -> None:
    """After it was given up, after an answer, and whatever became of others."""
    model = Model(RuntimeError("down"))
    tried = stage(world, model, attempts=2, breaker_failures=99)
    for _ in range(2):
        with pytest.raises(SummariserDown):
            await tried.run(ASKED, DIGEST)
        assert RejectionCode.SUMMARY_FAILED is (await tried.run(ASKED, DIGEST)).code  # type: ignore[union-attr]
    with pytest.raises(SummariserDown):
        await tried.run(ASKED, DIGEST)
    model.answer = "short"
    assert isinstance(await tried.run(ASKED, DIGEST), Summarised)
    model.answer = RuntimeError("down")
    with pytest.raises(SummariserDown):
        await tried.run(ASKED, DIGEST)


async def test_lost_surrogates_and_blanks_do_not_open_the_breaker(world: World) -> None:
    """A model that answers is not down."""
    model = Model(" ")
    tried = stage(world, model, breaker_failures=1)
    for _ in range(3):
        await tried.run(ASKED, DIGEST)
    assert 3 == len(model.shown)


# --- summarisers -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", ["", "clever", "command:", "command: ", "Extractive"])
def test_an_unknown_summariser_is_refused_at_the_start(spec: str) -> None:
    """Loud and early, not at the first compaction."""
    with pytest.raises(InvalidInput, match="summariser"):
        make_summariser(spec)


@pytest.mark.parametrize("size", [1, 7, 30, 1000])
@pytest.mark.parametrize("count", [1, 3, 50])
async def test_the_extractive_one_is_smaller_and_whole(size: int, count: int) -> None:
    """C50: smaller than its sources where that is possible at all, never blank, always UTF-8."""
    sources = ["🌍é ab\n" * size for _ in range(count)]
    total = sum(len(source.encode()) for source in sources)
    summary = await ExtractiveSummariser()(sources, Level.L1_SUMMARY, total)
    assert summary.strip()
    assert len(summary.encode()) < total or total < 20
    assert summary == summary.encode().decode()


def program(code: str) -> CommandSummariser:
    return CommandSummariser([sys.executable, "-I", "-c", code])


async def call(summariser: CommandSummariser, sources: Sequence[str] = tuple(SOURCES)) -> str:
    async with deadline(20, "the program"):
        return await summariser(list(sources), Level.L2_ROLLUP, 123)


async def test_a_program_gets_the_sources_and_what_is_wanted() -> None:
    """C48: on its standard input, byte for byte; level and size in its environment."""
    code = (
        "import os, sys; data = sys.stdin.buffer.read();"
        "sys.stdout.buffer.write(data + os.environ['SEXTON_LEVEL'].encode()"
        " + os.environ['SEXTON_SIZE_BYTES'].encode())"
    )
    assert "\n\n".join(SOURCES) + "L2_ROLLUP123" == await call(program(code))


async def test_a_program_gets_none_of_the_workers_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what every program needs, what this one is asked, and what it is to have by name."""
    for name in ("SEXTON_REDIS_URL", "SEXTON_NATS_PASSWORD", "AWS_SECRET_ACCESS_KEY", "MODEL_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LANG", "C.UTF-8")
    code = "import json, os; print(json.dumps(dict(os.environ)))"
    line = f"command:{sys.executable} -I -c '{code}'"
    for names, more in (("", set[str]()), ("MODEL_KEY, NOT_SET", {"MODEL_KEY"})):
        summariser = make_summariser(line, names)
        assert isinstance(summariser, CommandSummariser)
        seen = json.loads(await call(summariser))
        assert seen.keys() <= {*ALWAYS, "SEXTON_LEVEL", "SEXTON_SIZE_BYTES", *more}
        assert more | {"PATH", "LANG", "SEXTON_LEVEL", "SEXTON_SIZE_BYTES"} <= seen.keys()


@pytest.mark.parametrize("names", ["A=1", "A B", "$A", "A,B;C", "1A"])
def test_what_names_no_variable_is_refused_at_the_start(names: str) -> None:
    """Loud and early: a key that does not arrive is hard to find."""
    with pytest.raises(InvalidInput, match="summariser_env"):
        make_summariser("command:true", names)


async def test_a_program_that_does_not_read_is_no_error() -> None:
    """A megabyte that nobody takes does not block or break the worker."""
    assert "done" == await call(program("print('done', end='')"), ["x" * 1_000_000])


async def test_a_program_that_echoes_as_it_reads_does_not_deadlock() -> None:
    """Both pipes are served at once."""
    code = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line)"
    source = ("x" * 99 + "\n") * 3000
    assert source == await call(program(code), [source])


@pytest.mark.parametrize(
    "code",
    [
        "import sys; sys.exit(3)",
        "import sys; sys.stdout.buffer.write(b'\\xff\\xfe')",
        "raise SystemExit('x')",
    ],
    ids=["status", "no UTF-8", "message"],
)
async def test_a_program_that_fails_gives_no_summary(code: str) -> None:
    """C44: what it wrote before is not taken for one."""
    with pytest.raises(SummariserFailedError):
        await call(program(code))


async def test_a_program_that_is_not_there_is_an_error() -> None:
    """And counts as a failed call."""
    with pytest.raises(OSError, match="nowhere"):
        await call(CommandSummariser(["/nowhere/at/all"]))


async def test_a_program_that_writes_without_end_is_stopped() -> None:
    """A limit on everything: not until the time is up or the memory is full."""
    with pytest.raises(SummariserFailedError, match="wrote over"):
        await call(program("import sys\nwhile True: sys.stdout.write('x' * 65536)"))


async def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    """C09: neither the program nor what it has started."""
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, sys, time;"
        "child = subprocess.Popen([sys.executable, '-I', '-c', 'import time; time.sleep(600)']);"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}\\n'); time.sleep(600)"
    )
    running = asyncio.ensure_future(call(program(code)))
    text = await eventually(
        lambda: pids.read_text() if pids.exists() else "", until=lambda t: t.endswith("\n"), within_s=20
    )
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await eventually(lambda: [pid for pid in text.split() if alive(int(pid))], until=lambda left: not left)


def test_the_asked_command_is_what_the_stage_gets() -> None:
    """The command as it was sent has no summary."""
    assert isinstance(ASKED, Compact)
    assert ASKED.summary is None
