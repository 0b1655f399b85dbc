"""Decides what a command comes to: a record to commit, an outcome without one, or a need for a summary.

Nothing here reads a clock, a store or the network. Whoever calls it brings the tree of the head, the bytes
of the command's texts and the live pins, and carries out what it says. The record it returns is right for
exactly that tree: it must be committed with a compare-and-swap on that revision, or decided again.

Costs in proportion to the command, not to the context.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pydantic_core import to_json

from sexton.core import hash as hashing
from sexton.core.pins import NO_PINS, Pins
from sexton.core.text import is_blank, is_whole
from sexton.core.tree import Applied, ContextTree, Node
from sexton.schemas.codec import AnyCommand, AnyOutcome, AnyRecord
from sexton.schemas.commands import Append, Compact, Prune, Rewrite
from sexton.schemas.ids import TOP_LEVEL, Level, span_id
from sexton.schemas.leases import PinCost
from sexton.schemas.limits import MAX_SOURCES, MAX_SPAN_BYTES, MAX_UNKNOWN_LABELS_BYTES
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.records import Appended, Compacted, Pruned, Rewritten
from sexton.schemas.span import Identity, Labels, SpanEntry, SpanState, SpanVersion, Strategy, Text


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes that must be in the cold store, and read back, before the record that names them is committed."""

    span_id: str
    version: int
    content_hash: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit `record` on the revision it was decided on."""

    record: AnyRecord
    blobs: tuple[Blob, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """There is nothing to commit: a repeat of what was, no change, or a rejection."""

    outcome: AnyOutcome


@dataclass(frozen=True, slots=True)
class NeedsSummary:
    """The compaction is in order and has no summary yet."""

    sources: tuple[Node, ...]
    level: Level
    """Of the summary to be made."""


Decision = Commit | Settled | NeedsSummary


class _Refused(Exception):
    """Control flow inside this module; never seen outside."""

    def __init__(self, code: RejectionCode, message: str, *nodes: Node) -> None:
        super().__init__(message)
        self.code, self.message, self.nodes = code, message, nodes


def touched(tree: ContextTree, command: AnyCommand) -> tuple[tuple[str, int], ...]:
    """The versions whose live pins `decide` needs to know of, as far as they exist."""
    span_ids: tuple[str, ...] = ()
    if isinstance(command, Compact):
        span_ids = tuple(source.span_id for source in command.sources)
    elif isinstance(command, Rewrite | Prune):
        span_ids = (command.span_id,)
    nodes = [node for span_id in span_ids if (node := tree.nodes.get(span_id)) is not None]
    return tuple((node.span_id, node.version) for node in nodes)


def texts(command: AnyCommand) -> tuple[Text, ...]:
    """The texts whose bytes `decide` needs, in order."""
    match command:
        case Append():
            return command.spans
        case Compact():
            return () if command.summary is None else (command.summary,)
        case Rewrite():
            return (command.text,)
        case Prune():
            return ()


def decide(
    tree: ContextTree,
    command: AnyCommand,
    digest: str,
    contents: Sequence[bytes] = (),
    pins: Pins = NO_PINS,
    *,
    pins_whole: bool = True,
) -> Decision:
    """What `command` comes to on `tree`.

    Args:
        tree: the context at its head, with its events.
        command: what was asked for.
        digest: `body_digest` of the command's bytes.
        contents: the bytes of `texts(command)`, in the same order.
        pins: the live pins on the versions that the command touches.
        pins_whole: whether these are all. If the registry has lost some lately, a rewrite keeps the old
            version readable: unknown is not zero.
    """
    if command.context_id != tree.context_id:
        wrong = f"a command for {command.context_id} is none for {tree.context_id}"
        return Settled(rejection(tree, command, RejectionCode.INVALID, wrong))
    if (repeat := repeated(tree, command, digest)) is not None:
        return Settled(repeat)
    try:
        match command:
            case Append():
                return _append(tree, command, digest, contents)
            case Compact():
                return _compact(tree, command, digest, contents, pins)
            case Rewrite():
                return _rewrite(tree, command, digest, contents[0], pins, pins_whole=pins_whole)
            case Prune():
                return _prune(tree, command, digest, pins)
    except _Refused as refused:
        return Settled(rejection(tree, command, refused.code, refused.message, refused.nodes))


def repeated(tree: ContextTree, command: AnyCommand, digest: str) -> AnyOutcome | None:
    """The outcome of a command that this context has committed before; None if it has not."""
    known = tree.events.get(command.event_id) if tree.events is not None else None
    if known is None:
        return None
    asked = command.requested_digest if isinstance(command, Compact) else None
    if known.digest not in (digest, asked):
        return rejection(
            tree,
            command,
            RejectionCode.EVENT_ID_REUSED,
            f"event {command.event_id} was committed at revision {known.revision} with another body",
        )
    return committed(tree.context_id, command.event_id, known)


def committed(context_id: str, event_id: str, known: Applied) -> Committed:
    """The outcome of a committed command."""
    return Committed(
        context_id=context_id,
        event_id=event_id,
        kind=known.kind,
        revision=known.revision,
        epoch=known.epoch,
        spans=tuple(SpanVersion(span_id=s, version=v) for s, v in known.spans),
        strategy=known.strategy,
        size_before_bytes=known.size_before_bytes,
        size_after_bytes=known.size_after_bytes,
    )


def rejection(
    tree: ContextTree, command: AnyCommand, code: RejectionCode, message: str, nodes: Sequence[Node] = ()
) -> Rejected:
    """A rejection of `command`, with the current identity of what was in the way."""
    return Rejected(
        context_id=tree.context_id,
        event_id=command.event_id,
        code=code,
        message=message,
        spans=tuple(node.current for node in nodes),
        revision=tree.revision,
        epoch=tree.epoch,
    )


# --- the four commands -------------------------------------------------------------------------------


def _append(tree: ContextTree, command: Append, digest: str, contents: Sequence[bytes]) -> Decision:
    entries: list[SpanEntry] = []
    for i, (span, data) in enumerate(zip(command.spans, contents, strict=True)):
        _check_bytes(data, f"spans.{i}")
        _check_labels(span.labels, f"spans.{i}")
        name = span.name if span.name is not None else f"{command.event_id}-{i}"
        entries.append(
            SpanEntry(
                span_id=span_id(Level.L0_VERBATIM, name),
                level=Level.L0_VERBATIM,
                version=1,
                content_hash=hashing.content_hash(Level.L0_VERBATIM, data),
                size_bytes=len(data),
                labels=span.labels,
            )
        )
    seen: set[str] = set()
    for entry in entries:
        if entry.span_id in seen:
            raise _Refused(RejectionCode.SPAN_EXISTS, f"{entry.span_id} is named twice in this append")
        seen.add(entry.span_id)
        _check_unused(tree, entry.span_id)
    record = Appended(
        context_id=tree.context_id,
        revision=tree.revision + 1,
        epoch=tree.epoch,
        event_id=command.event_id,
        digest=digest,
        chain=hashing.UNLINKED,
        spans=tuple(entries),
    )
    return _commit(tree, record, entries, contents)


def _compact(
    tree: ContextTree, command: Compact, digest: str, contents: Sequence[bytes], pins: Pins
) -> Decision:
    if not command.sources:
        return Settled(_no_change(tree, command, "nothing to compact"))
    sources = _sources(tree, command)
    level = _level_above(sources)
    _check_run(sources)
    _check_groups(tree, sources)
    _check_movable(sources, pins)
    name = command.name if command.name is not None else command.event_id
    summary_id = span_id(level, name)
    _check_unused(tree, summary_id)
    _check_labels(command.labels, "summary")
    if command.summary is None:
        return NeedsSummary(tuple(sources), level)

    data = contents[0]
    before_bytes = sum(node.size_bytes for node in sources)
    if is_blank(data):
        raise _Refused(RejectionCode.EMPTY_SUMMARY, "the summary is empty or blank")
    _check_bytes(data, "summary")
    if len(data) >= before_bytes and not command.allow_larger:
        raise _Refused(
            RejectionCode.NOT_SMALLER,
            f"the summary has {len(data)} bytes, its sources {before_bytes}",
        )
    entry = SpanEntry(
        span_id=summary_id,
        level=level,
        version=1,
        content_hash=hashing.content_hash(level, data),
        size_bytes=len(data),
        labels=command.labels,
    )
    record = Compacted(
        context_id=tree.context_id,
        revision=tree.revision + 1,
        epoch=tree.epoch + 1,
        event_id=command.event_id,
        digest=command.requested_digest or digest,
        chain=hashing.UNLINKED,
        summary=entry,
        sources=tuple(SpanVersion(span_id=node.span_id, version=node.version) for node in sources),
        size_before_bytes=before_bytes,
        size_after_bytes=len(data),
    )
    return _commit(tree, record, [entry], [data])


def _rewrite(
    tree: ContextTree, command: Rewrite, digest: str, data: bytes, pins: Pins, *, pins_whole: bool
) -> Decision:
    node = _changeable(tree, command.span_id)
    if command.base_version not in (None, node.version) or command.base_hash not in (None, node.content_hash):
        raise _Refused(
            RejectionCode.STALE_SOURCE, f"{node.span_id} is at version {node.version} by now", node
        )
    _check_bytes(data, "text")
    new_hash = hashing.content_hash(node.level, data)
    if new_hash == node.content_hash:
        return Settled(_no_change(tree, command, f"{node.span_id} has these bytes already"))
    _check_movable([node], pins)
    keep = not pins_whole or pins.get((node.span_id, node.version)) is PinCost.EXPENSIVE
    after = Identity(
        span_id=node.span_id,
        version=node.version + 1,
        level=node.level,
        content_hash=new_hash,
        size_bytes=len(data),
    )
    record = Rewritten(
        context_id=tree.context_id,
        revision=tree.revision + 1,
        epoch=tree.epoch + 1,
        event_id=command.event_id,
        digest=digest,
        chain=hashing.UNLINKED,
        before=node.identity,
        after=after,
        strategy=Strategy.COPY_ON_REWRITE if keep else Strategy.INVALIDATE_AND_REKEY,
    )
    return _commit(tree, record, [after], [data])


def _prune(tree: ContextTree, command: Prune, digest: str, pins: Pins) -> Decision:
    node = _changeable(tree, command.span_id)
    if command.base_version not in (None, node.version):
        raise _Refused(
            RejectionCode.STALE_SOURCE, f"{node.span_id} is at version {node.version} by now", node
        )
    _check_movable([node], pins)
    record = Pruned(
        context_id=tree.context_id,
        revision=tree.revision + 1,
        epoch=tree.epoch + 1,
        event_id=command.event_id,
        digest=digest,
        chain=hashing.UNLINKED,
        span=node.identity,
    )
    return _commit(tree, record, [], [])


# --- rules they share --------------------------------------------------------------------------------


def _sources(tree: ContextTree, command: Compact) -> list[Node]:
    """The nodes of a compaction's sources: known, in the view, and as the sender believes."""
    if len(command.sources) > MAX_SOURCES:
        raise _Refused(
            RejectionCode.TOO_MANY_SOURCES, f"{len(command.sources)} sources, at most {MAX_SOURCES}"
        )
    nodes = [_known(tree, source.span_id) for source in command.sources]
    # All are looked at, not only the first: a range may overlap several earlier compactions.
    if covered := [node for node in nodes if node.state is SpanState.COVERED]:
        named = ", ".join(f"{node.span_id} (by {node.covered_by})" for node in covered[:5])
        raise _Refused(RejectionCode.ALREADY_COVERED, f"already under a summary: {named}", *covered)
    if gone := [node for node in nodes if node.state is not SpanState.LIVE]:
        raise _Refused(RejectionCode.PRUNED, f"{gone[0].span_id} has left the view", *gone)
    changed = [
        node
        for node, source in zip(nodes, command.sources, strict=True)
        if source.version not in (None, node.version)
        or (command.planned_epoch is not None and node.epoch > command.planned_epoch)
    ]
    if changed:
        raise _Refused(
            RejectionCode.STALE_SOURCE,
            f"{changed[0].span_id} is at version {changed[0].version} since epoch {changed[0].epoch}",
            *changed,
        )
    return nodes


