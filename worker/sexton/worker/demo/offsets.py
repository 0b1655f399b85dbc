"""An offset map: where the words of a span are. The kind of artifact that a rewrite silently spoils."""

import re
from dataclasses import dataclass
from typing import Final

_WORD: Final = re.compile(r"\w+")
_MOST_WORDS: Final = 200


@dataclass(frozen=True, slots=True)
class Place:
    """A word and where it is, in bytes of UTF-8."""

    word: str
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class OffsetMap:
    """The first words of a text, with their places."""

    places: tuple[Place, ...]

    @classmethod
    def of(cls, text: str) -> "OffsetMap":
        """The map of a text."""
        places: list[Place] = []
        at_characters = at_bytes = 0
        for found in _WORD.finditer(text):
            if len(places) == _MOST_WORDS:
                break
            at_bytes += len(text[at_characters : found.start()].encode())
            length = len(found[0].encode())
            places.append(Place(found[0], at_bytes, length))
            at_characters, at_bytes = found.end(), at_bytes + length
        return cls(tuple(places))

    def misled_by(self, data: bytes) -> int:
        """How many words this map would cut wrongly out of other bytes than it was made from."""
        cut = (data[place.offset : place.offset + place.length] for place in self.places)
        return sum(found != place.word.encode() for found, place in zip(cut, self.places, strict=True))
