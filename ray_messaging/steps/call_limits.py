"""One limit for the remembered calls of all groups: calls and tokens per minute, calls at once, calls or money in all.

Remembered calls are the calls, such as of a language model, that agents make through `me.remember`. One `CallLimits`
grants calls. Each group has a `CallGate`, at which its calls wait. A gate makes one request for all calls that wait,
and no second request before the answer. Each request has the gate's totals, not the changes since the last request, so
a lost or repeated request does no harm. Of the calls that wait at a gate, those of the earliest step begin first,
because later steps wait for them.

What a call uses is known when it ends. Before that, the limits of tokens and of money count the average of the calls
that have ended. With such limits the first call begins alone. Later, the number of calls under way is at most twice the
number of calls that have ended and have used something.
"""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from decimal import Decimal
from typing import Final, NamedTuple

from ray_messaging.common.prefix_queue import PrefixQueue
from ray_messaging.config import Calls
from ray_messaging.errors import BudgetSpent, Closed, MessagingError
from ray_messaging.model.call_usage import CallUsage, parts_of

_AHEAD_S: Final = 0.25  # a grant has only calls that may begin within this many seconds, but at least one call
_EARLY_S: Final = 0.05  # a gate requests further calls this many seconds before its last granted call begins


class HeldCalls(NamedTuple):
    """The totals of a `CallGate`: how many calls through `me.remember` were granted, and how many of these have ended.

    `unused` counts the granted calls that were not made, because their callers were cancelled. `paid` counts the ended
    calls that have used tokens or money. `tokens` is how many tokens they used together, and `cost` what they cost
    together, in millionths of a millionth of the currency. `gate` is unique: when a group restarts, it gets a new gate.
    """

    group: str
    gate: str
    granted: int = 0
    ended: int = 0
    unused: int = 0
    paid: int = 0
    tokens: int = 0
    cost: int = 0

    @property
    def under_way(self) -> int:
        """Return how many granted calls may be under way: they have not ended, and were not left unused."""
        return self.granted - self.ended - self.unused


class _Used(NamedTuple):
    """What all calls together have used, and how many calls are under way."""

    paid: int
    tokens: int
    cost: int
    under_way: int

    def expected(self, used: int) -> float:
        """Return what one more call will probably use: the average over the calls that have used tokens or money.

        `used` is what these calls have used in all: their tokens or their cost.
        """
        return used / self.paid if self.paid else 0.0


class Grant(NamedTuple):
    """The answer to a request of a `CallGate`: in how many seconds each granted call may begin.

    `spent` is True if no calls are left in the budget.
    """

    delays: list[float]
    spent: bool = False


