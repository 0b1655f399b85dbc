"""The command for what went wrong: lists it, shows it, acknowledges it, resolves it.

It reads the streams itself and needs no worker and no pager: they may be what is down.
"""

import contextlib
import time
from collections.abc import AsyncIterator
from typing import Annotated, Final

import nats.errors
import typer

from sexton.core.incidents import acknowledge as acknowledged
from sexton.core.incidents import resolve as resolved
from sexton.schemas import subjects
from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.schemas.ids import token
from sexton.schemas.incidents import Incident, IncidentStatus
from sexton.schemas.refusal import Refusal
from sexton.worker.adapters.nats_client import HardenedClient
from sexton.worker.cli.asking import check_permitted, connect_for_operator
from sexton.worker.cli.client import Client
from sexton.worker.pager import text
from sexton.worker.pager.incidents import Incidents
from sexton.worker.settings.connections import ConnectionSettings

_TIMEOUT_S: Final = 5.0
_FEWEST_DIGITS: Final = 6


async def failures(
    client: Client,
    *,
    incident: Annotated[
        str | None,
        typer.Argument(metavar="INCIDENT", help="Show this one: its id, or the first digits of it."),
    ] = None,
    acknowledge: Annotated[
        bool, typer.Option("--acknowledge", help="You are at it: no more pages until it is resolved.")
    ] = False,
    resolve: Annotated[
        bool, typer.Option("--resolve", help="It is over, as far as you can tell. Whoever was paged is told.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", help="List what is resolved, too.")] = False,
    only: Annotated[
        str | None, typer.Option("--context", metavar="ID", help="List those of one context.")
    ] = None,
) -> None:
    """List hard failures, dead letters and stuck collections; show one, acknowledge it, resolve it."""
    if acknowledge and resolve:
        raise InvalidInput("give --acknowledge or --resolve, not both", field="resolve")
    if incident is None and (acknowledge or resolve):
        raise InvalidInput("which one? Give the id of an incident", field="incident")
    context_id = None if only is None else token(only, "context")
    async with _incidents(client.settings) as known:
        if incident is None:
            _list(client, known, context_id, everything=everything)
            return
        found = _find(known, incident)
        if acknowledge or resolve:
            change = acknowledged if acknowledge else resolved
            now_ms = time.time_ns() // 1_000_000
            written = await known.update(
                found.fingerprint, lambda now: None if now is None else change(now, now_ms)
            )
            if written is None:
                client.out.say(f"nothing to do: it is {found.status.value}")
            found = written or found
        _show(client, found)


@contextlib.asynccontextmanager
async def _incidents(settings: ConnectionSettings) -> AsyncIterator[Incidents]:
    """All incidents, with what no pager has looked at yet. Raises `Unavailable`, `PermissionRefused`."""
    refusals: list[Refusal] = []
    client = HardenedClient(refusals.append)
    try:
        await connect_for_operator(client, settings, "sexton-failures")
        known = Incidents(client, _TIMEOUT_S)
        await known.load()
        for stream in (subjects.STREAM_FAILURES, subjects.STREAM_DEAD):
            await known.start(stream)
            await known.catch_up(stream, write=False)
        yield known
    except Unavailable:
        check_permitted(refusals)
        raise
    finally:
        with contextlib.suppress(nats.errors.Error, OSError):
            await client.close()


def _find(known: Incidents, wanted: str) -> Incident:
    digits = wanted.removeprefix("sha256:").lower()
    if len(digits) < _FEWEST_DIGITS:
        raise InvalidInput(f"give at least {_FEWEST_DIGITS} digits of the incident", field="incident")
    fitting = [i for i in known if i.fingerprint.removeprefix("sha256:").startswith(digits)]
    if len(fitting) != 1:
        how_many = "no incident begins" if not fitting else f"{len(fitting)} incidents begin"
        raise InvalidInput(f"{how_many} with {digits[:64]!a}", field="incident")
    return fitting[0]


def _list(client: Client, known: Incidents, context_id: str | None, *, everything: bool) -> None:
    shown = [
        incident
        for incident in sorted(known, key=lambda i: i.last_ms)
        if everything or incident.status is not IncidentStatus.RESOLVED
        if context_id is None or (incident.failure and incident.failure.context_id == context_id)
    ]
    for incident in shown:
        if client.out.as_json:
            client.out.value(incident)
        else:
            client.out.line(
                f"{text.short_id(incident.fingerprint)}  {incident.status.value:<12} {incident.count:>6} x  "
                f"{text.time(incident.last_ms)}  {text.summary(incident)}"
            )
    if not (shown or client.out.as_json):
        client.out.say("nothing is wrong that anybody has noticed")


def _show(client: Client, incident: Incident) -> None:
    if client.out.as_json:
        client.out.value(incident)
        return
    told = "nobody yet" if incident.told_ms is None else text.time(incident.told_ms)
    rows = [
        ("what", text.summary(incident)),
        ("status", incident.status.value),
        *text.details(incident),
        ("last paged", told),
        ("pages", str(incident.pages)),
    ]
    for name, value in rows:
        client.out.line(f"{name + ':':<14}{value}")
