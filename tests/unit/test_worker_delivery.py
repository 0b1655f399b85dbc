"""What becomes of a delivered message: acknowledged, given back with a delay, or a dead letter."""

import asyncio
import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import nats.errors
import pytest

from sexton.schemas.codec import InvalidMessage
from sexton.schemas.dead import DEAD_LETTER_HEADER
from sexton.schemas.errors import LineageError, MalformedMessage, Unavailable, UnsupportedSchema
from sexton.worker.delivery import Delivery
from sexton.worker.settings import Settings
from tests.support.waiting import eventually

MAX_DELIVERIES = 4


@dataclass
class Message:
    """A delivered message that notes how it was settled."""

    deliveries: int = 1
    data: bytes = b"\xff original"
    settled: list[tuple[str, float]] = field(default_factory=list)
    broken: bool = False

    @property
    def raw_message(self) -> Any:
        meta = SimpleNamespace(
            stream="SEXTON_COMMANDS",
            num_delivered=self.deliveries,
            sequence=SimpleNamespace(stream=7),
            timestamp=datetime(2026, 1, 2, tzinfo=UTC),
        )
        return SimpleNamespace(metadata=meta, subject="sexton.part.0.ctx.append", data=self.data)

    async def ack(self) -> None:
        self._settle("ack")

    async def reject(self) -> None:
        self._settle("reject")

    async def nack(self, delay: float) -> None:
        self._settle("nack", delay)

    async def in_progress(self) -> None:
        self._settle("in_progress")

    def _settle(self, how: str, delay: float = 0.0) -> None:
        if self.broken:
            raise nats.errors.ConnectionClosedError
        self.settled.append((how, delay))

    @property
    def ways(self) -> list[str]:
        return [how for how, _ in self.settled]


@dataclass
class DeadLetters:
    """The dead letter stream; `error` is what publishing raises."""

    published: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)
    error: Exception | None = None

    async def publish(self, subject: str, data: bytes, headers: dict[str, str]) -> None:
        if self.error is not None:
            raise self.error
        self.published.append((subject, data, headers))


@pytest.fixture
def letters() -> DeadLetters:
    return DeadLetters()


async def handle(
    message: Message, letters: DeadLetters, result: Any = None, *, buried: Any = None, **more: Any
) -> None:
    fields: dict[str, Any] = {
        "max_deliveries": MAX_DELIVERIES,
        "retry_delay_s": 0.1,
        "retry_delay_max_s": 5.0,
    }
    js: Any = letters
    msg: Any = message

    async def handler(_: Any) -> None:
        if isinstance(result, BaseException):
            raise result
        if result is not None:
            await result()

    await Delivery(Settings(**(fields | more)), lambda: js, buried=buried).handle(handler, msg)


async def test_a_handled_message_is_acknowledged_once(letters: DeadLetters) -> None:
    """And only after its handler has come back."""
    message = Message()

    async def not_yet() -> None:
        assert [] == message.ways

    await handle(message, letters, not_yet)
    assert ["ack"] == message.ways


@pytest.mark.parametrize(
    "error",
    [Unavailable("away"), UnsupportedSchema("of a newer worker"), RuntimeError("a bug"), KeyError("x")],
    ids=lambda e: type(e).__name__,
)
async def test_a_fault_gives_the_message_back(letters: DeadLetters, error: Exception) -> None:
    """I7: a transient fault, a newer message in a rolling upgrade, and a bug: none of them loses it."""
    message = Message()
    await handle(message, letters, error)
    assert ["nack"] == message.ways
    assert [] == letters.published


async def test_the_delay_grows_up_to_a_bound(letters: DeadLetters) -> None:
    """An outage is not answered with a storm, and its end is noticed soon."""
    delays: list[float] = []
    for deliveries in (1, 2, 3, 4, 5, 6, 7, 8, 60):
        message = Message(deliveries)
        await handle(message, letters, Unavailable("away"), max_deliveries=99)
        delays.append(message.settled[0][1])
    full = [min(0.1 * 2**n, 5.0) for n in (0, 1, 2, 3, 4, 5, 6, 7, 59)]
    assert all(most / 2 <= delay <= most for delay, most in zip(delays, full, strict=True)), delays


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MalformedMessage("no message"), "malformed"),
        (InvalidMessage("a field"), "invalid"),
        (LineageError("the log contradicts itself"), "lineage"),
    ],
)
async def test_what_cannot_be_understood_is_a_dead_letter(
    letters: DeadLetters, error: Exception, reason: str
) -> None:
    """I7: the original bytes, the reason, where it was; and then it is never delivered again."""
    message = Message()
    await handle(message, letters, error)
    assert ["reject"] == message.ways
    [(subject, data, headers)] = letters.published
    assert ("sexton.dead.SEXTON_COMMANDS", b"\xff original") == (subject, data)
    letter = json.loads(headers[DEAD_LETTER_HEADER])
    assert (reason, str(error), 7, 1) == (
        letter["reason"],
        letter["message"],
        letter["stream_sequence"],
        letter["deliveries"],
    )
    assert "sexton.part.0.ctx.append" == letter["subject"]


