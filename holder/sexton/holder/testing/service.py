"""The service in memory: one worker, its log and its store, over the core that the real one uses."""

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from sexton.core.answer import SyncMode, error_part, fetch_parts, records_gone, sync_mode, sync_parts
from sexton.core.apply import apply
from sexton.core.check import accept, check, diagnose
from sexton.core.collection import Version, announce, call_off, condemn, finish
from sexton.core.decide import Commit, NeedsSummary, Settled, decide, rejection, texts, touched
from sexton.core.hash import body_digest
from sexton.core.lease_parts import lease_parts
from sexton.core.pinning import judge
from sexton.core.pins import Pins, highest
from sexton.core.registry import RegistryState
from sexton.core.tree import ContextTree
from sexton.schemas.base import Message
from sexton.schemas.codec import AnyCommand, AnyOutcome, AnyRecord, decode, decode_command, event_id_of
from sexton.schemas.commands import Append, CommandKind, Compact, SourceRef
from sexton.schemas.errors import (
    HashMismatch,
    InvalidInput,
    LeafLost,
    MalformedMessage,
    SextonError,
    Unavailable,
    UnsupportedSchema,
)
from sexton.schemas.ids import Level
from sexton.schemas.leases import (
    GrantedPin,
    HeartbeatRequest,
    HolderRequest,
    LeaseReply,
    Pin,
    PinRequest,
    RefusedPin,
    ReleaseRequest,
)
from sexton.schemas.limits import SYNC_TAIL_RECORDS
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.schemas.rpc import FetchRequest, PutReply, PutRequest, SyncRequest, Tier, Verb
from sexton.schemas.span import Claim, Text

OnRecord = Callable[[bytes], None]
Summarise = Callable[[Sequence[str], Level], str]
M = TypeVar("M", bound=Message)
CollectorStep = Callable[[ContextTree, Sequence[Version], str], AnyRecord | None]


@dataclass(slots=True)
class _Stored:
    """One context: its log, its bytes, and what was left for claims."""

    tree: ContextTree
    log: list[AnyRecord] = field(default_factory=list)
    cold: dict[tuple[str, int], bytes] = field(default_factory=dict)
    chunks: dict[tuple[str, str | None, int], bytes] = field(default_factory=dict)
    listeners: list[OnRecord] = field(default_factory=list)

    def commit(self, record: AnyRecord) -> None:
        """Adds a record, and broadcasts it."""
        self.tree = apply(self.tree, record)
        self.log.append(record)
        for listener in list(self.listeners):
            listener(record.wire())


