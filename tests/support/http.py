"""A plain HTTP GET, as a probe makes it."""

import asyncio
import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import Any

_WITHIN_S = 15.0


@dataclass(frozen=True, slots=True)
class Response:
    """What came back."""

    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def get(url: str, *, method: str = "GET", **headers: str) -> Response:
    """Any status is an answer. Raises `OSError` if there is none."""
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S) as found:
            return Response(found.status, found.headers, found.read())
    except urllib.error.HTTPError as error:
        with error:
            return Response(error.code, error.headers, error.read())


async def fetch(url: str, **more: Any) -> Response:
    """The same, for a test with an event loop."""
    return await asyncio.to_thread(get, url, **more)
