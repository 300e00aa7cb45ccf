"""Room in the outbox: so many messages and bytes may wait, and those who find none are let in, in turn."""

import asyncio
from collections import deque

from ray_messaging.errors import MessagingError


class CapacityLimiter:
    """Count what was accepted and has no receipt yet, in messages and bytes of payload."""

    __slots__ = ("_admitted", "_turns", "max_bytes", "max_rows", "nbytes", "rows", "waited_for")

    def __init__(self, max_rows: int, max_bytes: int) -> None:
        self.rows = 0
        self.nbytes = 0
        self.max_rows = max_rows
        self.max_bytes = max_bytes
        self.waited_for = False  # somebody's turn comes before a newcomer's
        self._turns: deque[asyncio.Future[None]] = deque()
        self._admitted: asyncio.Future[None] | None = None

    @property
    def full(self) -> bool:
        """Tell whether a limit is reached."""
        return self.rows >= self.max_rows or self.nbytes >= self.max_bytes

    @property
    def crowded(self) -> bool:
        """Tell whether a newcomer must wait: there is no room, or somebody else's turn comes first."""
        return self.waited_for or self.full

    async def wait(self) -> None:
        """Wait for one's turn; who comes back from here must accept at once, before anything else is awaited."""
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
        """Note that some have their receipts."""
        self.rows -= rows
        self.nbytes -= nbytes
        self._admit()

    def fail(self, error: MessagingError) -> None:
        """Give everybody who waits an error."""
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
