"""The turns of a model's calls in their event loop: from one await to the next nothing else runs there."""

import logging
from collections.abc import Awaitable, Generator
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent

logger = logging.getLogger(__name__)

T = TypeVar("T")

BLOCKING_S: Final = 0.1  # asyncio's own measure of a slow callback


class Holder:
    """The agent whose call has its turn, and the longest turn of the step; the first long one is told as a warning."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._now: tuple[Agent, float] | None = None  # whose turn it is, and since when
        self._longest: tuple[Agent | None, float] = None, 0.0
        self._warned = False

    def reset(self) -> None:
        """Forget the turns of the step before."""
        self._now, self._longest = None, (None, 0.0)

    def begin(self, agent: "Agent") -> None:
        """Note that an agent's turn begins."""
        self._now = agent, perf_counter()

    def end(self, what: str) -> None:
        """Note the end of the turn."""
        assert self._now is not None
        (agent, began), self._now = self._now, None
        seconds = perf_counter() - began
        if seconds < BLOCKING_S:
            return
        self._longest = max(self._longest, (agent, seconds), key=lambda turn: turn[1])
        if not self._warned:
            self._warned = True
            logger.warning(
                "%s blocks the event loop of group %r: that of agent %r held it for %.1f s in step %d, and all other "
                "agents of the group waited: call what blocks by await asyncio.to_thread(...), or give me.remember a "
                "plain function, which runs in a thread",
                what, self._group, agent.id, seconds, agent.step,
            )  # fmt: skip

    def longest(self, now: float) -> "tuple[Agent | None, float]":
        """Return the longest turn of the step, which may go on: whose it is, and its seconds; None: all were short."""
        turn = self._now
        running = (None, 0.0) if turn is None or now - turn[1] < BLOCKING_S else (turn[0], now - turn[1])
        return max(self._longest, running, key=lambda found: found[1])


class _Turns(Awaitable[T]):
    """An awaitable that notes each of its turns."""

    def __init__(self, call: Awaitable[T], holder: Holder, agent: "Agent", what: str) -> None:
        self._call = call
        self._holder = holder
        self._agent = agent
        self._what = what

    def __await__(self) -> Generator[Any, Any, T]:
        inner = _coroutine(self._call)
        error: BaseException | None = None
        while True:
            self._holder.begin(self._agent)
            try:
                found = inner.send(None) if error is None else inner.throw(error)
            except StopIteration as end:
                result: T = end.value
                return result
            finally:
                self._holder.end(self._what)
            try:
                yield found
                error = None
            except BaseException as thrown:  # noqa: BLE001 - into the call
                error = thrown


async def _coroutine(call: Awaitable[T]) -> T:
    return await call


async def turns(call: Awaitable[T], holder: Holder, agent: "Agent", what: str) -> T:
    """Await a call, and note its turns."""
    return await _Turns(call, holder, agent, what)
