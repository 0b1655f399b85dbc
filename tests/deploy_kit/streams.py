"""Backup and restore of a stream, over the API that `nats stream backup` and `nats stream restore` use."""

import json
from dataclasses import dataclass
from typing import Any

from nats.aio.client import Client

from tests.support.waiting import deadline

_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class StreamBackup:
    """A stream as it was: what makes it anew, and its messages and consumers in the server's own form."""

    name: str
    about: dict[str, Any]
    chunks: tuple[bytes, ...]


async def backed_up(client: Client, name: str) -> StreamBackup:
    """A backup of a stream. The server goes on taking messages meanwhile."""
    inbox = client.new_inbox()
    heard = await client.subscribe(inbox)
    try:
        about = await _asked(client, f"$JS.API.STREAM.SNAPSHOT.{name}", {"deliver_subject": inbox})
        chunks: list[bytes] = []
        async with deadline(_WITHIN_S, f"the backup of {name}"):
            while (message := await heard.next_msg(timeout=None)).data:
                chunks.append(message.data)
                # The server sends so many at once, and then waits to be told to go on.
                if message.reply:
                    await client.publish(message.reply)
    finally:
        await heard.unsubscribe()
    return StreamBackup(name, {key: about[key] for key in ("config", "state")}, tuple(chunks))


async def restored(client: Client, backup: StreamBackup) -> None:
    """Makes the stream anew. There must be none of its name."""
    started = await _asked(client, f"$JS.API.STREAM.RESTORE.{backup.name}", backup.about)
    async with deadline(_WITHIN_S, f"the restore of {backup.name}"):
        for chunk in backup.chunks:
            await client.request(started["deliver_subject"], chunk, timeout=_WITHIN_S)
        done = await client.request(started["deliver_subject"], b"", timeout=_WITHIN_S)
    answer = json.loads(done.data)
    assert "error" not in answer, answer


async def _asked(client: Client, subject: str, request: dict[str, Any]) -> dict[str, Any]:
    answer = json.loads((await client.request(subject, json.dumps(request).encode(), timeout=_WITHIN_S)).data)
    assert "error" not in answer, answer
    found: dict[str, Any] = answer
    return found
