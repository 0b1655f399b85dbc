"""The registry on Redis or Valkey: one script, one slot per context, the server's clock."""

from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any, Final

from redis.asyncio import Redis
from redis.exceptions import RedisError

from sexton.core.collection import Version
from sexton.core.pins import Pins, highest
from sexton.core.registry import Changing
from sexton.core.sweep import LivePin, Mark, Observation
from sexton.schemas.errors import Fenced, LeaseLost, TooManyHolders, TooManyPins
from sexton.schemas.ids import token
from sexton.schemas.leases import (
    MAX_HOLDERS,
    MAX_PINS,
    MAX_TTL_MS,
    HeartbeatRequest,
    HolderRequest,
    LeaseInfo,
    Pin,
    PinCost,
    PinInfo,
    PinRequest,
    ReleaseRequest,
)
from sexton.schemas.span import SpanVersion
from sexton.worker.ports import Beat, LivePins, RegistryUnavailable, Taken

_SCRIPT: Final = files("sexton.worker.adapters").joinpath("registry.lua").read_text()


class RedisRegistry:
    """`Registry` on Redis 7 or Valkey."""

    def __init__(self, client: Redis) -> None:
        self._script = client.register_script(_SCRIPT)

    async def beat(self, request: HeartbeatRequest) -> Beat:
        """See `Registry.beat`."""
        answer = await self._holder_call(
            "beat",
            request,
            request.digest,
            request.ttl_ms,
            _flag(request.register_new),
            _flag(request.leave),
            _flag(request.pins is not None),
            *_pin_args(request.pins or ()),
        )
        return Beat(operation=int(answer[1]), announce=answer[2] == b"1", changing=_changing(answer[3]))

    async def pin(self, request: PinRequest) -> Taken:
        """See `Registry.pin`."""
        answer = await self._holder_call("pin", request, request.digest, MAX_PINS, *_pin_args(request.pins))
        return Taken(taken=answer[0] == b"ok", changing=_changing(answer[2]))

    async def release(self, request: ReleaseRequest) -> bool:
        """See `Registry.release`."""
        names = [_name(v.span_id, v.version) for v in request.versions]
        answer = await self._holder_call("release", request, request.digest, *names)
        return bool(answer[0] == b"ok")

    async def withdraw(self, request: HolderRequest, versions: Sequence[SpanVersion]) -> None:
        """See `Registry.withdraw`."""
        await self._holder_call("withdraw", request, *(_name(v.span_id, v.version) for v in versions))

    async def live(self, context_id: str, versions: Sequence[Version]) -> LivePins:
        """See `Registry.live`."""
        return await self._pins(context_id, versions, "")

    async def change(self, context_id: str, versions: Sequence[Version], token: str) -> LivePins:
        """See `Registry.change`."""
        return await self._pins(context_id, versions, token)

    async def changed(self, context_id: str, token: str) -> None:
        """See `Registry.changed`."""
        await self._call(context_id, "changed", token)

    async def standing(self, context_id: str, tokens: Iterable[str]) -> frozenset[str]:
        """See `Registry.standing`."""
        found = await self._call(context_id, "standing", *sorted(tokens))
        return frozenset(name.decode() for name in found)

    async def _pins(self, context_id: str, versions: Sequence[Version], token: str) -> LivePins:
        if not versions:
            return LivePins(pins={}, age_ms=MAX_TTL_MS)
        now, began, found = await self._call(context_id, "pins", token, *(_name(*v) for v in versions))
        pins: Pins = {
            version: cost
            for version, live in zip(versions, found, strict=True)
            if (cost := highest(pin.cost for pin in map(_live_pin, live))) is not None
        }
        return LivePins(pins=pins, age_ms=int(now) - int(began))

    async def observe(self, context_id: str, versions: Sequence[Version], *, mark: bool) -> Observation:
        """See `Registry.observe`."""
        generation, began, now, oldest, found, noted = await self._call(
            context_id, "observe", _flag(mark), *(_name(*v) for v in versions)
        )
        marks = {v: m for v, raw in zip(versions, noted, strict=True) if (m := _mark(raw)) is not None}
        return Observation(
            generation=generation.decode(),
            began_ms=int(began),
            now_ms=int(now),
            oldest_beat_ms=None if int(oldest) < 0 else int(oldest),
            pins={v: tuple(_live_pin(raw) for raw in live) for v, live in zip(versions, found, strict=True)},
            marks=marks,
        )

    async def generation(self, context_id: str) -> str:
        """See `Registry.generation`."""
        (found,) = await self._call(context_id, "generation")
        return str(found.decode())

    async def born(self, context_id: str, generation: str) -> None:
        """See `Registry.born`."""
        await self._call(context_id, "born", generation)

    async def unmark(self, context_id: str, versions: Sequence[Version]) -> None:
        """See `Registry.unmark`."""
        await self._call(context_id, "unmark", *(_name(*v) for v in versions))

    async def holders(self, context_id: str) -> list[LeaseInfo]:
        """See `Registry.holders`."""
        return [
            LeaseInfo(
                holder_id=holder.decode(),
                incarnation=max(1, int(incarnation)),
                expires_in_ms=int(expires),
                beat_ms_ago=max(0, int(beat)),
                pins=int(pins),
                agreed_ms_ago=int(agreed) if int(agreed) >= 0 else None,
            )
            for holder, incarnation, expires, beat, pins, agreed in await self._call(context_id, "holders")
        ]

    async def held(self, context_id: str) -> list[PinInfo]:
        """See `Registry.held`."""
        found = []
        for holder, name, value, now in await self._call(context_id, "held"):
            span_id, version = _version(name)
            cost, since, _ = value.decode().split("|")
            found.append(
                PinInfo(
                    span_id=span_id,
                    version=version,
                    cost=PinCost(cost),
                    holder_id=holder.decode(),
                    held_for_ms=max(0, int(now) - int(since)),
                )
            )
        return found

    async def _holder_call(self, operation: str, request: HolderRequest, *args: str | int) -> Any:
        answer = await self._call(
            request.context_id, operation, request.holder_id, request.incarnation, request.operation, *args
        )
        match answer[0]:
            case b"fenced":
                raise Fenced(
                    f"another process of {request.holder_id} has registered since",
                    incarnation=int(answer[1]),
                )
            case b"lease_lost":
                raise LeaseLost(f"{request.holder_id} has no good lease on {request.context_id}")
            case b"too_many_holders":
                raise TooManyHolders(f"a context has at most {MAX_HOLDERS} holders", limit=MAX_HOLDERS)
            case b"too_many":
                raise TooManyPins(f"a holder pins at most {MAX_PINS} versions of a context", limit=MAX_PINS)
        return answer

    async def _call(self, context_id: str, operation: str, *args: str | int) -> Any:
        key = f"sexton:{{{token(context_id, 'context_id')}}}:gen"
        try:
            return await self._script(keys=[key], args=[operation, *args])
        except (RedisError, OSError, TimeoutError) as e:
            raise RegistryUnavailable(f"registry.{operation}: {type(e).__name__}", operation=operation) from e


def _flag(value: bool) -> str:
    return "1" if value else "0"


def _name(span_id: str, version: int) -> str:
    return f"{span_id}@{version}"


def _version(name: bytes) -> Version:
    span_id, version = name.decode().rsplit("@", 1)
    return span_id, int(version)


def _changing(raw: Sequence[bytes]) -> Changing:
    """From version, token, version, token."""
    found: dict[Version, frozenset[str]] = {}
    for name, token_ in zip(raw[::2], raw[1::2], strict=True):
        version = _version(name)
        found[version] = found.get(version, frozenset()) | {token_.decode()}
    return found


def _pin_args(pins: Iterable[Pin]) -> list[str]:
    return [part for pin in pins for part in (_name(pin.span_id, pin.version), pin.cost.value)]


def _live_pin(raw: bytes) -> LivePin:
    holder, cost, since, _ = raw.decode().split("|")
    return LivePin(holder, PinCost(cost), int(since))


def _mark(raw: bytes) -> Mark | None:
    generation, _, at_ms = raw.decode().partition("|")
    return Mark(generation, int(at_ms)) if at_ms else None
