"""What happens in the demo, in order, and what is seen of it.

This process ingests, compacts, rewrites and prunes, with a holder of its own. The two others keep what such
changes endanger: ada a pointer to every leaf, and something expensive made from one of them; ben an offset
map. Both are then asked for every quote, and old versions are collected (`copies`).
"""

import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel

from sexton.core.plan import Policy, plan
from sexton.core.tree import ContextTree
from sexton.holder import CompactionReport, Context, Resolved
from sexton.schemas.errors import SextonError
from sexton.schemas.outcome import Committed, NoChange
from sexton.schemas.pointer import Pointer
from sexton.schemas.span import SpanState
from sexton.worker.cli.batches import leaves
from sexton.worker.cli.codes import BadInput
from sexton.worker.cli.feed import feed
from sexton.worker.demo.cast import HOLDERS, Cast
from sexton.worker.demo.copies import Copies, Kept, Old
from sexton.worker.demo.offsets import OffsetMap
from sexton.worker.demo.pace import within
from sexton.worker.demo.talk import Ask, Done, Followed, MapUsed, Quote, Verb
from sexton.worker.ingest import Row, Transcript

M = TypeVar("M", bound=BaseModel)

FEWEST_ROWS: Final = 24
"""Below this there is nothing to compact over two levels."""
_TAIL_SPANS: Final = 6
"""Spans that stay verbatim; two of them are rewritten and one is pruned."""
_TAIL_BYTES: Final = 16 * 1024
_MOST_FAN_IN: Final = 16
_MIN_RUN_BYTES: Final = 256
_SHARE: Final = 4
"""Each round leaves at most one part in so many of what can be compacted."""
_ROUNDS: Final = 4
_TWO_LEVELS: Final = 2
_SUMMARIES_ASKED: Final = 8
_ASK_S: Final = 20.0
_QUOTES_S: Final = 120.0
_STEP_S: Final = 60.0
"""For a step of the story, and for each row and byte of the transcript: far more than any takes."""
_STEP_S_PER_ROW: Final = 0.2
_STEP_S_PER_BYTE: Final = 20e-6


@dataclass(frozen=True, slots=True)
class Script:
    """What the story is about, settled before anything is started."""

    transcript: Transcript
    span_ids: tuple[str, ...]
    """Of the rows, in order."""
    old: Old
    """The spans to be changed."""

    @property
    def patience_s(self) -> float:
        """How long one step may take."""
        report = self.transcript.report
        return _STEP_S + report.rows * _STEP_S_PER_ROW + report.size_bytes * _STEP_S_PER_BYTE

    @classmethod
    def of(cls, transcript: Transcript) -> "Script":
        """Chooses two spans to rewrite and one to prune, among the last ones: no compaction takes these.

        Raises:
            BadInput: the transcript is too short, or ends without words.
        """
        named = list(leaves(item for item in transcript if isinstance(item, Row)))
        if len(named) < FEWEST_ROWS:
            raise BadInput(
                f"the demo needs a transcript of {FEWEST_ROWS} rows or more, this has {len(named)}"
            )
        tail = {leaf.span_id: leaf.row.raw for leaf in named[-_TAIL_SPANS:]}
        by_size = sorted(tail, key=lambda span_id: len(tail[span_id]))
        worded = [span_id for span_id in by_size if OffsetMap.of(tail[span_id].decode()).places]
        if len(worded) < 2:  # noqa: PLR2004 - one for the offset map, and one for the rest of the story
            raise BadInput(f"the demo needs words in two of the last {_TAIL_SPANS} rows")
        rewritten, pruned = worded[:2]
        held = next(span_id for span_id in by_size if span_id not in (rewritten, pruned))
        first = {span_id: tail[span_id] for span_id in (rewritten, held, pruned)}
        old = Old(rewritten=rewritten, held=held, pruned=pruned, first=first)
        return cls(transcript, tuple(leaf.span_id for leaf in named), old)


@dataclass(slots=True)
class Evidence:
    """What was seen. `sexton.worker.demo.checks` says what it must look like."""

    script: Script
    pointers: list[Pointer] = field(default_factory=list)
    quotes: dict[str, list[Quote]] = field(default_factory=dict)
    """By holder."""
    summaries: list[Quote] = field(default_factory=list)
    """What came back for covered leaves when a summary was asked for."""
    committed: list[Committed] = field(default_factory=list)
    """The outcomes of all that bumped the epoch."""
    compactions: list[CompactionReport] = field(default_factory=list)
    map_used: MapUsed | None = None
    kept: Kept = field(default_factory=Kept)
    """What was seen of old versions."""
    quotes_after: list[Quote] = field(default_factory=list)
    """What the first pointers to the changed spans led to once everything was collected."""
    followed: dict[str, Followed] = field(default_factory=dict)
    tree: ContextTree | None = None
    """As it was in the end."""
    durations_s: dict[str, float] = field(default_factory=dict)
    """By step, in order."""


