"""Commands that change a context: compact, rewrite, prune."""

from typing import Annotated, Any

import typer

from sexton.core.plan import Policy
from sexton.holder import CompactionReport
from sexton.schemas.codec import AnyOutcome
from sexton.schemas.errors import InvalidInput
from sexton.schemas.outcome import Committed, NoChange
from sexton.worker.cli.client import Client
from sexton.worker.cli.inputs import read_text
from sexton.worker.cli.output import Output, size

_DEFAULT = Policy()

SpanArgument = Annotated[str, typer.Argument(metavar="SPAN", help="The span's id, such as l0:NAME.")]


async def compact(
    client: Client,
    *,
    budget: Annotated[
        int | None,
        typer.Option(metavar="BYTES", min=0, help="Compact until the view has at most this many bytes."),
    ] = None,
    fan_in: Annotated[
        int, typer.Option(metavar="N", help="With --budget: spans per summary.")
    ] = _DEFAULT.fan_in,
    keep_tail_bytes: Annotated[
        int, typer.Option(metavar="BYTES", help="With --budget: the newest spans up to this stay verbatim.")
    ] = _DEFAULT.keep_tail_bytes,
    keep_tail_spans: Annotated[
        int, typer.Option(metavar="N", help="With --budget: at least this many of the newest stay verbatim.")
    ] = _DEFAULT.keep_tail_spans,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--sources",
            metavar="ID[,ID…]",
            help="Compact exactly these, in the order of the view. Repeatable.",
        ),
    ] = None,
    summary: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="With --sources: the summary, or - for standard input. Else one is made."
        ),
    ] = None,
) -> None:
    """Put summaries in the place of spans.

    Either so many that the view meets a byte budget, or one summary of the spans you name.
    """
    named = [span_id for given in sources or () for span_id in given.split(",") if span_id]
    if (budget is None) == (not named):
        raise InvalidInput("give either --budget or --sources", field="budget")
    if budget is not None:
        if summary is not None:
            raise InvalidInput("--summary goes with --sources", field="summary")
        policy = Policy(fan_in=fan_in, keep_tail_bytes=keep_tail_bytes, keep_tail_spans=keep_tail_spans)
        context = await client.open()
        _report(client.out, await context.compact_to(budget, policy=policy))
        return
    text = read_text(summary) if summary is not None else None
    context = await client.open()
    _outcome(client.out, await context.compact(named, summary=text))


async def rewrite(
    client: Client,
    span: SpanArgument,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The new text, or - for standard input.")],
    base_version: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Refuse unless this is the current version. Default: the current."
        ),
    ] = None,
) -> None:
    """Change a span's text in place. Its version grows by one; pointers to the old one stop working."""
    text = read_text(file)
    context = await client.open()
    _outcome(client.out, await context.rewrite(span, text, base_version=base_version))


async def prune(client: Client, span: SpanArgument) -> None:
    """Drop a span from the view. Its id is never used again."""
    context = await client.open()
    _outcome(client.out, await context.prune(span))


def _outcome(out: Output, outcome: AnyOutcome) -> None:
    if out.as_json:
        out.value(outcome)
    elif isinstance(outcome, NoChange):
        out.line(f"no change: {outcome.reason}")
    elif isinstance(outcome, Committed):
        spans = ", ".join(f"{span.span_id} v{span.version}" for span in outcome.spans)
        out.line(f"{outcome.kind.value}: {spans} at epoch {outcome.epoch}, revision {outcome.revision}")


def _report(out: Output, report: CompactionReport) -> None:
    if not out.as_json:
        out.line(
            f"view {size(report.size_before_bytes)} -> {size(report.size_after_bytes)} "
            f"(budget {size(report.budget_bytes)}), {len(report.committed)} compactions, "
            f"epoch {report.epoch_before} -> {report.epoch_after}"
        )
        return
    value: dict[str, Any] = {
        "budget_bytes": report.budget_bytes,
        "size_before_bytes": report.size_before_bytes,
        "size_after_bytes": report.size_after_bytes,
        "epoch_before": report.epoch_before,
        "epoch_after": report.epoch_after,
        "passes": report.passes,
        "committed": [outcome.model_dump(mode="json", exclude_none=True) for outcome in report.committed],
        "rejected": {code.value: count for code, count in report.rejected.items()},
        "kept": {reason.value: count for reason, count in report.kept.items()},
    }
    out.value(value)
