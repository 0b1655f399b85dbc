"""The command that reads a transcript into a context."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from sexton.schemas.limits import MAX_SPANS_PER_APPEND
from sexton.worker.cli.batches import BATCH_ROWS
from sexton.worker.cli.client import Client
from sexton.worker.cli.codes import BadInput
from sexton.worker.cli.feed import Fed, feed, open_transcript
from sexton.worker.cli.output import Output, size
from sexton.worker.ingest import Report, TranscriptFormat

_SHOWN_LINES: Final = 20


async def ingest(
    client: Client,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The transcript, or - for standard input.")],
    *,
    fmt: Annotated[
        TranscriptFormat | None, typer.Option("--format", help="What it is. Default: told by its content.")
    ] = None,
    skip_bad: Annotated[
        bool,
        typer.Option("--skip-bad", help="Leave out lines that cannot be a span, instead of refusing all."),
    ] = False,
    batch: Annotated[
        int, typer.Option(metavar="ROWS", min=1, max=MAX_SPANS_PER_APPEND, help="Rows of one append.")
    ] = BATCH_ROWS,
    source: Annotated[
        str,
        typer.Option(metavar="NAME", help="The same file under another name is added once more."),
    ] = "",
    progress: Annotated[
        bool, typer.Option("--progress/--no-progress", help="A bar on stderr, if that is a terminal.")
    ] = True,
) -> None:
    """Append each line of a transcript as a leaf.

    Byte for byte, and in order. Doing it again adds only what is new since.
    """
    transcript = open_transcript(file, fmt, source)
    _tell_bad_lines(client.out, transcript.report, skip_bad=skip_bad)
    context = await client.open()
    with _bar(transcript.report.size_bytes, wanted=progress) as advance:
        fed = await feed(context, transcript, source=source, rows=batch, on_progress=advance)
    _tell(client.out, context.context_id, transcript.report, fed)


@contextmanager
def _bar(total_bytes: int, *, wanted: bool) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    columns = (TextColumn("ingesting"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (wanted and console.is_terminal)) as progress:
        task = progress.add_task("", total=total_bytes)
        yield lambda size_bytes: progress.advance(task, size_bytes)


def _tell_bad_lines(out: Output, report: Report, *, skip_bad: bool) -> None:
    """Names the bad lines, and refuses the file for them unless they may be left out."""
    for bad in report.bad_lines[:_SHOWN_LINES]:
        out.say(f"line {bad.line_number}: {bad.reason.value}: {bad.message}")
    if (more := len(report.bad_lines) - _SHOWN_LINES) > 0:
        out.say(f"and {more} bad lines more")
    if report.bad_lines and not skip_bad:
        raise BadInput(
            f"{len(report.bad_lines)} lines cannot be a span, and nothing was ingested; "
            "--skip-bad leaves them out",
            lines=[bad.line_number for bad in report.bad_lines],
        )


def _tell(out: Output, context_id: str, report: Report, fed: Fed) -> None:
    if out.as_json:
        out.value(_as_json(context_id, report, fed))
        return
    out.line(f"context          {context_id}")
    out.line(f"format           {report.format.value}")
    out.line(f"rows             {report.rows} ({fed.added} sent and committed, {fed.present} already there)")
    out.line(f"size             {size(report.size_bytes)} ({report.size_bytes} bytes)")
    out.line(f"groups           {report.groups} ({report.open_groups} open)")
    out.line(f"orphan results   {_lines(report.orphan_results)}")
    out.line(f"missing parents  {_lines(report.missing_parents)}")
    out.line(f"unknown types    {_counts(report)}")
    out.line(f"bad lines        {_lines([bad.line_number for bad in report.bad_lines])}")


def _lines(numbers: Sequence[int]) -> str:
    """`3 (lines 7, 12, 40)`; not all of very many."""
    if not numbers:
        return "0"
    shown = ", ".join(str(number) for number in numbers[:_SHOWN_LINES])
    more = ", …" if len(numbers) > _SHOWN_LINES else ""
    return f"{len(numbers)} ({'line' if len(numbers) == 1 else 'lines'} {shown}{more})"


def _counts(report: Report) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in report.unknown_kinds.items()) or "0"


def _as_json(context_id: str, report: Report, fed: Fed) -> dict[str, Any]:
    return {
        "context_id": context_id,
        "format": report.format.value,
        "rows": report.rows,
        "added": fed.added,
        "present": fed.present,
        "appends": fed.appends,
        "size_bytes": report.size_bytes,
        "roles": dict(report.roles),
        "unknown_kinds": dict(report.unknown_kinds),
        "calls": report.calls,
        "groups": report.groups,
        "open_groups": report.open_groups,
        "orphan_results": list(report.orphan_results),
        "missing_parents": list(report.missing_parents),
        "external_parents": list(report.external_parents),
        "bad_lines": [
            {"line": bad.line_number, "reason": bad.reason.value, "message": bad.message}
            for bad in report.bad_lines
        ],
    }
