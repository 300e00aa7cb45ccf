"""Fetches that can only be committed whole."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from ray_messaging.conversations.hand_out import Fetch
from ray_messaging.message import Message
from ray_messaging.messages import Messages
from ray_messaging.receiving.call_checks import CommitMode


class WholeFetches:
    """Fetches and acks of single messages, on a server that commits whole fetches: the next one waits for all acks.

    Args: `commit` commits the messages of the last fetch, of which `left` are not handled yet.
    """

    def __init__(self, fetch: Fetch, commit: Callable[[], Awaitable[None]], left: int = 0) -> None:
        self._fetch = fetch
        self._commit = commit
        self._left = left  # messages that are not acknowledged
        self._committed = asyncio.Event()
        if not left:
            self._committed.set()

    async def fetch(self, *, limit: int | None, timeout: float | None, commit: CommitMode) -> Messages:  # noqa: ARG002
        """Return the next messages, once the earlier ones are committed."""
        await self._committed.wait()
        messages = await self._fetch(limit=limit, timeout=timeout, commit="next")
        self._left = len(messages)
        if messages:
            self._committed.clear()
        return messages

    async def ack(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages; the last one commits all of the fetch."""
        self._left -= len([*messages])
        if not self._left:
            await self._commit()
            self._committed.set()
