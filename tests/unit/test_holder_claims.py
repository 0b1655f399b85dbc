"""What travels inline, and what goes ahead as a claim check."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sexton.core.hash import body_digest
from sexton.holder.claims import pack
from sexton.schemas.codec import decode_command
from sexton.schemas.commands import Append, Compact, Prune, Rewrite, SourceRef
from sexton.schemas.errors import InvalidInput, PayloadTooLarge
from sexton.schemas.limits import CHUNK_BYTES, INLINE_BYTES, MAX_COMMAND_BYTES, MAX_SPAN_BYTES
from sexton.schemas.span import NewSpan, Text
from tests.holder_kit import CONTEXT


def append(*contents: str) -> Append:
    spans = tuple(NewSpan(content=content, name=f"s{i}") for i, content in enumerate(contents))
    return Append(context_id=CONTEXT, event_id="e", spans=spans)


def rewrite(text: str) -> Rewrite:
    return Rewrite(context_id=CONTEXT, event_id="e", span_id="l0:a", base_version=1, text=Text(content=text))


def compact(summary: str) -> Compact:
    sources = (SourceRef(span_id="l0:a"),)
    return Compact(context_id=CONTEXT, event_id="e", sources=sources, summary=Text(content=summary))


@pytest.mark.parametrize(
    "command",
    [
        append("short"),
        append(*["x" * 1000] * 200),
        append("x" * INLINE_BYTES),
        rewrite("short"),
        compact("short"),
        Compact(context_id=CONTEXT, event_id="e", sources=()),
        Prune(context_id=CONTEXT, event_id="e", span_id="l0:a"),
    ],
    ids=["one", "many", "limit", "rewrite", "compact", "nothing", "prune"],
)
def test_what_fits_goes_as_it_is(command: Append) -> None:
    """No upload, and the command's own bytes."""
    packed = pack(command)
    assert (command, command.wire(), ()) == (packed.command, packed.body, packed.uploads)


@pytest.mark.parametrize("make", [append, rewrite, compact])
@pytest.mark.parametrize("size_bytes", [INLINE_BYTES + 1, CHUNK_BYTES * 3, CHUNK_BYTES * 3 + 1])
def test_long_content_is_claimed(make: type, size_bytes: int) -> None:
    """The claim names digest, size and chunks; the content is not in the command."""
    packed = pack(make("ü" + "x" * (size_bytes - 2)))
    (upload,) = packed.uploads
    assert size_bytes == upload.claim.size_bytes == len(upload.data)
    assert body_digest(upload.data) == upload.claim.digest
    assert -(-size_bytes // CHUNK_BYTES) == upload.claim.chunks
    assert len(packed.body) < 1000
    assert packed.command == decode_command(packed.body)


def test_what_is_left_is_left_for_this_command_alone() -> None:
    """Two commands with one text have two uploads; the same command sent again has the same one."""
    text = "x" * (INLINE_BYTES + 1)
    first, second = (append(text).model_copy(update={"event_id": name}) for name in ("one", "two"))
    assert ["one", "two"] == [pack(c).uploads[0].claim.upload_id for c in (first, second)]
    assert pack(first).body == pack(append(text).model_copy(update={"event_id": "one"})).body


def test_of_many_contents_the_largest_are_claimed_until_it_fits() -> None:
    """Few claims, few round trips: what need not be claimed is not."""
    command = append(*["a" * 200_000] * 6, *["b" * 100] * 10)
    packed = pack(command)
    assert {200_000} == {upload.claim.size_bytes for upload in packed.uploads}
    assert 3 == len(packed.uploads)
    assert len(packed.body) <= MAX_COMMAND_BYTES


def test_escapes_count() -> None:
    """A control character takes six bytes in JSON: what is measured is what is sent."""
    packed = pack(append("\x01" * 200_000))
    assert 1 == len(packed.uploads)
    assert len(packed.body) < 1000


def test_a_command_too_long_in_itself_is_refused() -> None:
    """A thousand spans with labels at their limit do not fit, whatever becomes of their content."""
    spans = tuple(
        NewSpan.model_validate(
            {"content": "x", "labels": {"role": "r" * 250, "kind": "k" * 250, "note": "n" * 600}}
        )
        for _ in range(1000)
    )
    with pytest.raises(PayloadTooLarge, match="split it") as caught:
        pack(Append(context_id=CONTEXT, event_id="e", spans=spans))
    assert MAX_COMMAND_BYTES == caught.value.fields["limit"]


def test_a_span_over_the_limit_is_refused() -> None:
    """Before anything is sent."""
    with pytest.raises(PayloadTooLarge) as caught:
        pack(append("x" * (MAX_SPAN_BYTES + 1)))
    assert (MAX_SPAN_BYTES, MAX_SPAN_BYTES + 1) == (
        caught.value.fields["limit"],
        caught.value.fields["actual"],
    )


@pytest.mark.parametrize("make", [append, rewrite, compact])
def test_a_lone_surrogate_is_refused(make: type) -> None:
    """C85: rejected at the door; it could not even be written down."""
    with pytest.raises(InvalidInput, match="surrogate"):
        pack(make("a\ud800b"))


def test_an_empty_text_is_the_services_to_refuse() -> None:
    """No rule is written twice."""
    assert () == pack(append("")).uploads


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(1, 400_000), min_size=1, max_size=8))
def test_packing_is_a_function_of_the_command(sizes: list[int]) -> None:
    """C24: the same command is the same bytes each time; its contents are all there, inline or claimed."""
    command = append(*("é" * (size // 2) + "x" for size in sizes))
    packed, again = pack(command), pack(command)
    assert packed == again
    assert len(packed.body) <= MAX_COMMAND_BYTES
    uploads = {upload.claim.digest: upload.data for upload in packed.uploads}
    assert isinstance(packed.command, Append)
    sent = [
        (span.content or "").encode() if span.claim is None else uploads[span.claim.digest]
        for span in packed.command.spans
    ]
    assert [(span.content or "").encode() for span in command.spans] == sent
