"""Spans as a test sees them: what the SDK would export, in memory.

OpenTelemetry knows one tracer provider for each process. There is one for all tests, which samples nothing
while no test looks.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, SpanContext, SpanKind, TraceState
from opentelemetry.util.types import Attributes

from tests.support.waiting import eventually


class Seen:
    """The spans that have ended since the test began to look, and who is sampled."""

    def __init__(self, exporter: InMemorySpanExporter) -> None:
        self._exporter = exporter
        self.sampled = True
        """Whether a trace that begins here is recorded."""

    def clear(self) -> None:
        self._exporter.clear()

    def all(self) -> Sequence[ReadableSpan]:
        return self._exporter.get_finished_spans()

    def named(self, name: str) -> list[ReadableSpan]:
        """In the order of their ends."""
        return [span for span in self.all() if span.name == name]

    async def come(self, name: str, count: int = 1) -> list[ReadableSpan]:
        """Waits for so many of a name. There may be no more."""
        found = await eventually(
            lambda: self.named(name), until=lambda spans: len(spans) >= count, what=f"{count} of {name}"
        )
        assert count == len(found), [describe(span) for span in found]
        return found

    async def comes(self, name: str) -> ReadableSpan:
        """Waits for the one of a name."""
        return (await self.come(name))[0]


def describe(span: ReadableSpan) -> str:
    return f"{span.name} {dict(span.attributes or {})}"


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """Those of Sexton's own, without their prefix."""
    found = span.attributes or {}
    return {key.removeprefix("sexton."): value for key, value in found.items() if key.startswith("sexton.")}


def trace_of(span: ReadableSpan) -> int:
    return _context(span).trace_id


def id_of(span: ReadableSpan) -> int:
    return _context(span).span_id


def _context(span: ReadableSpan) -> SpanContext:
    context = span.get_span_context()
    assert context is not None, span.name
    return context


def is_under(span: ReadableSpan, parent: ReadableSpan) -> bool:
    """Whether a span is the child of another."""
    same = trace_of(span) == trace_of(parent)
    return same and span.parent is not None and span.parent.span_id == id_of(parent)


def linked(span: ReadableSpan) -> list[int]:
    """Ids of the spans that a span is linked to."""
    return [link.context.span_id for link in span.links]


class _Switch(Sampler):
    def __init__(self) -> None:
        self.seen: Seen | None = None

    def should_sample(  # noqa: PLR0917 - the SDK's signature
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        wanted = self.seen is not None and self.seen.sampled
        return SamplingResult(Decision.RECORD_AND_SAMPLE if wanted else Decision.DROP, attributes)

    def get_description(self) -> str:
        return "what a test says"


@cache
def _provider() -> tuple[_Switch, InMemorySpanExporter]:
    switch, exporter = _Switch(), InMemorySpanExporter()
    provider = TracerProvider(sampler=ParentBased(switch), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return switch, exporter


@contextmanager
def looking() -> Iterator[Seen]:
    """Records spans for as long as the block lasts."""
    switch, exporter = _provider()
    exporter.clear()
    switch.seen = Seen(exporter)
    try:
        yield switch.seen
    finally:
        switch.seen = None
        exporter.clear()
