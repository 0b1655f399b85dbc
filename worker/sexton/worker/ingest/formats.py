"""What one row says of itself, in each of the formats.

Sources: pi's `docs/session-format.md` and `session-manager.ts` (versions 1 to 3); for Claude Code, which
publishes no description, session files and the accounts of those who parse them; OpenAI's chat completions.
Every format grows, so a field that is not as expected counts as absent, and a row of an unknown type is kept.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sexton.worker.ingest.model import Role, TranscriptFormat
from sexton.worker.ingest.parse import encodable, label

UNTYPED: Final = "untyped"
"""Kind of a row that does not say what it is."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is read from a row before rows are seen together."""

    role: Role
    kind: str | None = None
    known: bool = True
    """Whether the row's type is one that this reader knows."""
    entry_id: str | None = None
    parent_id: str | None = None
    elsewhere_id: str | None = None
    """A parent that may well be in another file."""
    calls: tuple[str, ...] = ()
    """Ids of the calls the row makes, as they stand in the file: not always encodable."""
    results: tuple[str, ...] = ()
    """Ids of the calls it answers."""
    message_id: str | None = None
    """Rows with calls and the same message id are one message, written in several rows."""


_PI_ROLES: Final[Mapping[str, tuple[Role, str | None]]] = {
    "system": (Role.SYSTEM, None),
    "user": (Role.USER, None),
    "assistant": (Role.ASSISTANT, None),
    "toolResult": (Role.TOOL, None),
    "bashExecution": (Role.USER, "bashExecution"),
    "custom": (Role.USER, "custom"),
    "hookMessage": (Role.USER, "hookMessage"),
    "branchSummary": (Role.SUMMARY, "branchSummary"),
    "compactionSummary": (Role.SUMMARY, "compactionSummary"),
}
PI_TYPES: Final[Mapping[str, Role]] = {
    "session": Role.META,
    "model_change": Role.META,
    "thinking_level_change": Role.META,
    "custom": Role.META,
    "label": Role.META,
    "session_info": Role.META,
    "custom_message": Role.USER,
    "compaction": Role.SUMMARY,
    "branch_summary": Role.SUMMARY,
}
"""pi's entry types other than `message`."""

CLAUDE_META_TYPES: Final = frozenset(
    {
        "agent-color",
        "agent-name",
        "agent-setting",
        "ai-title",
        "attachment",
        "attribution-snapshot",
        "content-replacement",
        "cost-state",
        "custom-title",
        "file-history-delta",
        "file-history-snapshot",
        "last-prompt",
        "mode",
        "permission-mode",
        "pr-link",
        "progress",
        "queue-operation",
        "system",
        "tag",
        "worktree-state",
    }
)
"""Claude Code's row types that are bookkeeping."""

_OPENAI_ROLES: Final[Mapping[str, Role]] = {
    "system": Role.SYSTEM,
    "developer": Role.DEVELOPER,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
    "function": Role.TOOL,
}


def describe(row: dict[str, Any], fmt: TranscriptFormat) -> Facts:
    """What `row`, a parsed line of a transcript in the given format, says of itself. Not for plain text."""
    return _DESCRIBERS[fmt](row)


def _pi(row: dict[str, Any]) -> Facts:
    kind = row.get("type")
    elsewhere = None
    calls: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    known = True
    shown: str | None
    if kind == "message":
        message = _mapping(row.get("message"))
        spoken = message.get("role")
        known = spoken in _PI_ROLES if isinstance(spoken, str) else False
        role, shown = _PI_ROLES.get(str(spoken), (Role.OTHER, label(spoken) or UNTYPED))
        calls = tuple(_ids(message, "toolCall", "id"))
        if role is Role.TOOL:
            results = _present(message.get("toolCallId"))
    elif isinstance(kind, str) and kind in PI_TYPES:
        role, shown = PI_TYPES[kind], kind
        # A session that was branched off another names the file it comes from.
        elsewhere = row.get("parentSession") or row.get("branchedFrom") if kind == "session" else None
    else:
        role, shown, known = Role.OTHER, label(kind) or UNTYPED, False
    return Facts(
        role,
        shown,
        known,
        entry_id=encodable(row.get("id")),
        parent_id=encodable(row.get("parentId")),
        elsewhere_id=encodable(elsewhere),
        calls=calls,
        results=results,
    )


