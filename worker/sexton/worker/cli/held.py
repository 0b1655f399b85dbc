"""The commands for operators: who holds what, what waits for collection, and are the bytes there."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sexton.schemas.errors import LeafCorrupt, LeafLost
from sexton.schemas.ids import token
from sexton.schemas.leases import LeaseInfo, PinInfo
from sexton.schemas.ops import (
    Damage,
    HoldersPart,
    OpsRequest,
    OpsVerb,
    PinsPart,
    TombstoneInfo,
    TombstonesPart,
    VerifyPart,
    VerifyRequest,
)
from sexton.worker.cli.asking import SWEEP_SILENCE_S
from sexton.worker.cli.client import Client
from sexton.worker.cli.output import size

_COLLECTED: Final = "collected"
_WAITS: Final = {
    "keep": "held",
    "call_off": "was announced, and is held after all: the next sweep calls it off",
    "mark": "free; the next sweep marks it",
    "wait_hold_back": "free; the registry is young, and holders that it lost may still count on their leases",
    "wait_quiet": "free; waits for the quiet time, and until every live holder was heard from: see `holders`",
    "announce": "free; the next sweep collects it",
    "finish": "condemned; the next sweep deletes what is left of it",
    _COLLECTED: "collected",
}
_PAGE: Final = 500
"""Versions whose bytes are read for one answer."""


async def holders(client: Client) -> None:
    """List who has a lease on a context."""
    operator = await client.operator()
    parts = await operator.ask(OpsVerb.HOLDERS, _request(client), HoldersPart)
    leases = sorted((lease for part in parts for lease in part.holders), key=lambda lease: lease.holder_id)
    for lease in leases:
        if client.out.as_json:
            client.out.value(lease.model_dump(mode="json"))
            continue
        left = f"ends in {_time(lease.expires_in_ms)}" if lease.expires_in_ms > 0 else "has run out"
        heard = f"heard {_time(lease.beat_ms_ago)} ago"
        client.out.line(f"{lease.holder_id:<32} {lease.pins:>5} pins  lease {left}, {heard}{_doubt(lease)}")
    if not leases:
        _say_none(client, "nobody has a lease")


def _doubt(lease: LeaseInfo) -> str:
    """What is odd about a live holder: collection waits for it."""
    agreed = lease.agreed_ms_ago
    if lease.expires_in_ms <= 0 or (agreed is not None and agreed <= lease.beat_ms_ago):
        return ""
    since = "never" if agreed is None else f"last {_time(agreed)} ago"
    return (
        f"; it claims other pins than are known here, and agreed {since}: nothing is collected until it does"
    )


async def pins(client: Client) -> None:
    """List what live holders pin in a context."""
    operator = await client.operator()
    parts = await operator.ask(OpsVerb.PINS, _request(client), PinsPart)
    found = [pin for part in parts for pin in part.pins]
    for pin in sorted(found, key=lambda pin: (pin.span_id, pin.version, pin.holder_id)):
        if client.out.as_json:
            client.out.value(pin.model_dump(mode="json"))
        else:
            client.out.line(f"{pin.span_id:<44} v{pin.version:<4} {_pin(pin)}")
    if not found:
        _say_none(client, "nothing is pinned")


async def tombstones(client: Client) -> None:
    """List old versions that are still kept, and what each waits for."""
    stones = await _tombstones(client)
    if client.out.as_json:
        for stone in stones:
            client.out.value(_json(stone))
        return
    _show(client, stones)
    if not stones:
        _say_none(client, "no tombstones")


async def gc(
    client: Client,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Change nothing; say who holds each and what it waits for."),
    ] = False,
) -> None:
    """Sweep a context for tombstones now, as the workers do by themselves.

    One sweep marks what is free; a later one, after the quiet time, collects it.
    """
    if dry_run:
        stones, done = await _tombstones(client), TombstonesPart(context_id=client.context_id)
    else:
        stones, done = await _swept(client)
    if client.out.as_json:
        client.out.value(
            {
                "context_id": done.context_id,
                "dry_run": dry_run,
                "collected": done.collected,
                "size_freed_bytes": done.size_freed_bytes,
                "called_off": done.called_off,
                "tombstones": [_json(stone) for stone in stones],
            }
        )
        return
    _show(client, stones)
    if not dry_run:
        client.out.say(
            f"{done.collected} collected, {size(done.size_freed_bytes)} freed, {done.called_off} called off"
        )
    elif not stones:
        _say_none(client, "no tombstones")


async def verify(
    client: Client,
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="A bar on stderr, if that is a terminal.")
    ] = True,
) -> None:
    """Read every kept byte of a context and compare it with what was committed.

    Ends with the code of a hard failure if anything is lost or damaged.
    """
    context_id = token(client.context_id, "context_id")
    operator = await client.operator()
    damaged: list[Damage] = []
    checked = size_checked_bytes = 0
    with _bar(wanted=progress) as (bar, task):
        after: str | None = ""
        while after is not None:
            request = VerifyRequest(context_id=context_id, after=after, limit=_PAGE)
            (part,) = await operator.ask(OpsVerb.VERIFY, request, VerifyPart)
            damaged += part.damaged
            checked += part.checked
            size_checked_bytes += part.size_checked_bytes
            after = part.next
            bar.update(task, completed=checked, total=max(part.total, checked))
    if client.out.as_json:
        client.out.value(
            {
                "context_id": context_id,
                "checked": checked,
                "size_checked_bytes": size_checked_bytes,
                "damaged": [damage.model_dump(mode="json", exclude_none=True) for damage in damaged],
            }
        )
    else:
        for damage in damaged:
            client.out.line(f"{damage.span_id:<44} v{damage.version:<4} {damage.reason}")
        client.out.say(
            f"{checked} versions, {size(size_checked_bytes)} looked at, {len(damaged)} lost or damaged"
        )
    if damaged:
        kind = LeafLost if any(damage.reason == "lost" for damage in damaged) else LeafCorrupt
        raise kind(
            f"{len(damaged)} of {checked} versions of {context_id} are lost or damaged",
            lost=sum(damage.reason == "lost" for damage in damaged),
            corrupt=sum(damage.reason == "corrupt" for damage in damaged),
        )


@contextmanager
def _bar(*, wanted: bool) -> Iterator[tuple[Progress, Any]]:
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as bar:
        yield bar, bar.add_task("", total=None)


async def _tombstones(client: Client) -> list[TombstoneInfo]:
    operator = await client.operator()
    parts = await operator.ask(OpsVerb.TOMBSTONES, _request(client), TombstonesPart)
    return [stone for part in parts for stone in part.tombstones]


async def _swept(client: Client) -> tuple[list[TombstoneInfo], TombstonesPart]:
    """Sweeps. What there was before, each as it is now, and what the sweep came to."""
    operator = await client.operator()
    parts = await operator.ask(OpsVerb.SWEEP, _request(client), TombstonesPart, silence_s=SWEEP_SILENCE_S)
    # The sweep tells what it found. What has become of that is another question.
    left = {(stone.span_id, stone.version): stone for stone in await _tombstones(client)}
    stones = [
        left.get((stone.span_id, stone.version)) or stone.model_copy(update={"step": _COLLECTED, "pins": ()})
        for part in parts
        for stone in part.tombstones
    ]
    return stones, parts[-1]


def _show(client: Client, stones: Iterable[TombstoneInfo]) -> None:
    for stone in stones:
        what = stone.strategy.value if stone.strategy is not None else "pruned"
        client.out.line(
            f"{stone.span_id:<44} v{stone.version:<4} {size(stone.size_bytes):>9}  {what}, "
            f"epoch {stone.epoch}: {_WAITS.get(stone.step, stone.step)}"
        )
        for pin in stone.pins:
            client.out.line(f"{'':<44}    {_pin(pin)}")
        if (more := stone.pin_count - len(stone.pins)) > 0:
            client.out.line(f"{'':<44}    and {more} more")


def _say_none(client: Client, what: str) -> None:
    """So that nothing on stdout is seen to be an answer. A program sees that from the exit code."""
    if not client.out.as_json:
        client.out.say(f"{what} in {client.context_id}")


def _json(stone: TombstoneInfo) -> dict[str, Any]:
    return {**stone.model_dump(mode="json", exclude_none=True), "waits": _WAITS.get(stone.step, stone.step)}


def _request(client: Client) -> OpsRequest:
    return OpsRequest(context_id=token(client.context_id, "context_id"))


def _pin(pin: PinInfo) -> str:
    return f"{pin.cost.value:<10} {pin.holder_id}, for {_time(pin.held_for_ms)}"


def _time(ms: int) -> str:
    """A time for people: `350 ms`, `12.5 s`, `4 min`, `30 h`."""
    if ms < 1000:  # noqa: PLR2004
        return f"{ms} ms"
    seconds = ms / 1000
    if seconds < 120:  # noqa: PLR2004
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.0f} h"  # noqa: PLR2004
