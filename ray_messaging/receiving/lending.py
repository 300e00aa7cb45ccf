"""Lend messages to callers in other processes: what a caller did not return as handled is handed out again."""

import asyncio
import secrets
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from ray_messaging.messages import Messages, Slice
from ray_messaging.receiving.inbox import NOTHING, Handled
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.transports.base import Cursor, place

# Whoever waits for messages looks this often, in seconds, for loans that others gave up.
_LOOK_S = 1.0


class Token(NamedTuple):
    """Name a loan: whose and which, and what of the mailbox it holds, so that a successor can take it back, too."""

    process: str
    number: int
    start: Cursor
    end: Cursor


@dataclass(slots=True)
class _Loan:
    token: Token
    holder: str
    due: float  # loop time from which on others may have it
    slices: list[Slice]
    handled: Handled
    returned: bool = False


class Lending:
    """Keep account of what is in callers' hands, in the mailbox's order; the cursor passes what was returned.

    A loan goes out again at once to a holder that asks anew without returning it (its answer was lost), and to whoever
    asks once its holder gave it up, or after `lease_s`.
    """

    def __init__(self, exp_id: str, subscription: Subscription, lease_s: float) -> None:
        self._exp_id = exp_id
        self._subscription = subscription
        self._lease_s = lease_s
        self._loans: deque[_Loan] = deque()
        self._process = secrets.token_hex(4)
        self._last = 0
        self._passing = asyncio.Lock()
        self._at = subscription.cursor  # what lies before it is lent, or was handled

    @property
    def lent(self) -> int:
        """Return how many messages are in callers' hands."""
        return sum(part.high - part.low for loan in self._loans if not loan.returned for part in loan.slices)

    async def give_back(self, holder: str, token: Token | None) -> None:
        """Commit a loan, as soon as all before it are returned, too."""
        loan = self._held(holder, token)
        if loan is not None:
            loan.returned = True
        elif token is not None and token.process != self._process:
            await self._pass_over(token)
        await self._commit()

    async def give_up(self, holder: str, token: Token | None) -> None:
        """Let whoever asks next have a loan: its holder failed."""
        loan = self._held(holder, token)
        if loan is not None:
            loan.due = 0.0

    async def fetch(
        self, holder: str, token: Token | None, limit: int | None, timeout: float | None
    ) -> tuple[Token | None, Messages]:
        """Take back the loan of a token, then lend what is there; return its token (None: nothing) and the messages."""
        await self.give_back(holder, token)
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        while True:
            loan = self._again(holder, limit, clock())
            if loan is None:
                left = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - clock()))
                async with self._passing:
                    pass  # what was handled already must not be handed out
                slices, handled = await self._subscription.take(limit, left)
                loan = self._lend(holder, slices, handled)
                if not slices and handled != NOTHING:
                    await self._commit()  # what cannot be read fills the mailbox until then
            if loan.slices:
                loan.holder, loan.due = holder, clock() + self._lease_s
                return loan.token, Messages(self._exp_id, loan.slices)
            if deadline is not None and clock() >= deadline:
                return None, Messages(self._exp_id, [])

    def _held(self, holder: str, token: Token | None) -> _Loan | None:
        return next((loan for loan in self._loans if loan.token == token and loan.holder == holder), None)

    async def _commit(self) -> None:
        while self._loans and self._loans[0].returned:
            self._subscription.note_handled(self._loans.popleft().handled)
        await self._subscription.write()

    def _again(self, holder: str, limit: int | None, now: float) -> _Loan | None:
        """Find a loan that is to go out again, cut to the limit."""
        for at, loan in enumerate(self._loans):
            if not loan.returned and (loan.holder == holder or loan.due <= now):
                rows = sum(part.high - part.low for part in loan.slices)
                return loan if limit is None or rows <= limit else self._split(at, limit)
        return None

    def _split(self, at: int, limit: int) -> _Loan:
        """Cut a loan in two; the cursor passes both with the second, and no successor takes either for the whole."""
        loan, first = self._loans[at], []
        while limit:
            part = loan.slices[0]
            cut = min(part.high, part.low + limit)
            first.append(part._replace(high=cut))
            limit -= cut - part.low
            loan.slices = [part._replace(low=cut), *loan.slices[1:]] if cut < part.high else loan.slices[1:]
        token = Token(self._process, self._number(), loan.token.start, loan.token.start)
        # Who held the whole must not return the half that it has not got now.
        loan.token = Token(self._process, self._number(), loan.token.end, loan.token.end)
        cut_off = _Loan(token, loan.holder, loan.due, first, NOTHING)
        self._loans.insert(at, cut_off)
        return cut_off

    def _lend(self, holder: str, slices: list[Slice], handled: Handled) -> _Loan:
        """Enter what was taken out of the inbox; without messages it counts as returned, in its place."""
        start = self._at
        if handled.cursor is not None and place(handled.cursor) <= place(start):
            handled = handled._replace(cursor=None)  # another caller has overtaken this one
        self._at = handled.cursor or start
        token = Token(self._process, self._number(), start, self._at)
        loan = _Loan(token, holder, 0.0, slices, handled, returned=not slices)
        if not slices and self._loans and not self._loans[-1].slices:
            # Nobody returns these: behind a loan that is kept, a flood of them would have no end.
            self._loans[-1].handled = self._loans[-1].handled.plus(handled)
        elif slices or handled != NOTHING:
            self._loans.append(loan)
        if self._passing.locked():
            self._subscription.inbox.wake()  # whoever passes rows over may have lost them to this caller
        return loan

    def _number(self) -> int:
        self._last += 1
        return self._last

    async def _pass_over(self, token: Token) -> None:
        """Drop what a predecessor in this mailbox had lent and its caller has handled, as far as nobody has it yet."""

        def wanted() -> bool:
            return place(token.start) <= place(self._at) < place(token.end)

        async with self._passing:
            while wanted():
                handled = await self._subscription.drop(token.end, wanted)
                if handled == NOTHING:
                    return  # it was handed out meanwhile
                self._lend("", [], handled)
