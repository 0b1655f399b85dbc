"""What a transcript is read into: rows, bad lines, and a report over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from sexton.schemas.limits import MAX_SPAN_BYTES
from sexton.schemas.span import Labels

JSON_TYPE: Final = "application/json"
TEXT_TYPE: Final = "text/plain"


class TranscriptFormat(StrEnum):
    """The kinds of transcript that can be read. The values are what `--format` takes."""

    PI = "pi"
    """pi session JSONL, with entry ids (versions 2 and 3) or without (version 1)."""
    CLAUDE_CODE = "claude-code"
    """Claude Code session JSONL."""
    OPENAI = "openai"
    """Chat messages: JSONL with one message a line, or one JSON document that holds a list of them."""
    TEXT = "text"
    """Anything else that is UTF-8."""


class Role(StrEnum):
    """Who speaks in a row. The same words for every format; the file's own word may be in `Row.kind`."""

    SYSTEM = "system"
    DEVELOPER = "developer"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"
    """Results of tool calls."""
    SUMMARY = "summary"
    """The file's own compaction or summary. It is text like any other: no coverage is derived from it."""
    META = "meta"
    """Bookkeeping of the program that wrote the file: a session header, a change of model, a snapshot."""
    TEXT = "text"
    """A piece of a plain text file."""
    BLANK = "blank"
    """A line of nothing but blanks. Kept, so that the file can be put together again."""
    OTHER = "other"
    """A row of a type that is not known here. `Row.kind` holds the type."""


class ParentStatus(StrEnum):
    """What became of the parent that a row names."""

    NONE = "none"
    """The row names no parent."""
    PRESENT = "present"
    """The parent is a row of this file."""
    MISSING = "missing"
    """The parent should be in this file and is not."""
    EXTERNAL = "external"
    """The parent is in another file, as a row after a compaction or a fork may say of itself."""


class BadReason(StrEnum):
    """Why a line cannot be a span."""

    NOT_UTF8 = "not_utf8"
    NUL_BYTE = "nul_byte"
    NOT_JSON = "not_json"
    NOT_AN_OBJECT = "not_an_object"
    TOO_DEEP = "too_deep"
    TOO_LARGE = "too_large"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of a transcript, or one message of a JSON document, or one block of a plain text.

    The rows and bad lines of a file, in order, are the file: their `raw` bytes put together give it back
    byte for byte. So a line keeps its line end (LF or CR LF), the first one its byte order mark, and a
    message in a JSON document the comma and blanks behind it; the brackets around the list are with the
    first and the last message. `body` is what is left without these.
    """

    line_number: int
    """Counted from 1: the line at which `body` starts."""
    raw: bytes = field(repr=False)
    """Valid UTF-8, never empty."""
    role: Role
    kind: str | None
    """The file's own name for a row that is no plain message, such as `compaction` or an unknown type.
    Cut and cleaned to `[A-Za-z0-9_.:-]{1,64}`."""
    group: str | None
    """Shared by a call and its results; `[A-Za-z0-9_-]{1,64}`."""
    open: bool
    """Once this row is appended, a call of its group still waits for its result, or a result for its call."""
    media_type: str
    entry_id: str | None
    """The row's own id, if the file gives it one. Always encodable as UTF-8."""
    parent_id: str | None
    """The parent it names, in this file or another. Always encodable as UTF-8."""
    parent_status: ParentStatus
    body_offset: int
    """Where `body` starts in `raw`, in bytes."""
    body_size: int
    """In bytes; 0 for a blank line."""

    @property
    def body(self) -> bytes:
        """The JSON value without byte order mark, line end and glue; all of a text but its mark."""
        return self.raw[self.body_offset : self.body_offset + self.body_size]

    @property
    def labels(self) -> Labels:
        """What an append says of the row."""
        return Labels(
            role=self.role.value,
            group=self.group,
            media_type=self.media_type,
            open=self.open,
            kind=self.kind,
        )


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line, message or piece of text that cannot be a span. The caller stops at it or skips it."""

    line_number: int
    """Counted from 1."""
    reason: BadReason
    message: str
    """What is wrong and where, in one line. Holds nothing of the line's content."""
    raw: bytes = field(repr=False)
    """The bytes as they stand in the file; only the beginning of them if the reason is `TOO_LARGE`."""
    size_bytes: int
    """Of the whole line."""


@dataclass(frozen=True, slots=True)
class BadNote:
    """A bad line in a report: where and why, without its bytes."""

    line_number: int
    reason: BadReason
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What is in a transcript. Line numbers count from 1, sizes are in bytes."""

    format: TranscriptFormat
    size_bytes: int
    rows: int
    roles: Mapping[str, int]
    """How many rows of each role."""
    kinds: Mapping[str, int]
    """How many rows of each kind that is no plain message."""
    unknown_kinds: Mapping[str, int]
    """Those of them that are not known for this format."""
    calls: int
    groups: int
    open_groups: int
    """Groups with a call that is not answered in this file."""
    orphan_results: tuple[int, ...]
    """Lines with a result whose call is not in this file."""
    missing_parents: tuple[int, ...]
    """Lines whose parent should be in this file and is not."""
    external_parents: tuple[int, ...]
    """Lines whose parent is in another file."""
    bad_lines: tuple[BadNote, ...]


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what is read; all in bytes."""

    row_bytes: int = MAX_SPAN_BYTES
    """A longer line of JSONL, or a longer message of a JSON document, is a bad line."""
    document_bytes: int = 256 * 1024 * 1024
    """A longer JSON document is refused: it is read into memory as a whole, JSONL is not."""
    text_block_bytes: int = 4096
    """Plain text is cut into blocks of at most this size. At least 16."""