def _level_above(sources: Sequence[Node]) -> Level:
    level = sources[0].level
    if other := [node for node in sources if node.level is not level]:
        raise _Refused(
            RejectionCode.MIXED_LEVEL,
            f"{sources[0].span_id} is {level.name}, {other[0].span_id} is {other[0].level.name}",
            sources[0],
            other[0],
        )
    if level is TOP_LEVEL:
        raise _Refused(RejectionCode.TOP_LEVEL, f"{level.name} is the highest level", sources[0])
    return Level(level + 1)


def _check_run(sources: Sequence[Node]) -> None:
    for left, right in pairwise(sources):
        if left.next != right.span_id:
            raise _Refused(
                RejectionCode.NOT_CONTIGUOUS,
                f"in the view, {left.span_id} is followed by {left.next or 'nothing'}, not {right.span_id}",
                left,
                right,
            )


def _check_groups(tree: ContextTree, sources: Sequence[Node]) -> None:
    """A call and its results go together, and not before all results are there."""
    members: dict[str, list[Node]] = {}
    for node in sources:
        if node.labels.group is not None and node.level.verbatim:
            members.setdefault(node.labels.group, []).append(node)
    for name, inside in members.items():
        group = tree.groups.get(name)
        if group is None:
            continue
        if group.open:
            raise _Refused(RejectionCode.OPEN_GROUP, f"group {name} still waits for a result", *inside)
        if group.live != len(inside):
            raise _Refused(
                RejectionCode.SPLITS_GROUP,
                f"group {name} has {group.live} spans in the view, {len(inside)} of them among the sources",
                *inside,
            )


