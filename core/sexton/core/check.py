"""Checks a pointer at the moment of its use, and the bytes that come back for it.

`check` looks at the tree alone and says what may be fetched, or why nothing may. `accept` then looks at
the bytes themselves. Nobody hands bytes to a caller without both. There is no fallback in either: a leaf
that cannot be had is an error, and a summary goes only to who asked with `accept_summary=True`.
"""

from dataclasses import dataclass
from enum import StrEnum

from sexton.core import hash as hashing
from sexton.core.text import check_cut, check_range, is_whole
from sexton.core.tree import ContextTree, Node
from sexton.schemas.errors import (
    EpochMismatch,
    HashMismatch,
    LeafCorrupt,
    LevelMismatch,
    PointerResurrectionError,
    SextonError,
    StaleSpanError,
    Unreachable,
)
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Answer, Tier
from sexton.schemas.span import Identity, SpanState, Strategy


class Action(StrEnum):
    """What a pointer's use comes to."""

    SERVE = "serve"
    """In the view, and nothing has changed since the pointer's epoch."""
    RE_STAMP = "re_stamp"
    """In the view, from another epoch; level, version and hash are as minted. The answer is re-stamped."""
    RE_EXPAND = "re_expand"
    """Under a summary, or an old version that is kept: verbatim from the cold store."""
    STALE = "stale"
    """The span has another version now."""
    REFUSE = "refuse"
    """It cannot be had as claimed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What `check` says of one pointer on one tree."""

    action: Action
    error: SextonError | None = None
    """Set if the action is `stale` or `refuse`."""
    maybe_behind: bool = False
    """The refusal may only mean that this tree lags: catch up with the log once, and check again."""
    target: Identity | None = None
    """The whole version whose bytes are to be fetched; set unless refused."""
    pointer: Pointer | None = None
    """The pointer to give back with the bytes, re-stamped; set unless refused."""
    superseded: bool = False
    restamped: bool = False

    def granted(self) -> tuple[Identity, Pointer]:
        """What to fetch, and the re-stamped pointer. Raises the error of a refusal."""
        if self.error is not None:
            raise self.error
        assert self.target is not None  # noqa: S101 - one of the two is set, by construction
        assert self.pointer is not None  # noqa: S101
        return self.target, self.pointer


def check(
    pointer: Pointer, tree: ContextTree, *, strict: bool = False, accept_superseded: bool = False
) -> Verdict:
    """What may be served for `pointer` on `tree`. Costs a few look-ups.

    The order is: known, level, version, range and hash as far as the tree knows them, epoch.

    Args:
        pointer: the claim.
        tree: the context, as the caller knows it.
        strict: refuse a pointer of another epoch, unless the span is unchanged since exactly that epoch.
        accept_superseded: give an old version that a copy-on-rewrite keeps.
    """
    try:
        return _check(pointer, tree, strict=strict, accept_superseded=accept_superseded)
    except StaleSpanError as e:
        return Verdict(action=Action.STALE, error=e)
    except SextonError as e:
        return Verdict(action=Action.REFUSE, error=e, maybe_behind=bool(e.fields.get("maybe_behind")))


def accept(verdict: Verdict, data: bytes, tier: Tier) -> Answer:
    """What `data` answers to a granted verdict, or an error. `data` is the addressed range.

    Raises:
        HashMismatch: the bytes are not the ones that the pointer claims, or not whole characters. Either the
            claim is false or the store's bytes are damaged: `diagnose` tells, given the whole version.
    """
    target, pointer = verdict.granted()
    if len(data) != pointer.length or hashing.content_hash(target.level, data) != pointer.content_hash:
        raise HashMismatch(
            f"{target.span_id} version {target.version}: the bytes at {pointer.offset} are not those that "
            "the pointer claims",
            span_id=target.span_id,
            version=target.version,
        )
    if not is_whole(data):
        raise HashMismatch(
            f"{target.span_id} version {target.version}: the bytes at {pointer.offset} are not UTF-8",
            span_id=target.span_id,
            version=target.version,
        )
    return Answer(
        pointer=pointer,
        level=target.level,
        verbatim=target.level.verbatim,
        superseded=verdict.superseded,
        restamped=verdict.restamped,
        tier=tier,
        span_size_bytes=target.size_bytes,
        span_hash=target.content_hash,
    )


