"""What a command is given to read. Whatever it is, it is read as it stands or refused with a reason."""

import io
from pathlib import Path

import pytest

from sexton.core.buffer import ContextBuffer
from sexton.worker.cli.codes import BadInput
from sexton.worker.cli.inputs import read_bytes, read_pointer, read_text


def pointer_json() -> str:
    buffer = ContextBuffer("notes")
    buffer.add("l0:a", "Ship on Friday.")
    return buffer.mint("l0:a").wire().decode()


def test_text_is_not_touched(tmp_path: Path) -> None:
    """Line ends, a byte order mark and blanks at the end are content."""
    (tmp_path / "text").write_bytes(b"\xef\xbb\xbfa\r\nb \n")

    assert "\ufeffa\r\nb \n" == read_text(str(tmp_path / "text"))


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"", "empty"), (b"abc\xff", "not UTF-8, at byte 3"), (b"\xed\xa0\x80", "not UTF-8")],
)
def test_text_that_can_be_no_span_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    """Empty, bytes that are not UTF-8, an encoded lone surrogate."""
    (tmp_path / "text").write_bytes(data)

    with pytest.raises(BadInput, match=why):
        read_text(str(tmp_path / "text"))


@pytest.mark.parametrize("name", ["missing", ".", "a\0b", "x" * 10_000])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    """Missing, a folder, and names that no file can have."""
    with pytest.raises(BadInput, match="cannot read"):
        read_bytes(str(tmp_path / name), 10)


def test_a_file_over_the_limit_is_refused(tmp_path: Path) -> None:
    """It is not read to its end."""
    (tmp_path / "large").write_bytes(b"x" * 11)

    with pytest.raises(BadInput, match="more than 10 bytes"):
        read_bytes(str(tmp_path / "large"), 10)


def test_standard_input_is_a_dash(monkeypatch: pytest.MonkeyPatch) -> None:
    """As everywhere."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO("é".encode())))

    assert "é" == read_text("-")


def test_a_pointer_is_given_as_json_as_a_file_or_on_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All three are the same pointer."""
    given = pointer_json()
    (tmp_path / "pointer.json").write_text(given + "\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(given.encode())))

    assert read_pointer(given) == read_pointer(str(tmp_path / "pointer.json")) == read_pointer("-")


@pytest.mark.parametrize(
    "given",
    [
        "{}",
        "[1]",
        '"text"',
        "{",
        '{"a":' * 500,
        "[" * 100_000,
        '{"context_id":"\ud800"}',
        pointer_json().replace('"offset":0', '"offset":-1'),
        pointer_json().replace('"context_id":"notes"', '"context_id":"a.b"'),
        pointer_json().replace('"context_id":"notes"', f'"context_id":"{"x" * 10_000}"'),
        pointer_json().replace('"schema_version":1', '"schema_version":99'),
        pointer_json().replace('"version":1', '"version":0'),
        pointer_json().replace('"span_id":"l0:a"', '"span_id":"l9:*"'),
    ],
)
def test_what_is_no_pointer_is_bad_input(given: str) -> None:
    """Not an object, too deep, a lone surrogate, a bad id, a newer schema: one typed error for all."""
    with pytest.raises(BadInput, match="not a pointer"):
        read_pointer(given)


def test_a_pointer_file_of_20_mb_is_not_read(tmp_path: Path) -> None:
    """A pointer is small; what is large is something else."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(20 * 1024 * 1024)

    with pytest.raises(BadInput, match="more than"):
        read_pointer(str(tmp_path / "large"))
