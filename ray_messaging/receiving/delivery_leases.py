"""Lend messages to callers in other processes: what a caller did not return as handled is handed out again."""

import asyncio
import secrets
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ray_messaging.errors import CommitFailed
from ray_messaging.message import Messages, Slice
from ray_messaging.receiving.ack_ranges import Span, range_of, spans_in
from ray_messaging.receiving.fetch_options import NEXT, FetchOptions
from ray_messaging.receiving.subscription import Subscription
from ray_messaging.transports.base import AckRange, place

# Whoever waits for messages looks this often, in seconds, for loans that others gave up.
_LOOK_S = 1.0
# So many loans that were returned are remembered: Ray may repeat the call that returned one.
_RETURNED = 10_000


class Token(NamedTuple):
    """Name a loan: whose and which, what of the mailbox it is, so that a successor can take it back, too, and when."""

    process: str
    number: int
    spans: tuple[AckRange, ...]
    lent_at: float  # unix s


@dataclass(slots=True)
class _Loan:
    token: Token
    holder: str
    due: float  # loop time from which on others may have it
    slices: list[Slice]
    rows: int  # that are not acknowledged
    asked: int = 0  # the number of the fetch it answers; 0: its holder returns it with the next one


class DeliveryLeases:
    """Keep account of what is in callers' hands; what they return is committed, whatever is still out before it.

    A loan goes out again at once to a holder that asks anew without having got it (its answer was lost), and to whoever
    asks once its holder gave it up, or after `lease_s`. Then it has another token, so that the old one returns nothing.
    """

    def __init__(self, _exp_id: str, subscription: Subscription, lease_s: float) -> None:
        self._subscription = subscription
        self._lease_s = lease_s
        self._loans: dict[int, _Loan] = {}
        self._returned: OrderedDict[tuple[str, int], None] = OrderedDict()
        self._process = secrets.token_hex(4)
        self._last = 0

    @property
    def lent(self) -> int:
        """Return how many messages are in callers' hands."""
        return sum(loan.rows for loan in self._loans.values())

    # -- returning ------------------------------------------------------------------------------------------------

    async def give_back(self, _holder: str, token: Token | None) -> None:
        """Commit a loan; raise CommitFailed where it has gone to another holder."""
        _, late = await self.give_back_some([] if token is None else [(token, None)])
        if late is not None:
            raise late

    async def give_back_some(
        self, loans: Sequence[tuple[Token, Sequence[Span] | None]]
    ) -> tuple[list[Token], CommitFailed | None]:
        """Commit some rows of loans, or all (None), in one write; return the loans that are over, and what failed."""
        over: list[Token] = []
        late: CommitFailed | None = None
        for token, some in loans:
            try:
                if self._acknowledge(token, some):
                    over.append(token)
            except CommitFailed as error:
                late = error
                over += [] if self._has(token) else [token]
        await self._subscription.commits.write()
        return over, late

    def _has(self, token: Token) -> bool:
        return token.process == self._process and token.number in self._loans

    def _acknowledge(self, token: Token, some: Sequence[Span] | None) -> bool:
        """Note that a loan, or some of it, is handled; tell whether nothing of it is left."""
        if not self._has(token):
            return token[:2] in self._returned or self._acknowledge_predecessors(token, some)
        loan = self._loans[token.number]
        spans = spans_in(loan.slices, self._subscription.name) if some is None else some
        loan.rows -= self._subscription.commits.acknowledge_some(spans)
        if some is None or loan.rows <= 0:
            del self._loans[token.number]
            self._note_returned(token)
            return True
        return False

    def _acknowledge_predecessors(self, token: Token, some: Sequence[Span] | None) -> bool:
        """Note that what a process before us had lent is handled, unless others have it by now."""
        ranges = token.spans if some is None else [range_of(span) for span in some]
        flight = self._subscription.commits.in_flight
        # Those that can be acknowledged are, whatever became of the others.
        if token.process == self._process or not all([flight.ack_ahead(found) for found in ranges]):  # noqa: C419
            raise self._late(token, sum(found.rows for found in ranges))
        if some is None:
            self._note_returned(token)
        return some is None

    def _note_returned(self, token: Token) -> None:
        self._returned[token[:2]] = None
        if len(self._returned) > _RETURNED:
            self._returned.popitem(last=False)

    def _late(self, token: Token, messages: int) -> CommitFailed:
        held_s, name = max(0.0, time.time() - token.lent_at), self._subscription.name
        return CommitFailed(
            f"{messages:,} messages of group {name!r} were held for {held_s:,.1f} s and have gone to another fetch "
            f"meanwhile, so that both handle them: what is held for longer than MessagingConfig.loan_s "
            f"({self._lease_s:g} s), or was given up, goes to the next one that fetches. Fetch fewer at a time, or "
            "raise loan_s",
            group=name,
            messages=messages,
            held_s=held_s,
            loan_s=self._lease_s,
        )

    async def give_up(self, holder: str, token: Token | None) -> None:
        """Let whoever asks next have a loan: its holder failed."""
        if token is not None and self._has(token) and self._loans[token.number].holder == holder:
            self._loans[token.number].due = 0.0

    # -- lending --------------------------------------------------------------------------------------------------

    async def fetch(
        self,
        holder: str,
        token: Token | None,
        limit: int | None,
        timeout: float | None,
        asking: FetchOptions = NEXT,
    ) -> tuple[Token | None, Messages]:
        """Take back the loan of a token, then lend what is there; return its token (None: nothing) and the messages."""
        await self.give_back(holder, token)
        clock = asyncio.get_running_loop().time
        deadline = None if timeout is None else clock() + timeout
        while True:
            again = self._again(holder, asking, clock())
            if again and not asking.complete:
                loan: _Loan | None = self._cut(again[0], holder, asking, limit)
            else:
                left = _LOOK_S if deadline is None else min(_LOOK_S, max(0.0, deadline - clock()))
                loan = await self._take(holder, asking, limit, 0.0 if again else left)
            if loan is not None:
                loan.holder, loan.due, loan.asked = holder, clock() + self._lease_s, asking.number
                more = any(each is not loan for each in self._again(holder, asking, clock()))
                messages = self._subscription.messages(loan.slices, more=more)
                if asking.commit == "acked":
                    self._keep_acked_alone(loan)
                return loan.token, messages
            if deadline is not None and clock() >= deadline:
                return None, self._subscription.messages([])

    def _keep_acked_alone(self, loan: _Loan) -> None:
        """Keep of a loan what its holder will acknowledge: what foreign clients published went out, once."""
        loan.slices = [part for part in loan.slices if part.batch.origin is not None]
        loan.rows = _rows(loan.slices)
        if not loan.rows:
            del self._loans[loan.token.number]
            self._note_returned(loan.token)

    async def _take(self, holder: str, asking: FetchOptions, limit: int | None, timeout: float) -> _Loan | None:
        """Enter what the inbox has; where all is asked for, together with what is to go out again."""
        taken = await self._subscription.take(limit, timeout, complete=asking.complete)
        slices = taken.slices
        if taken.passed and not slices:
            await self._subscription.commits.write()  # what cannot be read fills the mailbox until then
        if asking.complete:
            again = self._again(holder, asking, asyncio.get_running_loop().time())
            if len(again) == 1 and not slices:
                return self._cut(again[0], holder, asking, None)
            slices = [*(part for loan in again for part in self._left_of(loan)), *slices]
        return self._enter(slices) if slices else None

    def _again(self, holder: str, asking: FetchOptions, now: float) -> list[_Loan]:
        """Find the loans that are to go out again, in the mailbox's order."""
        found = [loan for loan in self._loans.values() if loan.due <= now or _is_lost(loan, holder, asking)]
        return sorted(found, key=_first)

    def _cut(self, loan: _Loan, holder: str, asking: FetchOptions, limit: int | None) -> _Loan:
        """Return a loan that goes out again, up to the limit; what was another's, or is cut, gets another token."""
        if (limit is None or _rows(loan.slices) <= limit) and _is_lost(loan, holder, asking):
            return loan
        slices = self._left_of(loan)
        first, left = [], _rows(slices) if limit is None else limit
        while slices and left > 0:
            part = slices[0]
            cut = min(part.high, part.low + left)
            first.append(part._replace(high=cut))
            left -= cut - part.low
            slices[:1] = [part._replace(low=cut)] if cut < part.high else []
        made = self._enter(first)
        if slices:
            rest = self._enter(slices)
            rest.holder, rest.due, rest.asked = loan.holder, loan.due, loan.asked
        return made

    def _left_of(self, loan: _Loan) -> list[Slice]:
        """Take a loan apart; return what of it is not acknowledged."""
        del self._loans[loan.token.number]
        return self._subscription.commits.in_flight.unacked(loan.slices)

    def _enter(self, slices: list[Slice]) -> _Loan:
        self._last += 1
        spans = self._subscription.commits.in_flight.spans_of(slices)
        token = Token(self._process, self._last, spans, time.time())
        loan = self._loans[self._last] = _Loan(token, "", 0.0, slices, _rows(slices))
        return loan


def _rows(slices: Sequence[Slice]) -> int:
    return sum(part.high - part.low for part in slices)


def _is_lost(loan: _Loan, holder: str, asking: FetchOptions) -> bool:
    """Tell whether a holder that asks has not got a loan of its own: its answer was lost."""
    return loan.holder == holder and (not loan.asked or loan.asked > asking.received)


def _first(loan: _Loan) -> tuple[int, int, float]:
    return place(loan.token.spans[0].after) if loan.token.spans else (0, 0, 0.0)
