"""Sends what is due: claims a page, sends it to whoever has not accepted it, writes down what came of it.

The claim is written before the page is sent, and what came of it before the record that called for it is
acknowledged. So a pager may be killed anywhere: the page is sent again, by the next one, under the same id.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

import structlog

from sexton.core.incidents import PageRules, Report, accepted, attempted, claim, settled
from sexton.schemas.errors import Unavailable
from sexton.schemas.incidents import Incident, PageState
from sexton.worker import metrics
from sexton.worker.cancelling import cancelled
from sexton.worker.pager import text
from sexton.worker.pager.incidents import Incidents
from sexton.worker.pager.targets import Target

log: Final = structlog.get_logger("sexton.pager")


class Pages:
    """What is due, and its way to the targets."""

    def __init__(
        self,
        incidents: Incidents,
        targets: Sequence[Target],
        *,
        streams: Sequence[str],
        rules: PageRules,
        parallel: int,
        poll_s: float,
        delay_s: float,
        delay_max_s: float,
        clock_ms: Callable[[], int],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
    ) -> None:
        self._incidents = incidents
        self._targets = {target.name: target for target in targets}
        self._streams = streams
        self._rules = rules
        self._slots = asyncio.Semaphore(parallel)
        self._poll_s = poll_s
        self._delay_s = delay_s
        self._delay_max_s = delay_max_s
        self._clock_ms = clock_ms
        self._spawn = spawn
        self._sending: set[str] = set()
        self._look = asyncio.Event()
        self._ended = False
        self._hurried = False

    async def called_for(self, stream: str, report: Report) -> None:
        """Takes in a record; on return, the page that it called for was accepted.

        Raises:
            Unavailable: NATS did not answer, or the pager ends. The record must be delivered again.
        """
        await self._incidents.catch_up(stream, report.sequence)
        await self._incidents.take(report)
        self._look.set()
        await self._incidents.wait_until(lambda: self._ended or self._done(report))
        if not self._done(report):
            raise Unavailable("the pager ends", operation="page")

    async def run(self) -> None:
        """Looks at what is due, again and again, until it is cancelled. A fault is logged."""
        delay_s = self._delay_s
        while not cancelled():
            try:
                await self.turn()
                delay_s = self._delay_s
            except Unavailable as e:
                log.warning("pager.turn_failed", reason=e.message, delay_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._delay_max_s)
            except Exception:
                log.exception("pager.turn_failed")
                await asyncio.sleep(self._delay_max_s)
            await self._wait()

    async def turn(self) -> None:
        """Takes in what is new, and begins to send what is due. Raises `Unavailable`."""
        for stream in self._streams:
            # Also what waits behind records that wait for their page: so that a page has the whole count.
            await self._incidents.catch_up(stream)
        await self._incidents.load()
        now_ms = self._clock_ms()
        for incident in () if self._ended else self._incidents:
            if incident.fingerprint in self._sending or claim(incident, now_ms, self._rules) is None:
                continue
            self._sending.add(incident.fingerprint)
            self._spawn(self._send(incident.fingerprint))

    async def end(self, within_s: float) -> None:
        """Begins nothing any more, and waits for the attempts under way, but not for long.

        Records that wait for their page are let go: they are delivered again, to the next pager.
        """
        self._ended = True
        await self._incidents.tell()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._incidents.wait_until(lambda: self._hurried or not self._sending)

    async def hurry(self) -> None:
        """Has `end` wait no longer. What an attempt comes to is not known then: the page is sent again."""
        self._hurried = True
        await self._incidents.tell()

    def _done(self, report: Report) -> bool:
        return settled(self._incidents.get(report.fingerprint), report.kind)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._poll_s):
                await self._look.wait()
        except TimeoutError:
            return
        self._look.clear()

    async def _send(self, fingerprint: str) -> None:
        try:
            async with self._slots:
                if self._ended:
                    return
                claimed = await self._claimed(fingerprint)
                if claimed is None or claimed.page is None:
                    return
                await self._attempt(claimed, claimed.page)
        finally:
            self._sending.discard(fingerprint)
            self._look.set()
            await self._incidents.tell()

    async def _claimed(self, fingerprint: str) -> Incident | None:
        def change(incident: Incident | None) -> Incident | None:
            return None if incident is None else claim(incident, self._clock_ms(), self._rules)

        try:
            return await self._incidents.update(fingerprint, change)
        except Unavailable as e:
            log.warning("pager.not_claimed", fingerprint=fingerprint, reason=e.message)
            return None

    async def _attempt(self, incident: Incident, page: PageState) -> None:
        """Sends a page to those who have not accepted it."""
        title, body = text.page(incident, page)
        owed = [target for name, target in self._targets.items() if name not in page.accepted_by]

        async def to(target: Target) -> bool:
            taken = await target.send(title, body, page.kind)
            metrics.PAGE_ATTEMPTS.labels("accepted" if taken else "failed").inc()
            if not taken:
                return False
            # At once: another target may hang, and this one would get the page twice if we were killed.
            await self._write_down(
                incident.fingerprint,
                lambda now: accepted(now, page.number, target.name, self._targets, self._clock_ms()),
            )
            return True

        answers = await asyncio.gather(*(to(target) for target in owed))
        if any(answers) and not page.accepted_by:
            metrics.PAGES.labels(page.kind.value).inc()
        await self._write_down(
            incident.fingerprint,
            lambda now: attempted(now, page.number, self._targets, self._clock_ms(), self._rules),
        )
        told = log.info if all(answers) else log.error
        told(
            "pager.page_sent" if all(answers) else "pager.page_not_accepted",
            page=text.page_id(incident, page),
            kind=page.kind.value,
            count=page.count,
            attempt=page.attempts,
            accepted=sum(answers),
            targets=len(owed),
        )

    async def _write_down(self, fingerprint: str, change: Callable[[Incident], Incident]) -> None:
        """Keeps what came of an attempt. Tries until it is done: else the page would be sent once more."""
        delay_s = self._delay_s
        while not cancelled():
            try:
                await self._incidents.update(fingerprint, lambda now: None if now is None else change(now))
            except Unavailable as e:
                log.warning("pager.not_written", fingerprint=fingerprint, reason=e.message, delay_s=delay_s)
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, self._delay_max_s)
            else:
                return
