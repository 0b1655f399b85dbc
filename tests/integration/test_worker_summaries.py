"""Compactions without a summary, through a real worker: deferred, summarised, committed or rejected."""

import asyncio
import sys
from pathlib import Path
from typing import Final

import pytest

from sexton.schemas import subjects
from sexton.schemas.commands import Compact
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.worker import metrics
from sexton.worker.embedded import EmbeddedServers
from tests.core_kit.build import append, compact, leaf, rewrite, view_ids
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import Sender, pointer_to
from tests.worker_kit.service import serving

TEXTS: Final = ["first leaf, long enough 🌍\r\n" * 9, "second leaf with \t tabs\n" * 9]


class Model:
    """A program that summarises. It notes every call; while `closed` is there, it waits; `code` answers."""

    def __init__(self, folder: Path, code: str = "print('short', end='')") -> None:
        self.calls = folder / "calls"
        self.closed = folder / "closed"
        self.calls.mkdir()
        self.script = folder / "model.py"
        self.script.write_text(
            "import os, sys, time\n"
            "data = sys.stdin.buffer.read()\n"
            f"open(os.path.join({str(self.calls)!r}, str(os.getpid())), 'wb').write(data)\n"
            f"while os.path.exists({str(self.closed)!r}): time.sleep(0.01)\n"
            f"{code}\n"
        )

    @property
    def spec(self) -> str:
        return f"command:{sys.executable} -I {self.script}"

    @property
    def shown(self) -> list[bytes]:
        """What it was given, call by call."""
        return [
            call.read_bytes() for call in sorted(self.calls.iterdir(), key=lambda p: p.stat().st_mtime_ns)
        ]


@pytest.fixture
def model(tmp_path: Path) -> Model:
    return Model(tmp_path)


def asked(event_id: str = "sum", context_id: str = "ctx") -> Compact:
    return compact(event_id, "l0:a", "l0:b", summary=None, context_id=context_id)


async def fill(sender: Sender, context_id: str = "ctx") -> None:
    spans = [leaf(name, text) for name, text in zip("ab", TEXTS, strict=True)]
    await sender.commit(append("fill", *spans, context_id=context_id))


async def test_a_summary_is_made_and_committed(own_servers: EmbeddedServers, model: Model) -> None:
    """C48: under the event id of who asked, from every source's bytes; the leaves stay what they are."""
    async with serving(own_servers, summariser=model.spec) as (_, sender):
        await fill(sender)
        outcome = await sender.commit(asked())
        assert ("sum", 1) == (outcome.event_id, outcome.epoch)
        assert ["l1:sum"] == view_ids(await sender.tree("ctx"))
        assert ["\n\n".join(TEXTS).encode()] == model.shown
        for name, text in zip("ab", TEXTS, strict=True):
            assert text.encode() == (await sender.fetch(pointer_to(text, f"l0:{name}")))[1]
        summary = pointer_to(TEXTS[0], "l0:a", accept_summary=True)
        answer, data = await sender.fetch(summary)
        assert (b"short", Level.L1_SUMMARY, False) == (data, answer["level"], answer["verbatim"])
        assert outcome == await sender.commit(asked()), "asked again, it is told again"
        assert 1 == len(model.shown)


async def test_appends_and_other_contexts_do_not_wait_for_a_model(
    own_servers: EmbeddedServers, model: Model
) -> None:
    """C09, C01: not even in its own context, nor in its own lane; and the append does not make it stale."""
    model.closed.touch()
    async with serving(own_servers, summariser=model.spec, partitions=1) as (_, sender):
        await fill(sender)
        await sender.publish(asked())
        await eventually(lambda: model.shown, what="the call")
        async with deadline(10, "ten appends beside a model that answers nothing"):
            for i in range(5):
                await sender.commit(append(f"e{i}", f"n{i}"))
                await sender.commit(append(f"e{i}", f"n{i}", context_id="other"))
        model.closed.unlink()
        assert isinstance(await sender.outcome_of("ctx", "sum"), Committed)
        assert ["l1:sum", *(f"l0:n{i}" for i in range(5))] == view_ids(await sender.tree("ctx"))


