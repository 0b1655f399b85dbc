"""What the demo and its holder processes say to each other, and how: JSON, by NATS request and reply.

It has nothing to do with Sexton's own protocol. The holders are programs like any other, and somebody has
to tell them when to do what the story asks of them.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from typing import Any, Final, TypeVar

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from pydantic import BaseModel, ValidationError

from sexton.schemas.errors import PeerError, SextonError, Unavailable
from sexton.schemas.ids import Level
from sexton.schemas.records import RecordKind
from sexton.schemas.rpc import Tier

A = TypeVar("A", bound=BaseModel)

ROOT: Final = "sexton-demo"


def holder_id(name: str) -> str:
    """What the registry knows a holder by."""
    return f"demo-{name}"


class Verb(StrEnum):
    """What a holder is asked to do."""

    HELLO = "hello"
    MINT = "mint"
    BUILD_MAP = "build-map"
    USE_MAP = "use-map"
    HOLD = "hold"
    READ_HELD = "read-held"
    LET_GO = "let-go"
    QUOTE = "quote"
    REPORT = "report"


class Ask(BaseModel):
    """A request. Each verb uses the fields that it needs."""

    span_id: str = ""
    revision: int = 0
    """Wait until the log is known up to here."""
    source: str = ""
    """A file to read."""
    target: str = ""
    """A file to write."""


class Done(BaseModel):
    """Something was done so many times."""

    count: int = 0


class Quote(BaseModel):
    """What became of one pointer. Exactly one of `data` and `error` is set."""

    span_id: str
    data: bytes | None = None
    level: Level | None = None
    verbatim: bool = False
    tier: Tier | None = None
    superseded: bool = False
    """Bytes of an old version, as was asked for."""
    error: str | None = None
    """The error's code."""

    model_config = {"ser_json_bytes": "base64", "val_json_bytes": "base64"}


class MapUsed(BaseModel):
    """What a holder saw of its offset map before and after the rewrite."""

    version_before: int
    version_after: int
    builds_before: int
    """Builds up to the rewrite, compactions and all."""
    builds_after: int
    caught: bool
    """At its use, the map was seen to be of another version."""
    words: int
    """In the map at first."""
    misled: int
    """Words that the old offsets would have cut wrongly out of the new text, without an error."""
    words_now: int
    exact: int
    """Words of the new map whose bytes, by pointer, are the word."""
    refused: int
    """Old pointers to words that raised `StaleSpanError`."""


class HeldRead(BaseModel):
    """What one pointer to a version that is held, and no longer current, led to."""

    plain: Quote
    """Without a word that an old version will do."""
    old: Quote
    """With it."""


class Seen(BaseModel):
    """One bump, as a holder was told of it."""

    revision: int
    epoch: int
    kind: RecordKind


class Followed(BaseModel):
    """All bumps that a holder was told of, in its order."""

    bumps: list[Seen]


async def ask(client: Client, name: str, verb: Verb, request: Ask, answer: type[A], *, within_s: float) -> A:
    """Asks a holder to do something, and waits until it is done.

    Raises:
        Unavailable: it is not there, or not done in time.
        PeerError: it failed; the message says how.
    """
    try:
        reply = await client.request(
            f"{ROOT}.{name}.{verb.value}", request.model_dump_json().encode(), within_s
        )
    except (nats.errors.Error, TimeoutError) as error:
        raise Unavailable(
            f"{name} did not do {verb.value} within {within_s:g} s: {type(error).__name__}", verb=verb.value
        ) from error
    if reply.headers and "Error" in reply.headers:
        raise PeerError(f"{name} failed at {verb.value}: {reply.headers['Error']}", verb=verb.value)
    try:
        return answer.model_validate_json(reply.data)
    except ValidationError as error:
        raise PeerError(f"{name} gave no {answer.__name__}", verb=verb.value) from error


Handler = Callable[[Ask], Awaitable[BaseModel]]


async def answer(client: Client, name: str, handlers: Mapping[Verb, Handler]) -> None:
    """Answers what is asked of the holder `name`, from now on."""

    async def on_request(message: Msg) -> None:
        headers: dict[str, Any] | None = None
        body = b""
        try:
            verb = Verb(message.subject.rsplit(".", 1)[1])
            done = await handlers[verb](Ask.model_validate_json(message.data))
            body = done.model_dump_json().encode()
        except (SextonError, OSError, ValueError, TimeoutError) as error:
            headers = {"Error": " ".join(f"{type(error).__name__}: {error}".split())}
        await client.publish(message.reply, body, headers=headers)

    await client.subscribe(f"{ROOT}.{name}.*", cb=on_request)
    await client.flush()
