"""Admission of sends from other processes: in each caller's order, each once."""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from ray_messaging.errors import OutcomeUnknown
from ray_messaging.receipt import Receipts

# Ray repeats a call within this time, in seconds; its answer is kept for so long.
_REPEATED_S = 60.0
CALLERS = 10_000  # above it, the callers idle for longest are forgotten


@dataclass
class _Caller:
    next: int
    calls: "OrderedDict[int, asyncio.Task[Receipts]]" = field(default_factory=OrderedDict)  # ascending
    turn: asyncio.Condition = field(default_factory=asyncio.Condition)


class CallerAdmission:
    """Order of calls numbered 0, 1, 2... by their caller; a repeated number gets the answer of its first call."""

    def __init__(self) -> None:
        self._callers: OrderedDict[str, _Caller] = OrderedDict()

    def knows(self, caller_id: str, number: int) -> bool:
        """Return whether a call has begun, so that a repeated one needs no arguments."""
        caller = self._callers.get(caller_id)
        return caller is not None and (number in caller.calls or number < caller.next)

    async def admit(self, caller_id: str, number: int, oldest: int, run: Callable[[], Awaitable[Receipts]]) -> Receipts:
        """Run a call in its turn; `oldest` is the lowest number that its caller still waits for.

        Raises: OutcomeUnknown where a repeated call's first run was forgotten.
        """
        loop = asyncio.get_running_loop()
        caller = self._callers.setdefault(caller_id, _Caller(oldest))
        self._callers.move_to_end(caller_id)
        while len(self._callers) > CALLERS:
            self._callers.popitem(last=False)
        while caller.calls and next(iter(caller.calls)) < oldest:
            caller.calls.popitem(last=False)
        async with caller.turn:
            # A caller that gave up on older numbers must not block its newer calls.
            caller.next = max(caller.next, oldest)
            await caller.turn.wait_for(lambda: caller.next >= number)
            if number not in caller.calls:
                if number < caller.next:
                    raise OutcomeUnknown("this call came twice, and the outcome of the first is no longer known")
                task = caller.calls[number] = asyncio.create_task(_finish(run), name="ray_messaging send")
                task.add_done_callback(lambda _: loop.call_later(_REPEATED_S, caller.calls.pop, number, None))
                caller.next = number + 1
                caller.turn.notify_all()
        # The first run continues when its call is cancelled: a repeated call may wait for it.
        return await asyncio.shield(caller.calls[number])


async def _finish(run: Callable[[], Awaitable[Receipts]]) -> Receipts:
    return await run()
