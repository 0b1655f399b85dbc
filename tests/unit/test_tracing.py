"""Traces without a server: what a header may be, and what a span says and does not say."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextvars import copy_context
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from structlog.testing import capture_logs

from sexton import tracing
from sexton.schemas.errors import Unavailable
from sexton.schemas.rpc import Verb
from sexton.schemas.trace import MAX_TRACESTATE_BYTES, TRACEPARENT, TRACESTATE, trace_headers
from sexton.worker.otlp import TellingExporter
from tests.tracing_kit import Seen, attributes, id_of, is_under, linked, looking

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACER = tracing.Tracer("sexton.test")
TIMEOUT_S = 30


@pytest.fixture
def seen() -> Iterator[Seen]:
    with looking() as seen:
        yield seen


# --- headers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["traceparent", "Traceparent"])
def test_a_trace_is_taken_from_among_the_headers_and_nothing_else(name: str) -> None:
    """Never all headers: one that is copied along may make a publish conditional."""
    found = trace_headers({name: PARENT, "tracestate": "a=b", "Nats-Msg-Id": "x", "baggage": "secret=1"})
    assert {TRACEPARENT: PARENT, TRACESTATE: "a=b"} == found


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "x",
        PARENT.upper(),
        PARENT + "\n",
        " " + PARENT,
        PARENT + "-more",
        "01" + PARENT[2:],
        "ff" + PARENT[2:],
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"00-0af7651916cd43dd8448eb211c80319c-{'0' * 16}-01",
        "00-" + "a" * 10_240,
        PARENT.replace("a", "\N{CYRILLIC SMALL LETTER A}"),
        PARENT.replace("0", "\N{ARABIC-INDIC DIGIT ZERO}"),
    ],
)
def test_what_is_no_traceparent_is_no_trace(parent: str) -> None:
    """Nor is its state."""
    assert {} == trace_headers({"traceparent": parent, "tracestate": "a=b"})


@pytest.mark.parametrize("state", ["", "a=\n", "a=\x00", "a=é", "a=" + "x" * MAX_TRACESTATE_BYTES])
def test_a_state_that_is_too_long_or_no_text_is_left_out(state: str) -> None:
    """The trace goes on without it."""
    assert {TRACEPARENT: PARENT} == trace_headers({"traceparent": PARENT, "tracestate": state})


@given(st.dictionaries(st.sampled_from(["traceparent", "Traceparent", "tracestate", "other"]), st.text()))
def test_whatever_the_headers_are_the_answer_is_bounded(headers: dict[str, str]) -> None:
    """No names but the two, in so many bytes."""
    found = trace_headers(headers)
    assert found.keys() <= {TRACEPARENT, TRACESTATE}
    assert sum(len(value.encode()) for value in found.values()) <= len(PARENT) + MAX_TRACESTATE_BYTES


def test_no_headers_are_no_trace() -> None:
    """As a message without any comes from the client."""
    assert {} == trace_headers(None)


def test_baggage_stays_at_home(seen: Seen) -> None:
    """Whatever a program puts there, it is not for every holder of a context."""
    token = context.attach(baggage.set_baggage("secret", "1"))
    try:
        with TRACER.send("sexton.command", "sexton.cmd"):
            assert {TRACEPARENT} == tracing.headers().keys()
    finally:
        context.detach(token)


# --- spans -------------------------------------------------------------------------------------------


def test_outside_of_a_span_there_are_no_steps_and_no_headers(seen: Seen) -> None:
    """Not even within the program's own: what is not traced by us is not sent by us."""
    with trace.get_tracer("a program").start_as_current_span("outer"):
        with tracing.step("sexton.step"):
            assert {} == tracing.headers()
        tracing.current().set(anything=1)
        assert {} == tracing.log_ids(None, "info", {})
    assert ["outer"] == [span.name for span in seen.all()]


def test_what_is_switched_off_makes_nothing(seen: Seen) -> None:
    """Nor do its steps, nor what it sends."""
    off = tracing.Tracer("sexton.test", on=False)
    with (
        off.receive("sexton.handle", "subject", {"traceparent": PARENT}),
        tracing.step("sexton.step"),
        off.answer(Verb.FETCH, {"traceparent": PARENT}),
    ):
        assert {} == tracing.headers()
        assert {} == dict(tracing.cause())
    assert [] == [span.name for span in seen.all()]


def test_what_is_not_sampled_has_no_steps(seen: Seen) -> None:
    """They would not be recorded, and need not be made; what is sent says that it is not sampled."""
    seen.sampled = False
    with TRACER.send("sexton.command", "subject"):
        outer = tracing.headers()
        with tracing.step("sexton.step"), tracing.send_step("sexton.publish", "subject"):
            assert outer == tracing.headers()
    assert 0 == int(outer[TRACEPARENT][-2:], 16) & 1
    assert [] == list(seen.all())


def test_an_error_is_its_code(seen: Seen) -> None:
    """Its words may quote anything; they are in no attribute, no event and no status."""
    with pytest.raises(Unavailable), TRACER.work("sexton.one", {}):
        raise Unavailable("a secret")
    with pytest.raises(ValueError, match="secret"), TRACER.work("sexton.two", {}):
        raise ValueError("a secret")

    one, two = seen.all()
    assert ["unavailable", "ValueError"] == [(span.attributes or {})["error.type"] for span in (one, two)]
    assert "secret" not in one.to_json() + two.to_json()
    assert () == tuple(one.events)


