"""`ContextBuffer`: the whole contract in one process."""

from collections.abc import Callable

import pytest

from sexton.core import buffer as module
from sexton.core.buffer import ContextBuffer
from sexton.schemas.commands import Append, Compact
from sexton.schemas.errors import CommandRejected, InvalidInput, LeafLost, StaleSpanError
from sexton.schemas.outcome import Committed, NoChange, Rejected, RejectionCode
from sexton.schemas.rpc import Tier
from sexton.schemas.span import Claim, Labels, NewSpan
from tests.core_kit.build import compact, filled, view_ids

ODD_TEXTS = {
    "control characters": "\0\x01\x1b[31m\x7f",
    "CR LF": "a\r\nb\r\n",
    "a BOM": "\ufeffa",
    "trailing blanks": "a  \n\n\t",
    "decomposed": "e\u0301",
    "emoji": "👩‍👩‍👧",
    "only blanks": " \n",
    "JSON": '{"a":"\\u0000"}',
    "noncharacters": "\ufffe\U0010ffff",
}


def test_the_example_in_the_module_is_true() -> None:
    """What the docstring shows is what happens."""
    assert module.__doc__ is not None
    lines = [line.strip() for line in module.__doc__.splitlines()]
    code = [line for line in lines if line.startswith(("buffer", "quote"))]
    names: dict[str, object] = {"ContextBuffer": ContextBuffer}
    exec("\n".join(code[:-1]), names)

    with pytest.raises(StaleSpanError) as stale:
        exec(code[-1], names)
    assert 2 == stale.value.current.version


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS)
def test_bytes_come_out_as_they_went_in_c77(text: str) -> None:
    """C77: nothing is trimmed and nothing is normalised, through add, rewrite, cover and re-expansion."""
    buffer = ContextBuffer()
    buffer.add("l0:a", text)
    buffer.add("l0:b", "b")
    buffer.rewrite("l0:b", text)
    pointers = [buffer.mint("l0:a"), buffer.mint("l0:b")]
    assert [text.encode()] * 2 == [buffer.resolve(pointer).data for pointer in pointers]
    assert text * 2 == buffer.render()
    buffer.compact(["l0:a", "l0:b"], "ab", allow_larger=True)

    assert [text] * 2 == [buffer.resolve(pointer).text for pointer in pointers]


def test_labels_and_ids_come_back() -> None:
    """What was said of a span is said of it in the view."""
    buffer = ContextBuffer("notes")
    outcome = buffer.add("l0:a", "text", labels=Labels(role="user", media_type="text/plain"))

    assert [("l0:a", 1)] == [(span.span_id, span.version) for span in outcome.spans]
    assert ("notes", "user") == (outcome.context_id, buffer.view()[0].labels.role)


@pytest.mark.parametrize(
    "attempt",
    [
        lambda b: b.add("l0:b", ""),
        lambda b: b.add("l0:b", "\ud800"),
        lambda b: b.add("l1:b", "text"),
        lambda b: b.add("b", "text"),
        lambda b: b.add("l0:b.c", "text"),
        lambda b: b.add("l0:" + "b" * 10_000, "text"),
        lambda b: b.add("l0:*", "text"),
        lambda b: b.add("l0:b c", "text"),
        lambda b: b.add("l0:b>", "text"),
        lambda b: b.rewrite("l0:a", ""),
        lambda b: b.rewrite("l0:a", "\udfff"),
        lambda b: b.rewrite("a", "text"),
        lambda b: b.rewrite("l0:a", "text", base_version=0),
        lambda b: b.prune("l9:a"),
        lambda b: b.compact(["l0:a"], "\ud800"),
        lambda b: b.compact(["l0:a"], "a", name="no.dots"),
        lambda b: b.compact(["*"], "a"),
        lambda b: b.compact(["l0:a"] * 513, "a"),
        lambda b: b.mint("l0:a", offset=-1),
        lambda b: b.mint("l0:a", length=0),
        lambda b: ContextBuffer("no.dots"),
        lambda b: ContextBuffer(""),
    ],
)
def test_bad_input_is_refused_at_the_door_c85(attempt: Callable[[ContextBuffer], object]) -> None:
    """C85 and its kind: one typed error of the caller's, and nothing has changed."""
    buffer = filled("a")
    before = buffer.tree

    with pytest.raises(InvalidInput) as refusal:
        attempt(buffer)
    assert len(str(refusal.value)) < 400, "an error text does not repeat what may be 10 KB long"
    assert before is buffer.tree