def _check_movable(nodes: Sequence[Node], pins: Pins) -> None:
    if held := [n for n in nodes if pins.get((n.span_id, n.version)) is PinCost.IMMOVABLE]:
        raise _Refused(RejectionCode.IMMOVABLE, f"a live holder needs {held[0].span_id} as it is", *held)


def _known(tree: ContextTree, wanted: str) -> Node:
    if tree.revision == 0:
        raise _Refused(RejectionCode.UNKNOWN_CONTEXT, f"nothing was ever appended to {tree.context_id}")
    node = tree.nodes.get(wanted)
    if node is None:
        raise _Refused(RejectionCode.UNKNOWN_SPAN, f"{wanted} is not a span of {tree.context_id}")
    return node


def _changeable(tree: ContextTree, wanted: str) -> Node:
    node = _known(tree, wanted)
    if node.state is SpanState.COVERED:
        raise _Refused(RejectionCode.COVERED, f"{wanted} is under {node.covered_by} and immutable", node)
    if node.state is not SpanState.LIVE:
        raise _Refused(RejectionCode.PRUNED, f"{wanted} has left the view", node)
    return node


def _check_unused(tree: ContextTree, wanted: str) -> None:
    node = tree.nodes.get(wanted)
    if node is not None:
        raise _Refused(RejectionCode.SPAN_EXISTS, f"{wanted} exists or existed; ids are never reused", node)


