"""Calls that the agents of a group remember in one step."""

import asyncio
import contextvars
import inspect
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from typing import Any

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.awaitables import is_async, raising
from ray_messaging.errors import ConfigError, InvalidPayload
from ray_messaging.steps.call_memory import CallMemory

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.decode


class RememberedCalls:
    """The calls of one step, by agent and place: the n-th of an agent has the same result each time the step runs.

    Args: plain functions run in `threads`.
    """

    def __init__(self, memory: CallMemory, threads: Executor) -> None:
        self.memory = memory
        self._threads = threads
        self._begun: Counter[AgentId] = Counter()
        self._done: Counter[AgentId] = Counter()

    def call(self, agent: AgentId, function: Callable[[], Any]) -> Awaitable[Any]:
        """Return the awaitable result of an agent's next call; raise ConfigError outside of an event loop."""
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise ConfigError(
                "me.remember needs an async model: async def person(me, inbox), and in it await me.remember(...)"
            ) from None
        self._begun[agent] += 1
        return self._result(agent, self._begun[agent], function)

    def forgotten(self, agent: AgentId) -> bool:
        """Return whether an agent has not awaited all of its calls."""
        return self._begun[agent] != self._done[agent]

    async def _result(self, agent: AgentId, place: int, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - of a function of the user's
        name = f"{place}:{agent!r}"
        try:
            kept = await self.memory.recall(name)
            encoded = _encoded(await self._answer(function)) if kept is None else kept
        except BaseException:
            if self._begun[agent] == place:  # a second attempt takes its place, also when the step runs again
                self._begun[agent] -= 1
            else:
                self._done[agent] += 1
            raise
        try:
            if kept is None:
                await self.memory.keep(name, encoded)
        finally:  # a call that is cut may be kept all the same: no other one takes its place
            self._done[agent] += 1
        return _decode(encoded)

    async def _answer(self, function: Callable[[], Any]) -> Any:  # noqa: ANN401 - as above
        if is_async(function):
            return await function()
        context = contextvars.copy_context()
        answer = await asyncio.get_running_loop().run_in_executor(
            self._threads, partial(context.run, raising, function)
        )
        return await answer if inspect.isawaitable(answer) else answer


def _encoded(answer: object) -> bytes:
    try:
        return _encode(answer)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPayload(
            f"me.remember cannot keep a result of type {type(answer).__name__}: {error}. Return text, numbers, lists "
            "and dicts, as a pydantic object's model_dump()"
        ) from error
