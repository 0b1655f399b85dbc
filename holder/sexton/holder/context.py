"""One context in a holder: what an agent reads, writes and derives from."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, overload

from sexton.core.check import mint
from sexton.core.plan import Policy
from sexton.core.tree import ContextTree
from sexton.holder.bumps import Bumps
from sexton.holder.cache import ByteCache
from sexton.holder.calls import Calls
from sexton.holder.commands import Commands, Source
from sexton.holder.compact import Compaction, Summarise
from sexton.holder.derive import Build, Derived
from sexton.holder.fetch import Fetcher
from sexton.holder.follow import Follower
from sexton.holder.lease import LeaseKeeper
from sexton.holder.pins import Pinning, PinScope
from sexton.holder.ports import ConnectionEvent
from sexton.holder.render import Renderer
from sexton.holder.resolve import Consistency, Resolver
from sexton.holder.results import CompactionReport, Resolved
from sexton.holder.runtime import Runtime
from sexton.holder.send import Sender
from sexton.schemas.codec import AnyCommand, AnyOutcome
from sexton.schemas.errors import CommandRejected, InvalidInput, PeerError
from sexton.schemas.leases import PinCost
from sexton.schemas.outcome import Committed, NoChange, Rejected
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Head
from sexton.schemas.span import Labels, NewSpan

T = TypeVar("T")


class Context:
    """A context that this holder follows. Made by `Holder.open`.

    Any method may raise `HolderClosed` after `close`, `Unconfirmed` or `Unavailable` in an outage, and
    `PeerError` if the service breaks the contract. A command that was sent and not answered raises
    `OutcomeUnknown`: call the same again with the same `event_id` to learn what became of it.
    """

    def __init__(self, follower: Follower, runtime: Runtime, calls: Calls, cache: ByteCache) -> None:
        self._runtime = runtime
        self._follower = follower
        self._keeper = LeaseKeeper(follower.context_id, runtime, calls, on_head=follower.heard_head)
        follower.before_serving = self._keeper.prove
        self._sender = Sender(runtime, calls)
        self._fetcher = Fetcher(follower.context_id, runtime, calls, cache)
        self._resolver = Resolver(follower, self._fetcher, runtime, calls)
        self._renderer = Renderer(follower, self._fetcher, runtime)
        self._commands = Commands(follower.context_id, lambda: follower.tree)

    def __repr__(self) -> str:
        return f"<Context {self.context_id} at revision {self.tree.revision}, epoch {self.tree.epoch}>"

    # --- what is known ---

    @property
    def context_id(self) -> str:
        """Its name."""
        return self._follower.context_id

    @property
    def tree(self) -> ContextTree:
        """The context as known here, confirmed or not. A value: it stays as it is."""
        return self._follower.tree

    @property
    def head(self) -> Head:
        """Revision, epoch and chain as known here."""
        return self.tree.head

    @property
    def confirmed_age_s(self) -> float:
        """Seconds since the head was last confirmed to be the one known here; infinite if it never was."""
        return self._follower.confirmed_age_s

    @property
    def lineage(self) -> int:
        """Counts the times that the log was recreated or restored under this holder."""
        return self._follower.lineage

    async def sync(self) -> Head:
        """Catches up with the head of the log now, and says where that is."""
        await self._follower.sync()
        return self.head

    def bumps(self, from_revision: int | None = None) -> Bumps:
        """Every record from `from_revision` on, by default from the next one: `async for record in ...`.

        No reader misses one silently: where it cannot go on without a hole it raises `BumpsMissed`.
        """
        return Bumps(self._follower, from_revision)

    # --- pointers ---

    async def mint(self, span_id: str, *, offset: int = 0, length: int | None = None) -> Pointer:
        """A pointer to a span at its current version, or to a part of it, in bytes of UTF-8.

        Raises:
            InvalidInput: no span id at all.
            Unreachable: unknown or pruned.
            BoundaryError: outside the span, or inside a character; `nearest` says where a cut may be.
        """
        return await self._resolver.mint(span_id, offset, length)

    async def resolve(
        self,
        pointer: Pointer,
        *,
        consistency: Consistency = "bounded",
        strict: bool = False,
        accept_summary: bool | None = None,
        accept_superseded: bool = False,
        budget_s: float | None = None,
    ) -> Resolved:
        """The bytes of a pointer, with what they are, checked at this moment.

        Args:
            pointer: of this context.
            consistency: see `Consistency`.
            strict: refuse a pointer of another epoch instead of re-stamping it.
            accept_summary: take the covering summary for a covered leaf; None: as the pointer itself says.
            accept_superseded: take an old version that a copy-on-rewrite keeps.
            budget_s: how long it may take in all; the service spends at most that on its cold store.

        Raises:
            InvalidInput: another `consistency` than these, or a budget that is no length of time.
            PointerResurrectionError: `Unreachable`, `LevelMismatch`, `StaleSpanError` (its `current` says
                what is there now), `EpochMismatch` in strict mode, `HashMismatch`. Never other bytes instead.
            LeafLost, LeafCorrupt: the bytes are gone or damaged, and an operator knows.
            Unavailable: no answer within the budget, or none at all.
            Unsettled: the span changed with every try.
        """
        if accept_summary is not None:
            pointer = pointer.model_copy(update={"accept_summary": accept_summary})
        return await self._resolver.resolve(
            pointer,
            consistency=consistency,
            strict=strict,
            accept_superseded=accept_superseded,
            budget_s=budget_s,
        )

    async def revalidate(self, pointer: Pointer) -> Pointer:
        """The pointer, re-stamped to the current epoch, if level, version and hash are still as minted.

        Fetches nothing; the bytes are checked when they are used. Raises as `resolve`.
        """
        return await self._resolver.revalidate(pointer)

    async def expand(self, span_id: str) -> tuple[Pointer, ...]:
        """Pointers to the leaves under a summary, in order; to a leaf itself. Raises `Unreachable`."""

        def leaves(tree: ContextTree) -> tuple[Pointer, ...]:
            mint(tree, span_id)
            return tuple(mint(tree, node.span_id) for node in tree.leaves(span_id))

        return await self._resolver.on_tree(leaves)

    async def render(self) -> str:
        """The active view as one text, byte-stable while the revision stands.

        Raises:
            LeafLost, LeafCorrupt: a span of the view is gone or damaged.
            Unsettled: the view changed with every try.
        """
        return await self._renderer.render()

    @overload
    def derived(
        self,
        span_id: str,
        build: Callable[[str], Awaitable[T]],
        *,
        cost: PinCost | None = None,
        name: str | None = None,
    ) -> Derived[T]: ...

    @overload
    def derived(
        self,
        span_id: str,
        build: Callable[[str], T],
        *,
        cost: PinCost | None = None,
        name: str | None = None,
    ) -> Derived[T]: ...

    def derived(
        self, span_id: str, build: Build[T], *, cost: PinCost | None = None, name: str | None = None
    ) -> Derived[T]:
        """An artifact that follows a span: `await it.use()` gives it for the span as it is then.

        Args:
            span_id: of any level.
            build: makes it from the span's text; may be async.
            cost: pins the version that it was made from, and moves the pin when it is made anew; None: no
                pin. An `expensive` one keeps the old version readable over a rewrite.
            name: for the log.
        """
        return Derived(
            span_id,
            build,
            name,
            resolver=self._resolver,
            runtime=self._runtime,
            causes=self._follower.causes,
            pinning=None if cost is None else Pinning(self._keeper, self._follower.sync, cost),
        )

    def pin(self, span_id: str, *, cost: PinCost = PinCost.CHEAP, version: int | None = None) -> PinScope:
        """Pins a version of a span for as long as a block lasts: `async with context.pin(...) as pinned`.

        Its bytes are not collected while the pin is good. What else it does is a matter of `cost`.

        Args:
            span_id: of any level, in the view or covered.
            cost: what it would cost to lose this version.
            version: the one now if None; an older one can be pinned as long as it is kept.

        Raises, on entering the block:
            PinRefused: the version is unknown, being collected, or gone.
            Unreachable: the span is unknown or gone.
            Fenced: another process of this holder's name has taken its place.
            TooManyPins: over what one holder may pin in one context.
            TooManyHolders: so many holders have a lease that this one gets none.
            TransientError: no answer; nothing is pinned.
            Unsettled: the span was rewritten during every try.
        """
        return PinScope(
            self._resolver,
            self._keeper,
            self._follower.sync,
            span_id=span_id,
            cost=cost,
            version=version,
        )

    # --- commands ---

    async def append(
        self,
        content: str | Sequence[NewSpan],
        *,
        name: str | None = None,
        role: str | None = None,
        labels: Labels | None = None,
        event_id: str | None = None,
    ) -> Committed:
        """Adds one text, or several spans at once (all or none), at the end of the view.

        Raises:
            CommandRejected: such as `span_exists`; `outcome` is the whole rejection.
            InvalidInput, PayloadTooLarge: it was not sent.
        """
        command = self._commands.append(content, name=name, role=role, labels=labels, event_id=event_id)
        return _committed(await self._accepted(command))

    async def rewrite(
        self, span_id: str, text: str, *, base_version: int | None = None, event_id: str | None = None
    ) -> Committed | NoChange:
        """Changes a span's text; its version grows by one. `NoChange` if it has these bytes already.

        Without `base_version` the base is the version known here. Raises `CommandRejected` with
        `stale_source` and the current identity if that is not the current one; else as `append`.
        """
        if base_version is None:
            await self._know(span_id)
        return await self._accepted(
            self._commands.rewrite(span_id, text, base_version=base_version, event_id=event_id)
        )

    async def prune(
        self, span_id: str, *, base_version: int | None = None, event_id: str | None = None
    ) -> Committed:
        """Drops a span from the view. Raises as `rewrite`."""
        command = self._commands.prune(span_id, base_version=base_version, event_id=event_id)
        return _committed(await self._accepted(command))

    async def compact(
        self,
        sources: Sequence[Source],
        summary: str | None = None,
        *,
        name: str | None = None,
        labels: Labels | None = None,
        allow_larger: bool = False,
        event_id: str | None = None,
    ) -> Committed | NoChange:
        """Puts one summary in the place of a contiguous run of the view.

        Args:
            sources: in the order of the view. A summary that took long to make should name what it was made
                from, as pointers or `SourceRef`; a plain id is taken at the version known now.
            summary: None: the service makes one, and this waits for it.
            name: of the summary.
            labels: of the summary.
            allow_larger: accept a summary that is not smaller than its sources.
            event_id: to ask again after `OutcomeUnknown`.

        Raises as `append`.
        """
        for source in sources:
            if isinstance(source, str):
                await self._know(source)
        return await self._accepted(
            self._commands.compact(
                sources, summary, name=name, labels=labels, allow_larger=allow_larger, event_id=event_id
            )
        )

    async def compact_to(
        self,
        budget_bytes: int,
        *,
        policy: Policy | None = None,
        summarise: Summarise | None = None,
        max_passes: int = 16,
        moved_passes: int = 3,
        lanes: int = 4,
    ) -> CompactionReport:
        """Compacts until the view has at most `budget_bytes`.

        Args:
            budget_bytes: for the active view.
            policy: what to keep, and how many spans go into one summary.
            summarise: makes a summary of the texts, at the level given; None: the service makes them.
            max_passes: plans to carry out at most.
            moved_passes: passes in a row at most that came to nothing because the context had changed.
            lanes: summaries made at a time.

        Raises:
            Irreducible: what remains is fresh, open, pinned, at the top or was refused; `kept` counts it.
            Unsettled: not within `max_passes`, or the context changed during each of the last ones.
            CommandRejected: a rejection that planning cannot cure.
            Exception: what `summarise` raised.

        What was committed before an error stays; the first two carry the report so far as the field `report`.
        """
        compaction = Compaction(
            self._follower,
            self._fetcher,
            self._commands,
            self.submit,
            summarise=summarise,
            lanes=lanes,
        )
        return await compaction.to(budget_bytes, policy, max_passes=max_passes, moved_passes=moved_passes)

    async def submit(self, command: AnyCommand) -> AnyOutcome:
        """Sends any command and gives its outcome, a rejection too.

        On return this holder knows the revision that the outcome speaks of, or serves nothing before it does.
        """
        self._follower.check_usable()
        if command.context_id != self.context_id:
            raise InvalidInput(f"a command for {command.context_id} is none for {self.context_id}")
        outcome = await self._sender.send(command)
        if outcome.revision is not None:
            await self._follower.reach(outcome.revision)
        return outcome

    # --- life ---

    async def start(self) -> None:
        """For the holder: begins to follow, and to keep a lease."""
        await self._follower.start()
        self._keeper.start()

    async def close(self) -> None:
        """Gives up the lease and all pins, and stops following. May be called again."""
        if not self._follower.closed:
            await self._keeper.stop()
        await self._follower.stop()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._follower.closed

    def on_event(self, event: ConnectionEvent) -> None:
        """For the holder: what its transport noticed."""
        self._follower.on_event(event)

    async def _know(self, span_id: str) -> None:
        """Catches up if a span is not known here, before something is said about its version."""
        tree = await self._follower.confirmed()
        if span_id not in tree.nodes:
            await self._follower.sync()

    async def _accepted(self, command: AnyCommand) -> Committed | NoChange:
        outcome = await self.submit(command)
        if isinstance(outcome, Rejected):
            raise CommandRejected(f"{outcome.code.value}: {outcome.message}", outcome=outcome)
        return outcome


def _committed(outcome: Committed | NoChange) -> Committed:
    if isinstance(outcome, NoChange):
        raise PeerError("the service says that a command changed nothing that always changes something")
    return outcome
