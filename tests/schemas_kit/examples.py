"""The golden examples of the wire, and what can be said of any message.

`tests/golden/wire/NAME.json` or `NAME.VARIANT.json` is a message as it is on the wire, plus a line end. They
are yesterday's messages: one is only ever added, never changed.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sexton.schemas.base import Message
from sexton.schemas.codec import decode, decode_command, decode_outcome, decode_record
from sexton.schemas.json_schema import messages

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "wire"

MESSAGES: Final[dict[str, type[Message]]] = messages()

COMMANDS: Final = ("append", "compact", "rewrite", "prune")
RECORDS: Final = (
    "appended",
    "compacted",
    "rewritten",
    "pruned",
    "collecting",
    "collect_aborted",
    "condemned",
    "collected",
)
OUTCOMES: Final = ("committed", "no_change", "rejected")

EXAMPLES: Final[dict[str, bytes]] = {
    path.name.removesuffix(".json"): path.read_bytes().removesuffix(b"\n")
    for path in sorted(GOLDEN.glob("*.json"))
}
"""The bytes on the wire by the name of the example, `append.claim`."""


def message_name(example: str) -> str:
    """The message that an example is of: `append.claim` is an `append`."""
    return example.partition(".")[0]


def read(name: str, data: bytes) -> Message:
    """Reads a message of a known type, as a program does: those that have kinds by their kind."""
    if name in COMMANDS:
        return decode_command(data)
    if name in RECORDS:
        return decode_record(data)
    if name in OUTCOMES:
        return decode_outcome(data)
    return decode(MESSAGES[name], data)


Place = tuple[str | int, ...]
"""Where in a JSON value: names and positions from the outside in."""


def places(value: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Every value inside a JSON value and where it is, the outermost first."""
    yield at, value
    match value:
        case dict():
            for key, item in value.items():
                yield from places(item, (*at, key))
        case list():
            for index, item in enumerate(value):
                yield from places(item, (*at, index))


def place_of(value: Any, at: Place) -> Any:
    """What is in one place of a JSON value."""
    for step in at:
        value = value[step]
    return value


def replaced(value: Any, at: Place, new: Any) -> Any:
    """A copy of a JSON value with another one in one place."""
    if not at:
        return new
    step, rest = at[0], at[1:]
    match value:
        case dict():
            return {k: replaced(v, rest, new) if k == step else v for k, v in value.items()}
        case list():
            return [replaced(v, rest, new) if i == step else v for i, v in enumerate(value)]
    raise LookupError(at)


def without(value: Any, at: Place) -> Any:
    """A copy of a JSON value with the field or item at one place gone."""
    *parent, last = at
    inside = place_of(value, tuple(parent))
    fewer = (
        {k: v for k, v in inside.items() if k != last}
        if isinstance(inside, dict)
        else [v for i, v in enumerate(inside) if i != last]
    )
    return replaced(value, tuple(parent), fewer)
