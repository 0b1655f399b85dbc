"""Errors that come over the wire are what they were."""

import inspect
from typing import Any

import pytest

from sexton.core.answer import error_part
from sexton.schemas import errors
from sexton.schemas.codec import InvalidMessage, decode
from sexton.schemas.errors import (
    BoundaryError,
    LevelMismatch,
    MalformedMessage,
    PeerError,
    SextonError,
    StaleSpanError,
    Unreachable,
)
from sexton.schemas.ids import Level
from sexton.schemas.rpc import RpcError
from sexton.schemas.span import CurrentIdentity, Identity, SpanState
from sexton.schemas.wire_errors import error_from

IDENTITY = Identity(
    span_id="l0:a", version=2, level=Level.L0_VERBATIM, content_hash="sha256:" + "0" * 64, size_bytes=7
)
CURRENT = CurrentIdentity(**dict(IDENTITY), state=SpanState.LIVE, epoch=3)


def over_the_wire(error: SextonError) -> SextonError:
    return error_from(decode(RpcError, error_part("notes", error).wire()))


def plain_kinds() -> list[type[SextonError]]:
    found = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, SextonError)]
    return [kind for kind in found if kind not in (errors.CommandRejected, BoundaryError)]


@pytest.mark.parametrize("kind", plain_kinds(), ids=lambda kind: kind.__name__)
def test_every_error_arrives_as_itself(kind: type[SextonError]) -> None:
    """No error of the schemas is forgotten here when one is added there."""
    arrived = over_the_wire(kind("went wrong", span_id="l0:a", budget_s=1.5))
    assert kind is type(arrived)
    assert "went wrong" == str(arrived)
    assert ("l0:a", 1.5) == (arrived.fields["span_id"], arrived.fields["budget_s"])


@pytest.mark.parametrize("current", [IDENTITY, CURRENT], ids=["identity", "current"])
def test_an_identity_is_an_identity_again(current: Identity) -> None:
    """C06: the conflict says what is there now, as an object and not as a dictionary."""
    stale = over_the_wire(StaleSpanError("stale", current=current))
    assert isinstance(stale, StaleSpanError)
    assert current == stale.current
    assert current == over_the_wire(LevelMismatch("level", current=current)).fields["current"]


def test_a_flag_survives() -> None:
    """A refusal that may only mean that the worker lags says so."""
    assert over_the_wire(Unreachable("unknown", maybe_behind=True)).fields["maybe_behind"] is True


def test_a_boundary_error_has_its_cuts() -> None:
    """C81: the nearest boundaries are byte offsets again."""
    arrived = over_the_wire(BoundaryError("cuts a character", nearest=(3, 9), offset=4, length=2))
    assert isinstance(arrived, BoundaryError)
    assert ((3, 9), 4) == (arrived.nearest, arrived.fields["offset"])


def test_problems_of_a_malformed_message_survive() -> None:
    """The list of what is wrong is a list of pairs again."""
    for kind in (MalformedMessage, InvalidMessage):
        arrived = over_the_wire(kind("bad", problems=[("spans.0", "Field required")]))
        assert isinstance(arrived, kind)
        assert (("spans.0", "Field required"),) == arrived.problems


def test_an_unknown_code_is_the_peers_error() -> None:
    """A newer service may fail in ways unknown here: code and fields are kept."""
    arrived = error_from(
        RpcError(context_id="notes", code="moon_phase", message="not now", fields={"phase": "full"})
    )
    assert PeerError is type(arrived)
    assert {"code": "moon_phase", "phase": "full"} == arrived.fields
    assert "not now" == str(arrived)


@pytest.mark.parametrize(
    "fields",
    [
        {"message": "x", "self": 1},
        {"nearest": "somewhere"},
        {"nearest": [1, "2"]},
        {"problems": 7},
        {"problems": [1, ["a"], ["place", "what"]]},
        {"current": {"span_id": "l0:a"}},
        {"current": 3},
    ],
)
@pytest.mark.parametrize("code", ["stale_span", "boundary", "malformed", "invalid", "unreachable", "odd"])
def test_odd_fields_break_nothing(code: str, fields: dict[str, Any]) -> None:
    """Whatever a peer puts into the fields, what comes out is an error of ours."""
    part = RpcError(context_id="notes", code=code, message="went wrong", fields=fields)
    assert "went wrong" == str(error_from(part))
