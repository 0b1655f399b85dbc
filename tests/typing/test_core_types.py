"""What a type checker makes of the generic parts of the core. mypy reads this; pytest runs it as well."""

from typing import assert_type

import pytest

from sexton.core.artifact import DerivedArtifact, check_artifact
from sexton.core.buffer import ContextBuffer, Resolved
from sexton.core.decide import Commit, Decision, NeedsSummary, Settled
from sexton.core.hash import linked
from sexton.schemas.codec import decode
from sexton.schemas.errors import MalformedMessage
from sexton.schemas.outcome import Committed, NoChange
from sexton.schemas.pointer import Pointer
from sexton.schemas.records import Appended
from tests.core_kit.build import CONTEXT, append, decided, filled


def words(text: str) -> dict[str, int]:
    return {word: len(word) for word in text.split()}


def test_an_artifact_has_the_type_that_its_builder_gives() -> None:
    """Through `derive`, `use` and `check_artifact`, for a function, a lambda and a class."""
    buffer = filled("a")
    made = buffer.derive("l0:a", words)

    assert_type(made, DerivedArtifact[dict[str, int]])
    assert_type(made.value, dict[str, int])
    assert_type(buffer.use(made), dict[str, int])
    assert_type(buffer.use(made, rederive=True), dict[str, int])
    assert_type(check_artifact(buffer.tree, made), dict[str, int])
    assert_type(buffer.use(buffer.derive("l0:a", len)), int)
    assert_type(buffer.use(buffer.derive("l0:a", lambda text: text.encode())), bytes)


def test_a_misuse_is_found_before_it_runs() -> None:
    """Each of these lines is an error to mypy; an `ignore` that no longer hides one is an error as well."""
    buffer = filled("a")
    wrong: str = buffer.use(buffer.derive("l0:a", len))  # type: ignore[assignment]
    assert 20 == wrong  # type: ignore[comparison-overlap]
    with pytest.raises(TypeError):
        buffer.derive("l0:a", int.__add__)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        buffer.tree.revision = 7  # type: ignore[misc]
    with pytest.raises(TypeError):
        buffer.resolve(buffer.mint("l0:a"), True)  # type: ignore[call-arg]


def test_the_operators_say_what_they_may_come_to() -> None:
    """An append and a prune commit or raise; the others may change nothing."""
    buffer = ContextBuffer()

    assert_type(buffer.add("l0:a", "one"), Committed)
    assert_type(buffer.rewrite("l0:a", "two"), Committed | NoChange)
    assert_type(buffer.compact(["l0:a"], "a"), Committed | NoChange)
    assert_type(buffer.resolve(buffer.mint("l0:a")), Resolved)
    assert_type(buffer.prune("l1:local-3"), Committed)


def test_a_decision_is_one_of_three() -> None:
    """A match over them is exhaustive."""
    decision: Decision = decided(filled("a").tree, append("e", "b"))
    match decision:
        case Commit():
            assert_type(decision, Commit)
        case Settled():
            assert_type(decision, Settled)
        case NeedsSummary():
            assert_type(decision, NeedsSummary)


def test_a_message_is_decoded_to_its_own_type() -> None:
    """And a record is linked to one of its own kind."""
    pointer = filled("a").mint("l0:a")
    assert_type(decode(Pointer, pointer.wire()), Pointer)
    with pytest.raises(MalformedMessage):
        decode(Pointer, b"{}")
    commit = decided(filled("a").tree, append("e", "b", context_id=CONTEXT))
    assert isinstance(commit, Commit)
    assert isinstance(commit.record, Appended)
    assert_type(linked("", commit.record), Appended)
