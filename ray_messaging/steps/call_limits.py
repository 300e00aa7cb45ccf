"""One limit for the remembered calls of all groups: calls per minute, calls at the same time, and calls in all.

One `CallLimits` grants calls. Each group has a `CallGate`, at which its calls wait. A gate makes one request for all
calls that wait, and no second request before the answer. Each request has the gate's totals, not their changes, so a
lost or repeated request does no harm.
"""

import asyncio
import time
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Final, NamedTuple

from ray_messaging.config import Calls
from ray_messaging.errors import BudgetSpent, Closed, MessagingError

_AHEAD_S: Final = 0.25  # a grant allows the calls that may begin within this many seconds, but at least one call
_EARLY_S: Final = 0.05  # a gate requests further calls this many seconds before its last granted call begins


class HeldCalls(NamedTuple):
    """The totals of a gate: how many calls were granted so far, how many have ended, and how many were not made.

    `gate` is unique: a group that has restarted gets a new gate.
    """

    group: str
    gate: str
    granted: int = 0
    ended: int = 0
    unused: int = 0


class Grant(NamedTuple):
    """Answer to a gate: in how many seconds each granted call may begin.

    `spent` says that the budget of calls is spent.
    """

    delays: list[float]
    spent: bool = False


class CallLimits:
    """The limit of an experiment's calls, for all groups."""

    def __init__(self, settings: Calls, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._pause_s = 0.0 if settings.rate_per_minute is None else 60 / settings.rate_per_minute
        self._next = 0.0  # the time from which the next call may begin
        self._held: dict[str, HeldCalls] = {}  # group -> the totals of its gate
        self._former = 0  # the calls that were granted to gates that no longer exist, and were made
        self._turn = asyncio.Lock()  # gates get their grants in the order in which they have asked
        self._changed = asyncio.Event()

    async def take(self, held: HeldCalls, wanted: int) -> Grant:
        """Grant up to `wanted` calls to a gate; return when at least one is granted, or the budget is spent."""
        self.note(held)
        # An answer to an earlier request may have been lost, and its calls are not made. So the number of granted calls
        # is taken from the gate.
        self._held[held.group] = self._held[held.group]._replace(granted=held.granted)
        async with self._turn:
            while True:
                now, left, free = self._held[held.group], self._left(), self._free()
                if now.gate != held.gate:
                    return Grant([])  # the group has restarted meanwhile
                if left <= 0:
                    return Grant([], spent=True)
                if free > 0:
                    break
                self._changed.clear()
                await self._changed.wait()
            delays = self._delays(int(min(wanted, left, free)))
            self._held[held.group] = now._replace(granted=now.granted + len(delays))
            return Grant(delays)

    def note(self, held: HeldCalls) -> None:
        """Record the totals of a gate. Totals that are lower than the recorded totals are old, and are ignored."""
        known = self._held.get(held.group, held)
        if known.gate == held.gate:
            held = known._replace(ended=max(known.ended, held.ended), unused=max(known.unused, held.unused))
        else:
            self._former += known.granted - known.unused
        self._held[held.group] = held
        self._changed.set()

    def _left(self) -> float:
        if self._settings.budget is None:
            return float("inf")
        return self._settings.budget - self._former - sum(held.granted - held.unused for held in self._held.values())

    def _free(self) -> float:
        if self._settings.concurrency is None:
            return float("inf")
        held = self._held.values()
        return self._settings.concurrency - sum(each.granted - each.ended - each.unused for each in held)

    def _delays(self, most: int) -> list[float]:
        if not self._pause_s:
            return [0.0] * most
        now = self._clock()
        first = max(now, self._next)
        count = min(most, max(1, int(_AHEAD_S / self._pause_s)))
        self._next = first + count * self._pause_s
        return [first - now + place * self._pause_s for place in range(count)]


class CallGate:
    """The gate of one group's calls. It works in the event loop in which it is made; any event loop may use it.

    Args: `take` and `note` call the methods of the `CallLimits`, which may be in another process.
    """

    def __init__(
        self, group: str, take: Callable[[HeldCalls, int], Awaitable[Grant]], note: Callable[[HeldCalls], object]
    ) -> None:
        self._held = HeldCalls(group, uuid.uuid4().hex)
        self._take = take
        self._note = note
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Future[None]] = deque()
        self._due = 0  # the number of calls that were granted but have not begun
        self._asking: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Return how many calls wait."""
        return len(self._waiting)

    async def enter(self) -> None:
        """Wait until a call may begin; when it has ended, call `leave`. Raises BudgetSpent if the budget is spent."""
        waiter: Future[None] = Future()
        self._loop.call_soon_threadsafe(self._add, waiter)
        try:
            await asyncio.wrap_future(waiter)
        except asyncio.CancelledError:
            if not waiter.cancel():  # the call was allowed to begin just now
                self.leave()
            raise

    def leave(self) -> None:
        """Record that a call has ended, so that another call may begin."""
        self._loop.call_soon_threadsafe(self._end, 1, 0)

    def _add(self, waiter: Future[None]) -> None:
        self._waiting.append(waiter)
        if self._asking is None:
            self._asking = self._loop.create_task(self._ask(), name="ray_messaging call limits")

    def _end(self, ended: int, unused: int) -> None:
        self._held = self._held._replace(ended=self._held.ended + ended, unused=self._held.unused + unused)
        self._note(self._held)

    async def _ask(self) -> None:
        try:
            while (wanted := sum(not waiter.cancelled() for waiter in self._waiting) - self._due) > 0:
                grant = await self._take(self._held, wanted)
                if not grant.delays:
                    raise _refusal(self._held.group, grant)  # noqa: TRY301 - the calls that wait raise it, too
                self._held = self._held._replace(granted=self._held.granted + len(grant.delays))
                self._due += len(grant.delays)
                for delay in grant.delays:
                    self._loop.call_later(delay, self._begin)
                await asyncio.sleep(grant.delays[-1] - _EARLY_S)
        except Exception as error:  # noqa: BLE001 - the calls that wait raise it
            while len(self._waiting) > self._due:
                if (waiter := self._waiting.pop()).set_running_or_notify_cancel():
                    waiter.set_exception(error)
        finally:
            self._asking = None

    def _begin(self) -> None:
        self._due -= 1
        while self._waiting:
            if (waiter := self._waiting.popleft()).set_running_or_notify_cancel():
                waiter.set_result(None)
                return
        self._end(0, 1)  # no call waits for this grant any more


def _refusal(group: str, grant: Grant) -> MessagingError:
    if grant.spent:
        return BudgetSpent("the budget of calls is spent")
    return Closed(f"group {group!r} has a later process, so this one may make no more calls")
