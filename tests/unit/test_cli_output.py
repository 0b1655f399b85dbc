"""Data to stdout, everything else to stderr, and nothing foreign that could move the cursor."""

import pytest

from sexton.schemas.errors import StaleSpanError
from sexton.schemas.ids import Level
from sexton.schemas.span import CurrentIdentity, SpanState
from sexton.worker.cli.codes import ExitCode
from sexton.worker.cli.output import Output, shown, size

STALE = StaleSpanError(
    "l0:a is at version 2",
    current=CurrentIdentity(
        span_id="l0:a",
        version=2,
        level=Level.L0_VERBATIM,
        content_hash="sha256:" + "0" * 64,
        size_bytes=3,
        state=SpanState.LIVE,
        epoch=1,
    ),
)


def test_bytes_are_written_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """No newline is added, and none is translated."""
    Output().data(b"a\r\n\xf0\x9f\x98\x80")

    assert (b"a\r\n\xf0\x9f\x98\x80", b"") == capfdbinary.readouterr()


def test_lines_are_utf8_whatever_the_locale(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    """The terminal's encoding does not decide what a program reads."""
    Output().line("é😀")

    assert "é😀\n".encode() == capfdbinary.readouterr().out


def test_an_error_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    """`sexton: CODE: MESSAGE` on stderr."""
    Output().error(STALE, ExitCode.POINTER_REFUSED)

    assert ("", "sexton: stale_span: l0:a is at version 2\n") == capfd.readouterr()


def test_an_error_as_json_has_its_fields(capfd: pytest.CaptureFixture[str]) -> None:
    """So that no program needs to read prose."""
    Output(as_json=True).error(STALE, ExitCode.POINTER_REFUSED)

    out, err = capfd.readouterr()
    assert "" == out
    assert 1 == err.count("\n")
    assert '"error": "stale_span"' in err
    assert '"exit_code": 4' in err
    assert '"version": 2' in err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("assistant", "assistant"),
        ("é 😀", "é 😀"),
        ("a\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb", "a\\nb"),
        ("a\u202eb", "a\\u202eb"),
        ("x" * 300, "x" * 200 + "…"),
    ],
)
def test_foreign_text_cannot_move_the_cursor(text: str, expected: str) -> None:
    """A label may hold anything; it is shown in one line, and not too long."""
    assert expected == shown(text)


@pytest.mark.parametrize(
    ("size_bytes", "expected"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (2_369_691, "2.4 MB"), (5_000_000_000, "5.0 GB")],
)
def test_sizes_for_people(size_bytes: int, expected: str) -> None:
    """In powers of a thousand."""
    assert expected == size(size_bytes)
