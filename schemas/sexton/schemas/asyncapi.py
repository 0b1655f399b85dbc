"""The AsyncAPI document: every channel, who may use it, and what goes over it.

Subjects come from `sexton.schemas.subjects`, messages from `sexton.schemas.json_schema`; neither is typed
again. The application that the document is about is the service, that is a worker: it *receives* commands and
*sends* bumps.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from sexton.schemas import subjects
from sexton.schemas.base import SCHEMA_VERSION
from sexton.schemas.commands import CommandKind
from sexton.schemas.dead import DEAD_LETTER_HEADER
from sexton.schemas.ids import TOKEN
from sexton.schemas.json_schema import DIALECT, Document, messages
from sexton.schemas.ops import OpsVerb
from sexton.schemas.outcome import REPLY_HEADER
from sexton.schemas.records import RecordKind
from sexton.schemas.rpc import Verb
from sexton.schemas.trace import MAX_TRACESTATE_BYTES, TRACEPARENT, TRACEPARENT_PATTERN, TRACESTATE

HOLDERS: Final = "holders"
WORKERS: Final = "workers"
OPERATORS: Final = "operators"
PAGERS: Final = "pagers"

PUBLISH: Final = "x-sexton-publish"
"""On a channel: who may publish to it. A server's permissions should say the same."""
SUBSCRIBE: Final = "x-sexton-subscribe"
"""On a channel: who may subscribe to it."""

_COMMANDS: Final = tuple(kind.value for kind in CommandKind)
_RECORDS: Final = tuple(kind.value for kind in RecordKind)
_OUTCOMES: Final = ("committed", "no_change", "rejected")
_ANSWERS: Final[dict[Verb | OpsVerb, tuple[str, str]]] = {
    Verb.SYNC: ("sync_request", "sync_part"),
    Verb.FETCH: ("fetch_request", "fetch_part"),
    Verb.PUT: ("put_request", "put_reply"),
    Verb.PIN: ("pin_request", "lease_reply"),
    Verb.RELEASE: ("release_request", "lease_reply"),
    Verb.HEARTBEAT: ("heartbeat_request", "lease_reply"),
    OpsVerb.HOLDERS: ("ops_request", "holders_part"),
    OpsVerb.PINS: ("ops_request", "pins_part"),
    OpsVerb.TOMBSTONES: ("ops_request", "tombstones_part"),
    OpsVerb.SWEEP: ("ops_request", "tombstones_part"),
    OpsVerb.VERIFY: ("verify_request", "verify_part"),
}
"""Of each verb: the request, and what a good answer is made of."""

PARTS: Final = (
    "A reply may come in several parts, to the same inbox, in order: each has an `index` from zero, and the "
    "one with `last` is the last. A reader that misses one asks again. An error is one part of its own; its "
    "`status` is `error`."
)
_PARAMETERS: Final = {
    "context_id": f"The context; matches `{TOKEN}`.",
    "event_id": f"The command that this is the outcome of; matches `{TOKEN}`.",
    "partition": "A number from 0; the server computes it from the context.",
    "kind": "The kind of command.",
    "stream": "The stream that the message was taken from.",
    "fingerprint": "The hex digits of the incident's fingerprint.",
}


@dataclass(frozen=True)
class _Channel:
    """A channel, from the service's side. `address` is none for an inbox, which its asker names."""

    name: str
    address: str | None
    summary: str
    description: str
    messages: tuple[str, ...]
    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    actions: tuple[str, ...] = ()
    """What a worker does here: `receive`, `send`."""
    reply: str | None = None
    """Name of the channel that answers go to."""
    reply_location: str | None = None


def document() -> Document:
    """The whole document. Schemas are referred to as files beside it, `json/NAME.schema.json`."""
    channels = list(_channels())
    used = sorted({name for channel in channels for name in channel.messages})
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Sexton",
            "version": str(SCHEMA_VERSION),
            "description": (
                "Compacts and rewrites a context that agents share, and tells every holder of a reference. "
                "The document is written from the side of a worker: what it receives, others send. "
                f"`{PUBLISH}` and `{SUBSCRIBE}` on a channel say who may use it; a channel without "
                f"`{HOLDERS}` is private, and the server's permissions must keep holders out of it."
            ),
            "license": {"name": "Apache-2.0"},
        },
        "defaultContentType": "application/json",
        "servers": {
            "nats": {
                "host": "{host}:{port}",
                "protocol": "nats",
                "description": "A NATS server or cluster with JetStream.",
                "variables": {"host": {"default": "localhost"}, "port": {"default": "4222"}},
            }
        },
        "channels": {channel.name: _channel(channel) for channel in channels},
        "operations": dict(_operations(channels)),
        "components": {"messages": {name: _message(name) for name in used}},
    }


