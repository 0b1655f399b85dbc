"""The routes: health, metrics, and the contract of the messages, on FastStream's ASGI application."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from faststream.asgi import AsgiFastStream, AsgiResponse, get
from prometheus_client.exposition import choose_encoder

from sexton.worker import metrics
from sexton.worker.health import Health, Report
from sexton.worker.web import contract

Refresh = Callable[[], Awaitable[None]]
"""Brings gauges up to date before they are read: bounded in time, and it does not raise."""

_FRESH: Final = {"cache-control": "no-store"}


def make_app(health: Health, *, refresh: Sequence[Refresh] = ()) -> AsgiFastStream:
    """The application. Its lifespan does nothing: the program is started by whoever serves this.

    Args:
        health: what the health routes answer from.
        refresh: what is done before metrics are read.
    """
    return AsgiFastStream(
        asgi_routes=[
            ("/livez", _health(health.live)),
            ("/readyz", _health(health.ready)),
            ("/startupz", _health(health.startup)),
            ("/metrics", _metrics(health, refresh)),
            ("/asyncapi", get(_page)),
            ("/asyncapi.json", get(_document)),
            *((f"/json/{name}.schema.json", _schema(name)) for name in contract.schemas()),
        ],
        # A check that raises is told here, and to whoever asked as a 500 without words.
        logger=logging.getLogger("sexton.faststream"),
    )


def _health(ask: Callable[[], Awaitable[Report]]) -> Any:
    @get
    async def answer(_: Any) -> AsgiResponse:
        report = await ask()
        return _json(report.to_json(), 200 if report.ok else 503)

    return answer


def _metrics(health: Health, refresh: Sequence[Refresh]) -> Any:
    @get
    async def answer(scope: Mapping[str, Any]) -> AsgiResponse:
        asked = asyncio.create_task(health.ready())
        await asyncio.gather(*(bring_up_to_date() for bring_up_to_date in refresh))
        report = await asked
        metrics.READY.set(report.ok)
        # Of what is not asked now, there is no answer: the old one would stand.
        metrics.CHECK_OK.clear()
        for name, check in report.checks.items():
            metrics.CHECK_OK.labels(name).set(check.ok)
        encode, content_type = choose_encoder(_header(scope, b"accept"))
        return AsgiResponse(encode(metrics.REGISTRY), 200, {"content-type": content_type} | _FRESH)

    return answer


async def _page(_: Any) -> AsgiResponse:
    headers = {"content-type": "text/html; charset=utf-8", "content-security-policy": contract.POLICY}
    return AsgiResponse(contract.page().encode(), 200, headers)


async def _document(_: Any) -> AsgiResponse:
    return _json(contract.document())


def _schema(name: str) -> Any:
    @get
    async def answer(_: Any) -> AsgiResponse:
        return _json(contract.schemas()[name])

    return answer


def _json(value: Any, status: int = 200) -> AsgiResponse:
    body = json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    return AsgiResponse(body, status, {"content-type": "application/json"} | _FRESH)


def _header(scope: Mapping[str, Any], name: bytes) -> str:
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")
