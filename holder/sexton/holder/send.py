"""Sends commands: until there is an outcome, and once in effect however often it takes.

A command is its event id and its bytes. Sending both again is how a lost outcome is asked for: the service
knows what it has committed and answers the same. So a time-out here never loses or doubles anything; it
ends, at worst, in `OutcomeUnknown`, which the caller may end by sending the same command again.
"""

from typing import Final, TypeGuard

from sexton import tracing
from sexton.holder.calls import Calls
from sexton.holder.claims import Packed, Upload, pack
from sexton.holder.clock import backoff
from sexton.holder.ports import Mailbox
from sexton.holder.runtime import Runtime
from sexton.holder.spans import TRACER
from sexton.schemas.codec import AnyCommand, AnyOutcome, decode_outcome
from sexton.schemas.commands import Compact
from sexton.schemas.errors import OutcomeUnknown, PeerError, PermissionRefused, TransientError, Unavailable
from sexton.schemas.limits import CHUNK_BYTES
from sexton.schemas.outcome import Committed, Rejected, RejectionCode
from sexton.schemas.rpc import PutRequest

_COMMAND: Final = "sexton.cmd.{context_id}.{kind}"


class Sender:
    """The commands of one holder."""

    def __init__(self, runtime: Runtime, calls: Calls) -> None:
        self._transport = runtime.transport
        self._calls = calls
        self._clock = runtime.clock
        self._settings = runtime.settings
        self._log = runtime.log

    async def send(self, command: AnyCommand) -> AnyOutcome:
        """The command's outcome, whatever it is.

        Raises:
            Unavailable: it was not sent, or the service could not ask who holds what; nothing happens.
            PermissionRefused: it may not be sent; nothing happens.
            OutcomeUnknown: it was, and no outcome came, or it is a dead letter. It may yet be committed.
            PayloadTooLarge: over a limit; nothing was sent.
            InvalidInput: a text that is no UTF-8; nothing was sent.
            PeerError: an outcome that cannot be read.
        """
        with TRACER.send(
            "sexton.command",
            _COMMAND,
            context_id=command.context_id,
            event_id=command.event_id,
            kind=command.kind.value,
        ) as span:
            outcome = await self._sent(command)
            span.set(
                outcome=outcome.code.value if isinstance(outcome, Rejected) else outcome.status,
                revision=outcome.revision,
                epoch=outcome.epoch,
            )
        return outcome

    async def _sent(self, command: AnyCommand) -> AnyOutcome:
        packed = pack(command)
        await self._upload(command.context_id, packed.uploads)
        outcome = await self._outcome(packed)
        if packed.uploads and _claim_missing(outcome):
            # What was left with the service did not outlast the wait. Once more; then it is an outcome.
            await self._upload(command.context_id, packed.uploads)
            outcome = await self._outcome(packed)
        return _told(command, outcome)

    async def _upload(self, context_id: str, uploads: tuple[Upload, ...]) -> None:
        for upload in uploads:
            for index in range(upload.claim.chunks):
                start = index * CHUNK_BYTES
                await self._calls.put(
                    PutRequest(
                        context_id=context_id,
                        claim=upload.claim,
                        index=index,
                        data=upload.data[start : start + CHUNK_BYTES],
                    )
                )

    async def _outcome(self, packed: Packed) -> AnyOutcome:
        tries, attempt, sends = self._settings.command_tries, 0, 0
        maybe_sent = False
        why: Exception | None = None
        async with self._transport.mailbox() as mailbox:
            began = self._clock.monotonic()
            while attempt < tries:
                address = mailbox.address()
                sent_before, refused = maybe_sent, False
                try:
                    await self._submit(packed, address)
                    maybe_sent = True
                    outcome = await self._awaited(packed.command, mailbox, address)
                    if not _undecided(outcome):
                        return outcome
                    # It has ended: of this try, nothing can commit any more.
                    maybe_sent, refused, why = sent_before, True, Unavailable(outcome.message)
                except PermissionRefused as e:
                    if not maybe_sent:
                        raise
                    # An earlier try may be on its way to a commit.
                    why = e
                    break
                except Unavailable as e:
                    why = e
                except (OutcomeUnknown, TimeoutError) as e:
                    maybe_sent, why = True, e
                # Such a refusal comes at once. The try goes on for as long as one that hears nothing.
                if not refused or self._clock.monotonic() - began >= self._settings.outcome_timeout_s:
                    attempt, began = attempt + 1, self._clock.monotonic()
                sends += 1
                self._note_retry(packed.command, sends, why)
                late = await self._listened(packed.command, mailbox, address, sends - 1)
                if late is not None and not _undecided(late):
                    return late
        raise _no_outcome(packed.command, tries, why, maybe_sent=maybe_sent) from why

    def _note_retry(self, command: AnyCommand, sends: int, why: Exception | None) -> None:
        # The same message, so in the same trace, and under the same span.
        tracing.current().event("retry", attempt=sends)
        self._log.info(
            "holder.command_retry",
            context_id=command.context_id,
            event_id=command.event_id,
            attempt=sends,
            reason=str(why) or "time-out",
        )

    async def _submit(self, packed: Packed, address: str) -> None:
        command = packed.command
        try:
            async with self._clock.timeout(self._settings.ack_timeout_s):
                await self._transport.ready()
        except TimeoutError:
            raise Unavailable("no connection") from None
        async with self._clock.timeout(self._settings.ack_timeout_s):
            await self._transport.submit(command.context_id, command.kind, packed.body, address)

    async def _awaited(self, command: AnyCommand, mailbox: Mailbox, address: str) -> AnyOutcome:
        """The outcome, unless it takes too long."""
        wait_s = self._settings.outcome_timeout_s
        if _summary_awaited(command):
            wait_s = self._settings.summary_timeout_s
        async with self._clock.timeout(wait_s):
            return await _received(command, mailbox, address)

    async def _listened(
        self, command: AnyCommand, mailbox: Mailbox, address: str, attempt: int
    ) -> AnyOutcome | None:
        """The wait between two tries, with an ear to the mailbox: the last one may have arrived after all."""
        wait_s = backoff(attempt, self._settings.backoff_s, self._settings.backoff_cap_s)
        until = self._clock.monotonic() + wait_s
        try:
            async with self._clock.timeout(wait_s):
                return await _received(command, mailbox, address)
        except TimeoutError:
            return None
        except Unavailable:
            await self._clock.sleep(max(0.0, until - self._clock.monotonic()))
            return None


