"""What operators ask: `sexton.ops.<context>.<verb>`. Holders have no rights on these subjects.

The rule of parts is that of `sexton.schemas.rpc`.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from sexton.schemas.base import Count, Items, Message
from sexton.schemas.ids import ContextId
from sexton.schemas.leases import LeaseInfo, PinInfo
from sexton.schemas.rpc import Head, ReplyPart
from sexton.schemas.span import Identity, SpanState, Strategy


class OpsVerb(StrEnum):
    """What an operator can ask; also the last token of the subject."""

    HOLDERS = "holders"
    PINS = "pins"
    TOMBSTONES = "tombstones"
    SWEEP = "sweep"
    VERIFY = "verify"


class OpsRequest(Message):
    """Asks about one context."""

    context_id: ContextId


class HoldersPart(ReplyPart):
    """A part of the answer to `holders`: all leases."""

    status: Literal["ok"] = "ok"
    holders: Items[LeaseInfo] = ()


class PinsPart(ReplyPart):
    """A part of the answer to `pins`: all live pins."""

    status: Literal["ok"] = "ok"
    pins: Items[PinInfo] = ()


class TombstoneInfo(Identity):
    """A tombstone, who holds it, and what its collection waits for."""

    state: SpanState
    strategy: Strategy | None = None
    """What the rewrite did with it; none if the span was pruned."""
    epoch: Count
    """The epoch at which it stopped being current."""
    step: str
    """What the next sweep does with it: `keep`, `mark`, `wait_quiet`, `wait_hold_back`, `announce` …"""
    marked_for_ms: Count | None = None
    """How long its mark has stood, by the registry's clock."""
    pins: Items[PinInfo] = ()
    """Who holds it; of very many, the first ones."""
    pin_count: Count = 0
    """How many hold it."""


class TombstonesPart(ReplyPart):
    """A part of the answer to `tombstones`, and to `sweep` (as they were when it began)."""

    status: Literal["ok"] = "ok"
    tombstones: Items[TombstoneInfo] = ()
    collected: Count = 0
    """Of a sweep, in its last part: tombstones whose bytes are gone."""
    size_freed_bytes: Count = 0
    """Of a sweep, in its last part."""
    called_off: Count = 0
    """Of a sweep, in its last part: announced, and pinned after all."""


class VerifyRequest(OpsRequest):
    """Asks to read some of a context's bytes and compare them with what was committed."""

    after: str = ""
    """Go on behind this `span_id@version`; empty for the beginning."""
    limit: Annotated[int, Field(ge=1, le=1000, strict=True)] = 200


class Damage(Identity):
    """A version whose bytes are not what was committed."""

    reason: Literal["lost", "corrupt"]
    found_size_bytes: Count | None = None


class VerifyPart(ReplyPart):
    """The answer to `verify`."""

    status: Literal["ok"] = "ok"
    head: Head
    checked: Count
    size_checked_bytes: Count
    damaged: Items[Damage] = ()
    next: str | None = None
    """Ask again with this as `after`; none if that was all."""
    total: Count
    """Versions of the context whose bytes must be there."""
