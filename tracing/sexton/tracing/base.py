"""What a span is to the rest of Sexton, and where the active one is kept."""

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

if TYPE_CHECKING:
    from sexton.tracing.otel import OtelTracer

Kind = Literal["internal", "producer", "consumer", "client", "server"]
"""What a span is to the spans beside it, in OpenTelemetry's words."""
Value = str | int | float | bool | None
Headers = Mapping[str, str]

NO_HEADERS: Final[Headers] = {}


class Span(Protocol):
    """Something that is being done."""

    def set(self, **attributes: Value) -> None:
        """Sets attributes. Each gets the prefix `sexton.`; those that are None are left out."""
        ...

    def event(self, name: str, /, **attributes: Value) -> None:
        """Notes that something happened just now. Name and attributes get the prefix."""
        ...

    def failed(self, error: BaseException) -> None:
        """Says that it failed, though the error is not raised out of it."""
        ...


class NoSpan:
    """Nobody is looking."""

    def set(self, **attributes: Value) -> None:
        """Does nothing."""

    def event(self, name: str, /, **attributes: Value) -> None:
        """Does nothing."""

    def failed(self, error: BaseException) -> None:
        """Does nothing."""


NO_SPAN: Final[Span] = NoSpan()


@dataclass(frozen=True, slots=True)
class Active:
    """The span of Sexton's that a task is in."""

    tracer: "OtelTracer"
    span: Span
    cause: Headers
    """The trace of the message that is being handled, if one is."""
    recorded: bool
    """Whether the span is. If not, neither are its steps, which then need not be made."""


ACTIVE: Final[ContextVar[Active | None]] = ContextVar("sexton.tracing", default=None)
