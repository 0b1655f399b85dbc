"""A holder's copy of one context, and what it takes to keep it right. No I/O here: it is told, and says.

Bumps may be lost, late, doubled or out of order; the log may be recreated, or restored from an older copy.
All that counts is in the records: the revisions are dense, and each record's `chain` links it to the one
before. The copy moves only by `apply`, or by taking over a whole snapshot.
"""

from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum

from sexton.core.apply import apply
from sexton.core.snapshot import restore
from sexton.core.tree import ContextTree
from sexton.holder.recent import RecentRecords
from sexton.schemas.codec import AnyRecord, decode_record
from sexton.schemas.errors import LineageError, MalformedMessage, UnsupportedSchema
from sexton.schemas.rpc import Head, SyncPart, SyncRequest


class Heard(StrEnum):
    """What became of a bump."""

    APPLIED = "applied"
    KNOWN = "known"
    """A repeat."""
    EARLY = "early"
    """The ones before it are missing: ask for them."""
    UNSURE = "unsure"
    """Old, and too old to tell whether it is of this history: ask for the head."""
    FOREIGN = "foreign"
    """Of another history, or of a kind unknown here: start over from a snapshot."""


class Replica:
    """One context as a holder knows it."""

    def __init__(self, context_id: str, *, early_records: int, recent_spans: int) -> None:
        self.tree = ContextTree.empty(context_id, with_events=False)
        self.recent = RecentRecords(recent_spans)
        self.lineage = 0
        """Counts the times that another history took the place of the one followed."""
        self.announced = 0
        """The newest revision that a bump has told of, as far as bumps could be read."""
        self._early: dict[int, AnyRecord] = {}
        self._early_limit = early_records
        self._start_over = False
        self._in_doubt = False
        """What was heard does not continue the history known here."""

    @property
    def complete(self) -> bool:
        """Whether nothing is known to be missing."""
        return not self._early and not self._start_over

    def chain_at(self, revision: int) -> str | None:
        """The chain of this history at a revision; None if it is too long ago, or not known yet."""
        if revision == 0:
            return ""
        if revision == self.tree.revision:
            return self.tree.chain
        record = self.recent.at(revision)
        return record.chain if record is not None else None

    def heard(self, data: bytes) -> Heard:
        """Takes a bump. Raises `MalformedMessage` if it is none; it says nothing then."""
        try:
            record = decode_record(data)
        except UnsupportedSchema:
            self._start_over = True
            return Heard.FOREIGN
        tree = self.tree
        if record.context_id != tree.context_id:
            raise MalformedMessage(f"a bump of {record.context_id} among those of {tree.context_id}")
        self.announced = max(self.announced, record.revision)
        if record.revision <= tree.revision:
            return self._old(record)
        if record.revision > tree.revision + 1:
            if len(self._early) < self._early_limit:
                self._early[record.revision] = record
            return Heard.EARLY
        try:
            self._apply(record)
            self._apply_early()
        except LineageError:
            return self._foreign()
        return Heard.APPLIED

    def request(self) -> SyncRequest:
        """What to ask for: what is missing, or the whole context if the copy is not to be built on."""
        return SyncRequest(
            context_id=self.tree.context_id,
            revision=self.tree.revision,
            chain=self.tree.chain,
            snapshot=self._start_over,
        )

    def waiting(self) -> frozenset[int]:
        """Revisions of bumps that wait for the ones before them."""
        return frozenset(self._early)

    def answered(
        self,
        request: SyncRequest,
        parts: Sequence[SyncPart],
        waited: frozenset[int],
        snapshot: ContextTree | None = None,
    ) -> None:
        """Takes the answer to `request`. Bumps may have been heard since it was sent.

        Args:
            request: as it was sent.
            parts: all parts of the answer.
            waited: `waiting()` when it was sent.
            snapshot: what the pieces in the parts make up, if somebody has put them together already.

        Raises:
            LineageError: this history is not that of the log. Ask again, which asks for the whole context.
            UnsupportedSchema: there is a record of a kind unknown here. Ask again, likewise.
            MalformedMessage: the answer does not hold what it must.
        """
        try:
            self._answered(request, parts, snapshot)
        except LineageError:
            self._foreign()
            raise
        except UnsupportedSchema:
            self._start_over = True
            raise
        # What waited when the head was asked for and is not in the log was of another history, or invented.
        self._early = {r: record for r, record in self._early.items() if r not in waited}

    def _answered(
        self, request: SyncRequest, parts: Sequence[SyncPart], snapshot: ContextTree | None
    ) -> None:
        head = parts[0].head
        if any(part.head != head for part in parts):
            raise MalformedMessage("the parts of an answer to sync name different heads")
        pieces = [part.snapshot for part in parts if part.snapshot is not None]
        if pieces:
            whole = snapshot if snapshot is not None else restore(pieces)
            if len(pieces) != len(parts) or whole.head != head or whole.context_id != request.context_id:
                raise MalformedMessage("an answer to sync that is only half a snapshot")
            self._consider(request, whole)
        else:
            for record in [decode_record(raw) for part in parts for raw in part.records]:
                if record.revision > self.tree.revision:
                    self._apply(record)
            self._check_reached(request, head)
            self._apply_early()

    def _consider(self, request: SyncRequest, snapshot: ContextTree) -> None:
        """Takes over a snapshot, unless bumps were faster, and then what has been heard beyond it."""
        head = snapshot.head
        known = request.chain if head.revision == request.revision else self.chain_at(head.revision)
        went_back = head.revision < request.revision
        ahead = self.tree.revision >= head.revision and known in (None, head.chain)
        if ahead and not went_back and not request.snapshot:
            return
        if request.revision > 0 and (
            went_back or (known != head.chain and (known is not None or self._in_doubt))
        ):
            self.lineage += 1
        if request.snapshot or went_back:
            self.announced = head.revision
        beyond: list[AnyRecord | None] = []
        if known == head.chain and not went_back:
            beyond = [self.recent.at(r) for r in range(head.revision + 1, self.tree.revision + 1)]
        self.tree = snapshot
        self.recent.clear()
        self._start_over = self._in_doubt = False
        self._early |= {record.revision: record for record in beyond if record is not None}
        # This is the log itself: what does not continue it now was of another history.
        with suppress(LineageError):
            self._apply_early()

    def _old(self, record: AnyRecord) -> Heard:
        chain = self.chain_at(record.revision)
        if chain is None:
            return Heard.UNSURE
        return Heard.KNOWN if chain == record.chain else self._foreign()

    def _foreign(self) -> Heard:
        self._start_over = self._in_doubt = True
        return Heard.FOREIGN

    def _apply(self, record: AnyRecord) -> None:
        self.tree = apply(self.tree, record)
        self.recent.add(record)

    def _apply_early(self) -> None:
        """Applies what had come early and fits by now."""
        while (record := self._early.pop(self.tree.revision + 1, None)) is not None:
            self._apply(record)
        self._early = {r: record for r, record in self._early.items() if r > self.tree.revision}

    def _check_reached(self, request: SyncRequest, head: Head) -> None:
        if self.chain_at(head.revision) not in (None, head.chain):
            raise LineageError(f"{self.tree.context_id}: the log has another history at {head.revision}")
        if head.revision > self.tree.revision or head.revision < request.revision:
            raise MalformedMessage(
                f"{self.tree.context_id}: the log is at revision {head.revision}, the answer to a request "
                f"since {request.revision} leads to {self.tree.revision}"
            )
