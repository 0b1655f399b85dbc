"""HTTP beside a program: where it listens, and what it leaves alone."""

import asyncio
import signal
import socket
from typing import Any

import pytest

from sexton.schemas.errors import InvalidInput
from sexton.worker.health import Health
from sexton.worker.web import make_app, serving
from tests.support.http import fetch
from tests.support.waiting import deadline


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
async def test_it_listens_where_it_is_told(host: str) -> None:
    """On a free port if that is 0; the URL is one that can be asked."""
    if host == "::1" and not has_ipv6():
        pytest.skip("no IPv6 here")
    async with serving(make_app(Health()), host, 0) as endpoint:
        assert 200 == (await fetch(f"{endpoint.url}/livez")).status


def has_ipv6() -> bool:
    """A machine without it may still know the name."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


async def test_an_address_of_another_machine_is_bad_input() -> None:
    """It names the variable, and is no traceback."""
    with pytest.raises(InvalidInput, match=r"SEXTON_HTTP_PORT: cannot listen on 192\.0\.2\.1:0"):
        async with serving(make_app(Health()), "192.0.2.1", 0):
            pass


async def test_it_takes_no_signals() -> None:
    """They are for the program that it is a part of."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    async with serving(make_app(Health()), "127.0.0.1", 0) as endpoint:
        await fetch(f"{endpoint.url}/livez")
        assert before == {number: signal.getsignal(number) for number in before}
    assert before == {number: signal.getsignal(number) for number in before}


async def test_it_ends_though_somebody_holds_a_connection_open() -> None:
    """A client that says nothing is not waited for."""
    async with deadline(10, "its end"):
        async with serving(make_app(Health()), "127.0.0.1", 0) as endpoint:
            _, writer = await asyncio.open_connection(endpoint.host, endpoint.port)
            writer.write(b"GET /livez HTTP/1.1\r\nHost: ")
            await writer.drain()
        writer.close()


async def test_a_fault_of_a_check_is_no_traceback_to_strangers(caplog: pytest.LogCaptureFixture) -> None:
    """It is a 500 without words, and in the log."""

    async def broken() -> Any:
        raise RuntimeError("redis://:s3cret@host")

    health = Health()
    health.add_ready("registry", broken)
    health.started()
    async with serving(make_app(health), "127.0.0.1", 0) as endpoint:
        found = await fetch(f"{endpoint.url}/readyz")
        assert (500, b"Internal Server Error") == (found.status, found.body)
    assert ["Exception occurred while processing request"] == [r.message for r in caplog.records]
