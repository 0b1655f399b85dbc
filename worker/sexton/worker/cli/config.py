"""The command that shows what a worker or a pager would run with."""

import os
from dataclasses import asdict
from typing import Annotated

import typer

from sexton.worker.cli.client import JsonOption
from sexton.worker.cli.output import Output, shown
from sexton.worker.cli.running import configure_logs, exit_code
from sexton.worker.settings import describe, read_settings, secrets_dir, unknown_variables


def config(
    *,
    changed: Annotated[bool, typer.Option("--changed", help="Only what is not at its default.")] = False,
    json: JsonOption = False,
) -> None:
    """Show every setting, its value and where that comes from, with secrets hidden.

    Settings are SEXTON_ variables. A value may lie in a file instead, named as the variable, in the folder
    that SEXTON_SECRETS_DIR names (/run/secrets, if it is there and nothing is said). A variable comes first.
    """
    configure_logs(0)
    out = Output(as_json=json)
    raise typer.Exit(exit_code(out, lambda: _show(out, changed=changed)))


def _show(out: Output, *, changed: bool) -> None:
    secrets = secrets_dir()
    settings = [
        setting
        for setting in describe(read_settings(), secrets=secrets)
        if not changed or setting.origin != "default"
    ]
    for setting in settings:
        if out.as_json:
            out.value(asdict(setting))
        else:
            value = "" if setting.value is None else shown(str(setting.value))
            out.line(f"{setting.variable}={value}  # {setting.origin}")
    for name in unknown_variables(os.environ):
        out.say(f"{name} is no setting of this version; it does nothing")