def _channels() -> Iterator[_Channel]:
    for kind in CommandKind:
        yield _Channel(
            kind.value,
            _address(subjects.command("context_id", kind)),
            f"Commands: {kind.value}.",
            f"Stored in the stream `{subjects.STREAM_COMMANDS}`. Commands of one context are handled in the "
            "order of publishing. A command counts once for each `event_id`, however often it is sent; it "
            f"carries no `Nats-Msg-Id`. The header `{REPLY_HEADER}` may name an inbox for the outcome.",
            (kind.value,),
            publish=(HOLDERS, WORKERS),
            subscribe=(),
            actions=("receive",),
            reply="outcome_inbox",
            reply_location=f"$message.header#/{REPLY_HEADER}",
        )
    yield _Channel(
        "partitioned",
        _address(_with_names(subjects.PARTITIONED, ("partition", "context_id", "kind"))),
        "Commands as they are stored.",
        f"What the subject transform of `{subjects.STREAM_COMMANDS}` makes of a command's subject. Each "
        "partition has one durable consumer with one message in flight.",
        _COMMANDS,
        publish=(),
        subscribe=(WORKERS,),
        actions=("receive",),
    )
    yield from _told()
    for verb in (*Verb, *OpsVerb):
        yield from _asked(verb)
    yield from _internal()


def _told() -> Iterator[_Channel]:
    """What the service tells holders."""
    yield _Channel(
        "epoch",
        _address(subjects.epoch("context_id")),
        "Bumps: the records of a context, broadcast as they are committed.",
        f"The stream `{subjects.STREAM_LOG}` republishes here what it stores; nobody publishes. Delivered at "
        "most once: `revision` is dense, and whoever misses one asks `sync`. The headers `Nats-Sequence` and "
        "`Nats-Last-Sequence` (the one before it in this context) are the server's.",
        _RECORDS,
        publish=(),
        subscribe=(HOLDERS, WORKERS),
        actions=("send",),
    )
    yield _Channel(
        "outcome",
        _address(subjects.outcome("context_id", "event_id")),
        "The outcome of one command.",
        "Delivered at most once. Whoever missed it sends the command again with the same bytes.",
        _OUTCOMES,
        publish=(WORKERS,),
        subscribe=(HOLDERS,),
        actions=("send",),
    )
    yield _Channel(
        "outcome_inbox",
        None,
        "The outcome of one command, to its sender.",
        f"The inbox that the command's `{REPLY_HEADER}` header names; nothing but an inbox is answered. The "
        "same message as on the outcome's own subject.",
        _OUTCOMES,
        publish=(WORKERS,),
        subscribe=(HOLDERS,),
    )


def _asked(verb: Verb | OpsVerb) -> Iterator[_Channel]:
    request, part = _ANSWERS[verb]
    asker, name, subject = (
        (HOLDERS, verb.value, subjects.rpc("context_id", verb))
        if isinstance(verb, Verb)
        else (OPERATORS, f"ops_{verb.value}", subjects.ops("context_id", verb))
    )
    yield _Channel(
        name,
        _address(subject),
        f"Requests: {verb.value}.",
        "Request and reply; the reply subject must be an inbox. One worker answers.",
        (request,),
        publish=(asker,),
        subscribe=(WORKERS,),
        actions=("receive",),
        reply=f"{name}_reply",
    )
    yield _Channel(
        f"{name}_reply",
        None,
        f"Answers to {verb.value}.",
        f"The inbox that the request names as its reply subject. {PARTS}",
        (part, "rpc_error"),
        publish=(WORKERS,),
        subscribe=(asker,),
    )


def _internal() -> Iterator[_Channel]:
    """What workers keep among themselves."""
    yield _Channel(
        "log",
        _address(subjects.log("context_id")),
        "The log: the truth.",
        f"Stored in `{subjects.STREAM_LOG}`, one record for each revision. A commit is one publish with "
        "`Nats-Expected-Last-Subject-Sequence`.",
        _RECORDS,
        publish=(WORKERS,),
        subscribe=(WORKERS,),
        actions=("send", "receive"),
    )
    yield _Channel(
        "summarise",
        _address(subjects.summarise("context_id")),
        "Compactions that still lack a summary.",
        f"Stored in `{subjects.STREAM_SUMMARISE}`, as they were sent, header `{REPLY_HEADER}` included.",
        ("compact",),
        publish=(WORKERS,),
        subscribe=(WORKERS,),
        actions=("send", "receive"),
    )
    yield _Channel(
        "failure",
        _address(subjects.failure("context_id")),
        "Hard failures: proven loss or damage of bytes, a collection that is stuck, and the end of each.",
        f"Stored in `{subjects.STREAM_FAILURES}`. The pager's queue; workers listen, to know what is open.",
        ("hard_failure_record",),
        publish=(WORKERS,),
        subscribe=(WORKERS, PAGERS),
        actions=("send", "receive"),
    )
    yield _Channel(
        "dead_letter",
        _address(subjects.dead_letter("stream")),
        "Messages that no worker could handle.",
        f"Stored in `{subjects.STREAM_DEAD}`. The payload is the original, byte for byte; the header "
        f"`{DEAD_LETTER_HEADER}` says what became of it.",
        ("dead_letter",),
        publish=(WORKERS,),
        subscribe=(OPERATORS, PAGERS),
        actions=("send",),
    )
    yield _Channel(
        "incident",
        _address(subjects.incident("sha256:fingerprint")),
        "Incidents: what a pager knows of each failure, and whom it has told.",
        f"Stored in `{subjects.STREAM_INCIDENTS}`, the latest of each. A change is one publish with "
        "`Nats-Expected-Last-Subject-Sequence`.",
        ("incident",),
        publish=(PAGERS,),
        subscribe=(PAGERS,),
    )


