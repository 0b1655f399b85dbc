"""The command that runs what pages people."""

import asyncio
from typing import Annotated

import typer

from sexton.schemas.errors import InvalidInput, Unavailable
from sexton.worker import logs
from sexton.worker.cli.client import JsonOption
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import configure_logs, exit_code, run_async
from sexton.worker.cli.serve import until_told
from sexton.worker.export import exporting
from sexton.worker.settings import Settings, read_settings


def pager(
    *,
    test: Annotated[
        bool, typer.Option("--test", help="Send one test page to each address, say who took it, and end.")
    ] = False,
    json: JsonOption = False,
) -> None:
    """Page people about hard failures, dead letters and stuck collections.

    SEXTON_PAGER_URLS holds the addresses, as Apprise URLs separated by blanks; SEXTON_NATS_URL says where
    NATS is.
    Ends in order on SIGTERM or Ctrl-C.
    """
    configure_logs(0, lasting=True)
    out = Output(as_json=json)
    raise typer.Exit(exit_code(out, (lambda: _test(out)) if test else lambda: until_told(_run)))


def _run() -> None:
    settings = _settings()
    logs.configure(settings.log_level, json=settings.log_json)
    from sexton.worker.pager.app import Pager  # noqa: PLC0415 - takes a second to import
    from sexton.worker.pager.targets import trust_own_logs  # noqa: PLC0415
    from sexton.worker.program import run  # noqa: PLC0415

    trust_own_logs()
    with exporting("sexton-pager", on=settings.tracing):
        asyncio.run(run(Pager(settings)))


def _test(out: Output) -> None:
    settings = _settings()
    run_async(lambda: _send(out, settings))


async def _send(out: Output, settings: Settings) -> None:
    """Sends a test page to every target. Raises `Unavailable` if one does not accept it."""
    from sexton.worker.pager.targets import open_targets  # noqa: PLC0415 - takes a second to import
    from sexton.worker.pager.text import TEST  # noqa: PLC0415

    title, body = TEST
    targets = open_targets(settings.page_targets, attempt_s=settings.pager_attempt_s)
    answers = await asyncio.gather(*(target.send(title, body, None) for target in targets))
    for target, accepted in zip(targets, answers, strict=True):
        if out.as_json:
            out.value({"target": target.name, "accepted": accepted})
        else:
            out.line(f"{target.name}: {'accepted' if accepted else 'not accepted'}")
    if not all(answers):
        raise Unavailable(f"{answers.count(False)} of {len(answers)} targets did not accept the test page")


def _settings() -> Settings:
    """The pager's settings. Raises `InvalidInput`, also if Apprise is not installed."""
    try:
        import apprise  # noqa: F401, PLC0415 - may not be installed
    except ModuleNotFoundError:
        raise InvalidInput("the pager needs: pip install 'sexton[pager]' (apprise is missing)") from None
    return read_settings()