class Story:
    """Plays the story. `folder` is for what the holders read and write."""

    def __init__(
        self,
        cast: Cast,
        context: Context,
        script: Script,
        folder: Path,
        on_step: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._cast = cast
        self._context = context
        self._folder = folder
        self._on_step = on_step
        self._script = script
        self._copies = Copies(cast, context, script.old)
        self.seen = Evidence(script, kept=self._copies.seen)

    async def play(self) -> Evidence:
        """All of it. Raises `SextonError` if a step cannot be done."""
        async with self._step("ingest"):
            await feed(self._context, self._script.transcript)
        async with self._step("mint pointers, build an offset map"):
            await self._prepare()
        async with self._step("compact"):
            await self._compact()
        async with self._step("rewrite and prune"):
            self._copies.before_changes()
            await self._rewrite()
            await self._prune()
            await self._rewrite_held()
        async with self._step("empty Redis"):
            await self._cast.servers.valkey.restart()
        async with self._step("ask for every quote"):
            await self._quote()
        async with self._step("collect"):
            await self._copies.collect()
            await self._quote_after()
        async with self._step("compare notes"):
            await self._report()
        return self.seen

    @asynccontextmanager
    async def _step(self, name: str) -> AsyncIterator[None]:
        self._on_step(name)
        began = time.monotonic()
        async with within(self._script.patience_s, f"its step {name!r}"):
            yield
        self.seen.durations_s[name] = round(time.monotonic() - began, 3)

    async def _prepare(self) -> None:
        now = self._context.head.revision
        where = str(self._folder / "pointers.jsonl")
        await self._cast.ask("ada", Verb.MINT, Ask(revision=now, target=where), Done, within_s=_ASK_S)
        self.seen.pointers = _read(where, Pointer)
        build = Ask(revision=now, span_id=self._script.old.rewritten)
        await self._cast.ask("ben", Verb.BUILD_MAP, build, Done, within_s=_ASK_S)
        await self._copies.hold()

    async def _compact(self) -> None:
        """Down to a budget, and on to a smaller one, until there are summaries of summaries."""
        policy = _policy(self._context.tree)
        for _ in range(_ROUNDS):
            tree = self._context.tree
            movable = sum(run.size_bytes for run in plan(tree, 0, policy).runs)
            budget = tree.view_bytes - movable + movable // _SHARE
            report = await self._context.compact_to(budget, policy=policy)
            self.seen.compactions.append(report)
            self.seen.committed.extend(report.committed)
            if any(node.level >= _TWO_LEVELS for node in self._context.tree.view()):
                break

    async def _rewrite(self) -> None:
        """While ben has a map into the span: all its words move by a few bytes."""
        outcome = await self._edit(self._script.old.rewritten)
        use = Ask(revision=outcome.revision)
        self.seen.map_used = await self._cast.ask("ben", Verb.USE_MAP, use, MapUsed, within_s=_ASK_S)

    async def _prune(self) -> None:
        self._note(await self._context.prune(self._script.old.pruned))

    async def _rewrite_held(self) -> None:
        """While ada has something expensive of the span."""
        await self._edit(self._script.old.held)
        await self._copies.read()

    async def _edit(self, span_id: str) -> Committed | NoChange:
        text = self._script.old.first[span_id].decode()
        outcome = await self._context.rewrite(span_id, f"(edited) {text}")
        self._note(outcome)
        await self._copies.note(outcome)
        return outcome

    async def _quote(self) -> None:
        """One holder after the other, so that neither is slowed down by this demo's own making."""
        source = str(self._folder / "pointers.jsonl")
        for name in HOLDERS:
            where = str(self._folder / f"quotes-{name}.jsonl")
            asked = Ask(revision=self._context.head.revision, source=source, target=where)
            await self._cast.ask(name, Verb.QUOTE, asked, Done, within_s=_QUOTES_S)
            self.seen.quotes[name] = _read(where, Quote)
        covered = [
            pointer
            for pointer in self.seen.pointers
            if self._context.tree.nodes[pointer.span_id].state is SpanState.COVERED
        ]
        for pointer in covered[:: max(1, len(covered) // _SUMMARIES_ASKED)]:
            self.seen.summaries.append(await self._quoted(pointer, accept_summary=True))

    async def _quote_after(self) -> None:
        changed = self._script.old.first
        for pointer in self.seen.pointers:
            if pointer.span_id in changed:
                self.seen.quotes_after.append(await self._quoted(pointer))

    async def _quoted(self, pointer: Pointer, *, accept_summary: bool = False) -> Quote:
        try:
            found = await self._context.resolve(pointer, accept_summary=accept_summary)
        except SextonError as error:
            return Quote(span_id=pointer.span_id, error=error.code)
        return _quote(pointer.span_id, found)

    async def _report(self) -> None:
        self.seen.tree = self._context.tree
        for name in HOLDERS:
            asked = Ask(revision=self._context.head.revision)
            self.seen.followed[name] = await self._cast.ask(
                name, Verb.REPORT, asked, Followed, within_s=_ASK_S
            )

    def _note(self, outcome: Committed | NoChange) -> None:
        if isinstance(outcome, Committed):
            self.seen.committed.append(outcome)


def _policy(tree: ContextTree) -> Policy:
    """So many spans in a summary that there are about as many summaries."""
    return Policy(
        fan_in=max(2, min(_MOST_FAN_IN, math.isqrt(tree.view_count) // 2)),
        keep_tail_spans=_TAIL_SPANS,
        keep_tail_bytes=min(_TAIL_BYTES, tree.view_bytes // 20),
        min_run_bytes=_MIN_RUN_BYTES,
    )


def _quote(span_id: str, found: Resolved) -> Quote:
    return Quote(
        span_id=span_id, data=found.data, level=found.level, verbatim=found.verbatim, tier=found.tier
    )


def _read(path: str, model: type[M]) -> list[M]:
    return [model.model_validate_json(line) for line in Path(path).read_bytes().splitlines()]
