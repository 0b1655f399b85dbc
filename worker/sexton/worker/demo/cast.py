"""Who plays in the demo: two servers, a worker and two holders, each a process of its own.

All are children that end with this process, however it ends.
"""

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Never, Self, TypeVar

import nats
import nats.errors
from nats.aio.client import Client
from pydantic import BaseModel

from sexton.schemas.errors import Unavailable
from sexton.worker.demo.pace import WORKER, within
from sexton.worker.demo.talk import Ask, Done, Verb, ask
from sexton.worker.embedded import ChildProcess, EmbeddedServers, ServerExited
from sexton.worker.embedded.child import tail

A = TypeVar("A", bound=BaseModel)

HOLDERS: Final = ("ada", "ben")
_READY_S: Final = 30.0
_POLL_S: Final = 0.05
_GRACE_S: Final = 10.0
_CLOSE_S: Final = 2.0


class Cast:
    """Started by `async with`; on return all are there and answer."""

    def __init__(self, folder: Path, context_id: str) -> None:
        self.servers = EmbeddedServers(folder / "servers")
        self.cold = (folder / "cold").resolve()
        """The folder that holds the bytes."""
        self._folder = folder
        self._context_id = context_id
        self._children: dict[str, ChildProcess] = {}
        self._client: Client | None = None

    async def __aenter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            await self.servers.start()
            self._spawn("worker", ["sexton.worker", "worker"])
            for name in HOLDERS:
                program = ["sexton.worker.demo.holder", name, self.servers.nats_url, self._context_id]
                self._spawn(name, program)
            # nats-py tries a first connection for two minutes.
            async with within(_READY_S, "a connection to its NATS"):
                self._client = await nats.connect(self.servers.nats_url, name="demo")
            for name in HOLDERS:
                async with within(_READY_S, f"{name} to follow the context"):
                    await self._until_it_answers(name)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._client is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):  # the server may be gone: told elsewhere
                async with asyncio.timeout(_CLOSE_S):
                    await self._client.close()
        # The holders first, so that they do not lose what they follow.
        for names in (HOLDERS, ("worker",)):
            ending = [child.stop(grace_s=_GRACE_S) for name in names if (child := self._children.get(name))]
            await asyncio.gather(*ending)
        await self.servers.stop()

    async def ask(self, name: str, verb: Verb, request: Ask, answer: type[A], *, within_s: float) -> A:
        """Asks a holder to do something. Raises as `talk.ask`."""
        assert self._client is not None  # noqa: S101 - the cast has been started
        return await ask(self._client, name, verb, request, answer, within_s=within_s)

    async def watch(self) -> Never:
        """Runs until cancelled; raises ServerExited once one of them has ended by itself."""
        while True:
            self._check()
            await asyncio.sleep(_POLL_S)

    def _spawn(self, name: str, program: Sequence[str]) -> None:
        # -P: nothing is imported from the folder that the demo happens to be started in.
        self._children[name] = ChildProcess.spawn(
            [sys.executable, "-P", "-m", *program], stdout=self._log(name), env=self._environment()
        )

    def _environment(self) -> dict[str, str]:
        """The caller's, without settings that are meant for a worker of the caller's."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SEXTON_")}
        return {
            **kept,
            "SEXTON_NATS_URL": self.servers.nats_url,
            "SEXTON_REDIS_URL": self.servers.redis_url,
            "SEXTON_COLD_URL": self.cold.as_uri(),
            **WORKER,
        }

    async def _until_it_answers(self, name: str) -> None:
        while True:
            self._check()
            with suppress(Unavailable):
                await self.ask(name, Verb.HELLO, Ask(), Done, within_s=1.0)
                return
            await asyncio.sleep(_POLL_S)

    def _check(self) -> None:
        """Raises ServerExited if anyone has ended. The servers first: the others may end for want of them."""
        self.servers.nats.check()
        self.servers.valkey.check()
        for name, child in self._children.items():
            if (code := child.poll()) is not None:
                raise ServerExited(
                    f"the demo's {name} ended by itself with exit code {code}",
                    server=name,
                    log_tail=tail(self._log(name)),
                )

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"
