"""The way out for traces: OpenTelemetry's SDK, and OTLP over HTTP.

What the `OTEL_` variables say holds: the endpoint with its headers and certificates, the sampler, the sizes
of queue and batch, the attributes of the resource. Spans wait in a bounded queue and are sent by a thread of
their own. A collector that is away costs spans and nothing else: no commit waits for it, and the log
says once that it is away, and once that it is back.
"""

import logging
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

import structlog
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from sexton.schemas.errors import InvalidInput

log: Final = structlog.get_logger("sexton.tracing")

FLUSH_S: Final = 3.0
"""At the end, for what is still to be sent."""

_TALKATIVE: Final = ("opentelemetry.exporter", "opentelemetry.sdk._shared_internal")
"""They write several lines for each batch that fails, and one for each span that finds the queue full."""


class TellingExporter(SpanExporter):
    """An exporter whose failures the log tells of: once when they begin, and once when they are over."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Sends a batch. Called by one thread at a time."""
        result = self._exporter.export(spans)
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                log.warning("tracing.export_failed", spans=len(spans))
            self._lost += len(spans)
        elif self._lost:
            log.info("tracing.export_resumed", spans_lost=self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        """Ends it, and a try that is under way."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


@contextmanager
def exporting(service: str) -> Iterator[None]:
    """See `export.exporting`. A provider that is set already, as by OpenTelemetry's launcher, stays."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        yield
        return
    try:
        provider = TracerProvider(resource=_resource(service), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(TellingExporter(OTLPSpanExporter())))
    except ValueError:
        # Not in its own words: what a variable holds may be a secret.
        raise InvalidInput("tracing: an OTEL_ variable has a value that cannot be", field="tracing") from None
    for name in _TALKATIVE:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    trace.set_tracer_provider(provider)
    log.info("tracing.on", service=provider.resource.attributes["service.name"])
    try:
        yield
    finally:
        _end(provider)


def _end(provider: TracerProvider) -> None:
    """Sends what is left, for a bounded time. The SDK's own bound is half a minute.

    In a thread that may be left behind: a collector that is away must not hold up the program's end.
    """
    ending = threading.Thread(target=provider.shutdown, name="tracing.end", daemon=True)
    ending.start()
    ending.join(FLUSH_S)
    if ending.is_alive():
        log.warning("tracing.not_flushed", waited_s=FLUSH_S)


def _resource(service: str) -> Resource:
    own = {
        "service.name": service,
        "service.version": version("sexton"),
        "service.instance.id": str(uuid.uuid4()),
    }
    return Resource.create({**own, **OTELResourceDetector().detect().attributes})
