"""The messages in hand: fetched up to a number, each committed by itself."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from operator import index
from typing import Protocol

from ray_messaging.common.task_health import end
from ray_messaging.errors import ConfigError
from ray_messaging.message import Message
from ray_messaging.messages import Messages
from ray_messaging.receiving.call_checks import CommitMode


class Fetch(Protocol):
    """Fetches messages."""

    def __call__(self, *, limit: int | None, timeout: float | None, commit: CommitMode) -> Awaitable[Messages]:
        """Return new messages."""


class HandOut:
    """The messages in hand, at most `most`: they are fetched, given to `take`, and committed once they are handled.

    A message is in hand until its commit is durable: no more than `most` come again after a crash. Those that are
    handled while a commit is on its way are committed together by the next one.
    """

    def __init__(
        self,
        fetch: Fetch,
        ack: Callable[[Iterable[Message]], Awaitable[None]],
        take: Callable[[Message], None],
        most: object,
    ) -> None:
        self._fetch_messages = fetch
        self._ack = ack
        self._take = take
        self._most = check_most(most)
        self._in_hand = 0
        self._stopped = False
        self._handled: list[Message] = []  # and not committed
        self._news = asyncio.Event()  # a message was handled, or the end is near
        self._room = asyncio.Event()

    @property
    def full(self) -> bool:
        """Tell whether no message is fetched before one is handled."""
        return self._in_hand >= self._most

    def handled(self, message: Message) -> None:
        """Note that a message is handled: it is committed soon."""
        self._handled.append(message)
        self._news.set()

    def release(self, messages: int = 1) -> None:
        """Note that messages are not in hand any more."""
        self._in_hand -= messages
        self._room.set()
        self._news.set()

    def stop(self) -> None:
        """Fetch no more; `run` returns once nothing is in hand."""
        self._stopped = True
        self._news.set()

    async def run(self, first: Sequence[Message] = ()) -> None:
        """Fetch and commit until `stop`, or until the messager closes: that raises its error.

        Args: `first` were fetched before, and come first.
        """
        fetching = asyncio.create_task(self._fetch(first), name="ray_messaging fetch")
        fetching.add_done_callback(lambda _: self._news.set())
        try:
            while self._in_hand or not self._stopped:
                await self._news.wait()
                self._news.clear()
                if self._stopped:
                    await end(fetching)
                elif fetching.done():
                    fetching.result()
                await self.commit()
        finally:
            await end(fetching)

    async def commit(self) -> None:
        """Commit the messages that were handled."""
        handled = self._handled[:]
        if handled:
            await self._ack(handled)
            del self._handled[: len(handled)]  # behind the await: where that is cut, a later call commits them
            self.release(len(handled))

    async def _wait_for_room(self) -> None:
        while self.full:
            self._room.clear()
            await self._room.wait()

    async def _fetch(self, first: Sequence[Message]) -> None:
        """Fetch messages for ever."""
        for message in first:
            await self._wait_for_room()
            self._in_hand += 1
            self._take(message)
        while True:
            await self._wait_for_room()
            free = self._most - self._in_hand
            for message in await self._fetch_messages(limit=free, timeout=None, commit="acked"):
                self._in_hand += 1
                self._take(message)
            for _ in range(2):  # the handling of these messages goes first, and then what that sends
                await asyncio.sleep(0)


def check_most(most: object) -> int:
    """Return how many messages may be in hand at once; raise ConfigError."""
    try:
        number = index(most)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"concurrency={most!r} must be a number of handlers, at least 1")
    return number
