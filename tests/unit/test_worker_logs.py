"""Logging: one JSON object per line on stderr, ids bound, content never."""

import asyncio
import json
import logging
import sys
from collections.abc import Iterator

import pytest
import structlog

from sexton.worker import logs

SECRET = "what an agent said to another"


@pytest.fixture
def configured() -> Iterator[None]:
    """Logging as in the worker; afterwards as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    logs.configure("INFO")
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.usefixtures("configured")
def test_events_are_json_lines_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    """With the bound ids, a level and a time; stdout is for data."""
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(sys.stderr)
    with structlog.contextvars.bound_contextvars(context_id="c", event_id="e"):
        structlog.get_logger("x").info("commit.done", revision=3)
    logging.getLogger("some.library").info("from a library")
    out = capsys.readouterr()
    assert "" == out.out
    first, second = (json.loads(line) for line in out.err.splitlines())
    assert ("commit.done", "c", "e", 3, "info") == (
        first["event"],
        first["context_id"],
        first["event_id"],
        first["revision"],
        first["level"],
    )
    assert "from a library" == second["event"]


@pytest.mark.usefixtures("configured")
def test_a_traceback_holds_no_content(capsys: pytest.CaptureFixture[str]) -> None:
    """The frames of a commit hold the text that is committed: their variables are not shown."""
    handler = logging.getLogger().handlers[0]
    assert isinstance(handler, logging.StreamHandler)
    handler.setStream(sys.stderr)

    def fails(content: str) -> None:
        data = content.encode()
        raise RuntimeError(f"after {len(data)} bytes")

    try:
        fails(SECRET)
    except RuntimeError:
        structlog.get_logger("x").exception("delivery.handler_failed")
    line = capsys.readouterr().err
    assert "after 29 bytes" in line
    assert "fails" in line
    assert SECRET not in line
    assert "locals" not in line


@pytest.mark.usefixtures("configured")
async def test_ids_bound_in_one_task_are_not_another_s() -> None:
    """Each command's lines carry its own ids."""
    seen: list[dict[str, object]] = []

    async def one(name: str) -> None:
        structlog.contextvars.bind_contextvars(event_id=name)
        await asyncio.sleep(0)
        seen.append(dict(structlog.contextvars.get_contextvars()))

    await asyncio.gather(one("a"), one("b"))
    assert [{"event_id": "a"}, {"event_id": "b"}] == seen