def diagnose(verdict: Verdict, whole: bytes) -> SextonError:
    """Why `accept` refused: the pointer's claim, or the store's bytes. `whole` is the whole version."""
    target, pointer = verdict.granted()
    found = hashing.content_hash(target.level, whole)
    if found != target.content_hash:
        return LeafCorrupt(
            f"{target.span_id} version {target.version}: the store holds {len(whole)} bytes with another "
            f"hash, {target.size_bytes} bytes were committed",
            span_id=target.span_id,
            version=target.version,
            content_hash=target.content_hash,
            found_hash=found,
            found_size_bytes=len(whole),
        )
    part = whole[pointer.offset : pointer.offset + pointer.length]
    if not is_whole(part):
        try:
            check_cut(whole, pointer.offset, pointer.length)
        except SextonError as e:
            return e
    return HashMismatch(
        f"{target.span_id} version {target.version} is whole, but the pointer's hash is not that of the "
        f"{pointer.length} bytes at {pointer.offset}",
        span_id=target.span_id,
        version=target.version,
    )


def mint(
    tree: ContextTree, span_id: str, *, offset: int = 0, length: int | None = None, part: bytes | None = None
) -> Pointer:
    """A pointer to a span at its current version, or to a part of it.

    Args:
        tree: the context now.
        span_id: a span of any level, in the view or covered.
        offset: where the bytes start.
        length: how many; None for all the rest.
        part: the bytes addressed, cut at characters; needed unless they are the whole span.

    Raises:
        Unreachable: unknown or pruned.
        BoundaryError: outside the span.
    """
    node = _known(tree, span_id)
    if node.state not in (SpanState.LIVE, SpanState.COVERED):
        raise _gone(node)
    size = node.size_bytes - offset if length is None else length
    check_range(node.size_bytes, offset, size)
    if part is not None:
        digest = hashing.content_hash(node.level, part)
    elif (offset, size) == (0, node.size_bytes):
        digest = node.content_hash
    else:
        raise ValueError("a pointer to a part needs the part's bytes")
    return Pointer(
        context_id=tree.context_id,
        span_id=node.span_id,
        level=node.level,
        version=node.version,
        offset=offset,
        length=size,
        content_hash=digest,
        epoch=tree.epoch,
    )


def _check(pointer: Pointer, tree: ContextTree, *, strict: bool, accept_superseded: bool) -> Verdict:
    if pointer.context_id != tree.context_id:
        raise Unreachable(f"a pointer into {pointer.context_id} is none into {tree.context_id}")
    node = _known(tree, pointer.span_id)
    summary = _stand_in(pointer, node, tree)
    if pointer.level is not node.level:
        if summary is not None:
            return _summary(pointer, summary, tree, strict=strict)
        raise LevelMismatch(
            f"{node.span_id} is {node.level.name}, the pointer wants {pointer.level.name}",
            current=node.current,
        )
    if pointer.version != node.version:
        return _old_version(pointer, node, tree, strict=strict, accept_superseded=accept_superseded)
    if node.state not in (SpanState.LIVE, SpanState.COVERED):
        raise _gone(node)
    _check_claim(pointer, node.identity)
    if summary is not None:
        return _summary(pointer, summary, tree, strict=strict)
    _check_epoch(pointer, node, tree, strict=strict)
    restamped = pointer.epoch != tree.epoch
    if node.state is SpanState.COVERED:
        action = Action.RE_EXPAND
    else:
        action = Action.RE_STAMP if restamped else Action.SERVE
    return Verdict(action=action, target=node.identity, pointer=_stamped(pointer, tree), restamped=restamped)


