"""I8: a command counts once, however often it is sent."""

import pytest

from sexton.core.apply import apply
from sexton.core.decide import Settled, repeated
from sexton.core.tree import ContextTree
from sexton.schemas.codec import AnyCommand
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from tests.core_kit.build import (
    CONTEXT,
    append,
    committed,
    compact,
    decided,
    digest,
    done,
    filled,
    grown,
    leaf,
    prune,
    rejected,
    rewrite,
    view_ids,
)

ABC = append("fill", "a", "b", "c")


EACH_KIND: list[AnyCommand] = [
    append("again", "d", leaf(None, "unnamed")),
    compact("again", "l0:a", "l0:b"),
    rewrite("again", "l0:a", "text"),
    prune("again", "l0:a"),
]


@pytest.mark.parametrize("command", EACH_KIND, ids=lambda command: command.kind.value)
def test_a_repeat_gets_the_first_outcome_c08_c24(command: AnyCommand) -> None:
    """C08, C24: however much later, and whatever has happened to the spans since."""
    buffer = filled("a", "b", "c")
    first = buffer.submit(command)
    done(buffer, rewrite("r", "l0:c", "another c"), prune("p", "l0:c"), append("more", "e"))
    before = buffer.tree

    assert isinstance(first, Committed)
    assert first == buffer.submit(command)
    assert before is buffer.tree
    assert (command.kind, 2) == (first.kind, first.revision)


@pytest.mark.parametrize("command", EACH_KIND, ids=lambda command: command.kind.value)
def test_what_comes_thrice_is_in_the_view_once_c20(command: AnyCommand) -> None:
    """C20: no span is in the view twice, however often a command comes."""
    buffer = filled("a", "b", "c")
    for _ in range(3):
        buffer.submit(command)

    assert len(set(view_ids(buffer.tree))) == buffer.tree.view_count == len(view_ids(buffer.tree))


@pytest.mark.parametrize("command", EACH_KIND, ids=lambda command: command.kind.value)
def test_another_command_under_the_same_event_id_is_refused(command: AnyCommand) -> None:
    """Of the same kind or of another one; the bytes decide."""
    buffer = filled("a", "b", "c")
    done(buffer, command)

    for other in (*EACH_KIND, command.model_copy(update={"later_field": 1})):
        if other != command:
            assert RejectionCode.EVENT_ID_REUSED is rejected(buffer.submit(other)).code


def test_a_refused_command_may_be_sent_again() -> None:
    """A rejection is not remembered: it changed nothing, and the reason may be gone by then."""
    buffer = filled("a", "b")
    command = compact("c", "l0:a", "l0:new")
    assert RejectionCode.UNKNOWN_SPAN is rejected(buffer.submit(command)).code
    done(buffer, prune("p", "l0:b"), append("more", "new"))

    assert isinstance(buffer.submit(command), Committed)


def test_the_summarise_stage_commits_in_the_name_of_who_asked() -> None:
    """The record has the digest of the first request: both commands are repeats of it, no third one is."""
    tree = grown(ContextTree.empty(CONTEXT), ABC)
    asked = compact("c", "l0:a", "l0:b", summary=None)
    made = compact("c", "l0:a", "l0:b", summary="a, b", requested_digest=digest(asked))
    record = committed(tree, made).record
    after = apply(tree, record)

    assert digest(asked) == record.digest
    assert isinstance(repeated(after, asked, digest(asked)), Committed)
    assert repeated(after, asked, digest(asked)) == repeated(after, made, digest(made))
    again = compact("c", "l0:a", "l0:b", summary="other words", requested_digest=digest(asked))
    assert isinstance(repeated(after, again, digest(again)), Committed), "a second try of the stage"
    alien = compact("c", "l0:a", "l0:b", summary="a, b")
    assert RejectionCode.EVENT_ID_REUSED is rejected(decided_outcome(after, alien)).code


def decided_outcome(tree: ContextTree, command: AnyCommand) -> Committed | NoChange | Rejected:
    decision = decided(tree, command)
    assert isinstance(decision, Settled)
    return decision.outcome


def test_a_tree_without_events_knows_no_repeats() -> None:
    """A holder's tree: nobody decides on it, and it does not grow with the number of commands."""
    tree = ContextTree.empty(CONTEXT, with_events=False)
    command = append("e", "a")
    tree = apply(tree, committed(tree, command).record)

    assert tree.events is None
    assert repeated(tree, command, digest(command)) is None
