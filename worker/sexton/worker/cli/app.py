"""The command line, put together: its commands, and the way from arguments to an exit code."""

from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated, Final, cast

import typer
from typer.main import get_command

from sexton.worker.cli import (
    change,
    config,
    demo,
    doctor,
    failures,
    held,
    ingest,
    pager,
    read,
    serve,
    tree,
    watch,
)
from sexton.worker.cli.client import client_command
from sexton.worker.cli.codes import ExitCode, epilog
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import exit_code, fill_closed_streams

_USAGE_ERROR: Final = cast("type[typer.BadParameter]", typer.BadParameter.__base__)
"""Base of all complaints about a command line. typer gives it no public name."""

app: Final = typer.Typer(
    name="sexton",
    help="Compact and rewrite a shared agent context without a stale or resurrected reference.",
    # \b keeps the lines of the table as they are.
    epilog="\b\n" + epilog(),
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command()(serve.up)
app.command()(serve.worker)
app.command()(pager.pager)
app.command()(config.config)
app.command()(doctor.doctor)
app.command()(client_command(ingest.ingest))
app.command()(client_command(change.compact))
app.command()(client_command(change.rewrite))
app.command()(client_command(change.prune))
app.command()(client_command(read.pointer))
app.command()(client_command(read.resolve, with_context=False))
app.command()(client_command(tree.tree))
app.command()(client_command(watch.watch, lasting=True))
app.command()(client_command(held.holders))
app.command()(client_command(held.pins))
app.command()(client_command(held.tombstones))
app.command()(client_command(held.gc))
app.command()(client_command(held.verify))
app.command()(client_command(failures.failures, with_context=False))
app.command()(demo.demo)


def _show_version(wanted: bool) -> None:
    if wanted:
        Output().line(f"sexton {version('sexton')}")
        raise typer.Exit


@app.callback()
def _sexton(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def run(arguments: Sequence[str]) -> int:
    """Carries out a command line. Returns how it ended; does not raise."""
    fill_closed_streams()
    out = Output(as_json="--json" in arguments)

    def parsed() -> int:
        try:
            code = get_command(app).main(list(arguments), prog_name="sexton", standalone_mode=False)
            return int(code or ExitCode.OK)
        except _USAGE_ERROR as error:
            if out.as_json:
                out.failure("usage", error.format_message(), ExitCode.USAGE)
            else:
                error.show()
            return ExitCode.USAGE

    return exit_code(out, parsed)
