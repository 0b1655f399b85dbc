"""What an agent embeds: follow shared contexts, keep pointers and artifacts, and never serve them stale.

An agent that quotes from a context, and works with an offset map into it::

    import asyncio
    from sexton.holder import Holder, StaleSpanError

    async def main(nats_url: str) -> None:
        async with Holder.connect(nats_url) as holder:
            notes = await holder.open("notes")
            plan = (await notes.append("Ship on Friday. Tell Ada.", role="user")).spans[0].span_id
            quote = await notes.mint(plan, offset=8, length=6)
            print((await notes.resolve(quote)).quote())                # Friday
            words = notes.derived(plan, lambda text: text.split())
            print(len(await words.use()))                              # 5
            await notes.rewrite(plan, "Ship on Monday, tell everyone.")
            try:
                await notes.resolve(quote)
            except StaleSpanError as stale:
                print("now at version", stale.current.version)         # now at version 2
            print(len(await words.use()))                              # 5, of the new text
            print(await notes.render())                                # Ship on Monday, tell everyone.

    asyncio.run(main("nats://127.0.0.1:4222"))

Errors are in `sexton.schemas.errors`, split by whose turn it is. For tests without a server there is
`sexton.holder.testing`.
"""

from sexton.core.plan import Policy
from sexton.holder.adapters.nats import NatsTransport
from sexton.holder.bumps import Bumps
from sexton.holder.context import Context
from sexton.holder.derive import Derived
from sexton.holder.errors import BumpsMissed, HolderClosed
from sexton.holder.holder import Holder
from sexton.holder.pins import Pinned, PinScope
from sexton.holder.resolve import Consistency
from sexton.holder.results import CompactionReport, Resolved
from sexton.holder.settings import HolderSettings
from sexton.schemas.commands import SourceRef
from sexton.schemas.errors import (
    BoundaryError,
    CallerError,
    CommandRejected,
    EpochMismatch,
    Fenced,
    HardFailure,
    HashMismatch,
    InvalidInput,
    Irreducible,
    LeafCorrupt,
    LeafLost,
    LevelMismatch,
    OutcomeUnknown,
    PayloadTooLarge,
    PeerError,
    PermissionRefused,
    PinRefused,
    PointerResurrectionError,
    SextonError,
    StaleSpanError,
    TooManyContexts,
    TooManyHolders,
    TooManyPins,
    TransientError,
    Unavailable,
    Unconfirmed,
    Unreachable,
    Unsettled,
)
from sexton.schemas.leases import PinCost
from sexton.schemas.pointer import Pointer
from sexton.schemas.span import Labels, NewSpan

__all__ = [
    "BoundaryError",
    "Bumps",
    "BumpsMissed",
    "CallerError",
    "CommandRejected",
    "CompactionReport",
    "Consistency",
    "Context",
    "Derived",
    "EpochMismatch",
    "Fenced",
    "HardFailure",
    "HashMismatch",
    "Holder",
    "HolderClosed",
    "HolderSettings",
    "InvalidInput",
    "Irreducible",
    "Labels",
    "LeafCorrupt",
    "LeafLost",
    "LevelMismatch",
    "NatsTransport",
    "NewSpan",
    "OutcomeUnknown",
    "PayloadTooLarge",
    "PeerError",
    "PermissionRefused",
    "PinCost",
    "PinRefused",
    "PinScope",
    "Pinned",
    "Pointer",
    "PointerResurrectionError",
    "Policy",
    "Resolved",
    "SextonError",
    "SourceRef",
    "StaleSpanError",
    "TooManyContexts",
    "TooManyHolders",
    "TooManyPins",
    "TransientError",
    "Unavailable",
    "Unconfirmed",
    "Unreachable",
    "Unsettled",
]
