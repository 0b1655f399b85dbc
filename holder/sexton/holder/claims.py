"""Packs a command for the wire: what is too long to travel inline goes ahead as a claim check.

Packing is a function of the command alone, so the same command is the same bytes every time it is sent.
"""

from dataclasses import dataclass
from typing import Final, TypeVar

from sexton.core.decide import texts
from sexton.core.hash import body_digest
from sexton.core.text import encode
from sexton.schemas.codec import AnyCommand
from sexton.schemas.commands import Append, Compact, Rewrite
from sexton.schemas.errors import PayloadTooLarge
from sexton.schemas.limits import CHUNK_BYTES, INLINE_BYTES, MAX_COMMAND_BYTES, MAX_SPAN_BYTES
from sexton.schemas.span import Claim, Text

T = TypeVar("T", bound=Text)

_CLAIM_JSON_BYTES: Final = 280
"""What a claim takes in a command; a shorter text gains nothing by becoming one."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Content to leave with the service before the command that claims it."""

    claim: Claim
    data: bytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A command as it is sent."""

    command: AnyCommand
    body: bytes
    uploads: tuple[Upload, ...]


def pack(command: AnyCommand) -> Packed:
    """The command on the wire, and what must be there before it.

    Raises:
        PayloadTooLarge: a span over the limit, or a command that does not fit even with all its content sent
            ahead.
        InvalidInput: a text that is no UTF-8.
    """
    contents = {i: _data(text, f"text {i}") for i, text in enumerate(texts(command)) if _inline(text)}
    claimed = {i for i, data in contents.items() if len(data) > INLINE_BYTES}
    packed = _with_claims(command, contents, claimed)
    # The largest first: few claims, few round trips.
    rest = sorted(contents.keys() - claimed, key=lambda i: len(contents[i]))
    while len(packed.body) > MAX_COMMAND_BYTES and rest:
        excess = len(packed.body) - MAX_COMMAND_BYTES
        while rest and excess > 0:
            index = rest.pop()
            gain = len(contents[index]) - _CLAIM_JSON_BYTES
            if gain <= 0:
                rest.clear()
                break
            claimed.add(index)
            excess -= gain
        packed = _with_claims(command, contents, claimed)
    if len(packed.body) > MAX_COMMAND_BYTES:
        raise PayloadTooLarge(
            f"the command has {len(packed.body)} bytes without its long texts, at most {MAX_COMMAND_BYTES} "
            "can be sent; split it",
            limit=MAX_COMMAND_BYTES,
            actual=len(packed.body),
        )
    return packed


def _inline(text: Text) -> bool:
    # An empty one is the service's to refuse.
    return bool(text.content)


def _data(text: Text, what: str) -> bytes:
    data = encode(text.content or "", what)
    if len(data) > MAX_SPAN_BYTES:
        raise PayloadTooLarge(
            f"{what} has {len(data)} bytes, a span has at most {MAX_SPAN_BYTES}",
            limit=MAX_SPAN_BYTES,
            actual=len(data),
        )
    return data


def _with_claims(command: AnyCommand, contents: dict[int, bytes], claimed: set[int]) -> Packed:
    uploads = {i: Upload(_claim(contents[i], command.event_id), contents[i]) for i in sorted(claimed)}

    def claimed_text(index: int, text: T) -> T:
        if index not in uploads:
            return text
        return text.model_copy(update={"content": None, "claim": uploads[index].claim})

    sent: AnyCommand = command
    match command:
        case Append():
            spans = tuple(claimed_text(i, span) for i, span in enumerate(command.spans))
            sent = command.model_copy(update={"spans": spans})
        case Compact(summary=Text() as summary):
            sent = command.model_copy(update={"summary": claimed_text(0, summary)})
        case Rewrite():
            sent = command.model_copy(update={"text": claimed_text(0, command.text)})
    return Packed(sent, sent.wire(), tuple(uploads.values()))


def _claim(data: bytes, event_id: str) -> Claim:
    return Claim(digest=body_digest(data), size_bytes=len(data), chunk_bytes=CHUNK_BYTES, upload_id=event_id)
