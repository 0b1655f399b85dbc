"""The spans of a holder, and which trace each of the latest records came with."""

from collections import OrderedDict
from typing import Final

from sexton import tracing
from sexton.schemas.codec import AnyRecord
from sexton.schemas.records import Rewritten

TRACER: Final = tracing.Tracer("sexton.holder")
"""Goes by the tracer provider of the program that embeds the holder."""

_RECORDS: Final = 1024


class Causes:
    """The trace of each of the latest records, as far as it came with a bump.

    What comes by `sync` has none, nor has what came too early.
    """

    def __init__(self) -> None:
        self._of: OrderedDict[int | str, tracing.Headers] = OrderedDict()

    def note(self, record: AnyRecord | None, cause: tracing.Headers) -> None:
        """Keeps a record's trace, if there is one."""
        if record is None or not cause:
            return
        self._of[record.revision] = cause
        if isinstance(record, Rewritten):
            self._of[record.after.span_id] = cause
            self._of.move_to_end(record.after.span_id)
        while len(self._of) > _RECORDS:
            self._of.popitem(last=False)

    def of(self, what: int | str) -> tracing.Headers:
        """The trace of the record of a revision, or of the latest rewrite of a span."""
        return self._of.get(what, tracing.NO_HEADERS)
