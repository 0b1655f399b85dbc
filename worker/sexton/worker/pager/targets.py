"""Where pages go: Apprise URLs, one target each. An address holds secrets, and nothing here ever shows one.

Apprise, and the libraries under it, write addresses into their logs, and so into ours if they could. `hush`
and `trust_own_logs` keep them from it. What an operator must know of a failed attempt is in the result.
"""

import asyncio
import logging
import re
import threading
from collections.abc import Sequence
from typing import Final, Protocol

import structlog
from apprise import Apprise, AppriseAsset, AppriseResult, NotifyBase, NotifyFormat, NotifyType
from pydantic import SecretStr

from sexton.schemas.errors import InvalidInput
from sexton.schemas.incidents import PageKind

log: Final = structlog.get_logger("sexton.pager")

_TYPES: Final = {
    PageKind.OPENED: NotifyType.FAILURE,
    PageKind.REPEATED: NotifyType.FAILURE,
    PageKind.RESOLVED: NotifyType.SUCCESS,
}
_scheme_re: Final = re.compile(r"([a-z][a-z0-9]{0,19})://", re.IGNORECASE)
_status_re: Final = re.compile(r"\berror=([1-5][0-9]{2})\b")

MAX_THREADS: Final = 256
"""Attempts under way in one process, those that were given up and still hang among them."""


class Target(Protocol):
    """Somewhere that pages go."""

    @property
    def name(self) -> str:
        """Names it in logs and in what is kept: its scheme and its position, such as `slack-1`."""
        ...

    async def send(self, title: str, body: str, kind: PageKind | None) -> bool:
        """Whether it accepted the page. `kind` is none for a test. Does not raise."""
        ...


class AppriseTarget:
    """One address of Apprise's."""

    def __init__(self, service: NotifyBase, name: str, *, attempt_s: float) -> None:
        """Args: the address, loaded; what to call it; and the longest that an attempt may take."""
        self.name = name
        self._attempt_s = attempt_s
        # Its own four seconds would give up on a page that a slow receiver is about to accept.
        if service.socket_read_timeout == type(service).socket_read_timeout:
            service.socket_read_timeout = attempt_s
        self._service = Apprise(asset=_asset())
        self._service.add(service)

    async def send(self, title: str, body: str, kind: PageKind | None) -> bool:
        """See `Target`."""
        try:
            async with asyncio.timeout(self._attempt_s):
                accepted, why = await _in_a_thread(lambda: self._notify(title, body, kind))
        except TimeoutError:
            accepted, why = False, f"no answer within {self._attempt_s:g} s"
        if not accepted:
            log.warning("pager.not_accepted", target=self.name, reason=why)
        return accepted

    def _notify(self, title: str, body: str, kind: PageKind | None) -> tuple[bool, str]:
        try:
            result = self._service.notify(
                body,
                title=title,
                notify_type=_TYPES[kind] if kind is not None else NotifyType.INFO,
                body_format=NotifyFormat.TEXT,
                interpret_escapes=False,
            )
        except Exception as e:  # noqa: BLE001 - anything a plugin raises; its words may hold the address
            return False, type(e).__name__
        return bool(result), _reason(result)


def open_targets(urls: Sequence[SecretStr], *, attempt_s: float) -> list[AppriseTarget]:
    """The targets of a list of addresses. Raises `InvalidInput` if there is none, or one cannot be used."""
    hush()
    targets: list[AppriseTarget] = []
    for position, url in enumerate(urls, start=1):
        # What stands between two blanks may still be several addresses.
        services = Apprise(asset=_asset())
        if not services.add(url.get_secret_value()):
            why = f"SEXTON_PAGER_URLS: Apprise cannot use address {position}"
            raise InvalidInput(why, field="pager_urls")
        for service in services:
            name = f"{_scheme(url)}-{len(targets) + 1}"
            targets.append(AppriseTarget(service, name, attempt_s=attempt_s))
    if not targets:
        raise InvalidInput("SEXTON_PAGER_URLS names no address: nobody would be paged", field="pager_urls")
    return targets


def hush() -> None:
    """Keeps the logs of Apprise, and of the libraries that most of its plugins use, to themselves."""
    for name in _LEAKY:
        logger = logging.getLogger(name)
        logger.handlers[:] = [logging.NullHandler()]
        logger.propagate = False
        # Not lower, whatever ours is: Apprise makes up long texts for DEBUG. Not higher: see `_reason`.
        logger.setLevel(logging.WARNING)


def trust_own_logs() -> None:
    """Lets nothing into the program's log that a library writes which a plugin may bring, whatever its name.

    For a program of which the pager is all; to be called once logging is configured.
    """
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.name.partition(".")[0] in _TRUSTED)


_TRUSTED: Final = frozenset({"sexton", "faststream", "nats", "asyncio", "root"})
_LEAKY: Final = ("apprise", "requests", "urllib3")


def _asset() -> AppriseAsset:
    """Without a time-out of its own, Apprise sends in the thread that asks it to.

    With one it uses a pool of few threads, in which addresses that hang would hold up all others.
    """
    return AppriseAsset(service_timeout=0)


def _scheme(url: SecretStr) -> str:
    found = _scheme_re.match(url.get_secret_value())
    return found[1].lower() if found else "unknown"


def _reason(result: AppriseResult) -> str:
    """Why it was not accepted: the HTTP status at most, for all other words may hold the address."""
    for entry in result.logs():
        if found := _status_re.search(str(entry)):
            return f"HTTP {found[1]}"
    return "no connection, or an answer that was cut off"


async def _in_a_thread(work: "_Work") -> tuple[bool, str]:
    """Runs `work` in a thread that does not keep the program from ending, as those of an executor do."""
    if sum(thread.name == _THREAD for thread in threading.enumerate()) >= MAX_THREADS:
        return False, "too many attempts hang"
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[bool, str]] = loop.create_future()

    def finish(result: tuple[bool, str]) -> None:
        if not done.done():
            done.set_result(result)

    def run() -> None:
        result = work()
        # The loop may have ended meanwhile, and nobody waits any more.
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result)

    threading.Thread(target=run, name=_THREAD, daemon=True).start()
    return await done


class _Work(Protocol):
    def __call__(self) -> tuple[bool, str]: ...


_THREAD: Final = "pager.attempt"
