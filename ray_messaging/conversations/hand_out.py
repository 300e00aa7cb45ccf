"""The messages in hand, each committed on its own."""

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
    """A function that fetches messages."""

    def __call__(self, *, limit: int | None, timeout: float | None, commit: CommitMode) -> Awaitable[Messages]:
        """Return new messages."""


class HandOut:
    """The messages in hand, at most `most`. They are fetched, passed to `take`, and committed once they are handled.

    A message is in hand until its commit is durable, so no more than `most` messages come again after a crash. Messages
    that are handled during a commit are committed together by the next one.
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
        self._handled: list[Message] = []  # but not committed yet
        self._news = asyncio.Event()  # a message was handled, or the end is near
        self._room = asyncio.Event()

    def handled(self, message: Message) -> None:
        """Mark a message as handled: it is committed soon."""
        self._handled.append(message)
        self._news.set()

    def release(self, messages: int = 1) -> None:
        """Mark some messages as no longer in hand."""
        self._in_hand -= messages
        self._room.set()
        self._news.set()

    def stop(self) -> None:
        """Stop fetching; `run` returns once no message is in hand."""
        self._stopped = True
        self._news.set()

    async def run(self, first: Sequence[Message] = ()) -> None:
        """Fetch and commit messages until `stop` is called. If the messager closes before, its error is raised.

        Args: `first` are messages that were fetched before, and are passed on first.
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
            del self._handled[: len(handled)]  # after the await: if that is cancelled, a later call commits them
            self.release(len(handled))

    async def _wait_for_room(self) -> None:
        while self._in_hand >= self._most:
            self._room.clear()
            await self._room.wait()

    async def _fetch(self, first: Sequence[Message]) -> None:
        """Fetch messages, without end."""
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
            for _ in range(2):  # let the handlers of these messages run first, and then what they send
                await asyncio.sleep(0)


def check_most(most: object) -> int:
    """Return how many messages may be in hand at once; raise ConfigError if it is not an int of at least 1."""
    try:
        number = index(most)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"concurrency={most!r} must be a number of handlers, at least 1")
    return number
