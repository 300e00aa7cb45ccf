"""The interceptor, as the supervisor of the steps asks it."""

import asyncio
from collections.abc import Awaitable, Mapping
from typing import Protocol

import msgspec

from ray_messaging.addressing.channels import AgentId
from ray_messaging.interception.rules.step_rule import StepRule
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.steps.judge import StepJudge, StepReview, Tables
from ray_messaging.model.batch import Batch


class StepListener(Protocol):
    """The object that acts between two steps. After a fault a step may be closed, and begin, again."""

    async def step_closing(self, number: int) -> None:
        """Act before a step is closed, after which the next one may begin."""

    async def step_begins(self, number: int) -> None:
        """Act before anything of a step is judged; all groups have closed the step before."""


class _Kept(msgspec.Struct, array_like=True):
    """What the rules keep of a step: their tables, and the messages that they have blocked, by sender."""

    tables: Tables
    violations: list[tuple[AgentId | None, int]]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Kept).decode


class RuleReviewer:
    """The rules of an interceptor that act at the end of each step.

    What they say of a step, and remember of it, is kept with the step's close: nothing stays of an attempt that was not
    closed. What acts between two steps does so after the close, and before anything of the next step is judged: until
    then its batches wait.

    Args: `horizon` is how many steps ahead a message may be sent.
    """

    def __init__(self, interceptor: Interceptor, horizon: int, listener: StepListener | None = None) -> None:
        interceptor.supervised = True
        interceptor.before_step = self._before
        self._listener = listener
        self._interceptor = interceptor
        self._begun: int | None = None  # the latest step that may be judged; None: any
        self._news = asyncio.Event()
        self._violations: Mapping[AgentId | None, int] = {}  # in the step that was closed last
        self.judge = StepJudge(interceptor.exp_id, self._rules, interceptor.calls, interceptor.watch, horizon)

    def _rules(self) -> tuple[StepRule, ...]:
        return self._interceptor.rules.whole

    # -- the order of steps ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let batches wait until their step has begun."""
        self._begun = -1

    def stop(self) -> None:
        """Let batches of any step be judged from now on."""
        self._begun = None
        self._news.set()

    def _before(self, step: int) -> Awaitable[None] | None:
        return None if self._begun is None or step <= self._begun else self._until(step)

    async def _until(self, step: int) -> None:
        while self._begun is not None and step > self._begun:
            self._news.clear()
            await self._news.wait()

    async def resume(self, number: int, state: bytes | None, *, ended: bool) -> None:
        """Begin a step with what the rules have kept of the step before (see `dump`); None: nothing."""
        kept = _Kept({}, []) if state is None else _decode(state)
        self._violations = dict(kept.violations)
        await self.begin(number, ended=ended)
        self.judge.load(kept.tables)

    async def begin(self, number: int, *, ended: bool = True) -> None:
        """End the round of the step before, once, where the supervisor has closed it; then let the step be judged."""
        if ended:
            await self._interceptor.end_step(number - 1, self._violations)
        if self._listener is not None:
            await self._listener.step_begins(number)
        self._begun = number
        self._news.set()

    async def closing(self, number: int) -> None:
        """Act before a step is closed, after which the next one may begin."""
        if self._listener is not None:
            await self._listener.step_closing(number)

    # -- one step -------------------------------------------------------------------------------------------------

    def reads(self) -> bool:
        """Tell whether a rule sees whole steps."""
        return bool(self._rules())

    async def review(self, number: int, batch: Batch) -> StepReview:
        """Return the verdicts on the step's messages, and the messages to add; the rules' round ends with it."""
        review = await self.judge.review(number, batch)
        self._interceptor.new_round(self._rules())
        return review

    def dump(self, violations: Mapping[AgentId | None, int]) -> bytes | None:
        """Return what the rules keep of a step that they have judged; None: nothing."""
        self._violations, tables = violations, self.judge.dump()
        return _encode(_Kept(tables, list(violations.items()))) if tables or violations else None
