"""The commands for operators: who holds what, what waits for collection, and are the bytes there."""

from collections.abc import Iterable
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from sexton.schemas.errors import LeafCorrupt, LeafLost
from sexton.schemas.ids import token
from sexton.schemas.leases import PinInfo
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
from sexton.worker.cli.asking import ask
from sexton.worker.cli.client import Client
from sexton.worker.cli.output import size

_WAITS: Final = {
    "keep": "held",
    "call_off": "was announced, and is held after all: the next sweep calls it off",
    "mark": "free; the next sweep marks it",
    "wait_hold_back": "free; the registry is young, and holders that it lost may still count on their leases",
    "wait_quiet": "free; waits until it has been so for the quiet time and every live holder was heard from",
    "announce": "free; the next sweep collects it",
    "finish": "condemned; the next sweep deletes what is left of it",
}


async def holders(client: Client) -> None:
    """List who has a lease on a context."""
    parts = await ask(client.nats_url, OpsVerb.HOLDERS, _request(client), HoldersPart)
    for lease in (lease for part in parts for lease in part.holders):
        if client.out.as_json:
            client.out.value(lease.model_dump(mode="json"))
            continue
        left = f"ends in {_time(lease.expires_in_ms)}" if lease.expires_in_ms > 0 else "has run out"
        heard = f"heard {_time(lease.beat_ms_ago)} ago"
        client.out.line(f"{lease.holder_id:<32} {lease.pins:>5} pins  lease {left}, {heard}")


async def pins(client: Client) -> None:
    """List what live holders pin in a context."""
    parts = await ask(client.nats_url, OpsVerb.PINS, _request(client), PinsPart)
    found = sorted((pin for part in parts for pin in part.pins), key=lambda p: (p.span_id, p.version))
    for pin in found:
        if client.out.as_json:
            client.out.value(pin.model_dump(mode="json"))
        else:
            client.out.line(f"{pin.span_id:<44} v{pin.version:<4} {_pin(pin)}")


async def tombstones(client: Client) -> None:
    """List old versions that are still kept, and what each waits for."""
    await _list(client, await ask(client.nats_url, OpsVerb.TOMBSTONES, _request(client), TombstonesPart))


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
        await tombstones(client)
        return
    parts = await ask(client.nats_url, OpsVerb.SWEEP, _request(client), TombstonesPart)
    await _list(client, parts)
    done = parts[-1]
    if not client.out.as_json:
        client.out.say(
            f"{done.collected} collected, {size(done.size_freed_bytes)} freed, {done.called_off} called off"
        )


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
    damaged: list[Damage] = []
    checked = size_checked = 0
    console = Console(stderr=True)
    columns = (TextColumn("verifying"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, disable=not (progress and console.is_terminal)) as bar:
        task = bar.add_task("", total=None)
        after: str | None = ""
        while after is not None:
            request = VerifyRequest(context_id=context_id, after=after)
            (part,) = await ask(client.nats_url, OpsVerb.VERIFY, request, VerifyPart)
            damaged += part.damaged
            checked += part.checked
            size_checked += part.size_checked_bytes
            after = part.next
            bar.update(task, completed=checked, total=max(part.total, checked))
    for damage in damaged:
        if client.out.as_json:
            client.out.value(damage.model_dump(mode="json", exclude_none=True))
        else:
            client.out.line(f"{damage.span_id} version {damage.version}: {damage.reason}")
    client.out.say(f"{checked} versions, {size(size_checked)} read, {len(damaged)} lost or damaged")
    if damaged:
        kind = LeafLost if damaged[0].reason == "lost" else LeafCorrupt
        raise kind(f"{len(damaged)} of {checked} versions of {context_id} are lost or damaged")


async def _list(client: Client, parts: Iterable[TombstonesPart]) -> None:
    for stone in (stone for part in parts for stone in part.tombstones):
        if client.out.as_json:
            client.out.value(_json(stone))
            continue
        what = stone.strategy.value if stone.strategy is not None else "pruned"
        client.out.line(
            f"{stone.span_id:<44} v{stone.version:<4} {size(stone.size_bytes):>9}  {what}, "
            f"epoch {stone.epoch}: {_WAITS.get(stone.step, stone.step)}"
        )
        for pin in stone.pins:
            client.out.line(f"{'':<44}    {_pin(pin)}")


def _json(stone: TombstoneInfo) -> dict[str, Any]:
    return {**stone.model_dump(mode="json", exclude_none=True), "waits": _WAITS.get(stone.step, stone.step)}


def _request(client: Client) -> OpsRequest:
    return OpsRequest(context_id=token(client.context_id, "context_id"))


def _pin(pin: PinInfo) -> str:
    return f"{pin.cost.value:<10} {pin.holder_id}, for {_time(pin.held_for_ms)}"


def _time(ms: int) -> str:
    return f"{ms} ms" if ms < 1000 else f"{ms / 1000:.1f} s"  # noqa: PLR2004
