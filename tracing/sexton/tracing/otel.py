"""Spans of OpenTelemetry. The only module that imports it, and of it the API alone."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Final

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sexton.schemas.errors import SextonError
from sexton.schemas.trace import trace_headers
from sexton.tracing.base import ACTIVE, Active, Headers, Kind, Span, Value

# Not the propagator that the program has set: what goes into headers is part of the wire, and baggage, which
# may hold anything, is not.
_PROPAGATOR: Final = TraceContextTextMapPropagator()
_KINDS: Final[dict[Kind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
    "client": SpanKind.CLIENT,
    "server": SpanKind.SERVER,
}


class OtelSpan:
    """One span."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    def set(self, **attributes: Value) -> None:
        """See `Span.set`."""
        if self._span.is_recording():
            self._span.set_attributes(prefixed(attributes))

    def event(self, name: str, /, **attributes: Value) -> None:
        """See `Span.event`."""
        if self._span.is_recording():
            self._span.add_event(f"sexton.{name}", prefixed(attributes))

    def failed(self, error: BaseException) -> None:
        """Marks it as failed. The error's words stay out of it: they may quote what a span must not hold."""
        code = error.code if isinstance(error, SextonError) else type(error).__name__
        self._span.set_attribute("error.type", code)
        self._span.set_status(StatusCode.ERROR)


class OtelTracer:
    """Makes spans with the program's tracer provider, whenever that is set."""

    def __init__(self, scope: str) -> None:
        self._tracer = trace.get_tracer(scope)

    @contextmanager
    def span(
        self,
        name: str,
        kind: Kind,
        attributes: Mapping[str, str | int | float | bool],
        *,
        cause: Headers | None = None,
        within: bool = True,
    ) -> Iterator[Span]:
        """A span, for as long as the block lasts.

        Args:
            name: holds no id.
            kind: what it is to others.
            attributes: known from the start, so that a sampler can go by them.
            cause: `trace_headers` of the message that this comes of; None: of none.
            within: under the span that is active in this task, if there is one. Else under that of the
                message, or none: a task that waits for messages is in the span that it was made in.
        """
        parent, links = None, []
        if cause:
            caused = _PROPAGATOR.extract(cause, Context())
            if kind != "server":
                links.append(Link(trace.get_current_span(caused).get_span_context()))
            if not (within and in_span()):
                parent = caused
        elif not within:
            parent = Context()
        span = self._tracer.start_span(name, parent, _KINDS[kind], attributes, links)
        told = OtelSpan(span)
        outer = ACTIVE.get()
        if cause is None and outer is not None:
            cause = outer.cause
        token = context.attach(trace.set_span_in_context(span, parent))
        active = ACTIVE.set(Active(self, told, cause or {}, span.is_recording()))
        try:
            yield told
        except BaseException as error:
            told.failed(error)
            raise
        finally:
            span.end()
            # A program may leave the block elsewhere than it entered it, as with a generator that another
            # task closes. OpenTelemetry only logs that, and here nothing is left to reset then.
            with suppress(ValueError):
                ACTIVE.reset(active)
            context.detach(token)


def prefixed(attributes: Mapping[str, Value]) -> dict[str, str | int | float | bool]:
    """Attributes under Sexton's own prefix, without those that are None."""
    return {f"sexton.{name}": value for name, value in attributes.items() if value is not None}


def in_span() -> bool:
    """Whether any span is active in this task, be it the program's own."""
    return trace.get_current_span().get_span_context().is_valid


def current_headers() -> dict[str, str]:
    """The active span, as headers."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier)
    return trace_headers(carrier)


def current_ids() -> dict[str, str]:
    """The active span, as what a log line names; empty if there is none."""
    found = trace.get_current_span().get_span_context()
    if not found.is_valid:
        return {}
    return {"trace_id": trace.format_trace_id(found.trace_id), "span_id": trace.format_span_id(found.span_id)}


def leave() -> None:
    """Leaves every span, in the context that this is run in."""
    context.attach(Context())
    ACTIVE.set(None)