def test_a_rejection_is_raised_whole() -> None:
    """The error carries the outcome, with code and identities."""
    buffer = filled("a")

    with pytest.raises(CommandRejected, match="span_exists") as refusal:
        buffer.add("l0:a", "text")
    assert isinstance(refusal.value.outcome, Rejected)
    assert RejectionCode.SPAN_EXISTS is refusal.value.outcome.code


def test_nothing_to_compact_is_no_change_c46() -> None:
    """C46: said as such, not raised."""
    buffer = filled("a")

    assert isinstance(buffer.compact([], "summary"), NoChange)
    assert (1, 0) == (buffer.tree.revision, buffer.epoch)


@pytest.mark.parametrize("base_version", [1, None])
def test_a_rewrite_takes_the_base_it_is_given(base_version: int | None) -> None:
    """Without one, it is of what is there now; with one, it is of that or refused."""
    buffer = filled("a")
    buffer.rewrite("l0:a", "one")

    if base_version is None:
        assert isinstance(buffer.rewrite("l0:a", "two"), Committed)
    else:
        with pytest.raises(CommandRejected, match="stale_source"):
            buffer.rewrite("l0:a", "two", base_version=base_version)


@pytest.mark.parametrize("operator", ["rewrite", "prune", "compact"])
def test_an_unknown_span_is_rejected(operator: str) -> None:
    """By whatever operator."""
    buffer = filled("a")
    operators: dict[str, Callable[[], object]] = {
        "rewrite": lambda: buffer.rewrite("l0:x", "text"),
        "prune": lambda: buffer.prune("l0:x"),
        "compact": lambda: buffer.compact(["l0:x"], "text"),
    }

    with pytest.raises(CommandRejected, match="unknown_span"):
        operators[operator]()


def test_a_buffer_has_no_summariser_and_keeps_no_claims() -> None:
    """What needs a service says so, and changes nothing."""
    buffer = filled("a")
    before = buffer.tree
    claim = Claim(digest="sha256:" + 64 * "0", size_bytes=9, chunk_bytes=9)
    claimed = Append(context_id="ctx", event_id="e", spans=(NewSpan(claim=claim),))

    with pytest.raises(InvalidInput, match="no summariser"):
        buffer.submit(compact("c", "l0:a", summary=None))
    with pytest.raises(InvalidInput, match="claims"):
        buffer.submit(claimed)
    assert before is buffer.tree


def test_a_command_for_another_context_changes_nothing_c80() -> None:
    """C80: no cross-talk."""
    buffer = filled("a")
    command = Append(context_id="other", event_id="e", spans=(NewSpan(name="b", content="b"),))

    outcome = buffer.submit(command)
    assert isinstance(outcome, Rejected)
    assert ["l0:a"] == view_ids(buffer.tree)


def test_bytes_come_from_where_they_are() -> None:
    """The view is in memory, what is covered is in the cold."""
    buffer = filled("a", "b")
    pointers = [buffer.mint("l0:a"), buffer.mint("l0:b")]
    buffer.compact(["l0:a"], "a")

    assert [Tier.COLD, Tier.MEMORY] == [buffer.resolve(pointer).answer.tier for pointer in pointers]


def test_lost_bytes_are_a_hard_failure() -> None:
    """Also of a span in the view."""
    buffer = filled("a")
    pointer = buffer.mint("l0:a")
    buffer._cold.clear()

    with pytest.raises(LeafLost, match="l0:a version 1"):
        buffer.resolve(pointer)


def test_a_tree_is_a_value() -> None:
    """Who holds one holds one revision, whatever comes after; the log tells how it came about."""
    buffer = filled("a", "b", "c")
    before, view = buffer.tree, buffer.view()
    buffer.compact(["l0:a", "l0:b"], "ab", name="ab")
    buffer.rewrite("l0:c", "another c")
    buffer.prune("l1:ab")

    assert view == list(before.view())
    assert ["appended", "compacted", "rewritten", "pruned"] == [record.kind.value for record in buffer.log]


def test_a_command_of_a_summary_from_elsewhere_is_carried_out() -> None:
    """`submit` takes what the wire would bring, and answers instead of raising."""
    buffer = filled("a")
    command = Compact.model_validate_json(compact("c", "l0:a", summary="a").wire())

    assert isinstance(buffer.submit(command), Committed)
    assert "a" == buffer.render()
