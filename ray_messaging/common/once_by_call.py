"""The class `OnceByCall`, which remembers the outcomes of calls, so that a repeated call is not executed again."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

# The search for outcomes to forget ends when the function `held` of a OnceByCall has kept this many values. So no
# search examines all outcomes.
_MOST_RENEWED = 8


class OnceByCall(Generic[K, V]):
    """The outcomes of calls, by the keys of the calls. A call with a known key gets the outcome of the first call.

    A running call is forgotten only by `pop`. An outcome is forgotten after `keep_s` seconds. If there are more than
    `most` outcomes, or more than `most_bytes` bytes in total, the oldest are forgotten, but never the newest. Before a
    value is forgotten, `held(key, value, full)` is called. If `held` returns True, the value is kept as if it were the
    newest. `full` is True if a limit is exceeded, and False if only `keep_s` has passed.
    """

    def __init__(
        self,
        *,
        most: float = math.inf,
        most_bytes: float = math.inf,
        keep_s: float = math.inf,
        held: Callable[[K, V, bool], bool] | None = None,
    ) -> None:
        self.nbytes = 0  # the size of all outcomes in bytes
        self._most = most
        self._most_bytes = most_bytes
        self._keep_s = keep_s
        self._held = held
        self._running: dict[K, asyncio.Task[V]] = {}
        # The outcome of each key, the oldest first: the value (None after an error), the error, the size in bytes, and
        # the value of time.monotonic() from which `keep_s` counts.
        self._outcomes: OrderedDict[K, tuple[V, BaseException | None, int, float]] = OrderedDict()

    def __contains__(self, key: K) -> bool:
        return key in self._outcomes or key in self._running

    def __len__(self) -> int:
        return len(self._outcomes) + len(self._running)

    def items(self) -> Iterator[tuple[K, V]]:
        """Yield the key and the value of each call that has returned one, the oldest first."""
        return ((key, value) for key, (value, error, _, _) in self._outcomes.items() if error is None)

    def get(self, key: K) -> V | None:
        """Return the value of a call, or None if the call raised an error, is running, or is not known."""
        found = self._outcomes.get(key)
        return None if found is None else found[0]

    def put(self, key: K, value: V, nbytes: int = 0) -> list[K]:
        """Remember a value as the newest; return the keys of the calls that were forgotten, as too old or too many."""
        now = time.monotonic()
        self._enter(key, value, None, nbytes, now)
        full = len(self._outcomes) > self._most or self.nbytes > self._most_bytes
        return self._forget(now, key) if full or self._keep_s < math.inf else []

    def load(self, values: Iterable[tuple[K, V, int]]) -> None:
        """Remember the values of an earlier process, each with its size.

        If the values exceed the limits, the oldest are forgotten when the next outcome is remembered.
        """
        now = time.monotonic()
        for key, value, nbytes in values:
            self._enter(key, value, None, nbytes, now)

    def _enter(self, key: K, value: V, error: BaseException | None, nbytes: int, now: float) -> None:
        before = self._outcomes.pop(key, None)
        self._outcomes[key] = value, error, nbytes, now
        self.nbytes += nbytes if before is None else nbytes - before[2]

    def pop(self, key: K) -> V | None:
        """Forget a call, and return its value. A call that still runs goes on, but its value is not remembered."""
        self._running.pop(key, None)
        found = self._outcomes.pop(key, None)
        if found is None:
            return None
        value, _, nbytes, _ = found
        self.nbytes -= nbytes
        return value

    def _forget(self, now: float, newest: K) -> list[K]:
        forgotten: list[K] = []
        renewed = 0
        while self._outcomes and renewed < _MOST_RENEWED:
            key = next(iter(self._outcomes))
            value, error, nbytes, ended_at = self._outcomes[key]
            full = (len(self._outcomes) > self._most or self.nbytes > self._most_bytes) and key != newest
            if not full and ended_at + self._keep_s > now:
                break
            if error is None and self._held is not None and self._held(key, value, full):
                self._outcomes[key] = value, error, nbytes, now
                self._outcomes.move_to_end(key)
                renewed += 1
            else:
                self.pop(key)
                forgotten.append(key)
        return forgotten

    # -- running calls --------------------------------------------------------------------------------------------

    def begin(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> None:
        """Begin a call unless its key is known. The call goes on even if nobody waits for it."""
        if key not in self:
            task = self._running[key] = asyncio.create_task(make(), name="ray_messaging call")
            task.add_done_callback(partial(self._end, key))

    def _end(self, key: K, task: asyncio.Task[V]) -> None:
        if self._running.get(key) is not task:
            return
        del self._running[key]
        if task.cancelled():
            return
        error, now = task.exception(), time.monotonic()
        self._enter(key, task.result() if error is None else cast("V", None), error, 0, now)
        self._forget(now, key)
        if self._keep_s < math.inf:  # a timer forgets the outcome even if no other call follows
            task.get_loop().call_later(self._keep_s, lambda: self._forget(time.monotonic(), key))

    async def outcome(self, key: K) -> V:
        """Return the value of a call, or raise its error; wait while the call runs.

        Raises KeyError for an unknown key.
        """
        running = self._running.get(key)
        if running is not None:
            return await asyncio.shield(running)
        value, error, _, _ = self._outcomes[key]
        if error is not None:
            raise error
        return value

    async def run(self, key: K, make: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Begin a call if its key is not known; return the value or raise the error of the call with this key."""
        self.begin(key, make)
        return await self.outcome(key)