class MemoryService:
    """Everything behind a transport. Any number of transports may share one."""

    def __init__(
        self,
        *,
        summarise: Summarise | None = None,
        tail_records: int = SYNC_TAIL_RECORDS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.summarise = summarise
        """Makes the summaries of compactions that come without one; None: they are `summary_failed`."""
        self.registry_down = False
        """Who holds what cannot be asked: all commands but appends are `registry_unavailable`."""
        self.tail_records = tail_records
        """A holder further behind gets a snapshot."""
        self.monotonic = monotonic
        """The registry's clock, in seconds: leases run out by it."""
        self.registries: dict[str, RegistryState] = {}
        """Leases and pins by context. Clear it to lose the registry."""
        self.pins: dict[str, Pins] = defaultdict(dict)
        """Pins of others by context, as a test sets them, beside those in `registries`."""
        self.asked: Counter[Verb] = Counter()
        """Requests answered, by verb."""
        self.commands = 0
        """Commands carried out, repeats counted."""
        self.cold_down = False
        """The store does not answer: fetches are `Unavailable`."""
        self.tamper: Callable[[bytes], bytes] | None = None
        """Changes bytes behind every check of the service, as a broken worker would."""
        self._contexts: dict[str, _Stored] = {}

    # --- what a test looks at and does ---

    def tree(self, context_id: str) -> ContextTree:
        """A context at its head."""
        return self._stored(context_id).tree

    def log(self, context_id: str) -> tuple[AnyRecord, ...]:
        """All records of a context."""
        return tuple(self._stored(context_id).log)

    def damage(self, context_id: str, span_id: str, version: int = 1) -> None:
        """Changes the bytes of a version in the store."""
        cold = self._stored(context_id).cold
        cold[span_id, version] = bytes(byte ^ 1 for byte in cold[span_id, version])

    def lose(self, context_id: str, span_id: str, version: int = 1) -> None:
        """Removes the bytes of a version from the store."""
        del self._stored(context_id).cold[span_id, version]

    def drop_claims(self, context_id: str) -> None:
        """Forgets what was left for claim checks."""
        self._stored(context_id).chunks.clear()

    def restore(self, context_id: str, revision: int = 0) -> None:
        """Takes the log back to an older copy of it; to revision 0, it is recreated. Holders are not told."""
        stored = self._stored(context_id)
        stored.log = stored.log[:revision]
        stored.tree = ContextTree.empty(context_id)
        for record in stored.log:
            stored.tree = apply(stored.tree, record)

    def announce(self, context_id: str, *versions: Version, attempt: str = "attempt") -> None:
        """Announces the collection of tombstones, as a sweep does before it checks again for pins."""
        self._collector_step(context_id, announce, versions, attempt)

    def call_off(self, context_id: str, *versions: Version, attempt: str = "attempt") -> None:
        """Calls off what that attempt has announced."""
        self._collector_step(context_id, call_off, versions, attempt)

    def collect(self, context_id: str, *versions: Version, attempt: str = "attempt") -> None:
        """Collects tombstones, as a sweep does that has found no live pin on them. Pins are not looked at."""
        self.announce(context_id, *versions, attempt=attempt)
        self._collector_step(context_id, condemn, versions, attempt)
        for version in versions:
            self._stored(context_id).cold.pop(version, None)
        self._collector_step(context_id, finish, versions, attempt)

    # --- what a transport needs ---

    def listen(self, context_id: str, on_record: OnRecord) -> Callable[[], None]:
        """Has `on_record` called with each record that is committed. The returned function ends it."""
        listeners = self._stored(context_id).listeners
        listeners.append(on_record)

        def end() -> None:
            with suppress(ValueError):
                listeners.remove(on_record)

        return end

    def carry_out(self, context_id: str, kind: CommandKind, body: bytes) -> bytes:
        """Carries out a command. Gives its outcome, on the wire."""
        self.commands += 1
        try:
            command = decode_command(body)
        except (InvalidInput, MalformedMessage, UnsupportedSchema) as e:
            code = _CODES.get(e.code, RejectionCode.INVALID)
            return _refused(context_id, body, code, e.message).wire()
        if (command.context_id, command.kind) != (context_id, kind):
            what = "the command was sent to another subject than its own"
            return _refused(context_id, body, RejectionCode.INVALID, what).wire()
        return self._outcome(command, body_digest(body)).wire()

    def answer(self, context_id: str, verb: Verb, body: bytes) -> list[bytes]:
        """Answers a request. Gives the parts of the reply, on the wire."""
        self.asked[verb] += 1
        try:
            return [part.wire() for part in self._parts(context_id, verb, body)]
        except SextonError as e:
            return [error_part(context_id, e).wire()]

    # --- inside ---

    def _stored(self, context_id: str) -> _Stored:
        if context_id not in self._contexts:
            self._contexts[context_id] = _Stored(ContextTree.empty(context_id))
        return self._contexts[context_id]

    def _outcome(self, command: AnyCommand, digest: str) -> AnyOutcome:
        stored = self._stored(command.context_id)
        contents: list[bytes] = []
        for text in texts(command):
            data = _content(stored, text)
            if data is None:
                return rejection(
                    stored.tree, command, RejectionCode.CLAIM_MISSING, "the claimed content is not here"
                )
            contents.append(data)
        decision = decide(stored.tree, command, digest, contents, self._live_pins(command))
        if self.registry_down and not isinstance(command, Append) and not isinstance(decision, Settled):
            return rejection(stored.tree, command, RejectionCode.REGISTRY_UNAVAILABLE, "as the test says")
        match decision:
            case Commit():
                stored.cold.update({(b.span_id, b.version): b.data for b in decision.blobs})
                stored.commit(decision.record)
                return self._outcome(command, digest)  # a repeat by now
            case NeedsSummary():
                assert isinstance(command, Compact)  # noqa: S101 - nothing else needs one
                return self._summarised(stored, command, digest, decision)
        return decision.outcome

    def _summarised(self, stored: _Stored, command: Compact, digest: str, need: NeedsSummary) -> AnyOutcome:
        if self.summarise is None:
            return rejection(
                stored.tree, command, RejectionCode.SUMMARY_FAILED, "this service makes no summaries"
            )
        sources = [stored.cold[node.span_id, node.version].decode() for node in need.sources]
        changed: dict[str, Any] = {
            "summary": Text(content=self.summarise(sources, need.level)),
            "sources": tuple(SourceRef(span_id=n.span_id, version=n.version) for n in need.sources),
            "requested_digest": digest,
        }
        complete = command.model_copy(update=changed)
        return self._outcome(complete, body_digest(complete.wire()))

    def _collector_step(
        self, context_id: str, step: CollectorStep, versions: Sequence[Version], attempt: str
    ) -> None:
        stored = self._stored(context_id)
        record = step(stored.tree, versions, attempt)
        if record is None:
            raise ValueError(f"none of {versions} is in a state for it")
        stored.commit(record)

    def _parts(self, context_id: str, verb: Verb, body: bytes) -> Iterator[Message]:
        match verb:
            case Verb.SYNC:
                yield from self._sync(_same(context_id, decode(SyncRequest, body)))
            case Verb.FETCH:
                yield from self._fetch(_same(context_id, decode(FetchRequest, body)))
            case Verb.PUT:
                put = _same(context_id, decode(PutRequest, body))
                self._stored(context_id).chunks[put.claim.digest, put.claim.upload_id, put.index] = put.data
                yield PutReply(context_id=context_id)
            case Verb.PIN:
                yield from lease_parts(self._pin(_same(context_id, decode(PinRequest, body))))
            case Verb.RELEASE:
                yield self._release(_same(context_id, decode(ReleaseRequest, body)))
            case Verb.HEARTBEAT:
                yield from lease_parts(self._heartbeat(_same(context_id, decode(HeartbeatRequest, body))))

    def _heartbeat(self, request: HeartbeatRequest) -> LeaseReply:
        operation, announce = self._registry(request.context_id).beat(request, self._now_ms())
        return self._judged(request, request.pins or (), operation=operation, announce=announce)

    def _pin(self, request: PinRequest) -> LeaseReply:
        taken = self._registry(request.context_id).pin(request, self._now_ms())
        return self._judged(
            request, request.pins if taken else (), operation=request.operation, announce=not taken
        )

    def _release(self, request: ReleaseRequest) -> LeaseReply:
        taken = self._registry(request.context_id).release(request, self._now_ms())
        return self._judged(request, (), operation=request.operation, announce=not taken)

    def _judged(
        self, request: HolderRequest, pins: Sequence[Pin], *, operation: int, announce: bool
    ) -> LeaseReply:
        tree = self._stored(request.context_id).tree
        verdicts = [judge(tree, pin) for pin in pins]
        refused = tuple(v for v in verdicts if isinstance(v, RefusedPin))
        if refused:
            self._registry(request.context_id).withdraw(request, refused)
        return LeaseReply(
            context_id=request.context_id,
            head=tree.head,
            operation=operation,
            granted=tuple(v for v in verdicts if isinstance(v, GrantedPin)),
            refused=refused,
            announce=announce,
        )

    def _registry(self, context_id: str) -> RegistryState:
        if context_id not in self.registries:
            self.registries[context_id] = RegistryState(f"memory-{self._now_ms()}", self._now_ms())
        return self.registries[context_id]

    def _live_pins(self, command: AnyCommand) -> Pins:
        """The pins on what a command touches: those of holders, and those that a test has set."""
        stored, registry = self._stored(command.context_id), self._registry(command.context_id)
        found = dict(self.pins[command.context_id])
        for version in touched(stored.tree, command):
            costs = [pin.cost for pin in registry.live(version, self._now_ms())]
            cost = highest([*costs, *([found[version]] if version in found else [])])
            if cost is not None:
                found[version] = cost
        return found

    def _now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def _sync(self, request: SyncRequest) -> Iterator[Message]:
        stored = self._stored(request.context_id)
        mode = sync_mode(stored.tree, request, self.tail_records)
        kept_from = stored.tree.revision - self.tail_records + 1
        if mode is SyncMode.RECORDS and request.revision + 1 < kept_from:
            return iter([records_gone(stored.tree, kept_from)])
        tail = [
            (record.model_dump(mode="json", exclude_none=True), len(record.wire()))
            for record in stored.log[request.revision :]
        ]
        return iter(sync_parts(stored.tree, mode, tail))

    def _fetch(self, request: FetchRequest) -> Iterator[Message]:
        stored = self._stored(request.context_id)
        verdict = check(
            request.pointer, stored.tree, strict=request.strict, accept_superseded=request.accept_superseded
        )
        target, pointer = verdict.granted()
        if self.cold_down:
            raise Unavailable("the store does not answer", operation="cold.read")
        whole = stored.cold.get((target.span_id, target.version))
        if whole is None:
            raise LeafLost(
                f"{target.span_id} version {target.version} is not in the store",
                span_id=target.span_id,
                version=target.version,
            )
        data = whole[pointer.offset : pointer.offset + pointer.length]
        try:
            answer = accept(verdict, data, Tier.COLD)
        except HashMismatch:
            raise diagnose(verdict, whole) from None
        return iter(fetch_parts(answer, self.tamper(data) if self.tamper is not None else data))


_CODES: Final = {
    MalformedMessage.code: RejectionCode.MALFORMED,
    UnsupportedSchema.code: RejectionCode.UNSUPPORTED_SCHEMA,
}

R = TypeVar("R", SyncRequest, FetchRequest, PutRequest, PinRequest, ReleaseRequest, HeartbeatRequest)


def _same(context_id: str, request: R) -> R:
    if request.context_id != context_id:
        raise InvalidInput(f"a request for {request.context_id} was sent to {context_id}")
    return request


def _refused(context_id: str, body: bytes, code: RejectionCode, message: str) -> Rejected:
    return Rejected(context_id=context_id, event_id=event_id_of(body), code=code, message=message)


def _content(stored: _Stored, text: Text) -> bytes | None:
    if text.claim is None:
        return (text.content or "").encode()
    return _claimed(stored, text.claim)


def _claimed(stored: _Stored, claim: Claim) -> bytes | None:
    chunks = [stored.chunks.get((claim.digest, claim.upload_id, index)) for index in range(claim.chunks)]
    data = b"".join(chunk for chunk in chunks if chunk is not None)
    return data if body_digest(data) == claim.digest else None
