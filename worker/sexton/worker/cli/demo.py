"""The command that shows the whole of it at work."""

import sys
from importlib import resources
from pathlib import Path
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.status import Status

from sexton.worker.cli.client import JsonOption, VerboseOption
from sexton.worker.cli.codes import ExitCode
from sexton.worker.cli.feed import open_transcript
from sexton.worker.cli.inputs import read_bytes
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import configure_logs, exit_code, run_async

_SHIPPED: Final = "demo-transcript.jsonl"
_MOST_BYTES: Final = 256 * 1024 * 1024
_PIPED_COLUMNS: Final = 160


def demo(
    file: Annotated[
        str | None,
        typer.Argument(metavar="[FILE]", help="A transcript. Default: one that ships with Sexton."),
    ] = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Keep data and logs in this new or empty folder."),
    ] = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Play a story on a transcript, and check what was promised.

    With embedded servers, a worker and two holders in processes of their own. Needs nothing but this
    machine and leaves nothing behind. Ends with 0 only if all checks hold.
    """
    configure_logs(verbose)
    out = Output(as_json=json)
    raise typer.Exit(exit_code(out, lambda: _play(out, file, keep)))


def _play(out: Output, file: str | None, keep: Path | None) -> ExitCode:
    from sexton.worker.demo import as_json, as_table, perform  # noqa: PLC0415 - half a second for `--help`

    name = Path(file).name if file is not None else "the shipped transcript"
    if file is None:
        content = resources.files("sexton.worker").joinpath("data", _SHIPPED).read_bytes()
    else:
        content = read_bytes(file, _MOST_BYTES)
    transcript = open_transcript(content)
    with Status("starting", console=Console(stderr=True)) as status:
        result = run_async(lambda: perform(name, content, transcript, keep=keep, on_step=status.update))
    if out.as_json:
        out.value(as_json(result))
    else:
        # Where there is no terminal, as wide as it needs to be.
        console = (
            Console() if sys.stdout is not None and sys.stdout.isatty() else Console(width=_PIPED_COLUMNS)
        )
        with console.capture() as drawn:
            console.print(as_table(result))
        out.data(drawn.get().encode())
    return ExitCode.OK if result.held else ExitCode.CHECK_FAILED
