"""A worker that is refused something is not ready, and says what, within seconds; it is not silent."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
import structlog

from sexton.schemas.commands import Append
from sexton.schemas.errors import PermissionRefused
from sexton.schemas.span import NewSpan
from sexton.worker.app import Worker
from sexton.worker.embedded import EmbeddedServers
from tests.support.waiting import deadline, eventually
from tests.worker_kit.sender import sending
from tests.worker_kit.service import settings

WITHIN_S: Final = 6.0
"""A pull is repeated every second, and a check is asked anew after a few."""


PULL: Final = "$JS.API.CONSUMER.MSG.NEXT.SEXTON_COMMANDS"


def refusing(
    folder: Path, *, publish: list[str] | None = None, subscribe: list[str] | None = None
) -> EmbeddedServers:
    """Servers that refuse the worker what is named."""
    servers = EmbeddedServers(folder / "servers")
    may = {
        "publish": {"allow": [">"], "deny": publish or []},
        "subscribe": {"allow": [">"], "deny": subscribe or []},
    }
    servers.nats.extra_config = f"""authorization {{ users: [
        {{ user: "all", password: "all" }}
        {{ user: "worker", password: "w", permissions: {json.dumps(may)} }}
    ] }}"""
    return servers


def worker(servers: EmbeddedServers, **more: Any) -> Worker:
    return Worker(settings(servers, nats_user="worker", nats_password="w", **more))


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"subscribe": ["_SEXTON.worker.>"]}, "subscribe"),
        ({"subscribe": ["sexton.epoch.*"]}, r"subscribe sexton\.epoch\.>"),
        ({"publish": ["$JS.API.STREAM.INFO.*"]}, r"publish on \$JS\.API\.STREAM\.INFO\.SEXTON_LOG"),
    ],
)
async def test_what_it_cannot_begin_without_ends_its_start(
    tmp_path: Path, refused: dict[str, list[str]], told: str
) -> None:
    """Its inbox, bumps, and the streams: it ends with what was refused, long before a time-out."""
    async with refusing(tmp_path, **refused) as servers:
        with pytest.raises(PermissionRefused, match=told):
            async with deadline(WITHIN_S, "the refusal"), worker(servers, io_timeout_s=60.0):
                pass


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        ({"publish": [f"{PULL}.>"]}, PULL),
        ({"publish": ["sexton.log.*"]}, "sexton.log.>"),
        ({"publish": ["sexton.outcome.>"]}, "sexton.outcome.>"),
        ({"publish": ["$JS.ACK.>"]}, "$JS.ACK.>"),
        ({"subscribe": ["sexton.rpc.*.fetch"]}, "sexton.rpc.*.fetch"),
    ],
)
async def test_what_is_refused_later_makes_it_unready(
    tmp_path: Path, refused: dict[str, list[str]], told: str
) -> None:
    """Pulls, commits, outcomes, acknowledgements and requests: with operation and kind of subject."""
    async with refusing(tmp_path, **refused) as servers:
        url = servers.nats_url.replace("://", "://all:all@")
        with structlog.testing.capture_logs() as logged:
            async with worker(servers) as refused_worker, sending(url) as sender:
                await sender.publish(
                    Append(context_id="S3CRET", event_id="e", spans=(NewSpan(content="Some words."),))
                )

                async def permissions() -> str:
                    return str((await refused_worker.health.ready()).checks["permissions"].reason)

                await eventually(permissions, until=lambda said: told in said, within_s=WITHIN_S)
                assert not (await refused_worker.health.ready()).ok
    lines = [line for line in logged if line["event"] == "nats.refused"]
    assert any(line["subject"].startswith(told) for line in lines)
    assert not any("S3CRET" in str(line) for line in lines)
