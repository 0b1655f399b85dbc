"""Commands that read by pointer: pointer, resolve."""

import base64
from typing import Annotated

import typer

from sexton.holder import Resolved
from sexton.worker.cli.change import SpanArgument
from sexton.worker.cli.client import Client
from sexton.worker.cli.inputs import STDIN, read_pointer


async def pointer(
    client: Client,
    span: SpanArgument,
    offset: Annotated[int, typer.Option(metavar="BYTES", help="Where the quote starts in the span.")] = 0,
    length: Annotated[
        int | None, typer.Option(metavar="BYTES", help="How long it is. Default: all the rest.")
    ] = None,
) -> None:
    """Mint a pointer to a span or a part of it.

    It comes as one line of JSON, which `resolve` takes.
    """
    context = await client.open()
    client.out.value(await context.mint(span, offset=offset, length=length))


async def resolve(
    client: Client,
    given: Annotated[
        str, typer.Argument(metavar="POINTER", help="The pointer's JSON, a file that holds it, or -.")
    ] = STDIN,
    *,
    accept_summary: Annotated[
        bool, typer.Option("--accept-summary", help="If the leaf is under a summary, that will do.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse a pointer of an older epoch instead of checking it again."),
    ] = False,
    latest: Annotated[
        bool, typer.Option("--latest", help="Check against the head of the log, not against what was heard.")
    ] = False,
    accept_superseded: Annotated[
        bool, typer.Option("--accept-superseded", help="An old version will do, if it is still kept.")
    ] = False,
) -> None:
    """Write the bytes of a pointer to stdout, exactly.

    Where they cannot be had, nothing is written in their place, and the exit code says why.
    """
    asked = read_pointer(given)
    context = await client.open(asked.context_id)
    resolved = await context.resolve(
        asked,
        consistency="latest" if latest else "bounded",
        strict=strict,
        accept_summary=True if accept_summary else None,
        accept_superseded=accept_superseded,
    )
    if client.out.as_json:
        client.out.value(_described(resolved))
        return
    if not resolved.verbatim:
        client.out.say(f"this is {resolved.pointer.span_id}, {resolved.level.name}, and not verbatim")
    elif resolved.superseded:
        client.out.say(f"this is version {resolved.pointer.version}, which is no longer current")
    client.out.data(resolved.data)


def _described(resolved: Resolved) -> dict[str, object]:
    answer = resolved.answer.model_dump(mode="json", exclude_none=True)
    # Base64 as everybody's tools read it, not the URL-safe kind of the wire.
    return {**answer, "data_base64": base64.b64encode(resolved.data).decode()}
