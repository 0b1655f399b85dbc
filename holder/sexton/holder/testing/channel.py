"""One kind of traffic between a holder and the service, and everything that can happen to it."""

import asyncio
from collections.abc import Callable

Delivery = Callable[[], None]
Order = Callable[[list[Delivery]], list[Delivery]]


class Channel:
    """Passes messages on, each in a turn of its own, until it is told otherwise."""

    def __init__(self, moved: Callable[[], None]) -> None:
        self.passed = 0
        """Messages delivered, repeats counted."""
        self.lost = 0
        """Messages lost."""
        self._moved = moved
        self._to_lose: float = 0
        self._held: list[Delivery] | None = None
        self._copies = 1

    def lose(self, count: int | None = None) -> None:
        """Loses the next `count` messages; without a count all, until `work`."""
        self._to_lose = float("inf") if count is None else count

    def repeat(self, copies: int = 2) -> None:
        """Delivers every message this many times, until `work`."""
        self._copies = copies

    def hold(self) -> None:
        """Keeps messages back until `release`."""
        if self._held is None:
            self._held = []

    @property
    def held(self) -> int:
        """Messages kept back."""
        return len(self._held or ())

    def release(self, order: Order | None = None) -> None:
        """Delivers what was kept back, in the order that `order` makes of it, and what comes after."""
        held, self._held = self._held or [], None
        for deliver in order(held) if order is not None else held:
            self._pass(deliver)

    def work(self) -> None:
        """Ends losing and repeating, and releases what is held."""
        self._to_lose = 0
        self._copies = 1
        self.release()

    def send(self, deliver: Delivery) -> None:
        """Takes a message, in the form of what its delivery does."""
        if self._to_lose > 0:
            self._to_lose -= 1
            self.lost += 1
            self._moved()
        elif self._held is not None:
            self._held.append(deliver)
            self._moved()
        else:
            self._pass(deliver)

    def _pass(self, deliver: Delivery) -> None:
        def now() -> None:
            self.passed += 1
            self._moved()
            deliver()

        for _ in range(self._copies):
            asyncio.get_running_loop().call_soon(now)
