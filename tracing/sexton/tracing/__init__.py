"""Traces, from a command through its commit to whoever hears of it: OpenTelemetry's, where it is installed.

OpenTelemetry is an extra, `sexton[otel]`. Without it everything here does nothing, at the cost of a look at
a variable. With it, spans go to whatever tracer provider the program has set; with none, nowhere.

Rules that hold for all spans:

- A name holds no id, so that spans can be counted by it. Ids are attributes.
- No attribute holds content, a secret, or the words of an error, which might quote either; only its code.
- A span that comes of a message is a child of the message's, and linked to it, as the conventions for
  messaging want it. If the program has a span of its own around it, it is a child of that, and has the link.

A trace travels between processes in headers, see `sexton.schemas.trace`, and within one with the task.
"""

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from contextvars import Context, copy_context
from typing import Any, Final

from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb
from sexton.schemas.trace import trace_headers
from sexton.tracing.base import ACTIVE, NO_HEADERS, NO_SPAN, Headers, Kind, Span, Value

try:
    from sexton.tracing import otel
except ModuleNotFoundError as error:
    if not (error.name or "").startswith("opentelemetry"):
        raise
    AVAILABLE = False
else:
    AVAILABLE = True

__all__ = [
    "AVAILABLE",
    "NO_HEADERS",
    "Headers",
    "Span",
    "Tracer",
    "cause",
    "current",
    "detached",
    "headers",
    "log_ids",
    "send_step",
    "step",
]

QUIET: Final = frozenset({Verb.HEARTBEAT, Verb.SYNC})
"""What holders ask at every few seconds by themselves: a part of a trace, but never one of its own."""

_NOTHING: Final[AbstractContextManager[Span]] = nullcontext(NO_SPAN)


class Tracer:
    """Makes the spans of one part of Sexton."""

    def __init__(self, scope: str, *, on: bool = True) -> None:
        """Args: the name of the part; and whether it is to be traced at all."""
        self._otel = otel.OtelTracer(scope) if AVAILABLE and on else None

    def send(self, name: str, subject: str, /, **attributes: Value) -> AbstractContextManager[Span]:
        """A span around the sending of a message, whose `headers()` the message then carries."""
        if self._otel is None:
            return _NOTHING
        return self._otel.span(name, "producer", _messaging("send", subject) | otel.prefixed(attributes))

    def receive(
        self, name: str, subject: str, message: Mapping[str, str] | None, /, **attributes: Value
    ) -> AbstractContextManager[Span]:
        """A span around the handling of a message.

        Args:
            name: of the span.
            subject: with names in the place of its ids.
            message: all headers of the message, from anybody.
            attributes: get the prefix `sexton.`.
        """
        if self._otel is None:
            return _NOTHING
        return self._otel.span(
            name,
            "consumer",
            _messaging("process", subject) | otel.prefixed(attributes),
            cause=trace_headers(message),
            within=False,
        )

    def handle(
        self, name: str, subject: str, cause: Headers, /, **attributes: Value
    ) -> AbstractContextManager[Span]:
        """A span around what the program does because of a message that came some time ago.

        Args:
            name: of the span.
            subject: with names in the place of its ids.
            cause: the trace of that message, as `cause()` gave it.
            attributes: get the prefix `sexton.`.
        """
        if self._otel is None:
            return _NOTHING
        return self._otel.span(
            name, "consumer", _messaging("process", subject) | otel.prefixed(attributes), cause=cause
        )

    def work(self, name: str, cause: Headers, /, **attributes: Value) -> AbstractContextManager[Span]:
        """`handle` for what is done inside of Sexton."""
        if self._otel is None:
            return _NOTHING
        return self._otel.span(name, "internal", otel.prefixed(attributes), cause=cause)

    def ask(self, verb: Verb, /, **attributes: Value) -> AbstractContextManager[Span]:
        """A span around a request and the reply to it."""
        if self._otel is None or (verb in QUIET and not otel.in_span()):
            return _NOTHING
        return self._otel.span(
            f"sexton.rpc.{verb.value}", "client", _rpc("rpc", verb) | otel.prefixed(attributes)
        )

    def answer(
        self, verb: Verb | OpsVerb, message: Mapping[str, str] | None, /, **attributes: Value
    ) -> AbstractContextManager[Span]:
        """A span around the answering of a request; `message` is as for `receive`."""
        if self._otel is None:
            return _NOTHING
        cause = trace_headers(message)
        if verb in QUIET and not cause:
            return _NOTHING
        family = "rpc" if isinstance(verb, Verb) else "ops"
        return self._otel.span(
            f"sexton.{family}.{verb.value}",
            "server",
            _rpc(family, verb) | otel.prefixed(attributes),
            cause=cause,
            within=False,
        )


def step(name: str, kind: Kind = "internal", /, **attributes: Value) -> AbstractContextManager[Span]:
    """A span around a part of what is being done. Nothing outside of a span of Sexton's that is recorded."""
    active = ACTIVE.get()
    if active is None or not active.recorded:
        return _NOTHING
    return active.tracer.span(name, kind, otel.prefixed(attributes))


def send_step(name: str, subject: str, /, **attributes: Value) -> AbstractContextManager[Span]:
    """`step` for the sending of a message, whose `headers()` it then carries."""
    active = ACTIVE.get()
    if active is None or not active.recorded:
        return _NOTHING
    return active.tracer.span(name, "producer", _messaging("send", subject) | otel.prefixed(attributes))


def current() -> Span:
    """The span of Sexton's that this task is in; if it is in none, one that tells nobody."""
    active = ACTIVE.get()
    return NO_SPAN if active is None else active.span


def headers() -> dict[str, str]:
    """What a message that is sent now carries. A new dictionary, empty outside of a span of Sexton's."""
    return {} if ACTIVE.get() is None else otel.current_headers()


def cause() -> Headers:
    """The trace of the message that is being handled; empty if none is, or it has none."""
    active = ACTIVE.get()
    return NO_HEADERS if active is None else active.cause


def detached() -> Context | None:
    """For a task that outlives what is being done now: a context outside of every span.

    None, which is this task's own context, where nothing can be traced.
    """
    if not AVAILABLE:
        return None
    context = copy_context()
    context.run(otel.leave)
    return context


def log_ids(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: names the span that a line was written in."""
    if ACTIVE.get() is not None:
        event.update(otel.current_ids())
    return event


def _messaging(operation: str, subject: str) -> dict[str, str | int | float | bool]:
    return {
        "messaging.system": "nats",
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.template": subject,
    }


def _rpc(family: str, verb: Verb | OpsVerb) -> dict[str, str | int | float | bool]:
    return {"rpc.system.name": "sexton", "rpc.method": f"sexton.{family}/{verb.value}"}
