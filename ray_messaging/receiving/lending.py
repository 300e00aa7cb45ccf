"""Lend messages to callers in other processes: what a caller did not return as handled is handed out again."""

import asyncio
from collections import deque
from dataclasses import dataclass

from ray_messaging.messages import Messages, Slice
from ray_messaging.receiving.inbox import Handled
from ray_messaging.receiving.subscription import Subscription


@dataclass(slots=True)
class _Loan:
    token: int
    holder: str
    due: float  # loop time from which on others may have it
    slices: list[Slice]
    handled: Handled
    returned: bool = False


class Lending:
    """Keep account of what is in callers' hands, in the mailbox's order; the cursor passes what was returned.

    A loan goes out again at once to a holder that asks anew without returning it (its answer was lost), and after
    `lease_s` to whoever asks.
    """

    def __init__(self, exp_id: str, subscription: Subscription, lease_s: float) -> None:
        self._exp_id = exp_id
        self._subscription = subscription
        self._lease_s = lease_s
        self._loans: deque[_Loan] = deque()
        self._last = 0

    @property
    def lent(self) -> int:
        """Return how many messages are in callers' hands."""
        return sum(part.high - part.low for loan in self._loans if not loan.returned for part in loan.slices)

    async def give_back(self, holder: str, token: int) -> None:
        """Commit a loan, as soon as all before it are returned, too."""
        for loan in self._loans:
            if loan.token == token and loan.holder == holder:
                loan.returned = True
        while self._loans and self._loans[0].returned:
            self._subscription.note_handled(self._loans.popleft().handled)
        await self._subscription.write()

    async def fetch(self, holder: str, token: int, limit: int | None, timeout: float | None) -> tuple[int, Messages]:
        """Take back the loan of a token, then lend what is there; return its token (0: nothing) and the messages."""
        await self.give_back(holder, token)
        now = asyncio.get_running_loop().time()
        for loan in self._loans:
            if not loan.returned and (loan.holder == holder or loan.due <= now):
                loan.holder, loan.due = holder, now + self._lease_s
                return loan.token, Messages(self._exp_id, loan.slices)
        slices, handled = await self._subscription.take(limit, timeout)
        if not slices:
            self._subscription.note_handled(handled)
            return 0, Messages(self._exp_id, [])
        self._last += 1
        due = asyncio.get_running_loop().time() + self._lease_s
        self._loans.append(_Loan(self._last, holder, due, slices, handled))
        return self._last, Messages(self._exp_id, slices)
