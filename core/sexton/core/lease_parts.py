"""The answer about a lease, cut into parts that fit into messages, and put together again.

A holder may announce thousands of pins at once, and each that is refused comes back with what its span is by
now. Shared by the worker, the in-memory service that holders are tested with, and the holder.
"""

from collections.abc import Sequence
from typing import Final

from sexton.schemas.leases import GrantedPin, LeaseReply, RefusedPin
from sexton.schemas.limits import CHUNK_BYTES, MAX_PAYLOAD_BYTES

SURELY_FIT: Final = 512
"""So many answers about pins fit into one message, however long their names."""

WHOLE_BYTES: Final = MAX_PAYLOAD_BYTES - 64 * 1024
"""Answers about pins that go into one message with the rest of a reply. Holders from before there were parts
take the first one for all there is, so what fits is not cut."""


def lease_parts(reply: LeaseReply, most_bytes: int = CHUNK_BYTES) -> list[LeaseReply]:
    """`reply` in as many parts as it takes, none with more than `most_bytes` about pins.

    All that is not about single pins is in every part.
    """
    verdicts: list[GrantedPin | RefusedPin] = [*reply.granted, *reply.refused]
    if len(verdicts) <= SURELY_FIT:
        return [reply]
    sizes_bytes = [len(verdict.model_dump_json(exclude_none=True).encode()) + 1 for verdict in verdicts]
    if sum(sizes_bytes) <= WHOLE_BYTES:
        return [reply]
    batches: list[list[GrantedPin | RefusedPin]] = [[]]
    weight_bytes = 0
    for verdict, size_bytes in zip(verdicts, sizes_bytes, strict=True):
        if batches[-1] and weight_bytes + size_bytes > most_bytes:
            batches.append([])
            weight_bytes = 0
        batches[-1].append(verdict)
        weight_bytes += size_bytes
    return [
        reply.model_copy(
            update={
                "index": index,
                "last": index == len(batches) - 1,
                "granted": tuple(v for v in batch if isinstance(v, GrantedPin)),
                "refused": tuple(v for v in batch if isinstance(v, RefusedPin)),
            }
        )
        for index, batch in enumerate(batches)
    ]


def whole_reply(parts: Sequence[LeaseReply]) -> LeaseReply:
    """The reply that was cut into `parts`, of which there is at least one."""
    return parts[-1].model_copy(
        update={
            "index": 0,
            "granted": tuple(pin for part in parts for pin in part.granted),
            "refused": tuple(pin for part in parts for pin in part.refused),
        }
    )
