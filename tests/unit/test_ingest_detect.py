"""Telling the format of a transcript by its content."""

import json

import pytest

from sexton.schemas.errors import CallerError, InvalidInput
from sexton.worker.ingest import FormatUnclearError, TranscriptFormat, detect, read_transcript

PI = TranscriptFormat.PI
CLAUDE = TranscriptFormat.CLAUDE_CODE
OPENAI = TranscriptFormat.OPENAI
TEXT = TranscriptFormat.TEXT

PI_LINE = b'{"type":"message","timestamp":"t","message":{"role":"user","content":"hi"}}\n'
CLAUDE_LINE = b'{"parentUuid":null,"type":"user","message":{"role":"user"},"uuid":"u","sessionId":"s"}\n'
OPENAI_LINE = b'{"role":"user","content":"hi"}\n'
UNKNOWN_LINE = b'{"level":"info","msg":"started"}\n'

CLEAR = [
    (b'{"type":"session","id":"s","timestamp":"t","cwd":"d"}\n', PI),
    (b'{"type":"session","version":3,"id":"s","timestamp":"t","cwd":"d"}\n' + PI_LINE, PI),
    (PI_LINE, PI),
    (b'{"type":"hologram","id":"x"}\n' + PI_LINE, PI),
    (b'{"type":"session"\n' + PI_LINE * 3, PI),
    (b"\xef\xbb\xbf\r\n\r\n" + PI_LINE, PI),
    (CLAUDE_LINE, CLAUDE),
    (b'{"type":"summary","summary":"x","leafUuid":"u"}\n', CLAUDE),
    (b'{"type":"file-history-snapshot","messageId":"m","snapshot":{}}\n' + CLAUDE_LINE, CLAUDE),
    (b'{"type":"mode","mode":"plan","sessionId":"s"}\n' + CLAUDE_LINE, CLAUDE),
    (OPENAI_LINE, OPENAI),
    (OPENAI_LINE.strip(), OPENAI),
    (b'{"role":"user","content":"\\ud800"}\n', OPENAI),
    (b'[{"role":"user"}]', OPENAI),
    (b'[\n  {\n    "role": "user"\n  }\n]\n', OPENAI),
    (b'{"messages":[{"role":"user"}]}', OPENAI),
    (b'{\n"model":"m",\n"messages":[\n{"role":"user"}]}\n', OPENAI),
    (b'{\n"role":"user",\n"content":"hi"}\n', OPENAI),
    (b"", TEXT),
    (b" \n\n", TEXT),
    (b"Dear all,\n", TEXT),
    (b"[12:00] hello\n[12:01] hi\n", TEXT),
    (b"[1] A footnote.\n", TEXT),
    (b"{braces} in prose\n", TEXT),
    ("é😀\n".encode(), TEXT),
    (b"A text that quotes a line:\n" + OPENAI_LINE + b"and goes on.\n", TEXT),
    (b"# Notes\n\n" + PI_LINE + b"\nand\n\nmore\n", TEXT),
]


@pytest.mark.parametrize(("head", "expected"), CLEAR, ids=range(len(CLEAR)))
def test_the_content_tells_the_format(head: bytes, expected: TranscriptFormat) -> None:
    """Each format is known by its rows, with byte order mark, blank, bad and unknown lines before them."""
    assert expected is detect(head)
    assert expected is read_transcript(head).format


UNCLEAR = [
    (PI_LINE + CLAUDE_LINE, (PI, CLAUDE)),
    (OPENAI_LINE + PI_LINE, (PI, OPENAI)),
    (UNKNOWN_LINE * 3, (PI, CLAUDE, OPENAI, TEXT)),
    (b'{"type":"hologram"}\n', (PI, CLAUDE, OPENAI, TEXT)),
    (b'{"type":"progress","percent":3}\n', (PI, CLAUDE, OPENAI, TEXT)),
    (b'{"type":"label","text":"x"}\n', (PI, CLAUDE, OPENAI, TEXT)),
    (b'{"messages":[{"role":"user"}]}\n' * 2, (PI, CLAUDE, OPENAI, TEXT)),
    (OPENAI_LINE + b"and prose\n" * 5, (OPENAI, TEXT)),
    (b'[{"level":"info"}]', (OPENAI, TEXT)),
    (b"\x00\x01\x02binary", (PI, CLAUDE, OPENAI, TEXT)),
    (b"caf\xe9 in Latin-1\n", (PI, CLAUDE, OPENAI, TEXT)),
    ("UTF-16".encode("utf-16"), (PI, CLAUDE, OPENAI, TEXT)),
]


@pytest.mark.parametrize(("head", "candidates"), UNCLEAR, ids=range(len(UNCLEAR)))
def test_what_is_not_clear_is_an_error_that_names_the_candidates(
    head: bytes, candidates: tuple[TranscriptFormat, ...]
) -> None:
    """No guess: the caller is told what to choose from, in words that `--format` takes."""
    with pytest.raises(FormatUnclearError) as caught:
        read_transcript(head)
    assert candidates == caught.value.candidates
    assert all(candidate.value in str(caught.value) for candidate in candidates)
    assert isinstance(caught.value, CallerError)
    assert isinstance(caught.value, InvalidInput)


@pytest.mark.parametrize(("head", "candidates"), UNCLEAR, ids=range(len(UNCLEAR)))
def test_naming_the_format_settles_it(head: bytes, candidates: tuple[TranscriptFormat, ...]) -> None:
    """Any of the candidates reads the file, if only into bad lines."""
    for candidate in candidates:
        transcript = read_transcript(head, fmt=candidate)
        assert head == b"".join(item.raw for item in transcript)


def test_a_named_format_is_not_second_guessed() -> None:
    """A pi session read as plain text is plain text."""
    transcript = read_transcript(PI_LINE, fmt=TEXT)
    assert {"text": 1} == transcript.report.roles


@pytest.mark.parametrize(
    "line",
    [
        {"role": "user", "content": "x" * 200_000},
        {"content": "x" * 200_000, "role": "user"},
    ],
)
def test_a_first_line_longer_than_the_head_is_read_to_its_end(line: dict[str, str]) -> None:
    """A huge first line is still one line of JSONL, wherever its telling field is."""
    data = (json.dumps(line) + "\n").encode() + OPENAI_LINE
    transcript = read_transcript(data)
    assert OPENAI is transcript.format
    assert 2 == transcript.report.rows


def test_a_document_longer_than_the_head_is_known_by_its_start() -> None:
    """The rest of a long, pretty-printed document is not needed to tell."""
    data = json.dumps([{"role": "user", "content": "x" * 1000}] * 300, indent=1).encode()
    transcript = read_transcript(data)
    assert (OPENAI, 300) == (transcript.format, transcript.report.rows)