@pytest.mark.parametrize("error", [Unavailable("still away"), RuntimeError("a bug")])
async def test_a_message_that_exhausts_its_tries_is_a_dead_letter(
    letters: DeadLetters, error: Exception
) -> None:
    """I7: not before, and with what happened last; a bug's own words may hold content, so only its kind."""
    message = Message(MAX_DELIVERIES - 1)
    await handle(message, letters, error)
    assert ["nack"] == message.ways
    message = Message(MAX_DELIVERIES)
    await handle(message, letters, error)
    assert ["reject"] == message.ways
    letter = json.loads(letters.published[0][2][DEAD_LETTER_HEADER])
    assert "exhausted" == letter["reason"]
    assert ("still away" in letter["message"]) == isinstance(error, Unavailable)
    assert "a bug" not in letter["message"]


@pytest.mark.parametrize("told", [True, False])
async def test_who_sent_it_is_told_of_a_dead_letter(letters: DeadLetters, told: bool) -> None:
    """After it is stored, before it is dropped; if they cannot be told it is a dead letter all the same."""
    message, heard = Message(deliveries=MAX_DELIVERIES), list[tuple[bytes, str]]()

    async def buried(raw: Any, why: str) -> None:
        assert (1, []) == (len(letters.published), message.ways)
        heard.append((raw.data, why))
        if not told:
            raise Unavailable("no connection")

    await handle(message, letters, Unavailable("no store"), buried=buried)
    assert ["reject"] == message.ways
    assert [(message.data, f"{MAX_DELIVERIES} deliveries; last: no store")] == heard


async def test_nobody_is_told_of_a_dead_letter_that_is_none_yet(letters: DeadLetters) -> None:
    """It could not be stored, and will come again."""
    letters.error = TimeoutError()
    message = Message(deliveries=MAX_DELIVERIES)

    async def buried(raw: Any, why: str) -> None:
        raise AssertionError(why)

    await handle(message, letters, Unavailable("no store"), buried=buried)
    assert ["nack"] == message.ways


@pytest.mark.parametrize(
    "error", [nats.errors.TimeoutError(), nats.errors.ConnectionClosedError(), TimeoutError(), OSError()]
)
async def test_a_dead_letter_that_cannot_be_stored_is_kept_where_it_is(
    letters: DeadLetters, error: Exception
) -> None:
    """I7: never in neither of the two."""
    letters.error = error
    message = Message()
    await handle(message, letters, MalformedMessage("no message"))
    assert ["nack"] == message.ways


async def test_a_reason_without_end_is_cut(letters: DeadLetters) -> None:
    """The letter and the original must fit into one message, or it would block its partition for ever."""
    await handle(Message(), letters, MalformedMessage("x" * 800_000))
    assert len(letters.published[0][2][DEAD_LETTER_HEADER]) < 2000


async def test_a_reason_is_one_line_of_ascii(letters: DeadLetters) -> None:
    """A header can hold nothing else."""
    await handle(Message(), letters, MalformedMessage("two\r\nlines, é and \x00"))
    header = letters.published[0][2][DEAD_LETTER_HEADER]
    assert header.isascii()
    assert header.isprintable()


async def test_letters_of_two_lives_of_a_stream_are_two(letters: DeadLetters) -> None:
    """C26: a stream that was made anew counts from one again; its letter must not pass for a repeat."""
    for _ in range(2):
        await handle(Message(), letters, MalformedMessage("no message"))
    again = Message()
    meta = again.raw_message.metadata
    ids = [headers["Nats-Msg-Id"] for _, _, headers in letters.published]
    assert ids[0] == ids[1]
    assert str(meta.timestamp.timestamp()) in ids[0]


async def test_a_slow_handler_says_in_progress(letters: DeadLetters) -> None:
    """C23: it is not given to another while it runs, and the beat ends with it."""
    message = Message()

    async def slow() -> None:
        await eventually(lambda: message.ways.count("in_progress"), until=lambda n: n >= 3)

    await handle(message, letters, slow, ack_wait_s=0.31)
    assert "ack" == message.ways[-1]
    await eventually(
        lambda: [task for task in asyncio.all_tasks() if task.get_name() == "delivery.beat"],
        until=lambda beats: not beats,
    )


async def test_a_connection_that_is_gone_does_not_matter(letters: DeadLetters) -> None:
    """I8: what could not be acknowledged comes again, and is safe to handle again."""
    for result in (None, Unavailable("away"), MalformedMessage("no message")):
        await handle(Message(broken=True), letters, result)


async def test_a_cancelled_handler_settles_nothing(letters: DeadLetters) -> None:
    """C15: the message belongs to whoever comes next."""
    message = Message()
    with pytest.raises(asyncio.CancelledError):
        await handle(message, letters, asyncio.CancelledError())
    assert [] == message.ways
