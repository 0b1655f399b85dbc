"""Which versions can be pinned.

A pin is written to the registry first and judged here after, on the log's head. A collector writes the log
first and reads the registry after. So one of the two always sees the other.
"""

from sexton.core.tree import ContextTree
from sexton.schemas.leases import GrantedPin, Pin, PinRefusal, RefusedPin
from sexton.schemas.span import SpanState


def judge(tree: ContextTree, pin: Pin) -> GrantedPin | RefusedPin:
    """Whether a pin holds, on a tree at the head of the log read after the pin was registered.

    A version that is superseded or pruned and not announced for collection can still be pinned: its bytes
    are there, and a holder that was cut off may need them to stay.
    """
    node = tree.nodes.get(pin.span_id)
    if node is None or pin.version > node.version:
        return _refused(tree, pin, PinRefusal.UNKNOWN)
    stone = tree.tombstones.get((pin.span_id, pin.version))
    if stone is not None:
        state = stone.state
    elif pin.version == node.version:
        state = node.state
    else:
        state = SpanState.COLLECTED
    if state in (SpanState.LIVE, SpanState.COVERED, SpanState.TOMBSTONE):
        return GrantedPin(span_id=pin.span_id, version=pin.version, cost=pin.cost, state=state)
    gone = state is SpanState.COLLECTED
    return _refused(tree, pin, PinRefusal.COLLECTED if gone else PinRefusal.COLLECTING)


def _refused(tree: ContextTree, pin: Pin, reason: PinRefusal) -> RefusedPin:
    node = tree.nodes.get(pin.span_id)
    return RefusedPin(
        span_id=pin.span_id,
        version=pin.version,
        reason=reason,
        current=node.current if node is not None else None,
    )
