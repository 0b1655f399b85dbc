"""Artifacts: what a holder made from a span, keyed by `(span_id, version, content_hash)`.

An artifact is good for exactly the bytes it was made from. The key is compared at use, so an offset map
that outlived a rewrite is caught however its holder came to miss the bump.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from sexton.core.tree import ContextTree
from sexton.schemas.errors import StaleSpanError, Unreachable
from sexton.schemas.span import SpanState

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ArtifactKey:
    """What an artifact was made from."""

    span_id: str
    version: int
    content_hash: str


@dataclass(frozen=True, slots=True)
class DerivedArtifact(Generic[T]):
    """Something made from the bytes of one version of one span."""

    key: ArtifactKey
    value: T
    build: Callable[[str], T] | None = field(default=None, compare=False, repr=False)
    """Makes it anew from the span's text."""


def current_key(tree: ContextTree, span_id: str) -> ArtifactKey:
    """The key that an artifact of this span must have now.

    Raises:
        Unreachable: the span is unknown, or has left the view for good.
    """
    node = tree.nodes.get(span_id)
    if node is None:
        raise Unreachable(f"{span_id} is not a span of {tree.context_id}", span_id=span_id)
    if node.state not in (SpanState.LIVE, SpanState.COVERED):
        raise Unreachable(f"{span_id} was {node.state.value}", span_id=span_id, current=node.current)
    return ArtifactKey(node.span_id, node.version, node.content_hash)


def check_artifact(tree: ContextTree, artifact: DerivedArtifact[T]) -> T:
    """The value, if it was made from what is there now.

    Raises:
        StaleSpanError: the span was rewritten since; `current` is its identity.
        Unreachable: the span is gone.
    """
    key = current_key(tree, artifact.key.span_id)
    if key != artifact.key:
        raise StaleSpanError(
            f"{key.span_id} is at version {key.version}, the artifact was made from version "
            f"{artifact.key.version}",
            current=tree.nodes[key.span_id].current,
        )
    return artifact.value
