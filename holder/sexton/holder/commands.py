"""Makes commands out of what a caller says."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from pydantic import ValidationError

from sexton.core.tree import ContextTree
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import InvalidInput, PayloadTooLarge
from sexton.schemas.limits import MAX_SOURCES, MAX_SPANS_PER_APPEND
from sexton.schemas.pointer import Pointer
from sexton.schemas.span import Labels, NewSpan, Text

Source = str | SourceRef | Pointer
"""A span to be compacted: by id, with the version it was read at, or as a pointer that has both."""


def new_event_id() -> str:
    """An id that no other command has."""
    return uuid.uuid4().hex


class Commands:
    """Makes the commands of one context."""

    def __init__(self, context_id: str, tree: Callable[[], ContextTree]) -> None:
        self._context_id = context_id
        self._tree = tree

    def append(
        self,
        content: str | Sequence[NewSpan],
        *,
        name: str | None,
        role: str | None,
        labels: Labels | None,
        event_id: str | None,
    ) -> Append:
        """An append of one text, or of spans as they are."""
        with _as_invalid_input():
            if isinstance(content, str):
                known = labels if labels is not None else Labels()
                if role is not None:
                    known = known.model_validate({**known.model_dump(), "role": role})
                spans: tuple[NewSpan, ...] = (NewSpan(content=content, name=name, labels=known),)
            elif name is None and role is None and labels is None:
                spans = tuple(content)
            else:
                raise InvalidInput("name, role and labels go with one text; spans have their own")
            _check_count(len(spans), MAX_SPANS_PER_APPEND, "spans in one append")
            return Append(context_id=self._context_id, event_id=event_id or new_event_id(), spans=spans)

    def compact(
        self,
        sources: Sequence[Source],
        summary: str | None,
        *,
        name: str | None = None,
        labels: Labels | None = None,
        allow_larger: bool = False,
        event_id: str | None = None,
    ) -> Compact:
        """A compaction. A source that is only an id is taken at the version known here."""
        _check_count(len(sources), MAX_SOURCES, "sources of one summary")
        with _as_invalid_input():
            return Compact(
                context_id=self._context_id,
                event_id=event_id or new_event_id(),
                sources=tuple(self._source(source) for source in sources),
                summary=None if summary is None else Text(content=summary),
                name=name,
                labels=labels if labels is not None else Labels(),
                allow_larger=allow_larger,
            )

    def rewrite(self, span_id: str, text: str, *, base_version: int | None, event_id: str | None) -> Rewrite:
        """A rewrite. Without a base it is that of the version known here."""
        if base_version is None and event_id is not None:
            raise InvalidInput(
                "a rewrite under an event id of your own must name its base_version: sent again, it must be "
                "the same command",
                field="base_version",
            )
        with _as_invalid_input():
            return Rewrite(
                context_id=self._context_id,
                event_id=event_id or new_event_id(),
                span_id=span_id,
                base_version=self._version(span_id) or 1 if base_version is None else base_version,
                text=Text(content=text),
            )

    def prune(self, span_id: str, *, base_version: int | None, event_id: str | None) -> Prune:
        """A prune, of whatever version is there unless one is named."""
        with _as_invalid_input():
            return Prune(
                context_id=self._context_id,
                event_id=event_id or new_event_id(),
                span_id=span_id,
                base_version=base_version,
            )

    def _source(self, source: Source) -> SourceRef:
        match source:
            case SourceRef():
                return source
            case Pointer():
                return SourceRef(span_id=source.span_id, version=source.version)
            case str():
                return SourceRef(span_id=source, version=self._version(source))

    def _version(self, span_id: str) -> int | None:
        node = self._tree().nodes.get(span_id)
        return node.version if node is not None else None


def _check_count(count: int, limit: int, what: str) -> None:
    if count > limit:
        raise PayloadTooLarge(f"{count} {what}, at most {limit}", limit=limit, actual=count)


@contextmanager
def _as_invalid_input() -> Iterator[None]:
    """What pydantic says of an argument, as an error of ours. The argument itself is not repeated."""
    try:
        yield
    except ValidationError as e:
        problems = e.errors(include_url=False, include_context=False, include_input=False)
        text = "; ".join(
            f"{'.'.join(str(p) for p in problem['loc'])}: {problem['msg']}" for problem in problems
        )
        field = str(problems[0]["loc"][0]) if problems[0]["loc"] else None
        raise InvalidInput(text, field=field) from None
