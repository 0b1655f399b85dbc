"""What a holder hands out. Each says what it is; none can be taken for something else."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sexton.core.plan import Kept
from sexton.schemas.errors import LevelMismatch
from sexton.schemas.ids import Level
from sexton.schemas.outcome import Committed, RejectionCode
from sexton.schemas.pointer import Pointer
from sexton.schemas.rpc import Answer, Tier


@dataclass(frozen=True, slots=True, repr=False)
class Resolved:
    """The bytes that a pointer led to, with what they are.

    `quote()`, `str()` and `bytes()` give verbatim content and raise for a summary. Whoever is content with
    either reads `data` or `text`, and `level` with it.
    """

    data: bytes
    """The bytes addressed; of a summary, all of it."""
    answer: Answer

    @property
    def text(self) -> str:
        """The bytes as text, of whatever level."""
        return self.data.decode()

    @property
    def pointer(self) -> Pointer:
        """The pointer, re-stamped to the epoch at which it was served. Of a summary: a pointer to that."""
        return self.answer.pointer

    @property
    def level(self) -> Level:
        """The level of the bytes."""
        return self.answer.level

    @property
    def verbatim(self) -> bool:
        """Whether these are the original bytes of a leaf."""
        return self.answer.verbatim

    @property
    def superseded(self) -> bool:
        """Whether these are the bytes of an old version, as asked for with `accept_superseded`."""
        return self.answer.superseded

    @property
    def restamped(self) -> bool:
        """Whether the pointer was of another epoch and has been validated again."""
        return self.answer.restamped

    @property
    def tier(self) -> Tier:
        """Where the bytes came from."""
        return self.answer.tier

    def quote(self) -> str:
        """The verbatim text. Raises `LevelMismatch` if this is a summary."""
        self._check_verbatim()
        return self.text

    def __str__(self) -> str:
        return self.quote()

    def __bytes__(self) -> bytes:
        self._check_verbatim()
        return self.data

    def __repr__(self) -> str:
        # Content must not reach a log.
        p = self.pointer
        kind = "verbatim" if self.verbatim else "summary"
        return f"<Resolved {p.span_id} v{p.version} {p.offset}+{p.length} {self.level.name} {kind}>"

    def _check_verbatim(self) -> None:
        if not self.verbatim:
            raise LevelMismatch(
                f"{self.pointer.span_id} is {self.level.name}, a paraphrase and no quote",
                span_id=self.pointer.span_id,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What `compact_to` did. Sizes are of the view, in bytes."""

    budget_bytes: int
    size_before_bytes: int
    size_after_bytes: int
    epoch_before: int
    epoch_after: int
    passes: int
    committed: tuple[Committed, ...] = ()
    """The compactions, in the order of their outcomes."""
    rejected: Mapping[RejectionCode, int] = field(default_factory=dict)
    """How often which rejection was met on the way."""
    kept: Mapping[Kept, int] = field(default_factory=dict)
    """Spans that the last plan kept, by reason."""

    @property
    def changed(self) -> bool:
        """Whether anything was compacted."""
        return bool(self.committed)
