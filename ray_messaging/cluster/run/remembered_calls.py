"""Calls that the agents of a group remember in one step."""

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.run.model_thread import Holder, turns
from ray_messaging.common.awaitables import is_async, raising
from ray_messaging.errors import ConfigError
from ray_messaging.model.exact import decode_exactly, encode_exactly
from ray_messaging.steps.call_memory import CallMemory

if TYPE_CHECKING:
    from ray_messaging.cluster.run.agent import Agent

T = TypeVar("T")
RESULT = "the result of me.remember"  # in errors, the place of what cannot be kept


class RememberedCalls:
    """The calls of one step, by agent and place: the n-th of an agent has the same result each time the step runs.

    They are made in the event loop of the model, and kept by that in which this is created. Each is a task of its own,
    which goes on where its agent's step fails: `under_way` are those that have not ended.

    Args: plain functions run in `threads`.
    """

    def __init__(self, memory: CallMemory, threads: Executor, holder: Holder) -> None:
        self.memory = memory
        self.under_way: set[asyncio.Task[Any]] = set()
        self.ending = False  # the step has failed: no call begins any more
        self._threads = threads
        self._holder = holder
        self._server_loop = asyncio.get_running_loop()
        self._begun: Counter[AgentId] = Counter()
        self._done: Counter[AgentId] = Counter()

    def call(self, agent: "Agent", function: Callable[[], Any]) -> Awaitable[Any]:
        """Return the awaitable result of an agent's next call; raise ConfigError outside of an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "me.remember needs an async model: async def person(me, inbox), and in it await me.remember(...)"
            ) from None
        self._begun[agent.id] += 1
        return self._result(agent, self._begun[agent.id], function)

    def forgotten(self, agent: AgentId) -> bool:
        """Return whether an agent has not awaited all of its calls."""
        return self._begun[agent] != self._done[agent]

    async def _result(self, caller: "Agent", place: int, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        if self.ending:
            raise asyncio.CancelledError
        call = asyncio.create_task(self._made(caller, place, function), name="ray_messaging remembered call")
        self.under_way.add(call)
        call.add_done_callback(self._ended)
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not self.ending:  # the model itself gives the call up
                call.cancel()
                await asyncio.wait({call})  # its place is free before the model goes on
            raise

    def _ended(self, call: asyncio.Task[Any]) -> None:
        self.under_way.discard(call)
        if not call.cancelled():
            call.exception()  # where its step has failed, nobody asks for it

    async def _made(self, caller: "Agent", place: int, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        agent = caller.id
        name = f"{place}:{agent!r}"
        try:
            kept = await self._by_server(self.memory.recall(name)) if self.memory.again else None
            encoded = encode_exactly(await self._answer(caller, function), RESULT) if kept is None else kept
        except BaseException:
            if self._begun[agent] == place:  # a second attempt takes its place, also when the step runs again
                self._begun[agent] -= 1
            else:
                self._done[agent] += 1
            raise
        try:
            if kept is None:
                await self._by_server(self.memory.keep(name, encoded))
        finally:  # a call that is cut may be kept all the same: no other one takes its place
            self._done[agent] += 1
        return decode_exactly(encoded)

    async def _by_server(self, answer: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(answer, self._server_loop))

    async def _answer(self, caller: "Agent", function: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above
        what = "an async function that is remembered"
        if is_async(function):
            return await turns(function(), self._holder, caller, what)
        context = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(context.run, raising, function)
        )
        return await turns(answer, self._holder, caller, what) if inspect.isawaitable(answer) else answer