def _old_version(
    pointer: Pointer, node: Node, tree: ContextTree, *, strict: bool, accept_superseded: bool
) -> Verdict:
    if pointer.version > node.version:
        raise Unreachable(
            f"{node.span_id} has no version {pointer.version} yet; it is at {node.version}",
            maybe_behind=True,
        )
    stone = tree.tombstones.get((pointer.span_id, pointer.version))
    readable = (
        stone is not None
        and stone.strategy is Strategy.COPY_ON_REWRITE
        and stone.state in (SpanState.TOMBSTONE, SpanState.COLLECTING)
    )
    if stone is None or not (accept_superseded and readable):
        raise StaleSpanError(
            f"{node.span_id} is at version {node.version} since epoch {node.epoch}, "
            f"the pointer is of version {pointer.version}",
            current=node.current,
            superseded_readable=readable,
        )
    _check_claim(pointer, stone.identity)
    _check_epoch(pointer, node, tree, strict=strict)
    return Verdict(
        action=Action.RE_EXPAND,
        target=stone.identity,
        pointer=_stamped(pointer, tree),
        superseded=True,
        restamped=pointer.epoch != tree.epoch,
    )


def _stand_in(pointer: Pointer, node: Node, tree: ContextTree) -> Node | None:
    """The summary in the view that may go to the caller in a leaf's place, if any.

    Only who claims a leaf can say that a summary will do: a pointer to a summary is a claim on that one, and
    no roll-up of it passes for it.
    """
    if not (pointer.level.verbatim and pointer.accept_summary):
        return None
    found = tree.covering(node)
    return None if found is None or found.level.verbatim else found


def _summary(pointer: Pointer, summary: Node, tree: ContextTree, *, strict: bool) -> Verdict:
    """The summary in the place of a leaf, for a caller who said that it will do."""
    _check_epoch(pointer, summary, tree, strict=strict)
    restamped = mint(tree, summary.span_id).model_copy(update={"accept_summary": True})
    return Verdict(
        action=Action.SERVE,
        target=summary.identity,
        pointer=restamped,
        restamped=pointer.epoch != tree.epoch,
    )


def _check_claim(pointer: Pointer, identity: Identity) -> None:
    check_range(identity.size_bytes, pointer.offset, pointer.length)
    whole = (pointer.offset, pointer.length) == (0, identity.size_bytes)
    if whole and pointer.content_hash != identity.content_hash:
        raise HashMismatch(
            f"{identity.span_id} version {identity.version} has another hash than the pointer",
            current=identity,
        )


def _check_epoch(pointer: Pointer, node: Node, tree: ContextTree, *, strict: bool) -> None:
    if pointer.epoch > tree.epoch:
        raise EpochMismatch(
            f"the pointer is of epoch {pointer.epoch}, {tree.context_id} is at {tree.epoch}",
            maybe_behind=True,
        )
    # A span that came to be as it is in the pointer's own epoch has not changed since.
    if strict and pointer.epoch not in (tree.epoch, node.epoch):
        raise EpochMismatch(
            f"the pointer is of epoch {pointer.epoch}, {tree.context_id} is at {tree.epoch}: re-validate it",
            current=node.current,
        )


def _known(tree: ContextTree, span_id: str) -> Node:
    node = tree.nodes.get(span_id)
    if node is None:
        what = f"{span_id} is not a span of {tree.context_id}"
        if tree.revision == 0:
            what = f"{tree.context_id} is not known: nothing was ever appended to it"
        raise Unreachable(f"{what} (revision {tree.revision})", maybe_behind=True, span_id=span_id)
    return node


def _gone(node: Node) -> PointerResurrectionError:
    how = "collected" if node.state is SpanState.COLLECTED else "pruned"
    return Unreachable(f"{node.span_id} was {how}, at epoch {node.epoch}", reason=how, current=node.current)


def _stamped(pointer: Pointer, tree: ContextTree) -> Pointer:
    return pointer if pointer.epoch == tree.epoch else pointer.model_copy(update={"epoch": tree.epoch})
