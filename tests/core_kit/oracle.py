"""The rules of the design once more, naively: plain lists and dictionaries, everything looked up in full.

It shares no code with `sexton.core`. It says which rules a command breaks (all of them, in no order), what
a command that breaks none does, and what a pointer comes to.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from sexton.core.pins import Pins
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import EpochMismatch, PointerResurrectionError, StaleSpanError, Unreachable
from sexton.schemas.leases import PinCost
from sexton.schemas.outcome import RejectionCode as Code
from sexton.schemas.pointer import Pointer

LIVE, COVERED = "live", "covered"
TOMBSTONE, COLLECTING, CONDEMNED, COLLECTED = "tombstone", "collecting", "condemned", "collected"

Version = tuple[str, int]


@dataclass
class Span:
    """A span with the bytes of every version it had."""

    level: int
    versions: list[bytes]
    group: str | None
    epoch: int
    state: str = LIVE
    covered_by: str | None = None
    sources: tuple[str, ...] = ()

    @property
    def version(self) -> int:
        return len(self.versions)

    @property
    def gone(self) -> bool:
        return self.state not in (LIVE, COVERED)

    @property
    def data(self) -> bytes:
        return self.versions[-1]


@dataclass
class Oracle:
    """One context, as somebody would keep it who never heard of performance."""

    hash_of: Callable[[int, bytes], str]
    revision: int = 0
    epoch: int = 0
    spans: dict[str, Span] = field(default_factory=dict)
    view: list[str] = field(default_factory=list)
    copies: set[Version] = field(default_factory=set)
    """Old versions that are kept for whoever asks."""
    stones: dict[Version, tuple[str, str | None]] = field(default_factory=dict)
    """Every version that is no longer current: its state, and who is collecting it."""
    waits: dict[str, bool] = field(default_factory=dict)
    """What the latest member of each group said."""

    # --- commands ------------------------------------------------------------------------------------

    def broken(self, command: AnyCommand, pins: Pins) -> set[Code]:
        """The codes of all rules that a command breaks."""
        match command:
            case Append():
                return self._broken_append(command)
            case Compact():
                return self._broken_compact(command, pins) if command.sources else set()
            case Rewrite():
                return self._broken_rewrite(command, pins)
            case Prune():
                return self._broken_change(command.span_id, command.base_version, pins)

    def changes_nothing(self, command: AnyCommand) -> bool:
        """Whether a command that breaks no rule has nothing to do."""
        match command:
            case Compact():
                return not command.sources
            case Rewrite():
                span = self.spans.get(command.span_id)
                return span is not None and span.state == LIVE and span.data == _bytes(command.text.content)
            case _:
                return False

    def carry_out(self, command: AnyCommand, pins: Pins) -> None:
        """Does what a command asks that breaks no rule and changes something."""
        self.revision += 1
        self.epoch += not isinstance(command, Append)
        match command:
            case Append():
                for i, new in enumerate(command.spans):
                    span_id = f"l0:{new.name or f'{command.event_id}-{i}'}"
                    group = new.labels.group
                    self.spans[span_id] = Span(0, [_bytes(new.content)], group, self.epoch)
                    self.view.append(span_id)
                    if group is not None:
                        self.waits[group] = new.labels.open
            case Compact():
                self._compact(command)
            case Rewrite():
                span = self.spans[command.span_id]
                if pins.get((command.span_id, span.version)) is PinCost.EXPENSIVE:
                    self.copies.add((command.span_id, span.version))
                self.stones[command.span_id, span.version] = (TOMBSTONE, None)
                span.versions.append(_bytes(command.text.content))
                span.epoch = self.epoch
            case Prune():
                self.view.remove(command.span_id)
                span = self.spans[command.span_id]
                span.state = TOMBSTONE
                span.epoch = self.epoch
                self.stones[command.span_id, span.version] = (TOMBSTONE, None)

    def _compact(self, command: Compact) -> None:
        assert command.summary is not None
        sources = tuple(source.span_id for source in command.sources)
        level = self.spans[sources[0]].level + 1
        summary_id = f"l{level}:{command.name or command.event_id}"
        at = self.view.index(sources[0])
        self.view[at : at + len(sources)] = [summary_id]
        for source in sources:
            self.spans[source].state = COVERED
            self.spans[source].covered_by = summary_id
            self.spans[source].epoch = self.epoch
        text = _bytes(command.summary.content)
        self.spans[summary_id] = Span(level, [text], command.labels.group, self.epoch, sources=sources)

    def _broken_append(self, command: Append) -> set[Code]:
        ids = [f"l0:{new.name or f'{command.event_id}-{i}'}" for i, new in enumerate(command.spans)]
        wrong: set[Code] = set()
        if len(set(ids)) < len(ids) or set(ids) & set(self.spans):
            wrong.add(Code.SPAN_EXISTS)
        if not all(new.content for new in command.spans):
            wrong.add(Code.INVALID)
        return wrong

    def _broken_compact(self, command: Compact, pins: Pins) -> set[Code]:
        if self.revision == 0:
            return {Code.UNKNOWN_CONTEXT}
        ids = [source.span_id for source in command.sources]
        wrong: set[Code] = set()
        if not set(ids) <= set(self.spans):
            return {Code.UNKNOWN_SPAN}
        spans = [self.spans[span_id] for span_id in ids]
        for source in command.sources:
            wrong |= self._broken_source(source, command.planned_epoch, pins)
        if len({span.level for span in spans}) > 1:
            wrong.add(Code.MIXED_LEVEL)
        if any((a, b) not in set(pairwise(self.view)) for a, b in pairwise(ids)):
            wrong.add(Code.NOT_CONTIGUOUS)
        wrong |= self._broken_groups(ids)
        if spans[0].level == 7:
            return wrong | {Code.TOP_LEVEL}
        if f"l{spans[0].level + 1}:{command.name or command.event_id}" in self.spans:
            wrong.add(Code.SPAN_EXISTS)
        if command.summary is not None:
            wrong |= self._broken_summary(command, sum(len(span.data) for span in spans))
        return wrong

    def _broken_source(self, source: SourceRef, planned_epoch: int | None, pins: Pins) -> set[Code]:
        span = self.spans[source.span_id]
        wrong: set[Code] = set()
        if span.state == COVERED:
            wrong.add(Code.ALREADY_COVERED)
        if span.gone:
            wrong.add(Code.PRUNED)
        if source.version not in (None, span.version):
            wrong.add(Code.STALE_SOURCE)
        if planned_epoch is not None and span.epoch > planned_epoch:
            wrong.add(Code.STALE_SOURCE)
        if pins.get((source.span_id, span.version)) is PinCost.IMMOVABLE:
            wrong.add(Code.IMMOVABLE)
        return wrong

    def _broken_groups(self, ids: list[str]) -> set[Code]:
        wrong: set[Code] = set()
        for group in {self.spans[span_id].group for span_id in ids if span_id.startswith("l0:")} - {None}:
            members = {s for s in self.view if s.startswith("l0:") and self.spans[s].group == group}
            if members and not members <= set(ids):
                wrong.add(Code.SPLITS_GROUP)
            if members and group is not None and self.waits[group]:
                wrong.add(Code.OPEN_GROUP)
        return wrong

    def _broken_summary(self, command: Compact, before_bytes: int) -> set[Code]:
        assert command.summary is not None
        text = command.summary.content or ""
        wrong: set[Code] = set()
        if not text.strip():
            wrong.add(Code.EMPTY_SUMMARY)
        if len(text.encode()) >= before_bytes and not command.allow_larger:
            wrong.add(Code.NOT_SMALLER)
        return wrong

    def _broken_rewrite(self, command: Rewrite, pins: Pins) -> set[Code]:
        wrong = self._broken_change(command.span_id, command.base_version, pins)
        span = self.spans.get(command.span_id)
        if span is not None and command.base_hash not in (None, self.hash_of(span.level, span.data)):
            wrong.add(Code.STALE_SOURCE)
        if not command.text.content:
            wrong.add(Code.INVALID)
        return wrong

    def _broken_change(self, span_id: str, base_version: int | None, pins: Pins) -> set[Code]:
        if self.revision == 0:
            return {Code.UNKNOWN_CONTEXT}
        span = self.spans.get(span_id)
        if span is None:
            return {Code.UNKNOWN_SPAN}
        wrong: set[Code] = set()
        if span.state == COVERED:
            wrong.add(Code.COVERED)
        if span.gone:
            wrong.add(Code.PRUNED)
        if base_version not in (None, span.version):
            wrong.add(Code.STALE_SOURCE)
        if pins.get((span_id, span.version)) is PinCost.IMMOVABLE:
            wrong.add(Code.IMMOVABLE)
        return wrong

    # --- collecting ----------------------------------------------------------------------------------

    def may_take(self, step: str, version: Version, attempt: str) -> bool:
        """Whether a collector may take a step with a version."""
        state, owner = self.stones.get(version, (LIVE, None))
        match step:
            case "announce":
                return state in (TOMBSTONE, COLLECTING)
            case "call_off" | "condemn":
                return (state, owner) == (COLLECTING, attempt)
            case _:
                return state == CONDEMNED

    def take(self, step: str, versions: list[Version], attempt: str) -> None:
        """Takes it with versions that it may be taken with."""
        self.revision += 1
        states = {"announce": COLLECTING, "call_off": TOMBSTONE, "condemn": CONDEMNED, "finish": COLLECTED}
        for span_id, version in versions:
            state = states[step]
            self.stones[span_id, version] = (state, attempt if state in (COLLECTING, CONDEMNED) else None)
            if version == self.spans[span_id].version:
                self.spans[span_id].state = state

    # --- pointers ------------------------------------------------------------------------------------

    def resolved(
        self, pointer: Pointer, *, strict: bool, accept_superseded: bool
    ) -> tuple[int, bytes] | type[PointerResurrectionError]:
        """What an honestly minted pointer comes to: level and bytes, or the error."""
        span = self.spans[pointer.span_id]
        until = pointer.offset + pointer.length
        epochs: Mapping[bool, set[int]] = {True: {self.epoch, span.epoch}, False: set(range(self.epoch + 1))}
        if pointer.version != span.version:
            version = (pointer.span_id, pointer.version)
            kept = version in self.copies and self.stones[version][0] in (TOMBSTONE, COLLECTING)
            if not (accept_superseded and kept):
                return StaleSpanError
            if pointer.epoch not in epochs[strict]:
                return EpochMismatch
            return span.level, span.versions[pointer.version - 1][pointer.offset : until]
        if span.gone:
            return Unreachable
        if span.state == COVERED and pointer.accept_summary and span.level == 0:
            summary = self._standing_for(span)
            if summary is not None:
                if strict and pointer.epoch not in (self.epoch, summary.epoch):
                    return EpochMismatch
                return summary.level, summary.data
        if pointer.epoch not in epochs[strict]:
            return EpochMismatch
        return span.level, span.data[pointer.offset : until]

    def _standing_for(self, span: Span) -> Span | None:
        while span.covered_by is not None:
            span = self.spans[span.covered_by]
        return span if span.state == LIVE else None


def _bytes(text: str | None) -> bytes:
    return (text or "").encode()