def _claude_code(row: dict[str, Any]) -> Facts:
    message = _mapping(row.get("message"))
    calls = tuple(_part_calls(message))
    results = tuple(_part_results(message))
    role, kind, known = _claude_role(row, results)
    return Facts(
        role,
        kind,
        known,
        entry_id=encodable(row.get("uuid")),
        parent_id=encodable(row.get("parentUuid")),
        elsewhere_id=encodable(row.get("logicalParentUuid")),
        calls=calls,
        results=results,
        # One answer of the model is written as several rows, one for each part of it.
        message_id=encodable(message.get("id")),
    )


def _claude_role(row: dict[str, Any], results: tuple[str, ...]) -> tuple[Role, str | None, bool]:
    kind = row.get("type")
    aside = "sidechain" if row.get("isSidechain") is True else None
    if kind == "user":
        if row.get("isCompactSummary") is True:
            return Role.SUMMARY, "compact_summary", True
        if results:
            return Role.TOOL, aside, True
        return Role.USER, "meta" if row.get("isMeta") is True else aside, True
    if kind == "assistant":
        return Role.ASSISTANT, aside, True
    if kind == "summary":
        return Role.SUMMARY, "summary", True
    if kind == "system":
        return Role.META, label(row.get("subtype")) or "system", True
    if isinstance(kind, str) and kind in CLAUDE_META_TYPES:
        return Role.META, kind, True
    return Role.OTHER, label(kind) or UNTYPED, False


def _openai(row: dict[str, Any]) -> Facts:
    spoken = row.get("role")
    calls = [*_part_calls(row)]
    results = [*_part_results(row)]
    for call in _mappings(row.get("tool_calls")):
        calls += _present(call.get("id"))
    if spoken == "tool":
        results += _present(row.get("tool_call_id"))
    # The older form has no ids: a function is answered by its name. The prefix keeps it from meeting an id.
    calls += (f"function\0{name}" for name in _present(_mapping(row.get("function_call")).get("name")))
    if spoken == "function":
        results += (f"function\0{name}" for name in _present(row.get("name")))
    known = isinstance(spoken, str) and spoken in _OPENAI_ROLES
    role = _OPENAI_ROLES[spoken] if isinstance(spoken, str) and known else Role.OTHER
    if role is Role.USER and results:
        role = Role.TOOL
    return Facts(
        role,
        None if known else label(spoken) or label(row.get("type")) or UNTYPED,
        known,
        entry_id=encodable(row.get("id")),
        calls=tuple(calls),
        results=tuple(results),
    )


_DESCRIBERS: Final[Mapping[TranscriptFormat, Callable[[dict[str, Any]], Facts]]] = {
    TranscriptFormat.PI: _pi,
    TranscriptFormat.CLAUDE_CODE: _claude_code,
    TranscriptFormat.OPENAI: _openai,
}


def _part_calls(message: Mapping[str, Any]) -> Iterator[str]:
    """Calls among the parts of an Anthropic message: `tool_use`, `server_tool_use`, `mcp_tool_use`."""
    for part in _mappings(message.get("content")):
        kind = part.get("type")
        if isinstance(kind, str) and kind.endswith("tool_use"):
            yield from _present(part.get("id"))


def _part_results(message: Mapping[str, Any]) -> Iterator[str]:
    """Results among them: `tool_result`, `web_search_tool_result` and others that name a `tool_use_id`."""
    for part in _mappings(message.get("content")):
        kind = part.get("type")
        if isinstance(kind, str) and kind.endswith("tool_result"):
            yield from _present(part.get("tool_use_id"))


def _ids(message: Mapping[str, Any], kind: str, key: str) -> Iterator[str]:
    for part in _mappings(message.get("content")):
        if part.get("type") == kind:
            yield from _present(part.get(key))


def _present(value: object) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) and value else ()


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: object) -> Iterator[Mapping[str, Any]]:
    if isinstance(value, list):
        for item in value:
            if isinstance(item, dict):
                yield item
