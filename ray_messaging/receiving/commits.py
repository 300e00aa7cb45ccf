"""Commits: messages handed out are committed at the next fetch, so that whoever dies with some gets them again."""

import asyncio

from ray_messaging.receiving.inbox import NOTHING, Handled
from ray_messaging.transports.base import Conclusion, Cursor, Transport


class Commits:
    """Move a mailbox's durable cursor behind what was handled; one write at a time, later ones gather meanwhile."""

    def __init__(self, transport: Transport, mailbox: str, epoch: int) -> None:
        self._transport = transport
        self._mailbox = mailbox
        self._epoch = epoch
        self._handed = NOTHING
        self._done = NOTHING
        self._written: Cursor | None = None
        self._writing = asyncio.Lock()
        self._background: asyncio.Task[None] | None = None

    def hand(self, handled: Handled) -> None:
        """Note what is handed out."""
        self._handed = self._handed.plus(handled)

    def acknowledge(self) -> None:
        """Note that all that was handed out is handled."""
        if self._handed is NOTHING:
            return
        self._done, self._handed = self._done.plus(self._handed), NOTHING

    def add(self, handled: Handled) -> None:
        """Note something as handled that was not handed out here."""
        self._done = self._done.plus(handled)

    @property
    def open(self) -> bool:
        """Tell whether something was handled that the store does not know of."""
        return self._done.cursor is not None and self._done.cursor != self._written

    def conclusion(self, handled: Handled, state: bytes | None, *, changed: bool) -> Conclusion:
        """Return what a transaction that handled something tells the store."""
        done = self._done.plus(handled)
        return Conclusion(self._mailbox, self._epoch, handled.cursor, done.messages, done.nbytes, state, changed)

    def concluded(self, conclusion: Conclusion) -> None:
        """Note that the store was told by a transaction."""
        self._done = Handled(conclusion.cursor or self._done.cursor, conclusion.messages, conclusion.nbytes)
        self._written = conclusion.cursor or self._written

    async def write(self) -> None:
        """Write the cursor, unless the store has it; raise Fenced where a newer reader holds the mailbox."""
        async with self._writing:
            done = self._done  # totals: a write that is repeated, or takes the next one along, counts nothing twice
            if self.open and done.cursor is not None:
                await self._transport.commit(
                    self._mailbox, self._epoch, done.cursor, messages=done.messages, nbytes=done.nbytes
                )
                self._written = done.cursor

    def write_soon(self) -> None:
        """Write the cursor in the background, unless that is under way."""
        if self._background is None or self._background.done():
            if self._background is not None:
                self._background.result()  # what went wrong before
            self._background = asyncio.create_task(self.write(), name="ray_messaging commit")

    async def close(self) -> None:
        """Wait for a write in the background."""
        if self._background is not None:
            await self._background