async def test_a_source_rewritten_meanwhile(own_servers: EmbeddedServers, model: Model) -> None:
    """C02: `stale_source` with what is there now, and nothing changed."""
    model.closed.touch()
    async with serving(own_servers, summariser=model.spec) as (_, sender):
        await fill(sender)
        await sender.publish(asked())
        await eventually(lambda: model.shown, what="the call")
        await sender.commit(rewrite("rw", "l0:a", "other bytes"))
        model.closed.unlink()
        outcome = await sender.outcome_of("ctx", "sum")
        assert isinstance(outcome, Rejected)
        assert RejectionCode.STALE_SOURCE is outcome.code
        assert [("l0:a", 2)] == [(span.span_id, span.version) for span in outcome.spans]
        assert ["fill", "rw"] == [record.event_id for record in await sender.records("ctx")]


@pytest.mark.parametrize(
    ("code", "rejection", "calls"),
    [
        ("sys.exit(1)", RejectionCode.SUMMARY_FAILED, 3),
        ("sys.stdout.buffer.write(b'\\xff\\xfe')", RejectionCode.SUMMARY_FAILED, 3),
        ("print(' \\n ')", RejectionCode.EMPTY_SUMMARY, 1),
        ("sys.stdout.buffer.write(data)", RejectionCode.NOT_SMALLER, 1),
        ("sys.stdout.buffer.write(data + data)", RejectionCode.NOT_SMALLER, 1),
        ("while True: sys.stdout.write('x' * 65536)", RejectionCode.SUMMARY_FAILED, 3),
        ("print('x' * 300_000)", RejectionCode.TOO_LARGE, 1),
        ("sys.stdout.write('x' + '\\x01' * 200_000)", RejectionCode.TOO_LARGE, 1),
    ],
    ids=["fails", "no UTF-8", "blank", "the sources", "larger", "endless", "too large", "too large as JSON"],
)
async def test_an_answer_that_is_no_summary(
    own_servers: EmbeddedServers, tmp_path: Path, code: str, rejection: RejectionCode, calls: int
) -> None:
    """C44, C47, C50, C51: a typed end after a bounded number of calls, and nothing changed."""
    model = Model(tmp_path, code)
    async with serving(own_servers, summariser=model.spec, summarise_attempts=3) as (_, sender):
        await fill(sender)
        if rejection is RejectionCode.TOO_LARGE:
            await sender.commit(append("more", leaf("c", "x" * 250_000), leaf("d", "y" * 250_000)))
            command = compact("sum", "l0:a", "l0:b", "l0:c", "l0:d", summary=None)
        else:
            command = asked()
        outcome = await sender.refused(command)
        assert (rejection, "sum") == (outcome.code, outcome.event_id)
        await sender.until_idle()
        assert calls == len(model.shown)
        assert 0 == (await sender.tree("ctx")).epoch
        assert [] == await sender.dead_letters()


async def test_a_model_that_hangs_is_given_up(own_servers: EmbeddedServers, tmp_path: Path) -> None:
    """C09: each call has its time; the lanes of commits are free meanwhile."""
    model = Model(tmp_path, "time.sleep(600)")
    more = {"summariser": model.spec, "summarise_timeout_s": 0.4, "summarise_attempts": 2}
    async with serving(own_servers, **more) as (_, sender), deadline(20, "the rejection"):
        await fill(sender)
        outcome = await sender.refused(asked())
        assert RejectionCode.SUMMARY_FAILED is outcome.code
        assert 2 == len(model.shown)


def failed() -> float:
    """Calls of the model that failed in this process."""
    return float(metrics.SUMMARISE_FAILURES._value.get())