def _with_names(pattern: str, names: Iterable[str]) -> str:
    """A filter with a name in the place of each of its stars."""
    remaining = iter(names)
    return ".".join(next(remaining) if part == "*" else part for part in pattern.split("."))


def _address(subject: str) -> str:
    """A subject that was built with the names of parameters, as an address template."""
    return ".".join(f"{{{part}}}" if part in _PARAMETERS else part for part in subject.split("."))


def _channel(channel: _Channel) -> Document:
    names = [] if channel.address is None else [t[1:-1] for t in channel.address.split(".") if t[0] == "{"]
    parameters = {name: _parameter(name) for name in names}
    return {
        "address": channel.address,
        "summary": channel.summary,
        "description": channel.description,
        **({"parameters": parameters} if parameters else {}),
        "messages": {name: _ref("components", "messages", name) for name in channel.messages},
        PUBLISH: list(channel.publish),
        SUBSCRIBE: list(channel.subscribe),
    }


def _parameter(name: str) -> Document:
    described: Document = {"description": _PARAMETERS[name]}
    return {**described, "enum": list(_COMMANDS)} if name == "kind" else described


def _operations(channels: Iterable[_Channel]) -> Iterator[tuple[str, Document]]:
    by_name = {channel.name: channel for channel in channels}
    for channel in by_name.values():
        for action in channel.actions:
            operation = {
                "action": action,
                "channel": _ref("channels", channel.name),
                "summary": channel.summary,
                "messages": _messages_of(channel),
            }
            if channel.reply is not None:
                operation["reply"] = _reply(by_name[channel.reply], channel.reply_location)
            yield f"{action}_{channel.name}", operation


def _reply(channel: _Channel, location: str | None) -> Document:
    reply: Document = {"channel": _ref("channels", channel.name), "messages": _messages_of(channel)}
    return reply if location is None else {"address": {"location": location}, **reply}


def _messages_of(channel: _Channel) -> list[Document]:
    return [_ref("channels", channel.name, "messages", name) for name in channel.messages]


def _message(name: str) -> Document:
    model = messages()[name]
    summary = " ".join((model.__doc__ or "").split("\n\n")[0].split())
    common: Document = {"name": name, "title": model.__name__, "summary": summary}
    schema = {"$ref": f"./json/{name}.schema.json"}
    if name == "dead_letter":
        header = {"type": "string", "contentMediaType": "application/json", "contentSchema": schema}
        return {
            **common,
            "contentType": "application/octet-stream",
            "headers": _typed(_object({DEAD_LETTER_HEADER: header}, required=[DEAD_LETTER_HEADER])),
        }
    headers = dict(_TRACE) if name in _TRACED else {}
    if name in _COMMANDS:
        inbox = {"type": "string", "description": "An inbox for the outcome.", "pattern": subjects.INBOX}
        headers = {REPLY_HEADER: inbox, **headers}
    if headers:
        common["headers"] = _typed(_object(headers, required=[]))
    return {**common, "payload": _typed(schema)}


def _object(properties: Document, required: list[str]) -> Document:
    return {"type": "object", "properties": properties, **({"required": required} if required else {})}


def _typed(schema: Document) -> Document:
    """A schema with its dialect, which is newer than the one that AsyncAPI takes for granted."""
    return {"schemaFormat": f"application/schema+json;version={_DRAFT}", "schema": schema}


def _ref(*path: str) -> dict[str, Any]:
    return {"$ref": "#/" + "/".join(path)}


_TRACED: Final = frozenset(
    {*_COMMANDS, *_RECORDS, *_OUTCOMES, "hard_failure_record"} | {request for request, _ in _ANSWERS.values()}
)
"""What may carry a trace: all that is done because somebody asked for it, but no part of a reply."""
_TRACE: Final[Document] = {
    TRACEPARENT: {
        "type": "string",
        "description": "The span that sent the message, as W3C Trace Context has it. Changes nothing else.",
        "pattern": TRACEPARENT_PATTERN,
    },
    TRACESTATE: {
        "type": "string",
        "description": "What tools add to the trace, likewise.",
        "maxLength": MAX_TRACESTATE_BYTES,
    },
}
_DRAFT: Final = "draft-" + DIALECT.split("/")[-2]