class CallLimits:
    """The limits of an experiment's calls through `me.remember`, counted over all groups."""

    def __init__(self, settings: Calls, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._pause_s = 0.0 if settings.rate_per_minute is None else 60 / settings.rate_per_minute
        self._next = 0.0  # the time from which the next call may begin
        budget = settings.budget
        self._money = parts_of(Decimal(budget.split()[0])) if isinstance(budget, str) else None
        self._token_s = 0.0 if settings.tokens_per_minute is None else 60 / settings.tokens_per_minute
        # From this time on, `tokens_per_minute` tokens are allowed per minute. The next call may begin when as many
        # tokens are allowed as the ended calls have used and the calls under way will probably use.
        self._tokens_since = 0.0
        self._totals: dict[str, HeldCalls] = {}  # by gate; the totals of gates that no longer exist count on
        self._gates: dict[str, str] = {}  # group -> its newest gate
        self._turn = asyncio.Lock()  # gates get their grants in the order of their requests
        self._changed = asyncio.Event()

    async def take(self, held: HeldCalls, wanted: int) -> Grant:
        """Grant up to `wanted` calls to a gate.

        Return when at least one call is granted, when the budget is spent, or when the group has a newer gate.
        """
        self.note(held)
        # If the answer to an earlier request was lost, the gate does not count the calls that the answer granted, and
        # these calls are never made. So the number of granted calls is taken from the gate.
        self._totals[held.gate] = self._totals[held.gate]._replace(granted=held.granted)
        async with self._turn:
            while True:
                now, left, free = self._totals[held.gate], self._left(), self._free()
                if self._gates[held.group] != held.gate:
                    return Grant([])  # the group has restarted since its request
                if left <= 0:
                    return Grant([], spent=True)
                if free > 0:
                    break
                self._changed.clear()
                await self._changed.wait()
            delays = self._delays(int(min(wanted, left, free)))
            self._totals[held.gate] = now._replace(granted=now.granted + len(delays))
            return Grant(delays)

    def note(self, held: HeldCalls) -> None:
        """Record the totals of a gate, except the number of granted calls, which is only recorded if the gate is new.

        If no more calls have ended or are unused than were recorded already, the totals may be old, and are ignored.
        """
        known = self._totals.get(held.gate)
        if known is None:
            self._gates[held.group] = held.gate
            self._totals[held.gate] = held
        elif held.ended + held.unused > known.ended + known.unused:
            self._totals[held.gate] = held._replace(granted=known.granted)
        self._changed.set()

    def _used(self) -> _Used:
        totals = self._totals.values()
        return _Used(
            sum(each.paid for each in totals),
            sum(each.tokens for each in totals),
            sum(each.cost for each in totals),
            sum(self._totals[gate].under_way for gate in self._gates.values()),
        )

    def _left(self) -> float:
        """Return what is left of the budget for calls through `me.remember`. If the result is above 0, a call is left.

        The result is a number of calls, or, if the budget is money, an amount in millionths of a millionth of the
        currency. Without a budget the result is infinite.
        """
        budget = self._settings.budget
        if self._money is not None:
            return self._money - self._used().cost
        if not isinstance(budget, int):
            return float("inf")
        return budget - sum(each.granted - each.unused for each in self._totals.values())

    def _free(self) -> float:
        """Return how many more calls through `me.remember` may be under way now."""
        most = float("inf") if self._settings.concurrency is None else self._settings.concurrency
        used = self._used()
        if self._settings.needs_usage:  # while few calls have ended, their average usage may mislead, so few may begin
            most = min(most, max(1, 2 * used.paid))
        if self._money is not None and (expected := used.expected(used.cost)):
            most = min(most, max(1, (self._money - used.cost) // expected))
        return most - used.under_way

    def _delays(self, most: int) -> list[float]:
        used = self._used()
        tokens = used.expected(used.tokens)
        pause_s = max(self._pause_s, tokens * self._token_s)
        if not pause_s:
            return [0.0] * most
        now = self._clock()
        first = max(now, self._next)
        if self._token_s:
            taken_s = (used.tokens + used.under_way * tokens) * self._token_s
            # Tokens that the pace allowed until now, and that no call has used, cannot be used later.
            self._tokens_since = max(self._tokens_since, now - taken_s)
            first = max(first, self._tokens_since + taken_s)
        count = min(most, max(1, int(_AHEAD_S / pause_s)))
        self._next = first + count * self._pause_s
        return [first - now + place * pause_s for place in range(count)]


class CallGate:
    """The gate of one group: each call through `me.remember` waits here until it may begin.

    The calls that wait are sorted by step and text, see `PrefixQueue`. The gate works in the event loop in which it was
    made. Calls may come from any event loop.

    Args: `take` and `note` call the methods of the `CallLimits`, which may be in another process.
    """

    def __init__(
        self, group: str, take: Callable[[HeldCalls, int], Awaitable[Grant]], note: Callable[[HeldCalls], object]
    ) -> None:
        self._held = HeldCalls(group, uuid.uuid4().hex)
        self._take = take
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._waiting = PrefixQueue[Future[None]]()
        self._due = 0  # the number of calls that were granted but have not begun
        self._asking: asyncio.Task[None] | None = None
        # `note` tells the `CallLimits` that the group's earlier gate no longer exists. So the calls of the earlier gate
        # no longer count as under way, even if this gate never makes a request.
        note(self._held)

    @property
    def waiting(self) -> int:
        """Return how many calls through `me.remember` wait at the gate."""
        return len(self._waiting)

    async def enter(self, step: int = 0, text: str = "") -> None:
        """Wait until a call may begin. The caller must call `leave` when the call has ended.

        Args: `step` and `text` give the call its place among those that wait. Calls of the lowest step begin first, and
        the calls of one step in the order of their texts.
        Raises: BudgetSpent if the budget is spent.
        """
        waiter: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._add, waiter, step, text)
        try:
            await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            if not waiter.cancel():  # the gate has just allowed the call to begin
                self.leave()
            raise

    def leave(self, used: CallUsage | None = None) -> None:
        """Record that a call has ended, so that another call may begin. `used` is None if the call has used nothing."""
        self._loop.call_soon_threadsafe(self._end, 1, 0, used)

    def _add(self, waiter: Future[None], step: int, text: str) -> None:
        self._waiting.push(waiter, step, text)
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask(), name="ray_messaging call limits")

    def _end(self, ended: int, unused: int, used: CallUsage | None = None) -> None:
        held = self._held
        held = held._replace(ended=held.ended + ended, unused=held.unused + unused)
        if used is not None:
            tokens, cost = held.tokens + used.tokens, held.cost + (used.cost or 0)
            held = held._replace(paid=held.paid + 1, tokens=tokens, cost=cost)
        self._held = held
        self._note(held)

    async def _ask(self) -> None:
        try:
            while (wanted := self._ungranted()) > 0:
                grant = await self._take(self._held, wanted)
                if not grant.delays:
                    raise _refusal(self._held.group, grant)  # noqa: TRY301 - the calls that wait raise it, too
                self._held = self._held._replace(granted=self._held.granted + len(grant.delays))
                self._due += len(grant.delays)
                for delay in grant.delays:
                    self._loop.call_later(delay, self._begin)
                await asyncio.sleep(grant.delays[-1] - _EARLY_S)
        except Exception as error:  # noqa: BLE001 - the calls that wait raise it
            refused = self._ungranted()
            while refused > 0 and self._waiting:
                if (waiter := self._waiting.pop_last()).set_running_or_notify_cancel():
                    waiter.set_exception(error)
                    refused -= 1
        finally:
            self._asking = None

    def _ungranted(self) -> int:
        """Return how many of the calls that wait are still to be granted. Cancelled calls need no grant."""
        return sum(not waiter.cancelled() for waiter in self._waiting) - self._due

    def _begin(self) -> None:
        self._due -= 1
        while self._waiting:
            if (waiter := self._waiting.pop()).set_running_or_notify_cancel():
                waiter.set_result(None)
                return
        self._end(0, 1)  # the call that wanted this grant was cancelled


def _refusal(group: str, grant: Grant) -> MessagingError:
    if grant.spent:
        return BudgetSpent("the budget of the calls is spent: to go on, resume the run with a larger Calls(budget=)")
    return Closed(f"a later process runs group {group!r}, so this process can make no more calls: end this process")
