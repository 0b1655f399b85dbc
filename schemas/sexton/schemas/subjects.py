"""Every subject and stream name, built and parsed in one place.

Nobody else puts a token into a subject. A token is checked first, so none can hold what NATS reads as
structure.
"""

import re
from typing import Final, NamedTuple

from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import token
from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb

COMMANDS: Final = "sexton.cmd.*.*"
"""What agents publish to."""
PARTITIONED: Final = "sexton.part.*.*.*"
"""What the server makes of it: `sexton.part.<partition>.<context>.<kind>`."""
UNROUTED: Final = "sexton.cmd.>"
"""What the server makes nothing of: a subject with a literal `*` or `>` can be published to, and stays so."""
LOGS: Final = "sexton.log.*"
EPOCHS: Final = "sexton.epoch.*"
SUMMARISE: Final = "sexton.summarise.*"
FAILURES: Final = "sexton.failure.*"
DEAD_LETTERS: Final = "sexton.dead.*"
INCIDENTS: Final = "sexton.incident.*"

STREAM_COMMANDS: Final = "SEXTON_COMMANDS"
STREAM_LOG: Final = "SEXTON_LOG"
STREAM_SUMMARISE: Final = "SEXTON_SUMMARISE"
STREAM_FAILURES: Final = "SEXTON_FAILURES"
STREAM_DEAD: Final = "SEXTON_DEAD"
STREAM_INCIDENTS: Final = "SEXTON_INCIDENTS"


def command(context_id: str, kind: CommandKind) -> str:
    """Where a command of `kind` for a context is published."""
    return f"sexton.cmd.{_context(context_id)}.{kind.value}"


def partition_transform(partitions: int) -> str:
    """Destination of the command stream's subject transform: the partition is a function of the context."""
    return f"sexton.part.{{{{partition({partitions},1)}}}}.{{{{wildcard(1)}}}}.{{{{wildcard(2)}}}}"


def partition_filter(partition: int) -> str:
    """What the consumer of one partition filters on."""
    return f"sexton.part.{partition:d}.*.*"


def log(context_id: str) -> str:
    """The one subject that holds a context's records."""
    return f"sexton.log.{_context(context_id)}"


def epoch(context_id: str) -> str:
    """Where a context's records are broadcast, as bumps."""
    return f"sexton.epoch.{_context(context_id)}"


def outcome(context_id: str, event_id: str) -> str:
    """Where the outcome of one command is published."""
    return f"sexton.outcome.{_context(context_id)}.{token(event_id, 'event_id')}"


def rpc(context_id: str, verb: Verb) -> str:
    """Where a worker is asked."""
    return f"sexton.rpc.{_context(context_id)}.{verb.value}"


def rpc_all(verb: Verb) -> str:
    """What workers subscribe to for one verb."""
    return f"sexton.rpc.*.{verb.value}"


def ops(context_id: str, verb: OpsVerb) -> str:
    """Where an operator asks."""
    return f"sexton.ops.{_context(context_id)}.{verb.value}"


def ops_all(verb: OpsVerb) -> str:
    """What workers subscribe to for one operator's verb."""
    return f"sexton.ops.*.{verb.value}"


def summarise(context_id: str) -> str:
    """Where compactions that still lack a summary wait."""
    return f"sexton.summarise.{_context(context_id)}"


def failure(context_id: str) -> str:
    """Where hard failures of a context are recorded."""
    return f"sexton.failure.{_context(context_id)}"


def dead_letter(stream: str) -> str:
    """Where messages of `stream` go that nobody can handle."""
    return f"sexton.dead.{token(stream, 'stream')}"


def incident(fingerprint: str) -> str:
    """Where a pager keeps what it knows of one incident. `fingerprint` is a digest, `sha256:HEX`."""
    algorithm, _, digits = fingerprint.partition(":")
    if algorithm != "sha256":
        raise InvalidInput("a fingerprint is sha256:HEX", field="fingerprint")
    return f"sexton.incident.{token(digits, 'fingerprint')}"


class CommandSubject(NamedTuple):
    """A parsed command subject, before or after the server's transform."""

    context_id: str
    kind: CommandKind


def parse_command(subject: str) -> CommandSubject:
    """Reads `sexton.cmd.<context>.<kind>` or `sexton.part.<n>.<context>.<kind>`.

    Raises:
        InvalidInput: it is neither, or the kind is unknown.
    """
    context_id, kind = _command(subject)
    return CommandSubject(context_id, _kind(kind))


def context_of_command(subject: str) -> str:
    """The context of a command subject, whatever its kind. Raises `InvalidInput`."""
    return _command(subject)[0]


def context_of(subject: str) -> str:
    """The context that a log, epoch, rpc, ops, outcome, summarise or failure subject is about.

    Raises:
        InvalidInput: it is none of these.
    """
    match subject.split("."):
        case ["sexton", "log" | "epoch" | "summarise" | "failure", context_id]:
            return _context(context_id)
        case ["sexton", "rpc" | "ops" | "outcome", context_id, _]:
            return _context(context_id)
    raise InvalidInput("not a subject of a context", field="subject")


def is_inbox(subject: str) -> bool:
    """Whether a reply subject named by a sender is an inbox: `_INBOX`, an own prefix such as `_INBOX_a1`.

    A worker publishes there with its own rights. Anything but an inbox would let a sender borrow them, and
    the server ends the connection that names a subject of some kilobytes.
    """
    return len(subject) <= MAX_INBOX_LENGTH and _inbox_re.fullmatch(subject) is not None


def is_reply(subject: str) -> bool:
    """Whether a request may be answered there: an inbox, or the subject that the server has put in its place
    because the request came from another account. No client may name one of those itself.
    """
    return is_inbox(subject) or (
        len(subject) <= MAX_INBOX_LENGTH and _between_accounts_re.fullmatch(subject) is not None
    )


WORKER_INBOX: Final = "_SEXTON.worker"
PAGER_INBOX: Final = "_SEXTON.pager"
"""Where workers and pagers get their own answers. No inbox by `is_inbox`, so that nobody who names a reply
subject can have a worker send something there."""
OPERATOR_INBOX: Final = "_INBOX_OPS"
"""Where operators do. Holders' begin with `_INBOX.`, which is another token to the server's permissions."""

MAX_INBOX_LENGTH: Final = 256
"""In characters. Clients make inboxes of 30 to 60."""

INBOX: Final = r"^_INBOX[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)+$"
"""What an inbox looks like."""

_inbox_re: Final = re.compile(INBOX)
_between_accounts_re: Final = re.compile(r"_R_(\.[A-Za-z0-9_-]+)+")
_partition_re: Final = re.compile(r"[0-9]{1,5}")


def _command(subject: str) -> tuple[str, str]:
    match subject.split("."):
        case ["sexton", "cmd", context_id, kind]:
            return _context(context_id), kind
        case ["sexton", "part", partition, context_id, kind] if _partition_re.fullmatch(partition):
            return _context(context_id), kind
    raise InvalidInput("not a command subject", field="subject")


def _kind(kind: str) -> CommandKind:
    try:
        return CommandKind(kind)
    except ValueError:
        raise InvalidInput(f"unknown command kind {kind[:40]!a}", field="kind") from None


def _context(context_id: str) -> str:
    return token(context_id, "context_id")