async def test_a_model_that_is_down_is_left_alone(own_servers: EmbeddedServers, tmp_path: Path) -> None:
    """C55: many compactions, few calls. None is given up that had no call of its own."""
    flag = tmp_path / "up"
    model = Model(tmp_path, f"print('short', end='') if os.path.exists({str(flag)!r}) else sys.exit(1)")
    more = {"summariser": model.spec, "summarise_attempts": 3, "retry_delay_max_s": 0.2}
    breaker = {"breaker_failures": 4, "breaker_reset_s": 3.0}
    async with serving(own_servers, **more, **breaker) as (_, sender), deadline(40, "ten summaries"):
        for i in range(10):
            await fill(sender, f"c{i}")
        before = failed()
        asking = [asyncio.create_task(sender.commit(asked("sum", f"c{i}"), within_s=30)) for i in range(10)]
        # Failed, and not only begun: one that was begun may still find the model up.
        await eventually(failed, until=lambda now: now >= before + 4, within_s=20)
        flag.touch()
        await asyncio.gather(*asking)
        assert 14 <= len(model.shown) <= 18, "four that failed, or some more that were under way, and ten"


async def test_a_compaction_asked_twice_is_summarised_once(
    own_servers: EmbeddedServers, model: Model
) -> None:
    """I8: while the first one is being made, a second command with its event id costs no second call."""
    model.closed.touch()
    async with serving(own_servers, summariser=model.spec, summarise_concurrency=2) as (_, sender):
        await fill(sender)
        await sender.publish(asked())
        await eventually(lambda: model.shown, what="the call")
        for _ in range(3):
            await sender.publish(asked())
        await eventually(sender.waiting, until=lambda left: left == 0)
        assert 1 == await sender.waiting(subjects.STREAM_SUMMARISE)
        model.closed.unlink()
        await sender.outcome_of("ctx", "sum")
        await sender.until_idle()
        assert 1 == len(model.shown)


async def test_a_compaction_asked_again_after_it_was_rejected_is_answered(
    own_servers: EmbeddedServers, tmp_path: Path
) -> None:
    """I7, C26: within the broker's window too: the repeat must not be swallowed as a duplicate."""
    flag = tmp_path / "up"
    model = Model(tmp_path, f"print('short', end='') if os.path.exists({str(flag)!r}) else sys.exit(1)")
    async with serving(own_servers, summariser=model.spec, summarise_attempts=1) as (_, sender):
        await fill(sender)
        for calls in (1, 2):
            assert RejectionCode.SUMMARY_FAILED is (await sender.refused(asked())).code
            assert calls == len(model.shown)
        flag.touch()
        await sender.commit(asked())


async def test_roll_ups_of_summaries(own_servers: EmbeddedServers, model: Model) -> None:
    """C53: a level higher each time, from the summaries' own bytes."""
    async with serving(own_servers, summariser=model.spec) as (_, sender):
        await fill(sender)
        await sender.commit(append("more", leaf("c", TEXTS[0]), leaf("d", TEXTS[1])))
        await sender.commit(asked("one"))
        await sender.commit(compact("two", "l0:c", "l0:d", summary=None))
        outcome = await sender.commit(compact("top", "l1:one", "l1:two", summary=None))
        assert ["l2:top"] == view_ids(await sender.tree("ctx"))
        assert b"short\n\nshort" == model.shown[-1]
        assert (10, 5) == (outcome.size_before_bytes, outcome.size_after_bytes)


async def test_what_cannot_be_compacted_costs_no_call(own_servers: EmbeddedServers, model: Model) -> None:
    """C11: refused before it is deferred."""
    async with serving(own_servers, summariser=model.spec) as (_, sender):
        await fill(sender)
        await sender.commit(asked("one"))
        refused = await sender.refused(asked("two"))
        assert RejectionCode.ALREADY_COVERED is refused.code
        assert {"l1:one"} == {span.covered_by for span in refused.spans}
        assert 1 == len(model.shown)
