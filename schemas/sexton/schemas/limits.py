"""A limit on everything: each with a name, a default and a reason."""

from typing import Final

MAX_PAYLOAD_BYTES: Final = 1024 * 1024
"""One NATS message with its headers: the server's default limit, which Sexton does not ask to be raised."""

MAX_COMMAND_BYTES: Final = 768 * 1024
"""One command on the wire. The record it becomes names each span by id and hash, which takes some 200 bytes a
span more than the command did, and must stay below the payload limit as well."""

INLINE_BYTES: Final = 256 * 1024
"""Content of one command that travels inline; what is over it is sent ahead as a claim check."""

MAX_SPAN_BYTES: Final = 64 * 1024 * 1024
"""One span. A claim check is put together in memory once, at its commit."""

CHUNK_BYTES: Final = 256 * 1024
"""One part of a claim upload, a fetch or a snapshot, before base64."""

MAX_CLAIM_CHUNKS: Final = 4096
"""Chunks of one claim: bounds the number of reads that a commit makes to put it together."""

MAX_COMMAND_CHUNKS: Final = 4096
"""Of all claim checks of one command. Each is a read of the cold store, in the lane of other contexts."""

MAX_SPANS_PER_APPEND: Final = 1000
"""Spans of one append. A record of that many stays below the payload limit."""

MAX_SOURCES: Final = 512
"""Children of one summary."""

MAX_OPEN_CONTEXTS: Final = 1024
"""Contexts that one holder has open. Each costs a subscription, a lease, and a question every few seconds.
The service sees one context at a time, so this is the holder's own bound, by default."""

MAX_LABEL_BYTES: Final = 256
"""One label's value, in UTF-8."""

MAX_UNKNOWN_LABELS_BYTES: Final = 4096
"""All labels of one span that this build does not know, together, as JSON. They are kept in the tree: in each
holder's memory and in each snapshot."""

SYNC_TAIL_RECORDS: Final = 500
"""A holder further behind than this gets a snapshot instead of the records it missed."""
