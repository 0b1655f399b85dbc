"""From a delivered command to its outcome: the one place where the wire meets the commit."""

from typing import Final

import structlog
from nats.aio.msg import Msg

from sexton import tracing
from sexton.core.hash import body_digest
from sexton.schemas import subjects
from sexton.schemas.codec import AnyCommand, AnyOutcome, decode_command, event_id_of
from sexton.schemas.commands import Compact
from sexton.schemas.errors import (
    InvalidInput,
    MalformedMessage,
    PayloadTooLarge,
    SextonError,
    UnsupportedSchema,
)
from sexton.schemas.ids import token
from sexton.schemas.outcome import Rejected, RejectionCode
from sexton.worker import metrics
from sexton.worker.commit import Committer, Deferred
from sexton.worker.outbox import Outbox, reply_of
from sexton.worker.summarise import Summarised, SummariseStage

log: Final = structlog.get_logger("sexton.commands")


class CommandHandler:
    """Handles commands, and compactions that wait for a summary."""

    def __init__(
        self, committer: Committer, stage: SummariseStage, outbox: Outbox, *, max_command_bytes: int
    ) -> None:
        self._committer = committer
        self._stage = stage
        self._outbox = outbox
        self._max_command_bytes = max_command_bytes

    async def on_command(self, subject: str, data: bytes, reply: str | None, deliveries: int) -> None:
        """Carries out a command and publishes its outcome.

        Raises:
            MalformedMessage: it is no command, and does not say whose it is.
            TransientError: it was not carried out, and can be tried again.
        """
        command = await self._read(subject, data, reply)
        if command is None:
            return
        _name(command)
        digest = body_digest(data)
        with metrics.COMMAND_SECONDS.labels(command.kind.value).time():
            done = await self._committer.carry_out(command, digest, redelivered=deliveries > 1)
        if isinstance(done, Deferred):
            await self._outbox.defer(command.context_id, command.event_id, data, reply)
            metrics.COMMANDS.labels(command.kind.value, "deferred").inc()
            tracing.current().set(outcome="deferred")
            log.info("commands.deferred", sources=len(done.need.sources))
            return
        metrics.COMMANDS.labels(command.kind.value, _outcome_label(done.outcome)).inc()
        tracing.current().set(
            outcome=_outcome_label(done.outcome), revision=done.outcome.revision, epoch=done.outcome.epoch
        )
        if isinstance(done.outcome, Rejected):
            log.info("commands.rejected", code=done.outcome.code.value)
        await self._outbox.publish(done.outcome, reply)

    async def on_deferred(self, data: bytes, reply: str | None) -> None:
        """Makes the summary of a deferred compaction, and sends it on. Raises as `on_command`."""
        command = decode_command(data)
        if not isinstance(command, Compact):
            raise MalformedMessage("only compactions are deferred")
        _name(command)
        result = await self._stage.run(command, body_digest(data))
        if not isinstance(result, Summarised):
            metrics.COMMANDS.labels(command.kind.value, _outcome_label(result)).inc()
            tracing.current().set(outcome=_outcome_label(result))
            await self._outbox.publish(result, reply)
            return
        summarised = result.command.wire()
        if len(summarised) <= self._max_command_bytes:
            await self._outbox.send(subjects.command(command.context_id, command.kind), summarised, reply)
            return
        # No number of tries, each a model call, would make it any smaller.
        message = f"with its summary, the compaction has {len(summarised)} bytes"
        refused = Rejected(
            context_id=command.context_id,
            event_id=command.event_id,
            code=RejectionCode.TOO_LARGE,
            message=message,
        )
        metrics.COMMANDS.labels(command.kind.value, _outcome_label(refused)).inc()
        await self._outbox.publish(refused, reply)

    async def on_buried(self, message: Msg, why: str) -> None:
        """Tells the sender of a command, or of a compaction that waited for a summary: it is a dead letter.

        What cannot be read has no sender to be told, or one that was told what is wrong with it.

        Raises:
            Unavailable: the outcome could not be published.
        """
        try:
            command = decode_command(message.data)
            if command.context_id != _context_of(message.subject):
                # Whoever sent it may have no rights to the context that it names.
                return
        except (InvalidInput, MalformedMessage, UnsupportedSchema):
            return
        outcome = Rejected(
            context_id=command.context_id,
            event_id=command.event_id,
            code=RejectionCode.DEAD_LETTER,
            message=why[:_MAX_MESSAGE_CHARACTERS],
        )
        metrics.COMMANDS.labels(command.kind.value, outcome.code.value).inc()
        await self._outbox.publish(outcome, reply_of(message.headers))

    async def _read(self, subject: str, data: bytes, reply: str | None) -> AnyCommand | None:
        """The command; None if it was refused and its sender has been told.

        A broken command is answered. If it does not say whose it is, only its inbox hears of that, if it
        has one; so it becomes a dead letter as well.
        """
        try:
            return self._understood(subject, data)
        except (InvalidInput, MalformedMessage, UnsupportedSchema) as e:
            outcome = _refusal(subject, data, e)
            metrics.COMMANDS.labels("unreadable", outcome.code.value).inc()
            tracing.current().set(outcome=outcome.code.value)
            log.info("commands.refused", code=outcome.code.value, reason=outcome.message)
            await self._outbox.publish(outcome, reply)
            if outcome.event_id is None:
                raise _dead(e) from e
            return None

    def _understood(self, subject: str, data: bytes) -> AnyCommand:
        where = subjects.parse_command(subject)
        if len(data) > self._max_command_bytes:
            raise PayloadTooLarge(
                f"{len(data)} bytes; a command has at most {self._max_command_bytes}",
                limit=self._max_command_bytes,
                actual=len(data),
            )
        command = decode_command(data)
        if (command.context_id, command.kind) != where:
            raise InvalidInput(
                f"a {command.kind.value} for {command.context_id} was published as a "
                f"{where.kind.value} for {where.context_id}"
            )
        return command


def _name(command: AnyCommand) -> None:
    """Names the command in every line that is logged on its way, and in its span."""
    ids = {"context_id": command.context_id, "event_id": command.event_id}
    structlog.contextvars.bind_contextvars(**ids)
    tracing.current().set(kind=command.kind.value, **ids)


def _context_of(subject: str) -> str:
    """The context of a command, or of a compaction that waits for its summary. Raises `InvalidInput`."""
    if subject.startswith(subjects.SUMMARISE.removesuffix("*")):
        return subjects.context_of(subject)
    return subjects.context_of_command(subject)


def _outcome_label(outcome: AnyOutcome) -> str:
    return outcome.code.value if isinstance(outcome, Rejected) else outcome.status


def _refusal(subject: str, data: bytes, error: SextonError) -> Rejected:
    """A rejection of a broken command, with as much of its name as it has."""
    try:
        context_id: str | None = subjects.context_of_command(subject)
        event_id: str | None = token(event_id_of(data) or "", "event_id")
    except InvalidInput:
        context_id = event_id = None
    code = _CODES.get(error.code, RejectionCode.INVALID)
    message = error.message[:_MAX_MESSAGE_CHARACTERS]
    return Rejected(context_id=context_id, event_id=event_id, code=code, message=message)


def _dead(error: SextonError) -> MalformedMessage:
    return error if isinstance(error, MalformedMessage) else MalformedMessage(error.message)


_MAX_MESSAGE_CHARACTERS: Final = 1000
_CODES: Final = {
    MalformedMessage.code: RejectionCode.MALFORMED,
    PayloadTooLarge.code: RejectionCode.TOO_LARGE,
    UnsupportedSchema.code: RejectionCode.UNSUPPORTED_SCHEMA,
}
