"""Calls and their results, paired by id into groups.

A group is all calls of one message and all results of those calls, wherever they stand. Ids decide, never
neighbourhood. What real files do to that:

- a result may stand before its call, and joins it; if the call is answered again later, that counts;
- a result may have no call: then it is a group of its own, and not open;
- a call may never be answered: its group stays open;
- one row may answer calls of several messages: they become one group;
- an id may come twice. While the first call waits, the second is the same call, written again. Once it is
  answered, a call of that id is a new call in a new group, as with programs that count from `call_0` anew
  in each turn. A result belongs to the latest call of its id.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import count
from typing import Final

_NOT_A_TOKEN: Final = re.compile(r"[^A-Za-z0-9_-]+")
_NAME_LENGTH: Final = 64
_DIGEST_LENGTH: Final = 12


@dataclass(slots=True)
class _Call:
    """One call: when its two sides were first seen, as row indexes."""

    key: str
    generation: int
    """How many calls of this id there are up to this one."""
    called: int | None = None
    answered: int | None = None
    result_rows: list[int] = field(default_factory=list)

    @property
    def complete(self) -> int | None:
        """The row with which both sides are there; None while one is missing."""
        if self.called is None or self.answered is None:
            return None
        return max(self.called, self.answered)

    @property
    def settled(self) -> bool:
        """Whether it was answered after it was made. A result before its call may be another's."""
        return self.called is not None and self.answered is not None and self.answered >= self.called


@dataclass(frozen=True, slots=True)
class Membership:
    """A row's place in a group."""

    group: str
    open: bool


@dataclass(frozen=True, slots=True)
class Pairs:
    """All groups of a file. Rows are named by their index."""

    members: dict[int, Membership]
    calls: int
    groups: int
    open_groups: int
    orphan_results: tuple[int, ...]
    """Rows that answer a call which is not in the file."""


class Pairing:
    """Collects rows in the order of the file. Work and memory are linear in the calls and results."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._parents: list[int] = []  # union-find over `_calls`; a root is the earliest call of its group
        self._latest: dict[str, int] = {}
        self._messages: dict[tuple[str, int], int] = {}
        self._rows: dict[int, int] = {}

    def add(self, row: int, calls: Sequence[str], results: Sequence[str], message_id: str | None) -> None:
        """Adds a row by its index, with the ids of its calls and of the calls that it answers."""
        touched = [self._answer(key, row) for key in results]
        for key in calls:
            index = self._call(key, row)
            touched.append(index)
            if message_id is not None:
                part_of = (message_id, self._calls[index].generation)
                touched.append(self._messages.setdefault(part_of, index))
        for other in touched[1:]:
            self._join(touched[0], other)
        if touched:
            self._rows[row] = touched[0]

    def _answer(self, key: str, row: int) -> int:
        index = self._latest.get(key)
        if index is None:
            index = self._new(key, generation=1)
        call = self._calls[index]
        if not call.settled:
            call.answered = row
        call.result_rows.append(row)
        return index

    def _call(self, key: str, row: int) -> int:
        index = self._latest.get(key)
        if index is None:
            index = self._new(key, generation=1)
        elif self._calls[index].settled:
            index = self._new(key, generation=self._calls[index].generation + 1)
        call = self._calls[index]
        call.called = row if call.called is None else call.called
        return index

    def _new(self, key: str, generation: int) -> int:
        index = len(self._calls)
        self._calls.append(_Call(key, generation))
        self._parents.append(index)
        self._latest[key] = index
        return index

    def _root(self, index: int) -> int:
        while self._parents[index] != index:
            self._parents[index] = self._parents[self._parents[index]]
            index = self._parents[index]
        return index

    def _join(self, one: int, other: int) -> None:
        first, second = sorted((self._root(one), self._root(other)))
        self._parents[second] = first

    def solve(self, prefix: str = "") -> Pairs:
        """The groups, with `prefix` before their names. The same rows always give the same names."""
        names: dict[int, str] = {}
        closed_at: dict[int, int | None] = {}
        taken: set[str] = set()
        for index, call in enumerate(self._calls):
            root = self._root(index)
            if root == index:
                names[root] = _name(prefix, call, taken)
                taken.add(names[root])
                closed_at[root] = -1
            if call.called is not None:
                closed_at[root] = _later(closed_at[root], call.complete)
        members = {}
        for row, index in self._rows.items():
            root = self._root(index)
            closing = closed_at[root]
            members[row] = Membership(names[root], closing is None or row < closing)
        return Pairs(
            members,
            calls=sum(call.called is not None for call in self._calls),
            groups=len(names),
            open_groups=sum(closing is None for closing in closed_at.values()),
            orphan_results=tuple(sorted(set(self._orphans()))),
        )

    def _orphans(self) -> Iterator[int]:
        for call in self._calls:
            if call.called is None:
                yield from call.result_rows


def is_token(value: str) -> bool:
    """Whether `value` may stand as a group's name."""
    return 0 < len(value) <= _NAME_LENGTH and not _NOT_A_TOKEN.search(value)


def _later(one: int | None, other: int | None) -> int | None:
    """The later of two rows, where None is never."""
    return None if one is None or other is None else max(one, other)


def _name(prefix: str, call: _Call, taken: set[str]) -> str:
    """A group's name: its first call's id if that can be a name and is not in use, else made from it.

    The digest keeps ids apart that look the same once cleaned, and calls of the same id; names in use are
    passed over. So two groups never share a name.
    """
    plain = prefix + call.key
    if call.generation == 1 and is_token(plain) and plain not in taken:
        return plain
    stem = _NOT_A_TOKEN.sub("_", plain[:_NAME_LENGTH])[: _NAME_LENGTH - _DIGEST_LENGTH - 1]
    for attempt in count():
        identity = f"{call.generation}\0{attempt}\0{plain}".encode("utf-8", "surrogatepass")
        name = f"{stem}-{sha256(identity).hexdigest()[:_DIGEST_LENGTH]}"
        if name not in taken:
            return name
    raise AssertionError("unreachable: names run out of digests")