def _check_bytes(data: bytes, what: str) -> None:
    if not data:
        raise _Refused(RejectionCode.INVALID, f"{what}: an empty span holds nothing to point at")
    if len(data) > MAX_SPAN_BYTES:
        raise _Refused(
            RejectionCode.TOO_LARGE, f"{what}: {len(data)} bytes, a span has at most {MAX_SPAN_BYTES}"
        )
    if not is_whole(data):
        raise _Refused(RejectionCode.INVALID, f"{what}: not UTF-8")


def _check_labels(labels: Labels, what: str) -> None:
    if labels.model_extra and (size := len(to_json(labels.model_extra))) > MAX_UNKNOWN_LABELS_BYTES:
        raise _Refused(
            RejectionCode.TOO_LARGE,
            f"{what}: {size} bytes of unknown labels, a span has at most {MAX_UNKNOWN_LABELS_BYTES}",
        )


def _no_change(tree: ContextTree, command: AnyCommand, reason: str) -> NoChange:
    return NoChange(
        context_id=tree.context_id,
        event_id=command.event_id,
        revision=tree.revision,
        epoch=tree.epoch,
        reason=reason,
    )


def _commit(
    tree: ContextTree, record: AnyRecord, spans: Sequence[Identity], contents: Sequence[bytes]
) -> Commit:
    blobs = [Blob(s.span_id, s.version, s.content_hash, d) for s, d in zip(spans, contents, strict=True)]
    return Commit(hashing.linked(tree.chain, record), tuple(blobs))
