"""What the commands that talk to the service have in common: their options, and a holder of their own."""

import asyncio
import inspect
import uuid
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Annotated, Any, Concatenate, Final

import typer

from sexton.holder import Context, Holder, HolderSettings
from sexton.schemas.addresses import check_nats_urls
from sexton.schemas.errors import Unavailable
from sexton.schemas.ids import token
from sexton.worker.adapters.nats_options import identity as nats_identity
from sexton.worker.adapters.nats_options import tls as nats_tls
from sexton.worker.cli.asking import Operator
from sexton.worker.cli.output import Output
from sexton.worker.cli.running import configure_logs, exit_code, run_async
from sexton.worker.settings import read_settings

DEFAULT_NATS: Final = "nats://127.0.0.1:4222"
_HOLDERS_INBOX: Final = "_INBOX"

JsonOption = Annotated[bool, typer.Option("--json", help="Data and errors as JSON, one value to a line.")]
VerboseOption = Annotated[
    int, typer.Option("--verbose", "-v", count=True, help="Say more on stderr; twice for all there is.")
]
NatsOption = Annotated[
    str,
    typer.Option(
        "--nats", metavar="URL", envvar="SEXTON_NATS_URL", help="Where NATS is: what `sexton up` prints."
    ),
]
ContextOption = Annotated[
    str, typer.Option("--context", metavar="ID", envvar="SEXTON_CONTEXT", help="The context to work on.")
]
TimeoutOption = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Give up after this long, with code 6."),
]


class Client:
    """A command's way to the service. Connects when a context is first opened, and not before."""

    def __init__(self, out: Output, nats_url: str, context_id: str) -> None:
        self.out = out
        self.context_id = context_id
        self.settings = read_settings(nats_url=nats_url)
        check_nats_urls(self.settings.nats_servers, "--nats")
        self._stack = AsyncExitStack()
        self._holder: Holder | None = None
        self._operator: Operator | None = None

    async def open(self, context_id: str | None = None) -> Context:
        """Follows a context; without an id the one of `--context`."""
        wanted = token(context_id if context_id is not None else self.context_id, "context_id")
        if self._holder is None:
            # A name of its own for each run: of two holders with one name the later one takes over.
            name = f"sexton-cli-{uuid.uuid4().hex[:12]}"
            connecting = Holder.connect(
                self.settings.nats_servers,
                name=name,
                settings=HolderSettings(),
                inbox_prefix=self.settings.nats_inbox_prefix or _HOLDERS_INBOX,
                **nats_identity(self.settings),
                **nats_tls(self.settings),
            )
            self._holder = await self._stack.enter_async_context(connecting)
        return await self._holder.open(wanted)

    async def operator(self) -> Operator:
        """Who asks what only operators may. Raises `Unavailable`, `PermissionRefused`."""
        if self._operator is None:
            self._operator = await self._stack.enter_async_context(Operator(self.settings))
        return self._operator

    async def close(self) -> None:
        """Lets go of everything."""
        await self._stack.aclose()


def client_command(
    work: Callable[Concatenate[Client, ...], Coroutine[Any, Any, None]],
    *,
    with_context: bool = True,
    lasting: bool = False,
) -> Callable[..., None]:
    """Makes a command of `work`, with the options that all of them share.

    Args:
        work: is given the client, and the command's own arguments and options by name.
        with_context: whether it takes `--context`.
        lasting: whether it goes on until somebody ends it.

    typer reads a command's options from its signature, so the shared ones are put into it here, once.
    """

    def command(
        *,
        nats: str,
        timeout: float | None,
        json: bool,
        verbose: int,
        context: str = "",
        **options: Any,
    ) -> None:
        configure_logs(verbose, lasting=lasting)
        out = Output(as_json=json)

        async def bounded() -> None:
            client = Client(out, nats, context)
            try:
                async with asyncio.timeout(timeout):
                    await work(client, **options)
            finally:
                await client.close()

        def run() -> None:
            try:
                run_async(bounded)
            except TimeoutError:
                raise Unavailable(
                    f"not done within {timeout} s; what was sent may still be carried out"
                ) from None

        raise typer.Exit(exit_code(out, run))

    shared: dict[str, tuple[Any, Any]] = {
        "context": (ContextOption, "default"),
        "nats": (NatsOption, DEFAULT_NATS),
        "timeout": (TimeoutOption, None),
        "json": (JsonOption, False),
        "verbose": (VerboseOption, 0),
    }
    if not with_context:
        del shared["context"]
    own = list(inspect.signature(work).parameters.values())[1:]
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in shared.items()
    ]
    parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own] + added
    command.__name__ = work.__name__
    command.__doc__ = work.__doc__
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return command
