"""Limits on the messages that a sender has accepted."""

import asyncio
from collections import deque

from ray_messaging.errors import MessagingError


class CapacityLimiter:
    """The messages and bytes of payload that were accepted and have no receipt yet, and their limits."""

    __slots__ = ("_admitted", "_turns", "max_bytes", "max_rows", "nbytes", "rows", "waited_for")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.rows = 0
        self.nbytes = 0
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.waited_for = False  # a waiting caller comes before a new one
        self._turns: deque[asyncio.Future[None]] = deque()
        self._admitted: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Tell whether a limit is reached."""
        return self.rows >= self.max_rows or self.nbytes >= self.max_bytes

    @property
    def crowded(self) -> bool:
        """Tell whether a new caller must wait: a limit is reached, or others wait already."""
        return self.waited_for or self.rows >= self.max_rows or self.nbytes >= self.max_bytes

    async def wait(self) -> None:
        """Wait for a turn; the caller must accept something before it awaits anything else."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append(turn)
        self._admit()
        try:
            await turn
        finally:
            if self._admitted is turn:
                self._admitted = None
                self.waited_for = bool(self._turns)
                asyncio.get_running_loop().call_soon(self._admit)

    def give_back(self, rows: int, nbytes: int) -> None:
        """Free the capacity of messages that have their receipts."""
        self.rows -= rows
        self.nbytes -= nbytes
        if self.waited_for:
            self._admit()

    def fail(self, error: MessagingError) -> None:
        """Give all waiting callers the error."""
        while self._turns:
            turn = self._turns.popleft()
            if not turn.done():
                turn.set_exception(error.with_traceback(None))
        self.waited_for = self._admitted is not None

    def _admit(self) -> None:
        while self._turns and self._admitted is None and not self.full:
            turn = self._turns.popleft()
            if not turn.done():  # else its caller was cancelled
                self._admitted = turn
                turn.set_result(None)
        self.waited_for = self._admitted is not None or bool(self._turns)
