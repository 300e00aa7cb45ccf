"""Serving: a handler for each message, many at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from operator import index
from typing import Protocol

from ray_messaging.common.task_health import end
from ray_messaging.compat.msg import Payload
from ray_messaging.errors import ConfigError, MessagingError
from ray_messaging.message import Message, Messages
from ray_messaging.receipt import Receipt
from ray_messaging.receiving.fetcher import CommitMode

Handler = Callable[[Message], Awaitable[Payload | None]]


class Served(Protocol):
    """The messager of the handled messages."""

    async def fetch_messages(self, *, limit: int | None, timeout: float | None, commit: CommitMode) -> Messages:
        """Return new messages."""

    async def reply(self, message: Message, payload: Payload) -> Receipt:
        """Answer a question."""

    async def ack(self, messages: list[Message]) -> None:
        """Commit messages."""


class MessageServer:
    """Handlers of one messager's messages, at most `concurrency` at once; each message is committed by itself."""

    def __init__(self, messager: Served, handler: Handler, concurrency: int) -> None:
        self._messager = messager
        self._handler = handler
        self._concurrency = check_concurrency(concurrency)
        self._running: set[asyncio.Task[None]] = set()
        self._handled: list[Message] = []  # and not committed
        self._news = asyncio.Event()  # a handler has ended
        self._error: BaseException | None = None

    async def run(self) -> None:
        """Handle messages until the messager closes, or a handler fails: then wait for the others, and raise."""
        fetching: asyncio.Task[None] | None = None
        try:
            while self._error is None:
                if fetching is None and len(self._running) < self._concurrency:
                    fetching = asyncio.create_task(self._fetch(), name="ray_messaging serve")
                await self._wait(fetching)
                if fetching is not None and fetching.done():
                    fetching.result()
                    fetching = None
                await self._commit()
            while self._running:
                await self._wait(None)
            await self._commit()
            raise self._error
        finally:
            for task in (*self._running, *([] if fetching is None else [fetching])):
                await end(task)
            with suppress(MessagingError):  # what is not committed comes again
                await self._commit()

    async def _fetch(self) -> None:
        """Begin to handle the next messages."""
        free = self._concurrency - len(self._running)
        for message in await self._messager.fetch_messages(limit=free, timeout=None, commit="acked"):
            task = asyncio.create_task(self._handle(message), name="ray_messaging handler")
            self._running.add(task)
            task.add_done_callback(self._ended)

    async def _handle(self, message: Message) -> None:
        answer = await self._handler(message)
        if answer is not None:
            await self._messager.reply(message, answer)
        self._handled.append(message)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        if not task.cancelled():
            self._error = self._error or task.exception()
        self._news.set()

    async def _wait(self, fetching: "asyncio.Task[None] | None") -> None:
        """Wait until a handler has ended, or the next messages are there."""
        news = asyncio.ensure_future(self._news.wait())
        try:
            await asyncio.wait([news, *([] if fetching is None else [fetching])], return_when=asyncio.FIRST_COMPLETED)
        finally:
            news.cancel()
        self._news.clear()

    async def _commit(self) -> None:
        """Commit the messages that were handled."""
        handled = self._handled[:]
        if handled:
            await self._messager.ack(handled)
            del self._handled[: len(handled)]  # behind the await: where that is cut, the end commits them


def check_concurrency(concurrency: object) -> int:
    """Return how many may run at once; raise ConfigError."""
    try:
        number = index(concurrency)  # type: ignore[arg-type]  # others raise
    except TypeError:
        number = 0
    if number < 1:
        raise ConfigError(f"concurrency={concurrency!r} must be a number of handlers, at least 1")
    return number
