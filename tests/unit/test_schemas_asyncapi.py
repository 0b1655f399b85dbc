"""The AsyncAPI document: whole, true to the subjects, and clear about who may do what.

There is no validator of AsyncAPI here; what its specification says of the objects that are used is checked by
hand.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from jsonschema import Draft202012Validator

from sexton.schemas import asyncapi, subjects
from sexton.schemas.asyncapi import HOLDERS, OPERATORS, PUBLISH, SUBSCRIBE, WORKERS
from sexton.schemas.commands import CommandKind
from sexton.schemas.dead import DEAD_LETTER_HEADER
from sexton.schemas.json_schema import messages
from sexton.schemas.ops import OpsVerb
from sexton.schemas.outcome import REPLY_HEADER
from sexton.schemas.rpc import Verb
from tests.schemas_kit.examples import EXAMPLES, message_name

PUBLISHED: Final = Path(__file__).parents[2] / "schemas"
DOCUMENT: Final = asyncapi.document()
CHANNELS: Final[dict[str, Any]] = DOCUMENT["channels"]
OPERATIONS: Final[dict[str, Any]] = DOCUMENT["operations"]

# The fields that version 3.0.0 of the specification has for each object; any may be extended by x-...
FIELDS: Final = {
    "document": "asyncapi id info servers defaultContentType channels operations components",
    "info": "title version description termsOfService contact license tags externalDocs",
    "server": "host protocol protocolVersion pathname description title summary variables security tags"
    " externalDocs bindings",
    "channel": "address messages title summary description servers parameters tags externalDocs bindings",
    "parameter": "enum default description examples location",
    "operation": "action channel title summary description security tags externalDocs bindings traits"
    " messages reply",
    "reply": "address channel messages",
    "message": "headers payload correlationId contentType name title summary description tags externalDocs"
    " bindings examples traits",
}


def check_fields(kind: str, value: dict[str, Any]) -> None:
    assert set() == {field for field in value if not field.startswith("x-")} - set(FIELDS[kind].split())


def references(value: Any) -> Iterator[str]:
    match value:
        case dict():
            if isinstance(value.get("$ref"), str):
                yield value["$ref"]
            for item in value.values():
                yield from references(item)
        case list():
            for item in value:
                yield from references(item)


def resolved(reference: str) -> Any:
    """What a reference leads to: in the document, or in a file beside it."""
    file, _, pointer = reference.partition("#")
    value = DOCUMENT if not file else json.loads((PUBLISHED / file).read_text(encoding="utf-8"))
    for step in pointer.split("/")[1:]:
        value = value[step]
    return value


# --- the shape -------------------------------------------------------------------------------------------


def test_the_document_has_the_shape_that_the_specification_gives() -> None:
    """Version, required fields, and no field that there is not."""
    assert "3.0.0" == DOCUMENT["asyncapi"]
    assert DOCUMENT["info"]["title"]
    assert DOCUMENT["info"]["version"]
    check_fields("document", DOCUMENT)
    check_fields("info", DOCUMENT["info"])
    for server in DOCUMENT["servers"].values():
        check_fields("server", server)
        assert "nats" == server["protocol"]
        assert set(re.findall(r"\{(\w+)\}", server["host"])) == set(server["variables"])
    for message in DOCUMENT["components"]["messages"].values():
        check_fields("message", message)


@pytest.mark.parametrize("name", CHANNELS)
def test_a_channel_is_whole(name: str) -> None:
    """It has messages, and a parameter for each place of its address; an inbox has no address and says so."""
    channel = CHANNELS[name]
    check_fields("channel", channel)
    assert channel["messages"]
    assert channel["summary"]
    assert channel["description"]
    assert "address" in channel
    assert set(re.findall(r"\{(\w+)\}", channel["address"] or "")) == set(channel.get("parameters", {}))
    for parameter in channel.get("parameters", {}).values():
        check_fields("parameter", parameter)
    for key, reference in channel["messages"].items():
        assert {"$ref": f"#/components/messages/{key}"} == reference


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_whole(name: str) -> None:
    """Its messages, and those of its reply, are messages of the channel that they go over."""
    operation = OPERATIONS[name]
    check_fields("operation", operation)
    assert operation["action"] in ("send", "receive")
    exchanges = [operation]
    if "reply" in operation:
        check_fields("reply", operation["reply"])
        assert resolved(operation["reply"]["channel"]["$ref"])["address"] is None
        exchanges.append(operation["reply"])
    for exchange in exchanges:
        channel = exchange["channel"]["$ref"]
        assert channel.startswith("#/channels/")
        assert exchange["messages"]
        for message in exchange["messages"]:
            assert message["$ref"].startswith(f"{channel}/messages/")


def test_every_reference_leads_somewhere() -> None:
    """Inside the document, and to the schemas beside it."""
    found = set(references(DOCUMENT))
    assert found
    for reference in found:
        assert resolved(reference)


def test_every_address_is_one_channel() -> None:
    """Two channels of one address would be two truths."""
    addresses = [channel["address"] for channel in CHANNELS.values() if channel["address"] is not None]
    assert len(addresses) == len(set(addresses))


# --- the subjects ----------------------------------------------------------------------------------------


def filled(address: str) -> str:
    return re.sub(r"\{(\w+)\}", lambda m: {"partition": "3", "kind": "prune"}.get(m[1], m[1]), address)


def test_every_subject_has_a_channel_and_every_channel_is_a_subject() -> None:
    """What `subjects` builds and what the document says are the same set."""
    built = {
        *(subjects.command("context_id", kind) for kind in CommandKind),
        *(subjects.rpc("context_id", verb) for verb in Verb),
        *(subjects.ops("context_id", verb) for verb in OpsVerb),
        subjects.log("context_id"),
        subjects.epoch("context_id"),
        subjects.outcome("context_id", "event_id"),
        subjects.summarise("context_id"),
        subjects.failure("context_id"),
        subjects.dead_letter("stream"),
        subjects.incident("sha256:fingerprint"),
        "sexton.part.3.context_id.prune",
    }
    described = {filled(c["address"]) for c in CHANNELS.values() if c["address"] is not None}
    assert built == described


def test_every_message_goes_over_a_channel() -> None:
    """But for those that only lie in others."""
    inside = {"pointer", "snapshot"}
    carried = {name for channel in CHANNELS.values() for name in channel["messages"]}
    assert set(messages()) - inside == carried
    assert carried == set(DOCUMENT["components"]["messages"])


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_one_message_of_each_of_its_channels(example: str) -> None:
    """A message on a channel is valid against one message there and no other."""
    value = json.loads(EXAMPLES[example])
    for channel in CHANNELS.values():
        names = channel["messages"]
        if message_name(example) in names and "dead_letter" not in names:
            payloads = {name: resolved(names[name]["$ref"])["payload"]["schema"]["$ref"] for name in names}
            fitting = [
                n for n, ref in payloads.items() if Draft202012Validator(resolved(ref)).is_valid(value)
            ]
            assert [message_name(example)] == fitting


# --- who may ---------------------------------------------------------------------------------------------


def channels_for(who: str, right: str) -> set[str]:
    return {name for name, channel in CHANNELS.items() if who in channel[right]}


def test_what_holders_may_do() -> None:
    """They publish commands and requests, and hear bumps, outcomes and answers: all that they need."""
    verbs = {verb.value for verb in Verb}
    assert {*CommandKind, *verbs} == channels_for(HOLDERS, PUBLISH)
    answers = {f"{verb}_reply" for verb in verbs}
    assert {"epoch", "outcome", "outcome_inbox", *answers} == channels_for(HOLDERS, SUBSCRIBE)


def test_what_is_private_to_workers() -> None:
    """The log and the queues: a holder that could publish there could say anything."""
    private = {"partitioned", "log", "summarise", "failure", "dead_letter"}
    for name in private:
        assert HOLDERS not in CHANNELS[name][PUBLISH] + CHANNELS[name][SUBSCRIBE]
    assert {WORKERS} == {who for name in private for who in CHANNELS[name][PUBLISH]}


def test_nobody_publishes_bumps() -> None:
    """The server republishes what is committed; the commit is the broadcast."""
    assert [] == CHANNELS["epoch"][PUBLISH]


def test_what_operators_may_do() -> None:
    """They ask; they change nothing but by asking."""
    assert {f"ops_{verb.value}" for verb in OpsVerb} == channels_for(OPERATORS, PUBLISH)


def test_a_reply_says_its_rule_of_parts() -> None:
    """And that an error may be the answer."""
    replies = [channel for name, channel in CHANNELS.items() if name.endswith("_reply")]
    assert len(Verb) + len(OpsVerb) == len(replies)
    for channel in replies:
        assert asyncapi.PARTS in channel["description"]
        assert "rpc_error" in channel["messages"]


def test_a_command_names_its_inbox_in_a_header() -> None:
    """The reply subject is JetStream's."""
    for kind in CommandKind:
        reply = OPERATIONS[f"receive_{kind.value}"]["reply"]
        assert {"location": f"$message.header#/{REPLY_HEADER}"} == reply["address"]
        headers = DOCUMENT["components"]["messages"][kind.value]["headers"]["schema"]
        inbox = Draft202012Validator(headers)
        assert inbox.is_valid({REPLY_HEADER: "_INBOX.a.b"})
        assert inbox.is_valid({})
        assert not inbox.is_valid({REPLY_HEADER: "sexton.log.c"})


def test_a_dead_letter_is_the_original_and_a_header() -> None:
    """The payload is whatever came."""
    message = DOCUMENT["components"]["messages"]["dead_letter"]
    assert "payload" not in message
    assert "application/octet-stream" == message["contentType"]
    assert [DEAD_LETTER_HEADER] == message["headers"]["schema"]["required"]
