"""How the shipped transcript is written down: as a pi session of version 3, with entry ids.

The same bytes each time, on any machine: no clock, no randomness.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

_START = datetime(2025, 11, 3, 9, 0, tzinfo=UTC)


@dataclass(frozen=True)
class Call:
    """A call of a tool, as a message makes it."""

    id: str
    name: str
    arguments: dict[str, Any]


class Session:
    """Writes a session, entry by entry. An entry's parent is the one before it, unless it says otherwise."""

    def __init__(self) -> None:
        self._lines: list[bytes] = []
        self._parent: str | None = None
        self._now = _START
        self._calls = 0
        self._line_end = b"\n"
        self.provider, self.model = "anthropic", "claude-sonnet-4-5"

    def __bytes__(self) -> bytes:
        return b"".join(self._lines)

    def _write(self, row: dict[str, Any]) -> None:
        text = json.dumps(row, ensure_ascii=False, separators=(",", ":"))
        self._lines.append(text.encode() + self._line_end)

    def _tick(self) -> str:
        """A moment later: between 3 and 61 seconds, as the length of the session has it."""
        self._now += timedelta(
            seconds=3 + len(self._lines) * 37 % 59, milliseconds=len(self._lines) * 131 % 1000
        )
        return self._now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    @contextmanager
    def windows(self) -> Iterator[None]:
        """Lines that were written on Windows: they end in CR LF."""
        self._line_end = b"\r\n"
        yield
        self._line_end = b"\n"

    def header(self, cwd: str, parent: str) -> None:
        """The first line. The session was forked off another, which is in another file."""
        self._write(
            {
                "type": "session",
                "version": 3,
                "id": "5e55104e-0000-4000-8000-00000000de30",
                "timestamp": self._tick(),
                "cwd": cwd,
                "parentSession": parent,
            }
        )

    def entry(self, kind: str, *, parent: str | None = None, **fields: Any) -> str:
        """Any entry; returns its id."""
        entry_id = sha256(b"demo entry %d" % len(self._lines)).hexdigest()[:8]
        parent = self._parent if parent is None else parent
        self._write(
            {"type": kind, "id": entry_id, "parentId": parent, "timestamp": self._tick(), **fields},
        )
        self._parent = entry_id
        return entry_id

    def _message(self, role: str, *, parent: str | None = None, **fields: Any) -> str:
        stamp = int(self._now.timestamp() * 1000)
        return self.entry("message", parent=parent, message={"role": role, **fields, "timestamp": stamp})

    def use_model(self, provider: str, model: str) -> None:
        """A change of model. The providers' call ids look different."""
        self.provider, self.model = provider, model
        self.entry("model_change", provider=provider, modelId=model)

    def user(self, text: str, *, parent: str | None = None) -> str:
        """What the human says."""
        return self._message("user", parent=parent, content=[{"type": "text", "text": text}])

    def team(self, who: str, text: str) -> str:
        """What another agent of the team says."""
        return self.entry(
            "custom_message",
            customType="team-message",
            content=f"[{who}] {text}",
            display=True,
            details={"from": who},
        )

    def shell(self, command: str, output: str, exit_code: int = 0) -> str:
        """A command that the human ran."""
        return self._message(
            "bashExecution",
            command=command,
            output=output,
            exitCode=exit_code,
            cancelled=False,
            truncated=False,
        )

    def call(self, name: str, **arguments: Any) -> Call:
        """A call to put into `say`."""
        self._calls += 1
        digest = sha256(b"demo call %d" % self._calls).hexdigest()
        call_id = (
            f"toolu_01{digest[:22]}"
            if self.provider == "anthropic"
            else f"call_{digest[:24]}|fc_{digest[24:56]}"
        )
        return Call(call_id, name, arguments)

    def say(self, text: str, *calls: Call, thinking: str | None = None, stop: str | None = None) -> str:
        """What the agent says, thinks and calls, in one message."""
        parts: list[dict[str, Any]] = []
        if thinking is not None:
            parts.append({"type": "thinking", "thinking": thinking})
        if text:
            parts.append({"type": "text", "text": text})
        parts += [
            {"type": "toolCall", "id": call.id, "name": call.name, "arguments": call.arguments}
            for call in calls
        ]
        size = len(json.dumps(parts))
        return self._message(
            "assistant",
            content=parts,
            api="anthropic-messages" if self.provider == "anthropic" else "openai-responses",
            provider=self.provider,
            model=self.model,
            usage={
                "input": 900 + 40 * len(self._lines),
                "output": size // 4,
                "cacheRead": 0,
                "cacheWrite": 0,
            },
            stopReason=stop or ("toolUse" if calls else "stop"),
        )

    def result(self, call: Call, text: str, *, error: bool = False) -> str:
        """What a tool answers."""
        return self._message(
            "toolResult",
            toolCallId=call.id,
            toolName=call.name,
            content=[{"type": "text", "text": text}],
            isError=error,
        )

    def ask(self, text: str, name: str, answer: str, *, error: bool = False, **arguments: Any) -> None:
        """One call and its result, which is what happens most."""
        call = self.call(name, **arguments)
        self.say(text, call)
        self.result(call, answer, error=error)
