"""Commands and contexts in a line each."""

from collections.abc import Sequence
from typing import Any, TypeVar

from sexton.core.apply import apply
from sexton.core.buffer import ContextBuffer
from sexton.core.decide import Commit, Decision, decide, texts
from sexton.core.hash import body_digest
from sexton.core.pins import NO_PINS, Pins
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand, AnyOutcome, AnyRecord
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.ids import TOP_LEVEL
from sexton.schemas.outcome import Committed, Rejected
from sexton.schemas.span import Labels, NewSpan, Text

CONTEXT = "ctx"

R = TypeVar("R", bound=AnyRecord)


def leaf(
    name: str | None, content: str | None = None, *, group: str | None = None, waits: bool = False
) -> NewSpan:
    """A leaf; `waits` says that its group still lacks a result. Its text is 20 bytes unless given."""
    text = content if content is not None else f"<{name}>".ljust(20, ".")
    return NewSpan(name=name, content=text, labels=Labels(group=group, open=waits))


def append(event_id: str, *spans: NewSpan | str, context_id: str = CONTEXT) -> Append:
    """An append of leaves; a bare string names a leaf with text of its own."""
    new = tuple(leaf(span) if isinstance(span, str) else span for span in spans)
    return Append(context_id=context_id, event_id=event_id, spans=new)


def compact(
    event_id: str,
    *sources: str | SourceRef,
    summary: str | None = "sum",
    context_id: str = CONTEXT,
    **more: Any,
) -> Compact:
    """A compaction; a bare string names a source without its version."""
    return Compact(
        context_id=context_id,
        event_id=event_id,
        sources=tuple(s if isinstance(s, SourceRef) else SourceRef(span_id=s) for s in sources),
        summary=None if summary is None else Text(content=summary),
        **more,
    )


def rewrite(event_id: str, span_id: str, content: str, **base: Any) -> Rewrite:
    """A rewrite, of version 1 unless a base is given."""
    return Rewrite(
        context_id=CONTEXT,
        event_id=event_id,
        span_id=span_id,
        text=Text(content=content),
        **(base or {"base_version": 1}),
    )


def prune(event_id: str, span_id: str, **base: Any) -> Prune:
    """A prune, of whatever version unless a base is given."""
    return Prune(context_id=CONTEXT, event_id=event_id, span_id=span_id, **base)


def tower() -> list[AnyCommand]:
    """One leaf under a summary of every level, `l0:a` to `l7:s`."""
    steps = (
        compact(f"up{level}", f"l{level}:s", summary="s", name="s", allow_larger=True)
        for level in range(1, TOP_LEVEL)
    )
    return [append("fill", "a"), compact("up0", "l0:a", name="s"), *steps]


def digest(command: AnyCommand) -> str:
    """What the service computes over a command's bytes."""
    return body_digest(command.wire())


def contents(command: AnyCommand) -> list[bytes]:
    """The bytes of a command's inline texts."""
    return [(text.content or "").encode() for text in texts(command)]


def decided(tree: ContextTree, command: AnyCommand, pins: Pins = NO_PINS) -> Decision:
    """What `decide` says of a command with inline texts."""
    return decide(tree, command, digest(command), contents(command), pins)


def committed(tree: ContextTree, command: AnyCommand, pins: Pins = NO_PINS) -> Commit:
    """The commit that a command comes to; fails if it does not."""
    decision = decided(tree, command, pins)
    assert isinstance(decision, Commit), decision
    return decision


def grown(tree: ContextTree, *commands: AnyCommand) -> ContextTree:
    """The tree after commands that must all commit."""
    for command in commands:
        tree = apply(tree, committed(tree, command).record)
    return tree


def filled(*names: str) -> ContextBuffer:
    """A buffer with one leaf of 20 bytes for each name."""
    buffer = ContextBuffer(CONTEXT)
    if names:
        done(buffer, append("fill", *names))
    return buffer


def done(buffer: ContextBuffer, *commands: AnyCommand) -> None:
    """Carries out commands that must all commit."""
    for command in commands:
        outcome = buffer.submit(command)
        assert isinstance(outcome, Committed), outcome


def rejected(outcome: AnyOutcome) -> Rejected:
    """The rejection that an outcome is; fails if it is none."""
    assert isinstance(outcome, Rejected), outcome
    return outcome


def view_ids(tree: ContextTree) -> Sequence[str]:
    """The ids of the view, in order."""
    return [node.span_id for node in tree.view()]
