"""Commands that run what others talk to: up, worker."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, Final

import typer

from sexton.worker import logs
from sexton.worker.cli.client import JsonOption, VerboseOption
from sexton.worker.cli.codes import BadInput, ExitCode
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import Interrupted, configure_logs, exit_code, run_async
from sexton.worker.embedded import EmbeddedServers, PortTaken
from sexton.worker.export import exporting
from sexton.worker.settings import read_settings

_USUAL_PORT: Final = 4222
"""Where clients look for NATS if nobody tells them."""


def up(
    *,
    data: Annotated[
        Path, typer.Option("--data", metavar="DIR", help="Where everything is kept. Start again to go on.")
    ] = Path(".sexton"),
    nats_port: Annotated[
        int | None,
        typer.Option(
            metavar="PORT", min=1, max=65535, help="Of NATS. Default: 4222, or any free one if that is taken."
        ),
    ] = None,
    redis_port: Annotated[
        int | None, typer.Option(metavar="PORT", min=1, max=65535, help="Of Valkey. Default: any free one.")
    ] = None,
    cold_url: Annotated[
        str | None, typer.Option(metavar="URL", help="The cold store. Default: in the data folder.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(metavar="N", help="Ordered lanes of the command stream; fixed at first start."),
    ] = None,
    http_port: Annotated[
        int | None,
        typer.Option(metavar="PORT", min=0, max=65535, help="Of health and metrics. 0: any free one."),
    ] = None,
    json: JsonOption = False,
    verbose: VerboseOption = 0,
) -> None:
    """Run everything on this machine, until Ctrl-C.

    That is NATS, Valkey and a worker, with their data in one folder. The first line on stdout is the URL
    of NATS, written when commands can be taken.
    """
    configure_logs(verbose, lasting=True)
    out = Output(as_json=json)
    folder = data.resolve()

    async def serve() -> None:
        async with _servers(out, folder, nats_port, redis_port) as servers:
            given: dict[str, str | int] = {
                "nats_url": servers.nats_url,
                "redis_url": servers.redis_url,
                "cold_url": cold_url or (folder / "cold").as_uri(),
            }
            if http_port is not None:
                given["http_port"] = http_port
            settings = read_settings(**given, **({} if partitions is None else {"partitions": partitions}))
            from sexton.worker.app import Worker  # noqa: PLC0415 - takes a second to import
            from sexton.worker.program import exposed  # noqa: PLC0415

            program = Worker(settings)
            with exporting("sexton-worker", on=settings.tracing):
                async with exposed(program) as endpoint, program:
                    _announce(out, folder, servers, None if endpoint is None else endpoint.url)
                    await servers.watch()

    raise typer.Exit(exit_code(out, lambda: until_told(lambda: run_async(serve))))


def worker(json: JsonOption = False) -> None:
    """Run a worker on servers of your own.

    SEXTON_NATS_URL, SEXTON_REDIS_URL and SEXTON_COLD_URL say where they are; every setting has such a
    variable.
    Ends in order on SIGTERM or Ctrl-C.
    """
    configure_logs(0, lasting=True)
    out = Output(as_json=json)

    def serve() -> None:
        settings = read_settings()
        logs.configure(settings.log_level, json=settings.log_json)
        from sexton.worker.app import Worker  # noqa: PLC0415 - takes a second to import
        from sexton.worker.program import run  # noqa: PLC0415

        with exporting("sexton-worker", on=settings.tracing):
            asyncio.run(run(Worker(settings)))

    raise typer.Exit(exit_code(out, lambda: until_told(serve)))


@contextlib.asynccontextmanager
async def _servers(
    out: Output, folder: Path, nats_port: int | None, redis_port: int | None
) -> AsyncIterator[EmbeddedServers]:
    """The two servers, running. Without a port that was asked for, NATS takes the usual one if it is free."""
    servers = EmbeddedServers(folder, nats_port=nats_port or _USUAL_PORT, redis_port=redis_port)
    try:
        await servers.start()
    except OSError as error:
        raise BadInput(f"cannot use {str(folder)!a} as data folder: {error.strerror}") from error
    except PortTaken as error:
        if nats_port is not None or error.server != servers.nats.executable:
            raise
        servers = EmbeddedServers(folder, redis_port=redis_port)
        await servers.start()
        out.say(f"port {_USUAL_PORT} is taken, NATS is on {servers.nats.port}: tell clients with --nats")
    try:
        yield servers
    finally:
        await servers.stop()


def _announce(out: Output, folder: Path, servers: EmbeddedServers, http_url: str | None) -> None:
    if out.as_json:
        where = {"nats_url": servers.nats_url, "redis_url": servers.redis_url, "data": str(folder)}
        out.value(where if http_url is None else where | {"http_url": http_url})
    else:
        out.line(servers.nats_url)
        if http_url is not None:
            out.say(f"health and metrics on {http_url}")
        out.say(f"ready, with the data in {folder}; Ctrl-C ends it")


def until_told(serve: Callable[[], None]) -> ExitCode:
    """Runs a program whose end by a signal is its proper end."""
    with contextlib.suppress(Interrupted, KeyboardInterrupt):
        serve()
    return ExitCode.OK
