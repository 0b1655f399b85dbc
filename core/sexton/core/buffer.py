"""The whole contract in one process, with no server: the same rules, over a dictionary of bytes.

For agents that share a context within one program, for tests, and for seeing what the protocol does::

    buffer = ContextBuffer("notes")
    buffer.add("l0:plan", "Ship on Friday.")
    quote = buffer.mint("l0:plan")
    buffer.rewrite("l0:plan", "Ship on Monday.")
    buffer.resolve(quote)                   # raises StaleSpanError; its `current` says what is there now
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from sexton.core import text as utf8
from sexton.core.apply import apply
from sexton.core.artifact import DerivedArtifact, check_artifact, current_key
from sexton.core.check import Verdict, accept, check, diagnose, mint
from sexton.core.decide import Commit, NeedsSummary, decide, texts
from sexton.core.hash import body_digest
from sexton.core.pins import NO_PINS, Pins
from sexton.core.tree import ContextTree, Node
from sexton.schemas.codec import AnyCommand, AnyRecord
from sexton.schemas.commands import Append, Compact, Prune, Rewrite
from sexton.schemas.errors import CommandRejected, HashMismatch, InvalidInput, LeafLost
from sexton.schemas.ids import level_of, token
from sexton.schemas.outcome import Committed, NoChange, Rejected
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Answer, Tier
from sexton.schemas.span import Labels, NewSpan, SpanState, Text

T = TypeVar("T")
C = TypeVar("C", Append, Compact, Rewrite, Prune)


@dataclass(frozen=True, slots=True)
class Resolved:
    """Bytes, with what they are: a summary cannot be taken for a quote by accident."""

    data: bytes
    answer: Answer

    @property
    def text(self) -> str:
        """The bytes as text."""
        return self.data.decode()


class ContextBuffer:
    """One context, kept in memory.

    Every change goes through `decide` and `apply`, every read through `check` and `accept`, as it does in
    the service.
    """

    def __init__(self, context_id: str = "local") -> None:
        self._tree = ContextTree.empty(token(context_id, "context_id"))
        self._cold: dict[tuple[str, int], bytes] = {}
        self._log: list[AnyRecord] = []
        self.pins: Pins = NO_PINS
        """Live pins, if the program keeps any."""

    @property
    def tree(self) -> ContextTree:
        """The context as it is now; a value that stays as it is."""
        return self._tree

    @property
    def epoch(self) -> int:
        """Counts the changes that can make a pointer wrong."""
        return self._tree.epoch

    @property
    def log(self) -> Sequence[AnyRecord]:
        """All records so far."""
        return tuple(self._log)

    def add(self, span_id: str, content: str, *, labels: Labels | None = None) -> Committed:
        """Adds a leaf, `l0:NAME`, at the end. Raises `CommandRejected` if the id was ever used."""
        if not level_of(span_id).verbatim:
            raise InvalidInput(f"only leaves are added; {span_id} is a summary's id", field="span_id")
        utf8.encode(content)
        span = NewSpan(name=span_id[3:], content=content, labels=labels or Labels())
        return self._done(self._made(Append, spans=(span,)))

    def compact(
        self, sources: Sequence[str], summary: str, *, name: str | None = None, allow_larger: bool = False
    ) -> Committed | NoChange:
        """Puts a summary in the place of a run of the view. Raises `CommandRejected`."""
        command = self._made(
            Compact,
            sources=[{"span_id": span_id} for span_id in sources],
            summary=Text(content=summary),
            name=name,
            allow_larger=allow_larger,
            planned_epoch=self._tree.epoch,
        )
        return self._outcome(command)

    def rewrite(self, span_id: str, content: str, *, base_version: int | None = None) -> Committed | NoChange:
        """Changes a span in place. Without `base_version` the current version is the base."""
        utf8.encode(content)
        if base_version is None:
            node = self._tree.nodes.get(span_id)
            base_version = node.version if node is not None else 1
        text = Text(content=content)
        return self._outcome(self._made(Rewrite, span_id=span_id, base_version=base_version, text=text))

    def prune(self, span_id: str) -> Committed:
        """Drops a span from the view."""
        return self._done(self._made(Prune, span_id=span_id))

    def submit(self, command: AnyCommand) -> Committed | NoChange | Rejected:
        """Carries out any command, and gives its outcome instead of raising. A repeat counts once."""
        contents = [_inline(text) for text in texts(command)]
        decision = decide(self._tree, command, body_digest(command.wire()), contents, self.pins)
        if isinstance(decision, NeedsSummary):
            raise InvalidInput("a buffer in one process has no summariser: give a summary", field="summary")
        if isinstance(decision, Commit):
            self._cold.update({(b.span_id, b.version): b.data for b in decision.blobs})
            self._tree = apply(self._tree, decision.record)
            self._log.append(decision.record)
            decision = decide(self._tree, command, decision.record.digest, contents, self.pins)
            assert not isinstance(decision, Commit | NeedsSummary)  # noqa: S101 - it is a repeat by now
        return decision.outcome

    def mint(self, span_id: str, *, offset: int = 0, length: int | None = None) -> Pointer:
        """A pointer to a span or to a part of it, in bytes of UTF-8."""
        whole = mint(self._tree, span_id)
        if (offset, length) in ((0, None), (0, whole.length)):
            return whole
        size = whole.length - offset if length is None else length
        part = utf8.cut(self._cold[span_id, whole.version], offset, size)
        return mint(self._tree, span_id, offset=offset, length=size, part=part)

    def resolve(self, pointer: Pointer, *, strict: bool = False, accept_superseded: bool = False) -> Resolved:
        """The bytes of a pointer, with what they are, or the error that says why not."""
        verdict = check(pointer, self._tree, strict=strict, accept_superseded=accept_superseded)
        target, stamped = verdict.granted()
        whole = self._bytes(verdict)
        data = whole[stamped.offset : stamped.offset + stamped.length]
        tier = Tier.COLD if self._tree.nodes[target.span_id].state is SpanState.COVERED else Tier.MEMORY
        try:
            return Resolved(data, accept(verdict, data, tier))
        except HashMismatch:
            raise diagnose(verdict, whole) from None

    def derive(self, span_id: str, build: Callable[[str], T]) -> DerivedArtifact[T]:
        """Makes something from a span's text, keyed to exactly this version of it."""
        key = current_key(self._tree, span_id)
        return DerivedArtifact(key, build(self.resolve(self.mint(span_id)).text), build)

    def use(self, artifact: DerivedArtifact[T], *, rederive: bool = False) -> T:
        """The artifact's value, if its span is still what it was made from.

        Raises:
            StaleSpanError: the span was rewritten; `rederive=True` builds it anew instead.
            Unreachable: the span is gone.
        """
        span_id = artifact.key.span_id
        if rederive and artifact.build is not None and current_key(self._tree, span_id) != artifact.key:
            return self.derive(span_id, artifact.build).value
        return check_artifact(self._tree, artifact)

    def render(self) -> str:
        """The active view as one text."""
        return "".join(self._cold[node.span_id, node.version].decode() for node in self._tree.view())

    def view(self) -> list[Node]:
        """The active view, in order."""
        return list(self._tree.view())

    def _made(self, kind: type[C], **fields: Any) -> C:
        """A command on this context under the next event id, of fields that a caller gave."""
        event_id = f"local-{self._tree.revision + 1}"
        try:
            return kind(context_id=self._tree.context_id, event_id=event_id, **fields)
        except ValidationError as e:
            first = e.errors(include_url=False, include_context=False, include_input=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            raise InvalidInput(f"{place}: {first['msg']}", field=place) from None

    def _bytes(self, verdict: Verdict) -> bytes:
        target, _ = verdict.granted()
        try:
            return self._cold[target.span_id, target.version]
        except KeyError:
            raise LeafLost(f"{target.span_id} version {target.version} has no bytes") from None

    def _outcome(self, command: AnyCommand) -> Committed | NoChange:
        outcome = self.submit(command)
        if isinstance(outcome, Rejected):
            raise CommandRejected(f"{outcome.code.value}: {outcome.message}", outcome=outcome)
        return outcome

    def _done(self, command: AnyCommand) -> Committed:
        outcome = self._outcome(command)
        assert isinstance(outcome, Committed)  # noqa: S101 - only rewrites and empty compactions change nothing
        return outcome


def _inline(text: Text) -> bytes:
    if text.content is None:
        raise InvalidInput("a buffer in one process keeps no claims: give the content", field="claim")
    return utf8.encode(text.content) if text.content else b""
