"""What the demo found, as a table or as JSON."""

from typing import Any

from rich.markup import escape
from rich.table import Table

from sexton.worker.cli.output import shown
from sexton.worker.demo.performance import Result
from sexton.worker.ingest import Report


def as_table(result: Result) -> Table:
    """One row for each check."""
    table = Table(
        title=escape(f"{shown(result.name)}: {_counted(result.report)}, {result.durations_s['all']:.1f} s"),
        title_justify="left",
        caption="  ".join(f"{step} {took:.1f} s" for step, took in result.durations_s.items()),
        caption_justify="left",
    )
    table.add_column("what was checked")
    table.add_column("count", justify="right")
    table.add_column("holds")
    table.add_column("detail")
    for check in result.checks:
        holds = "[green]yes[/]" if check.held else "[bold red]NO[/]"
        table.add_row(escape(check.name), str(check.count), holds, escape(check.detail))
    return table


def as_json(result: Result) -> dict[str, Any]:
    """The same, for programs."""
    return {
        "held": result.held,
        "transcript": result.name,
        "rows": result.report.rows,
        "size_bytes": result.report.size_bytes,
        "bad_lines": len(result.report.bad_lines),
        "checks": [
            {"name": check.name, "held": check.held, "count": check.count, "detail": check.detail}
            for check in result.checks
        ],
        "durations_s": result.durations_s,
    }


def _counted(report: Report) -> str:
    bad = len(report.bad_lines)
    left_out = f", {bad} bad {'line' if bad == 1 else 'lines'} left out" if bad else ""
    return f"{report.rows} rows{left_out}, {report.size_bytes} bytes"