def test_a_message_that_brings_no_trace_begins_one(seen: Seen) -> None:
    """Whatever span was active when the task that waits for messages was made."""
    with (
        trace.get_tracer("a program").start_as_current_span("connecting"),
        TRACER.receive("sexton.handle", "subject", None),
        tracing.step("sexton.step"),
    ):
        pass
    [handle], [step] = seen.named("sexton.handle"), seen.named("sexton.step")
    assert handle.parent is None
    assert is_under(step, handle)


def test_what_handles_a_message_later_knows_whose_it_was(seen: Seen) -> None:
    """The trace of the message, and not that of the span that took it in."""
    with TRACER.receive("sexton.bump", "subject", {"traceparent": PARENT}), tracing.step("sexton.step"):
        cause = tracing.cause()
    with TRACER.handle("sexton.bump.handle", "subject", cause):
        pass
    [handle] = seen.named("sexton.bump.handle")
    assert {TRACEPARENT: PARENT} == dict(cause)
    assert [int(PARENT.split("-")[2], 16)] == linked(handle)
    assert handle.parent is not None
    assert linked(handle) == [handle.parent.span_id]


@pytest.mark.parametrize("verb", [Verb.HEARTBEAT, Verb.SYNC])
def test_what_is_asked_all_the_time_begins_no_trace(seen: Seen, verb: Verb) -> None:
    """Within one it is a span like any other."""
    with TRACER.ask(verb), TRACER.answer(verb, {}):
        pass
    assert [] == list(seen.all())
    with TRACER.work("sexton.outer", {}), TRACER.ask(verb):
        sent = tracing.headers()
    with TRACER.answer(verb, sent):
        pass
    assert [f"sexton.rpc.{verb.value}", "sexton.outer", f"sexton.rpc.{verb.value}"] == [
        span.name for span in seen.all()
    ]


def test_attributes_have_the_prefix_and_none_is_left_out(seen: Seen) -> None:
    """So do events."""
    with TRACER.work("sexton.one", {}, kind="append", version=None) as span:
        span.set(revision=3, epoch=None)
        span.event("retry", attempt=2)
    [one] = seen.all()
    assert {"kind": "append", "revision": 3} == attributes(one)
    assert [("sexton.retry", {"sexton.attempt": 2})] == [
        (e.name, dict(e.attributes or {})) for e in one.events
    ]


def test_a_span_may_end_elsewhere_than_it_began(seen: Seen) -> None:
    """As in a generator that another task closes: the span ends, and nobody gets an error for it."""
    span = TRACER.work("sexton.one", {})
    copy_context().run(span.__enter__)
    span.__exit__(None, None, None)
    assert ["sexton.one"] == [one.name for one in seen.all()]


async def test_a_task_that_runs_on_is_in_no_span(seen: Seen) -> None:
    """One that is made as usual is in the span that it was made in."""

    async def here() -> tuple[dict[str, str], bool]:
        return tracing.headers(), trace.get_current_span().get_span_context().is_valid

    with TRACER.work("sexton.outer", {}):
        usual = await asyncio.create_task(here())
        detached = await asyncio.create_task(here(), context=tracing.detached())
    assert usual[0]
    assert usual[1]
    assert ({}, False) == detached


def test_a_log_line_names_its_span(seen: Seen) -> None:
    """By the ids that the headers have."""
    structlog.reset_defaults()
    with TRACER.work("sexton.one", {}):
        line = tracing.log_ids(None, "info", {"event": "x"})
        _, trace_id, span_id, _ = tracing.headers()[TRACEPARENT].split("-")
    assert {"event": "x", "trace_id": trace_id, "span_id": span_id} == line
    assert span_id == f"{id_of(seen.all()[0]):016x}"


# --- the way out -------------------------------------------------------------------------------------


class Wavering(SpanExporter):
    """Says what it is told to."""

    def __init__(self, *results: SpanExportResult) -> None:
        self.results = list(results)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return self.results.pop(0)


def test_the_log_tells_once_that_spans_are_lost_and_once_that_they_are_not() -> None:
    """Not with each batch."""
    good, bad = SpanExportResult.SUCCESS, SpanExportResult.FAILURE
    exporter = TellingExporter(Wavering(good, bad, bad, good, good, bad))
    batch: Any = [object(), object()]
    with capture_logs() as logs:
        for _ in range(6):
            exporter.export(batch)
    assert [
        ("tracing.export_failed", 2, None),
        ("tracing.export_resumed", None, 4),
        ("tracing.export_failed", 2, None),
    ] == [(line["event"], line.get("spans"), line.get("spans_lost")) for line in logs]


def test_a_holder_does_not_import_the_sdk() -> None:
    """Only the API, if it is there; an agent brings its own SDK, or none."""
    code = (
        "import sys, sexton.holder;"
        "print(sorted(m for m in sys.modules if m.startswith('opentelemetry.') and m.count('.') == 1))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=True
    )
    assert "opentelemetry.trace" in done.stdout
    assert "opentelemetry.sdk" not in done.stdout


def test_a_broken_part_of_sexton_is_not_passed_off_as_a_missing_extra() -> None:
    """The traceback says where."""
    code = "import sys; sys.modules['sexton.schemas.trace'] = None; import sexton.tracing"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert 1 == done.returncode
    assert "sexton.schemas.trace" in done.stderr
