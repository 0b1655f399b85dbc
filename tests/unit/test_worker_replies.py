"""Replies: whatever happens while one is made, whoever asked hears something."""

from collections.abc import Iterable, Iterator

import pytest

from sexton.schemas.codec import decode
from sexton.schemas.errors import LeafLost, PayloadTooLarge, SextonError, Unavailable
from sexton.schemas.limits import MAX_PAYLOAD_BYTES
from sexton.schemas.rpc import FetchPart, ReplyPart, RpcError
from sexton.schemas.wire_errors import error_from
from sexton.worker.replies import reply

SUBJECT = "sexton.rpc.ctx.fetch"


def part(size_bytes: int, index: int = 0, *, last: bool = True) -> FetchPart:
    return FetchPart(context_id="ctx", index=index, last=last, data=b"x" * size_bytes)


async def answered(parts: Iterable[ReplyPart] | SextonError, subject: str = SUBJECT) -> list[bytes]:
    sent: list[bytes] = []

    async def make(_: str) -> Iterable[ReplyPart]:
        if isinstance(parts, SextonError):
            raise parts
        return parts

    async def send(data: bytes) -> None:
        sent.append(data)

    await reply(subject, send, make)
    return sent


@pytest.mark.parametrize("before", [0, 1, 3])
async def test_a_part_that_fits_into_no_message_is_an_error_to_who_asked(before: int) -> None:
    """Not silence, upon which the asker would ask for the same again, for ever. Also after other parts."""
    parts = [part(10, i, last=False) for i in range(before)]
    sent = await answered([*parts, part(MAX_PAYLOAD_BYTES, before)])
    assert [p.wire() for p in parts] == sent[:-1]
    error = error_from(decode(RpcError, sent[-1]))
    assert isinstance(error, PayloadTooLarge)
    assert MAX_PAYLOAD_BYTES == error.fields["limit"] < error.fields["actual"]
    assert "fetch" in error.message


@pytest.mark.parametrize(
    ("fault", "expected"), [(Unavailable("gone"), Unavailable), (KeyError("secret"), Unavailable)], ids=str
)
async def test_a_fault_between_two_parts_is_an_error_to_who_asked(
    fault: Exception, expected: type[SextonError]
) -> None:
    """Parts may be made while the first ones are on their way."""

    def parts() -> Iterator[ReplyPart]:
        yield part(10, last=False)
        raise fault

    first, last = await answered(parts())
    assert part(10, last=False).wire() == first
    assert isinstance(error_from(decode(RpcError, last)), expected)
    assert b"secret" not in last


async def test_an_error_that_fits_into_no_message_is_told_without_its_fields() -> None:
    """Its code and the beginning of its text."""
    (sent,) = await answered(LeafLost("m" * MAX_PAYLOAD_BYTES, spans=["x"] * MAX_PAYLOAD_BYTES))
    error = error_from(decode(RpcError, sent))
    assert isinstance(error, LeafLost)
    assert "m" * 1000 == error.message
    assert {} == error.fields


async def test_a_context_that_is_none_is_an_error_to_who_asked() -> None:
    """What is asked about nothing is answered, too."""
    (sent,) = await answered([], "sexton.rpc.ä.fetch")
    assert "unknown" == decode(RpcError, sent).context_id
