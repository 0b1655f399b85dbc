"""The command that says what is wrong with an installation."""

import os
from collections import Counter
from dataclasses import asdict
from typing import Annotated, Final

import typer

from sexton.worker.cli.client import JsonOption, VerboseOption
from sexton.worker.cli.codes import ExitCode
from sexton.worker.cli.output import Output, shown
from sexton.worker.cli.running import configure_logs, exit_code, run_async
from sexton.worker.doctor.findings import Finding, Level
from sexton.worker.settings import Settings, read_settings, unknown_variables


def doctor(
    *,
    nats_monitor: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Monitoring port of NATS, such as http://HOST:8222: shows fsync."),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as faults, too.")] = False,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Connect to everything a worker needs, say what is wrong, and how to mend it.

    It runs with the settings of a worker: the same SEXTON_ variables. It changes nothing.
    """
    configure_logs(verbose)
    out = Output(as_json=json)

    def run() -> ExitCode:
        settings = read_settings()
        seen = run_async(lambda: _examine(out, settings, nats_monitor))
        bad = seen[Level.FAULT] + (seen[Level.WARNING] if strict else 0)
        out.say(", ".join(f"{seen[level]} {level.value}" for level in Level if seen[level]))
        return ExitCode.CHECK_FAILED if bad else ExitCode.OK

    raise typer.Exit(exit_code(out, run))


async def _examine(out: Output, settings: Settings, monitor: str | None) -> Counter[Level]:
    from sexton.worker.doctor.examine import examine  # noqa: PLC0415 - takes a second to import

    seen: Counter[Level] = Counter()
    async for finding in examine(settings, unknown=unknown_variables(os.environ), monitor=monitor):
        seen[finding.level] += 1
        _show(out, finding)
    return seen


def _show(out: Output, finding: Finding) -> None:
    if out.as_json:
        out.value(asdict(finding))
        return
    out.line(f"{finding.level.value:<8} {finding.check:<20} {shown(finding.found, _LONGEST)}")
    if finding.mend is not None:
        out.line(f"{'':<8} {'':<20} -> {finding.mend}")


_LONGEST: Final = 1000