async def _received(command: AnyCommand, mailbox: Mailbox, address: str) -> AnyOutcome:
    """The next outcome that counts.

    A commit is remembered by the service, so its news are good whichever try they answer. A rejection is not:
    that of an earlier try says nothing about what becomes of this one.
    """
    while True:
        letter = await mailbox.receive()
        outcome = decode_outcome(letter.data)
        if outcome.event_id not in (command.event_id, None):  # None: it could not even be read
            raise PeerError("an outcome of another command", event_id=outcome.event_id)
        # While a summary is being made the service may not begin another, and answers the first try.
        if letter.address == address or _summary_awaited(command) or isinstance(outcome, Committed):
            return outcome


def _summary_awaited(command: AnyCommand) -> bool:
    return isinstance(command, Compact) and command.summary is None and bool(command.sources)


def _undecided(outcome: AnyOutcome) -> TypeGuard[Rejected]:
    return isinstance(outcome, Rejected) and outcome.code is RejectionCode.REGISTRY_UNAVAILABLE


def _told(command: AnyCommand, outcome: AnyOutcome) -> AnyOutcome:
    """An outcome that says what has become of the command. Raises `OutcomeUnknown` for one that does not."""
    if isinstance(outcome, Rejected) and outcome.code is RejectionCode.DEAD_LETTER:
        raise OutcomeUnknown(
            f"{command.kind.value} {command.event_id} is a dead letter ({outcome.message}); it may have been "
            "committed",
            event_id=command.event_id,
        )
    return outcome


def _no_outcome(
    command: AnyCommand, tries: int, why: Exception | None, *, maybe_sent: bool
) -> TransientError:
    what = f"{command.kind.value} {command.event_id}"
    if not maybe_sent:
        return Unavailable(f"{what} could not be sent or decided: {why}", event_id=command.event_id)
    return OutcomeUnknown(
        f"no outcome of {what} in {tries} tries; it may yet commit", event_id=command.event_id
    )


def _claim_missing(outcome: AnyOutcome) -> bool:
    return isinstance(outcome, Rejected) and outcome.code is RejectionCode.CLAIM_MISSING
