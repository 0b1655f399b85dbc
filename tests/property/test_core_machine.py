"""Any history of a context keeps I1, I2, I3 and the coverage rule, and is what a naive model says it is.

Each step is a command that may be right or wrong in any way, a repeat, a crash with a restart from a
snapshot, or a pointer. After each step the whole tree is counted again, compared with the model, and every
pointer that was ever minted is resolved in every way there is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product, takewhile
from typing import Any, TypeVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sexton.core import collection
from sexton.core.apply import apply
from sexton.core.artifact import DerivedArtifact
from sexton.core.buffer import ContextBuffer
from sexton.core.decide import NeedsSummary, decide
from sexton.core.hash import content_hash
from sexton.core.snapshot import dump, pieces, restore
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, AnyRecord, decode, decode_command, decode_record
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import LineageError, PointerResurrectionError, RevisionGap
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import Appended, Compacted, Pruned, Rewritten
from sexton.schemas.rpc import Snapshot
from sexton.schemas.span import NewSpan, Text
from tests.core_kit.audit import audit
from tests.core_kit.build import CONTEXT, contents, digest, view_ids
from tests.core_kit.oracle import Oracle, Span
from tests.core_kit.strategies import (
    ANY_LEAVES,
    FEW,
    LEAVES,
    NAMES,
    PICK,
    SELDOM,
    SUMMARIES,
    TEXTS,
)

T = TypeVar("T")

STEPS = {
    "announce": collection.announce,
    "call_off": collection.call_off,
    "condemn": collection.condemn,
    "finish": collection.finish,
}


def pick(among: Sequence[T], number: int) -> T:
    return among[number % len(among)]


def whole_hash(level: int, data: bytes) -> str:
    return content_hash(Level(level), data)


@dataclass(frozen=True)
class Minted:
    """A pointer with the bytes that it was minted on."""

    pointer: Pointer
    data: bytes


class ContextMachine(RuleBasedStateMachine):
    """One context, its model, a follower that hears of every record, and everyone's pointers."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = ContextBuffer(CONTEXT)
        self.oracle = Oracle(whole_hash)
        self.follower = ContextTree.empty(CONTEXT, with_events=False)
        self.past: list[tuple[AnyCommand, Committed]] = []
        self.minted: list[Minted] = []
        self.artifacts: list[DerivedArtifact[str]] = []
        self.pins: dict[tuple[str, int], PinCost] = {}
        self.buffer.pins = self.pins
        self.events = 0

    # --- what may happen -----------------------------------------------------------------------------

    @initialize(spans=st.lists(LEAVES, min_size=3, max_size=8))
    def begin(self, spans: list[NewSpan]) -> None:
        self.carry_out(Append(context_id=CONTEXT, event_id=self.event(), spans=tuple(spans)))

    @rule(spans=st.lists(LEAVES, min_size=1, max_size=4) | st.lists(ANY_LEAVES, min_size=1, max_size=3))
    def append(self, spans: list[NewSpan]) -> None:
        self.carry_out(Append(context_id=CONTEXT, event_id=self.event(), spans=tuple(spans)))

    @precondition(lambda self: self.oracle.view)
    @rule(start=PICK, count=FEW, summary=st.sampled_from(["s", "ß", "~"]))
    def compact_well(self, start: int, count: int, summary: str) -> None:
        """As somebody would who knows the rules; groups and pins may still be in the way."""
        self.compact(self.run_of_one_level(start, count), Text(content=summary), planned_ago=0)

    @precondition(lambda self: self.oracle.view)
    @rule(
        start=PICK,
        count=FEW,
        summary=SUMMARIES,
        name=NAMES,
        allow_larger=SELDOM,
        planned_ago=st.sampled_from([None, None, 0, 0, 1, 3]),
    )
    def compact_run(self, start: int, count: int, summary: str, name: str | None, **how: Any) -> None:
        """Spans of one level that stand together: in order, as far as groups and the summary are."""
        run = self.run_of_one_level(start, count)
        self.compact(run, Text(content=summary), name=name, **how)

    @precondition(lambda self: self.oracle.spans)
    @rule(
        picks=st.lists(PICK, max_size=4),
        stranger=st.booleans(),
        version=st.none() | st.integers(1, 3),
        summary=st.none() | SUMMARIES,
    )
    def compact_anything(
        self, picks: list[int], stranger: bool, version: int | None, summary: str | None
    ) -> None:
        """Spans of any state, level and order, twice the same, or unknown."""
        sources = [self.any_span(number) for number in picks]
        if stranger and len(picks) == 3:
            sources.append("l0:stranger")
        text = None if summary is None else Text(content=summary)
        self.compact(sources, text, version=version)

    @precondition(lambda self: self.oracle.spans)
    @rule(
        number=PICK,
        text=TEXTS | st.just(""),
        back=st.sampled_from([0, 0, 0, 1, -1]),
        by_hash=st.booleans(),
        covered=SELDOM,
    )
    def rewrite(self, number: int, text: str, back: int, by_hash: bool, covered: bool) -> None:
        span_id = self.any_span(number, live=not covered)
        span = self.oracle.spans[span_id]
        base_version = max(1, span.version - back)
        base_data = span.versions[min(base_version, span.version) - 1]
        base_hash = whole_hash(span.level, base_data) if by_hash else None
        self.carry_out(
            Rewrite(
                context_id=CONTEXT,
                event_id=self.event(),
                span_id=span_id,
                base_version=None if by_hash else base_version,
                base_hash=base_hash,
                text=Text(content=text),
            )
        )

    @precondition(lambda self: self.oracle.spans)
    @rule(number=PICK, base=st.sampled_from([None, 1, 2]), covered=SELDOM)
    def prune(self, number: int, base: int | None, covered: bool) -> None:
        span_id = self.any_span(number, live=not covered)
        self.carry_out(Prune(context_id=CONTEXT, event_id=self.event(), span_id=span_id, base_version=base))

    @precondition(lambda self: self.events % 4 == 0)
    @rule(kind=st.sampled_from(["compact", "rewrite", "prune"]))
    def change_what_is_unknown(self, kind: str) -> None:
        ids = {"context_id": CONTEXT, "event_id": self.event()}
        source = SourceRef(span_id="l1:stranger")
        commands: dict[str, AnyCommand] = {
            "compact": Compact(**ids, sources=(source,), summary=Text(content="s")),
            "rewrite": Rewrite(**ids, span_id=source.span_id, base_version=1, text=Text(content="s")),
            "prune": Prune(**ids, span_id=source.span_id),
        }
        self.carry_out(commands[kind])

    @precondition(lambda self: self.past)
    @rule(number=PICK, altered=st.booleans())
    def send_again(self, number: int, altered: bool) -> None:
        """I8, C08, C24: a command counts once; another one under its event id is refused."""
        command, first = pick(self.past, number)
        before = self.buffer.tree
        if altered:
            other = command.model_copy(update={"unknown_field": 1})
            outcome = self.buffer.submit(other)
            assert isinstance(outcome, Rejected)
            assert RejectionCode.EVENT_ID_REUSED is outcome.code
        else:
            assert first == self.buffer.submit(decode_command(command.wire()))
        assert before is self.buffer.tree

    @precondition(lambda self: self.oracle.view)
    @rule(number=PICK, cost=st.sampled_from([*PinCost, PinCost.EXPENSIVE, PinCost.EXPENSIVE]))
    def hold(self, number: int, cost: PinCost) -> None:
        """A holder mints a pointer and pins what it points to."""
        span_id = self.any_span(number, live=True)
        pointer = self.buffer.mint(span_id)
        self.minted.append(Minted(pointer, self.oracle.spans[span_id].data))
        self.pins[span_id, pointer.version] = cost

    @precondition(lambda self: self.pins)
    @rule(number=PICK)
    def release(self, number: int) -> None:
        del self.pins[pick(list(self.pins), number)]

    @precondition(lambda self: self.pins)
    @rule(number=PICK, text=TEXTS)
    def rewrite_what_is_held(self, number: int, text: str) -> None:
        live = [held for held in self.pins if held[1] == self.oracle.spans[held[0]].version]
        span_id, version = pick(live or list(self.pins), number)
        ids = {"context_id": CONTEXT, "event_id": self.event()}
        self.carry_out(Rewrite(**ids, span_id=span_id, base_version=version, text=Text(content=text)))

    @precondition(lambda self: self.oracle.spans)
    @rule(number=PICK, start=PICK, length=PICK, accept_summary=st.booleans())
    def mint(self, number: int, start: int, length: int, accept_summary: bool) -> None:
        """A pointer to a whole span or to some characters of it."""
        span_id = self.any_span(number)
        span = self.oracle.spans[span_id]
        if span.gone:
            with pytest.raises(PointerResurrectionError):
                self.buffer.mint(span_id)
            return
        text = span.data.decode()
        first = start % len(text)
        data = text[first : first + 1 + length % (len(text) - first)].encode()
        offset = len(text[:first].encode())
        pointer = self.buffer.mint(span_id, offset=offset, length=len(data))
        pointer = pointer.model_copy(update={"accept_summary": accept_summary})
        self.minted.append(Minted(decode(Pointer, pointer.wire()), data))

    @precondition(lambda self: self.minted)
    @rule(number=PICK, superseded=st.booleans())
    def revalidate(self, number: int, superseded: bool) -> None:
        """The re-stamped pointer of an answer is one more pointer to the bytes of that answer."""
        minted = pick(self.minted, number)
        try:
            answer = self.buffer.resolve(minted.pointer, accept_superseded=superseded)
        except PointerResurrectionError:
            return
        assert self.buffer.epoch == answer.answer.pointer.epoch
        again = self.buffer.resolve(answer.answer.pointer, strict=True, accept_superseded=superseded)
        assert answer.data == again.data
        self.minted.append(Minted(answer.answer.pointer, answer.data))

    @precondition(lambda self: self.minted)
    @rule(number=PICK, level=st.sampled_from(Level), context_id=st.sampled_from([CONTEXT, "other"]))
    def forge(self, number: int, level: Level, context_id: str) -> None:
        """I1: nothing is served for a claim that was never true, however much of it is."""
        honest = pick(self.minted, number).pointer.model_copy(update={"accept_summary": False})
        forged = [honest.model_copy(update={"content_hash": whole_hash(level, b"never was")})]
        if level is not honest.level:
            forged.append(honest.model_copy(update={"level": level}))
        if context_id != CONTEXT:
            forged.append(honest.model_copy(update={"context_id": context_id}))
        for pointer, superseded in product(forged, (False, True)):
            with pytest.raises(PointerResurrectionError):
                self.buffer.resolve(pointer, accept_superseded=superseded)

    @precondition(lambda self: self.oracle.spans)
    @rule(number=PICK)
    def derive(self, number: int) -> None:
        span_id = self.any_span(number)
        if not self.oracle.spans[span_id].gone:
            self.artifacts.append(self.buffer.derive(span_id, str.upper))

    @precondition(lambda self: self.oracle.stones)
    @rule(
        steps=st.lists(st.sampled_from(list(STEPS)), min_size=1, max_size=3),
        picks=st.lists(PICK, min_size=1, max_size=4, unique=True),
        attempt=st.sampled_from(["x", "y"]),
    )
    def collect(self, steps: list[str], picks: list[int], attempt: str) -> None:
        """A collector takes some steps with some versions, in its turn or out of it."""
        stones, current = list(self.oracle.stones), list(self.oracle.spans)
        versions = {pick(stones, number) for number in picks}
        versions |= {(span_id, self.oracle.spans[span_id].version) for span_id in current[:1]}
        for step in steps:
            record = STEPS[step](self.buffer.tree, sorted(versions), attempt)
            may = [version for version in sorted(versions) if self.oracle.may_take(step, version, attempt)]
            if not may:
                assert record is None
                continue
            assert record is not None
            assert may == [(named.span_id, named.version) for named in record.versions]
            before = self.buffer.tree
            self.buffer._tree = apply(before, record)
            self.buffer._log.append(record)
            self.oracle.take(step, may, attempt)
            for version in may if step == "condemn" else []:
                del self.buffer._cold[version]
            self.follow(before, record)

    @rule(piece_bytes=st.sampled_from([1, 600, 5_000, 1_000_000]))
    def restart(self, piece_bytes: int) -> None:
        """The worker from its own snapshot, the follower from pieces of the size that a message may have."""
        tree = self.buffer.tree
        snapshot = decode(Snapshot, dump(tree, with_events=True).wire())
        self.buffer._tree = restore([snapshot])
        assert tree == self.buffer.tree
        parts = [decode(Snapshot, piece.wire()) for piece in pieces(tree, piece_bytes)]
        assert self.follower == restore(parts)
        self.follower = restore(parts)

    # --- what must hold ------------------------------------------------------------------------------

    @invariant()
    def the_tree_keeps_the_coverage_rule(self) -> None:
        stones = self.oracle.stones
        audit(self.buffer.tree, {version for version, (state, _) in stones.items() if state == "collected"})

    @invariant()
    def the_tree_is_what_the_model_says(self) -> None:
        tree, oracle = self.buffer.tree, self.oracle
        assert (oracle.revision, oracle.epoch) == (tree.revision, tree.epoch)
        assert oracle.view == view_ids(tree)
        assert set(oracle.spans) == set(tree.nodes)
        for span_id, span in oracle.spans.items():
            node = tree.nodes[span_id]
            assert (span.version, span.state, span.epoch) == (node.version, node.state.value, node.epoch)
            assert (span.covered_by, span.sources) == (node.covered_by, node.sources)
            assert (len(span.data), whole_hash(span.level, span.data)) == (node.size_bytes, node.content_hash)
        for version, stone in tree.tombstones.items():
            assert oracle.stones[version] == (stone.state.value, stone.attempt)
        for group, known in tree.groups.items():
            assert oracle.waits[group] == known.open
        assert b"".join(oracle.spans[s].data for s in oracle.view).decode() == self.buffer.render()

    @invariant()
    def i1_every_pointer_gives_its_bytes_or_an_error(self) -> None:
        for minted in self.minted:
            for strict, superseded in product((False, True), repeat=2):
                self.check_pointer(minted, strict=strict, superseded=superseded)

    @invariant()
    def an_artifact_is_good_for_the_bytes_it_was_made_from(self) -> None:
        for artifact in self.artifacts:
            span: Span = self.oracle.spans[artifact.key.span_id]
            current = span.version == artifact.key.version and not span.gone
            try:
                value = self.buffer.use(artifact)
            except PointerResurrectionError:
                assert not current
            else:
                assert current
                assert span.data.decode().upper() == value

    def check_pointer(self, minted: Minted, *, strict: bool, superseded: bool) -> None:
        due = self.oracle.resolved(minted.pointer, strict=strict, accept_superseded=superseded)
        if not isinstance(due, tuple):
            with pytest.raises(due) as refusal:
                self.buffer.resolve(minted.pointer, strict=strict, accept_superseded=superseded)
            assert due is refusal.type
            return
        got = self.buffer.resolve(minted.pointer, strict=strict, accept_superseded=superseded)
        level, data = due
        assert data == got.data
        assert content_hash(got.answer.level, got.data) == got.answer.pointer.content_hash
        assert (level, level == 0) == (got.answer.level, got.answer.verbatim)
        if level == minted.pointer.level:
            assert minted.data == got.data
            assert minted.pointer.content_hash == got.answer.pointer.content_hash
        else:
            assert minted.pointer.accept_summary
            assert minted.pointer.level is Level.L0_VERBATIM

    def teardown(self) -> None:
        """The log, from nothing, is the tree again; it is dense (I2) and names no id twice (I3)."""
        log = self.buffer.log
        tree = ContextTree.empty(CONTEXT)
        for record in log:
            tree = apply(tree, decode_record(record.wire()))
        assert tree == self.buffer.tree
        assert list(range(1, len(log) + 1)) == [record.revision for record in log]
        born = [
            span_id
            for record in log
            for span_id in (
                [span.span_id for span in record.spans]
                if isinstance(record, Appended)
                else [record.summary.span_id]
                if isinstance(record, Compacted)
                else []
            )
        ]
        assert len(set(born)) == len(born)

    # --- how it is done ------------------------------------------------------------------------------

    def event(self) -> str:
        self.events += 1
        return f"e{self.events}"

    def run_of_one_level(self, start: int, count: int) -> list[str]:
        at = start % len(self.oracle.view)
        level = self.oracle.view[at][:2]
        return list(takewhile(lambda span_id: span_id[:2] == level, self.oracle.view[at : at + count]))

    def any_span(self, number: int, *, live: bool = False) -> str:
        among = self.oracle.view if live and self.oracle.view else list(self.oracle.spans)
        return pick(among, number)

    def compact(
        self,
        sources: list[str],
        summary: Text | None,
        *,
        name: str | None = None,
        version: int | None = None,
        allow_larger: bool = False,
        planned_ago: int | None = None,
    ) -> None:
        self.carry_out(
            Compact(
                context_id=CONTEXT,
                event_id=self.event(),
                sources=tuple(SourceRef(span_id=s, version=version) for s in sources),
                summary=summary,
                name=name,
                allow_larger=allow_larger,
                planned_epoch=None if planned_ago is None else max(0, self.oracle.epoch - planned_ago),
            )
        )

    def carry_out(self, command: AnyCommand) -> None:
        """The command, and what the model says of it."""
        command = decode_command(command.wire())
        broken = self.oracle.broken(command, self.pins)
        nothing = self.oracle.changes_nothing(command)
        before = self.buffer.tree
        if isinstance(command, Compact) and command.sources and command.summary is None and not broken:
            decision = decide(before, command, digest(command), contents(command), self.pins)
            assert isinstance(decision, NeedsSummary)
            assert [s.span_id for s in command.sources] == [node.span_id for node in decision.sources]
            return
        outcome = self.buffer.submit(command)
        if nothing and not broken - {RejectionCode.IMMOVABLE}:
            assert isinstance(outcome, NoChange), outcome
        elif broken:
            assert isinstance(outcome, Rejected), (outcome, broken)
            assert outcome.code in broken
        if not isinstance(outcome, Committed):
            assert before is self.buffer.tree, "a refused command leaves the tree as it is"
            assert (before.revision, before.epoch) == (outcome.revision, outcome.epoch)
            return
        assert not broken, (outcome, broken)
        self.oracle.carry_out(command, self.pins)
        self.past.append((command, outcome))
        assert (self.buffer.tree.revision, self.buffer.epoch) == (outcome.revision, outcome.epoch)
        self.follow(before, self.buffer.log[-1])

    def follow(self, before: ContextTree, record: AnyRecord) -> None:
        """The record as it comes over the wire; and I2 for what it did."""
        for forged in forgeries(record):
            with pytest.raises((LineageError, RevisionGap)):
                apply(self.follower, forged)
        self.follower = apply(self.follower, decode_record(record.wire()))
        assert before.revision + 1 == record.revision
        assert before.epoch + isinstance(record, Compacted | Rewritten | Pruned) == record.epoch
        for span_id, node in before.nodes.items():
            after = self.buffer.tree.nodes[span_id]
            assert 0 <= after.version - node.version <= 1, "versions grow by one"
            assert node.level is after.level


def forgeries(record: AnyRecord) -> list[AnyRecord]:
    """The record, not quite as it was committed."""
    return [
        record.model_copy(update={"revision": record.revision + 1}),
        record.model_copy(update={"revision": record.revision - 1}),
        record.model_copy(update={"epoch": record.epoch + 1}),
        record.model_copy(update={"context_id": "other"}),
        record.model_copy(update={"chain": "sha256:" + 64 * "0"}),
        record.model_copy(update={"event_id": "somebody-elses"}),
    ]


# Many rules, of which one run tries a few: twice the examples that a plain property gets.
ContextMachine.TestCase.settings = settings(max_examples=2 * settings().max_examples)
# What hypothesis finds, it shrinks; let it finish, or the report is a time-out without an example.
TestContextMachine = pytest.mark.timeout(800)(ContextMachine.TestCase)
