"""Content on its way in: inline, or put together from a claim check's chunks."""

import asyncio
import hashlib
from typing import Final

from sexton.core.decide import texts
from sexton.schemas.codec import AnyCommand
from sexton.schemas.errors import InvalidInput, PayloadTooLarge, SextonError
from sexton.schemas.limits import MAX_COMMAND_CHUNKS, MAX_SPAN_BYTES
from sexton.schemas.rpc import PutRequest
from sexton.schemas.span import Claim, Text
from sexton.worker.ports import ColdStore

_PARALLEL: Final = 8


class ClaimMissing(SextonError):
    """A claim check names content that is not there, or not whole."""

    code = "claim_missing"


async def load_texts(cold: ColdStore, command: AnyCommand) -> list[bytes]:
    """The bytes of a command's texts, in order.

    Raises:
        ClaimMissing: chunks are missing, or they are not what the claim says.
        PayloadTooLarge: the claims are for more than fits into memory at once, or for too many chunks.
        Unavailable: the store did not answer.
    """
    claims = [text.claim for text in texts(command) if text.claim is not None]
    # Each once, however often it is named.
    distinct = {claim.model_dump_json(): claim for claim in claims}
    _bound("bytes", sum(claim.size_bytes for claim in claims), MAX_SPAN_BYTES)
    _bound("chunks", sum(claim.chunks for claim in distinct.values()), MAX_COMMAND_CHUNKS)
    left = {name: await _claimed(cold, command.context_id, claim) for name, claim in distinct.items()}
    return [
        (text.content or "").encode() if text.claim is None else left[text.claim.model_dump_json()]
        for text in texts(command)
    ]


def _bound(unit: str, claimed: int, limit: int) -> None:
    if claimed > limit:
        raise PayloadTooLarge(
            f"claims of {claimed} {unit} in one command; it has at most {limit}", limit=limit, actual=claimed
        )


async def store_chunk(cold: ColdStore, request: PutRequest) -> None:
    """Keeps one chunk of a claim. The same chunk may come any number of times.

    Raises:
        InvalidInput: the index or the size does not fit the claim.
        Unavailable: the store did not answer.
    """
    claim = request.claim
    if request.index >= claim.chunks:
        raise InvalidInput(f"the claim has {claim.chunks} chunks, none {request.index}", field="index")
    expected = min(claim.chunk_bytes, claim.size_bytes - request.index * claim.chunk_bytes)
    if len(request.data) != expected:
        raise InvalidInput(
            f"chunk {request.index} has {len(request.data)} bytes, the claim says {expected}", field="data"
        )
    await cold.write_chunk(request.context_id, claim, request.index, request.data)


async def drop_claims(cold: ColdStore, command: AnyCommand) -> None:
    """Drops what was left for a committed command and for no other. Raises `Unavailable`.

    Chunks without an upload id may be what another command waits for: the sweep of orphans has those, once
    they are old.
    """
    for text in texts(command):
        if text.claim is not None and text.claim.upload_id == command.event_id:
            await cold.delete_chunks(command.context_id, text.claim)


async def load_text(cold: ColdStore, context_id: str, text: Text) -> bytes:
    """The bytes of one text. Raises `ClaimMissing` and `Unavailable`."""
    return (
        (text.content or "").encode() if text.claim is None else await _claimed(cold, context_id, text.claim)
    )


async def _claimed(cold: ColdStore, context_id: str, claim: Claim) -> bytes:
    """What was left for a claim. Raises `ClaimMissing` and `Unavailable`."""
    data = b"".join(await _chunks(cold, context_id, claim))
    if len(data) != claim.size_bytes or "sha256:" + hashlib.sha256(data).hexdigest() != claim.digest:
        raise ClaimMissing("the content left for this claim is not what the claim says")
    return data


async def _chunks(cold: ColdStore, context_id: str, claim: Claim) -> list[bytes]:
    chunks: list[bytes] = []
    for start in range(0, claim.chunks, _PARALLEL):
        batch = range(start, min(start + _PARALLEL, claim.chunks))
        found = await asyncio.gather(*(cold.read_chunk(context_id, claim, i) for i in batch))
        for index, data in zip(batch, found, strict=True):
            if data is None:
                raise ClaimMissing(f"chunk {index} of {claim.chunks} was never left with the service")
            chunks.append(data)
    return chunks
