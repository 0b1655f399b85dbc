"""The AsyncAPI document as it is generated, and a page of it that needs no network and no script.

The page that FastStream would serve loads its renderer from elsewhere, and tells what FastStream knows of the
handlers, which take any bytes. The contract is what is generated from the models.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from html import escape
from typing import Any, Final

from sexton.schemas import asyncapi
from sexton.schemas.json_schema import json_schemas

POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy of the page: it loads nothing."""

_STYLE: Final = """
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
code { font-family: ui-monospace, monospace; font-size: 0.9em; }
section { border-top: 1px solid #8884; }
dt { font-weight: 600; } dd { margin: 0 0 0.5rem 1.5rem; }
:root { color-scheme: light dark; }
"""


@cache
def document() -> dict[str, Any]:
    """The AsyncAPI document."""
    return asyncapi.document()


@cache
def schemas() -> Mapping[str, Any]:
    """The JSON Schemas that it refers to, by name."""
    return json_schemas()


@cache
def page() -> str:
    """The document for a person."""
    found = document()
    info = found["info"]
    parts = [
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        _told(info["description"]),
        '<p>The document itself: <a href="asyncapi.json">asyncapi.json</a>.</p>',
        "<h2>Channels</h2>",
        *(_channel(name, channel, found) for name, channel in found["channels"].items()),
        "<h2>Messages</h2>",
        *(_message(name, message) for name, message in found["components"]["messages"].items()),
    ]
    head = f'<meta charset="utf-8"><title>{escape(info["title"])}</title><style>{_STYLE}</style>'
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>'


def _channel(name: str, channel: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    address = channel.get("address")
    parameters = {name: about["description"] for name, about in channel.get("parameters", {}).items()}
    facts = [
        ("Messages", _links("message", channel["messages"])),
        ("May publish", _names(channel.get(asyncapi.PUBLISH, ()))),
        ("May subscribe", _names(channel.get(asyncapi.SUBSCRIBE, ()))),
        ("A worker", _names(_actions(name, whole["operations"].values()))),
        ("Parameters", _told_of(parameters)),
    ]
    title = f"<code>{escape(address)}</code>" if address else f"{escape(name)} (an inbox)"
    return (
        f'<section id="channel-{escape(name)}"><h3>{title}</h3>{_told(channel.get("summary", ""))}'
        f"{_told(channel.get('description', ''))}{_facts(facts)}</section>"
    )


def _message(name: str, message: Mapping[str, Any]) -> str:
    schema = message.get("payload", {}).get("schema", {}).get("$ref", "")
    headers = message.get("headers", {}).get("schema", {}).get("properties", {})
    facts = [
        ("Payload", f'<a href="{escape(schema)}">{escape(schema)}</a>' if schema else ""),
        ("Headers", _told_of({header: about.get("description", "") for header, about in headers.items()})),
    ]
    return (
        f'<section id="message-{escape(name)}"><h3>{escape(message.get("title", name))}</h3>'
        f"{_told(message.get('summary', ''))}{_facts(facts)}</section>"
    )


def _actions(channel: str, operations: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    wanted = f"#/channels/{channel}"
    return (f"{op['action']}s" for op in operations if op["channel"]["$ref"] == wanted)


def _links(kind: str, names: Iterable[str]) -> str:
    return ", ".join(f'<a href="#{kind}-{escape(name)}"><code>{escape(name)}</code></a>' for name in names)


def _names(names: Iterable[str]) -> str:
    return ", ".join(escape(name) for name in names)


def _told_of(named: Mapping[str, str]) -> str:
    return "; ".join(f"<code>{escape(name)}</code>: {escape(about)}" for name, about in named.items())


def _facts(facts: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<dt>{escape(title)}</dt><dd>{value}</dd>" for title, value in facts if value)
    return f"<dl>{rows}</dl>" if rows else ""


def _told(text: str) -> str:
    return f"<p>{escape(text)}</p>" if text else ""
