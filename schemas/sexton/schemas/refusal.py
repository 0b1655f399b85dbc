"""What a NATS server says when it refuses: read from its words, for it says it in no other way."""

import re
from typing import Final, Literal, NamedTuple

Operation = Literal["connect", "publish", "subscribe"]

_SAID: Final = re.compile(
    r"permissions violation for (publish|subscription)(?: with reply of| to)? \"([^\"]*)\"", re.IGNORECASE
)
_WHO: Final = re.compile(
    r"authorization violation|authentication (?:expired|revoked)|account authentication", re.IGNORECASE
)
_STREAMS: Final = re.compile(r"SEXTON_[A-Z]+")


class Refusal(NamedTuple):
    """What was refused."""

    operation: Operation
    subject: str
    """As it was asked for; empty for `connect`."""

    @property
    def pattern(self) -> str:
        """The subject without the ids in it: fit for a label or a log, such as `sexton.rpc.*.sync`."""
        return pattern_of(self.subject)

    def __str__(self) -> str:
        if self.operation == "connect":
            return "NATS refused the credentials: authorization violation"
        word = "on" if self.operation == "publish" else "to"
        return f"NATS does not permit to {self.operation} {word} {self.subject}"


def parse_refusal(said: str) -> Refusal | None:
    """The refusal that an error of the server states; None if it is another error.

    Args:
        said: `Permissions Violation for Publish to "sexton.log.ctx"`, `Authorization Violation`, in any case.
    """
    found = _SAID.search(said)
    if found is not None:
        return Refusal("publish" if found[1].lower() == "publish" else "subscribe", found[2])
    return Refusal("connect", "") if _WHO.search(said) else None


def pattern_of(subject: str) -> str:
    """A subject without the ids in it. There are few of these, whatever subjects there are."""
    tokens = subject.split(".")
    match tokens:
        case ["sexton", ("cmd" | "rpc" | "ops") as kind, _, verb] if verb.isalpha():
            return f"sexton.{kind}.*.{verb.lower()}"
        case ["sexton", kind, *_] if kind.isalpha():
            return f"sexton.{kind.lower()}.>"
        case ["$JS", "ACK", *_]:
            return "$JS.ACK.>"
        case ["$JS", *_]:
            # Up to the stream: what follows may be the name of a reader, or a subject.
            kept = []
            for token in tokens[:8]:
                kept.append(token)
                if _STREAMS.fullmatch(token):
                    break
            return ".".join(kept) + (".>" if len(kept) < len(tokens) else "")
        case [first, *_] if first.startswith("_INBOX"):
            return "_INBOX.>"
    return "other"
