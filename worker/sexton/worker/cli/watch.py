"""The command that follows a context and prints each change as it is committed."""

from typing import Annotated

import typer

from sexton.schemas.codec import AnyRecord
from sexton.schemas.records import (
    Appended,
    CollectAborted,
    Collected,
    Collecting,
    Compacted,
    Condemned,
    Pruned,
    Rewritten,
)
from sexton.worker.cli.client import Client
from sexton.worker.cli.output import size


async def watch(
    client: Client,
    count: Annotated[int | None, typer.Option(metavar="N", min=1, help="End after this many.")] = None,
    since: Annotated[
        int | None,
        typer.Option(
            metavar="REVISION", min=1, help="Begin with this revision. Default: what comes from now on."
        ),
    ] = None,
) -> None:
    """Print every change of a context as it comes, until Ctrl-C."""
    context = await client.open()
    bumps = context.bumps(from_revision=since)
    client.out.say(f"following {context.context_id} from revision {bumps.next_revision}")
    seen = 0
    async for record in bumps:
        if client.out.as_json:
            client.out.value(record)
        else:
            client.out.line(f"revision {record.revision}  epoch {record.epoch}  {_told(record)}")
        seen += 1
        if seen == count:
            return


def _told(record: AnyRecord) -> str:
    match record:
        case Appended():
            added = sum(span.size_bytes for span in record.spans)
            first, last = record.spans[0].span_id, record.spans[-1].span_id
            what = first if first == last else f"{first} … {last}"
            return f"appended   {len(record.spans)} spans, {size(added)}: {what}"
        case Compacted():
            return (
                f"compacted  {len(record.sources)} spans into {record.summary.span_id}, "
                f"{size(record.size_before_bytes)} -> {size(record.size_after_bytes)}"
            )
        case Rewritten():
            return (
                f"rewritten  {record.after.span_id} v{record.before.version} -> v{record.after.version}, "
                f"{record.strategy.value}"
            )
        case Pruned():
            return f"pruned     {record.span.span_id} v{record.span.version}"
        case Collecting() | CollectAborted() | Condemned() | Collected():
            named = ", ".join(f"{version.span_id} v{version.version}" for version in record.versions)
            return f"{record.kind.value}  {named}"
