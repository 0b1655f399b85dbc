"""Bytes of whole versions, kept in memory up to a bound. What was used least recently makes room."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Self

from sexton.schemas.span import Identity


@dataclass(frozen=True, slots=True)
class BytesKey:
    """One version of one span. The hash is part of it: a log that was restored may number versions again."""

    context_id: str
    span_id: str
    version: int
    content_hash: str

    @classmethod
    def of(cls, context_id: str, version: Identity) -> Self:
        """The key of a version."""
        return cls(context_id, version.span_id, version.version, version.content_hash)


class ByteCache:
    """A bounded map from version to bytes. Holds only what was checked against its hash before."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[BytesKey, bytes] = OrderedDict()

    def get(self, key: BytesKey) -> bytes | None:
        """The bytes, if they are here."""
        data = self._entries.get(key)
        if data is not None:
            self._entries.move_to_end(key)
        return data

    def put(self, key: BytesKey, data: bytes) -> None:
        """Keeps the bytes, unless they are larger than the whole cache."""
        if len(data) > self.max_bytes:
            return
        old = self._entries.pop(key, b"")
        self._entries[key] = data
        self.size_bytes += len(data) - len(old)
        while self.size_bytes > self.max_bytes:
            _, evicted = self._entries.popitem(last=False)
            self.size_bytes -= len(evicted)
