"""Dead letters: messages that no worker could make sense of, or that exhausted their tries."""

from typing import Final

from sexton.schemas.base import Count, Message, Ordinal

DEAD_LETTER_HEADER: Final = "Sexton-Dead-Letter"
"""The header that says what became of it. The payload of a dead letter is the original, byte for byte."""


class DeadLetter(Message):
    """What is known of a dead letter. Travels as JSON in the `Sexton-Dead-Letter` header."""

    subject: str
    """Where it was stored."""
    reason: str
    """The code of the error, or `exhausted`."""
    message: str
    """What was wrong; never holds content."""
    stream: str
    """The stream that it was taken from."""
    stream_sequence: Count
    deliveries: Ordinal
