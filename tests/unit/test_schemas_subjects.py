"""Subjects by example: the hostile ones by name, and the table of who is who."""

from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from sexton.schemas import subjects
from sexton.schemas.commands import CommandKind
from sexton.schemas.errors import InvalidInput
from sexton.schemas.ids import level_of, token
from sexton.schemas.ops import OpsVerb
from sexton.schemas.rpc import Verb

BUILDERS: Final[list[Callable[[str], str]]] = [
    partial(subjects.command, kind=CommandKind.APPEND),
    subjects.log,
    subjects.epoch,
    partial(subjects.outcome, event_id="e"),
    partial(subjects.outcome, "c"),
    partial(subjects.rpc, verb=Verb.SYNC),
    partial(subjects.ops, verb=OpsVerb.PINS),
    subjects.summarise,
    subjects.failure,
    subjects.dead_letter,
    lambda digits: subjects.incident(f"sha256:{digits}"),
]

HOSTILE: Final = {
    "empty": "",
    "dot": "a.b",
    "only a dot": ".",
    "star": "*",
    "star inside": "a*",
    "greater": ">",
    "space": "a b",
    "leading space": " a",
    "tab": "a\tb",
    "line end behind": "a\n",
    "carriage return": "a\r",
    "protocol line": "a 0\r\n\r\nPUB sexton.log.b 0",
    "NUL": "a\0",
    "65 characters": "a" * 65,
    "10 KB": "a" * 10_240,
    "10 KB of dots": "." * 10_240,
    "Cyrillic a": "\u0430bc",
    "full width": "\uff41bc",
    "Arabic digit": "ctx\u0661",
    "ligature": "\ufb01x",
    "zero width space": "a\u200bb",
    "combining accent": "e\u0301",
    "no-break space": "a\u00a0b",
    "line separator": "a\u2028",
    "lone surrogate": "\ud800",
    "dollar": "$JS",
    "slash": "../x",
    "braces": "{ctx}",
    "percent": "%2e",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_token_is_refused_by_every_builder(value: str) -> None:
    """No builder lets it through, wherever the token goes."""
    for build in BUILDERS:
        with pytest.raises(InvalidInput):
            build(value)


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_the_error_text_is_short_and_printable(value: str) -> None:
    """An id of 10 KB, or one with control characters, does not flood or corrupt a log."""
    for check in (partial(token, what="context_id"), level_of):
        with pytest.raises(InvalidInput) as caught:
            check(value)
        text = str(caught.value)
        assert len(text) <= 300
        assert text.isprintable()


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "sexton",
        "sexton.cmd",
        "sexton.cmd.c",
        "sexton.cmd.c.merge",
        "sexton.cmd.c.append.x",
        "sexton.cmd.*.append",
        "sexton.cmd..append",
        "sexton.part.c.append",
        "sexton.part.x.c.append",
        "sexton.part.*.c.append",
        "sexton.part..c.append",
        "sexton.part.-1.c.append",
        "sexton.part.\u0663.c.append",
        "other.cmd.c.append",
        "sexton.cmd.c.append\n",
        "sexton.cmd.c.APPEND",
    ],
)
def test_what_is_no_command_subject(subject: str) -> None:
    """Neither form of a command's subject, or a kind that there is not."""
    with pytest.raises(InvalidInput):
        subjects.parse_command(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "sexton.log",
        "sexton.log.",
        "sexton.log.a.b",
        "sexton.log.>",
        "sexton.rpc.a",
        "sexton.dead.SEXTON_LOG",
        "sexton.part.3.a.append",
        "sexton.cmd.a.append",
        "log.a",
        "$JS.API.INFO",
        "_INBOX.a.b",
    ],
)
def test_a_subject_without_a_context_has_none(subject: str) -> None:
    """A partition or a stream's name in third place is not taken for a context."""
    with pytest.raises(InvalidInput):
        subjects.context_of(subject)


@pytest.mark.parametrize(
    "subject",
    ["_INBOX.Fz3kXq9dWmN2pRt5vYbLcA", "_INBOX.Fz3kXq9dWmN2pRt5vYbLcA.7", "_INBOX_agent-1.x.y.z"],
)
def test_inboxes_of_clients_are_inboxes(subject: str) -> None:
    """With the default prefix and with one of a client's own."""
    assert subjects.is_inbox(subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "_INBOX",
        "_INBOX.",
        "_INBOX..a",
        "_INBOX.a.",
        "_INBOX.*",
        "_INBOX.>",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB sexton.log.c 0",
        "_INBOX.a\n",
        "_INBOX.\0",
        "_INBOX.\u00e9",
        "_INBOX.a\u2028",
        " _INBOX.a",
        "_inbox.a",
        "INBOX.a",
        "sexton.log.c",
        "sexton._INBOX.a",
        "$JS.API.STREAM.DELETE.SEXTON_LOG",
        "$SYS.REQ.SERVER.PING",
        "_INBOX." + "a" * 10_240,
    ],
)
def test_what_is_no_inbox_is_not_answered(subject: str) -> None:
    """A worker publishes replies with its own rights, and only to inboxes."""
    assert not subjects.is_inbox(subject)


def test_the_filters_match_what_is_built() -> None:
    """What workers subscribe to covers what is published, token by token."""
    pairs = [
        (subjects.COMMANDS, subjects.command("c", CommandKind.PRUNE)),
        (subjects.PARTITIONED, "sexton.part.7.c.prune"),
        (subjects.partition_filter(7), "sexton.part.7.c.prune"),
        (subjects.LOGS, subjects.log("c")),
        (subjects.EPOCHS, subjects.epoch("c")),
        (subjects.SUMMARISE, subjects.summarise("c")),
        (subjects.FAILURES, subjects.failure("c")),
        (subjects.DEAD_LETTERS, subjects.dead_letter(subjects.STREAM_COMMANDS)),
        (subjects.INCIDENTS, subjects.incident("sha256:" + 64 * "0")),
        *((subjects.rpc_all(verb), subjects.rpc("c", verb)) for verb in Verb),
        *((subjects.ops_all(verb), subjects.ops("c", verb)) for verb in OpsVerb),
    ]
    for pattern, subject in pairs:
        tokens = zip(pattern.split("."), subject.split("."), strict=True)
        assert all(expected in ("*", actual) for expected, actual in tokens), (pattern, subject)


def test_the_transform_is_what_the_server_understands() -> None:
    """The partition is a function of the first star, the context; both stars are kept."""
    expected = "sexton.part.{{partition(16,1)}}.{{wildcard(1)}}.{{wildcard(2)}}"
    assert expected == subjects.partition_transform(16)
