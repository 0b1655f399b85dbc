"""One context with spans of every fate, and pointers into it."""

from typing import Any

from sexton.core.buffer import ContextBuffer
from sexton.core.hash import content_hash
from sexton.schemas.ids import Level
from sexton.schemas.leases import PinCost
from sexton.schemas.pointer import Pointer
from tests.core_kit.build import CONTEXT, compact, done, filled, prune, rewrite

FORGED = "sha256:" + 64 * "f"


def context() -> ContextBuffer:
    """A context at epoch 8, with spans of every fate.

    `a` is under l1:s under l2:t; `b` was rewritten and copied, `c` only rewritten, `d` pruned; `e` is
    as it was; `f` was rewritten last, at epoch 8; `g` is under l1:u, which was pruned.
    """
    buffer = filled("a", "b", "c", "d", "e", "f", "g")
    done(buffer, compact("s", "l0:a", summary="summary"))
    buffer.pins = {("l0:b", 1): PinCost.EXPENSIVE}
    done(
        buffer,
        rewrite("b", "l0:b", "another b"),
        rewrite("c", "l0:c", "another c"),
        prune("d", "l0:d"),
        compact("t", "l1:s", summary="roll-up", allow_larger=True),
        compact("u", "l0:g", summary="gone"),
        prune("gone", "l1:u"),
        rewrite("f", "l0:f", "another f"),
    )
    assert 8 == buffer.epoch
    return buffer


BUFFER = context()
TREE = BUFFER.tree


def pointer(span_id: str, **changes: Any) -> Pointer:
    """A pointer to all of a span as it was at version 1, minted at epoch 0, unless it says otherwise."""
    level = Level(int(span_id[1]))
    data = BUFFER._cold.get((span_id, changes.get("version", 1)), b"nothing")
    fields: dict[str, Any] = {
        "context_id": CONTEXT,
        "span_id": span_id,
        "level": level,
        "version": 1,
        "offset": 0,
        "length": len(data),
        "content_hash": content_hash(level, data),
        "epoch": 0,
    }
    return Pointer(**{**fields, **changes})
