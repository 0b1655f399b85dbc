"""The demo as one call: a folder, the cast, the story, the checks."""

import asyncio
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sexton.holder import Holder
from sexton.worker.cli.codes import BadInput
from sexton.worker.demo import checks, copy_checks
from sexton.worker.demo.cast import Cast
from sexton.worker.demo.checks import Check
from sexton.worker.demo.pace import holder_settings
from sexton.worker.demo.served import open_served
from sexton.worker.demo.story import Evidence, Script, Story
from sexton.worker.ingest import Report, Transcript

CONTEXT: Final = "demo"
_START_S: Final = 30.0
_SUMMARY_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Result:
    """What the demo found."""

    name: str
    """Of the transcript."""
    report: Report
    checks: tuple[Check, ...]
    durations_s: dict[str, float]
    """By step, and `all`."""

    @property
    def held(self) -> bool:
        """Whether everything that must hold did."""
        return bool(self.checks) and all(check.held for check in self.checks)


async def perform(
    name: str,
    content: bytes,
    transcript: Transcript,
    *,
    keep: Path | None = None,
    on_step: Callable[[str], None] = lambda _: None,
) -> Result:
    """Runs the demo, and leaves nothing behind but `keep`.

    Args:
        name: of the transcript, for the report.
        content: its bytes.
        transcript: the same, looked through.
        keep: a new or empty folder for the servers' data, the logs and what the holders wrote. None: a
            temporary one.
        on_step: is told what comes next.

    Raises:
        BadInput: the transcript is too small for the story, or the folder is not empty.
        EmbeddedServerError: a server, the worker or a holder could not be started, or ended.
        SextonError: a step could not be done.
    """
    began = time.monotonic()
    script = Script.of(transcript)
    with ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(TemporaryDirectory(prefix="sexton-demo-")))
        else:
            folder = _empty(keep)
        evidence = await _seen(folder, script, on_step)
    durations_s = {**evidence.durations_s, "all": round(time.monotonic() - began, 3)}
    return Result(name, transcript.report, tuple(judge(content, evidence)), durations_s)


def judge(content: bytes, evidence: Evidence) -> list[Check]:
    """All checks on what was seen. `content` is the transcript's bytes."""
    script, tree, used = evidence.script, evidence.tree, evidence.map_used
    assert tree is not None  # noqa: S101 - the story came to its end
    assert used is not None  # noqa: S101
    old, kept = script.old, evidence.kept
    stale, gone = (old.rewritten, old.held), (old.pruned,)
    compactions = evidence.compactions
    found = [
        checks.rows_are_leaves(script.span_ids, tree),
        checks.leaves_have_pointers(script.span_ids, evidence.pointers),
        checks.compacted_deep_enough(
            tree,
            before_bytes=compactions[0].size_before_bytes,
            after_bytes=compactions[-1].size_after_bytes,
            budget_bytes=compactions[-1].budget_bytes,
        ),
        checks.stale_map_was_caught(used),
    ]
    for who, quotes in evidence.quotes.items():
        changed = frozenset(old.first)
        found.append(checks.quotes_are_exact(who, content, script.transcript, quotes, changed))
        found.append(checks.changed_are_refused(who, quotes, stale, gone))
    every_quote = [quote for quotes in evidence.quotes.values() for quote in quotes]
    found.append(checks.no_summary_for_a_leaf(every_quote))
    found.append(checks.summaries_say_so(evidence.summaries))
    found.append(copy_checks.copy_was_kept(old, kept))
    found.append(copy_checks.free_ones_were_collected(old, kept))
    found.append(copy_checks.released_one_was_collected(old, kept))
    found.append(checks.changed_are_refused("collected", evidence.quotes_after, stale, gone))
    found.append(checks.epoch_is_dense(evidence.committed, tree.head))
    found.extend(
        checks.saw_every_epoch(who, followed, tree.head) for who, followed in evidence.followed.items()
    )
    return found


async def _seen(folder: Path, script: Script, on_step: Callable[[str], None]) -> Evidence:
    """Plays the story, for as long as all of the cast are alive."""
    on_step("start NATS, Valkey, a worker and two holders")
    began = time.monotonic()
    async with Cast(folder, CONTEXT) as cast, _holder(cast) as holder:
        context = await open_served(holder, CONTEXT, within_s=_START_S)
        story = Story(cast, context, script, folder, on_step)
        story.seen.durations_s["start"] = round(time.monotonic() - began, 3)
        playing = asyncio.create_task(story.play())
        watching = asyncio.create_task(cast.watch())
        try:
            await asyncio.wait({playing, watching}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            return playing.result()
        finally:
            playing.cancel()
            watching.cancel()
            await asyncio.gather(playing, watching, return_exceptions=True)


def _holder(cast: Cast) -> Holder:
    """This process's own holder. The demo's summaries need no model: one that does not come was lost."""
    settings = holder_settings(summary_timeout_s=_SUMMARY_S)
    return Holder.connect(cast.servers.nats_url, name="demo", settings=settings)


def _empty(folder: Path) -> Path:
    """The folder, made if it is not there. Raises `BadInput` if something is in it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{str(folder)!a} is not empty: the demo needs a folder of its own")
    except OSError as error:
        raise BadInput(f"cannot use {str(folder)!a}: {error.strerror}") from error
    return folder.resolve()
