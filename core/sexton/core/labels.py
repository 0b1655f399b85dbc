"""Equal labels as one object.

Most spans of a context have the same few labels, and a set of labels takes more memory than the node that has
it. What counts more: the garbage collector looks at each of its objects in every full collection, and stops
everything for that.
"""

from functools import lru_cache
from typing import Final

from sexton.schemas.span import Labels

_KEPT: Final = 4096


def shared(labels: Labels) -> Labels:
    """Labels equal to these: most likely the very ones that other spans have."""
    if labels.model_extra:
        return labels
    return _made(labels.role, labels.group, labels.media_type, labels.open, labels.kind)


@lru_cache(_KEPT)
def _made(
    role: str | None, group: str | None, media_type: str | None, is_open: bool, kind: str | None
) -> Labels:
    return Labels(role=role, group=group, media_type=media_type, open=is_open, kind=kind)
