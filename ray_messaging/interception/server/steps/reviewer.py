"""The interceptor, as the supervisor of the steps asks it."""

from collections.abc import Mapping
from typing import Protocol

from ray_messaging.addressing.channels import AgentId
from ray_messaging.interception.rules.step_rule import StepRule
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.steps.judge import StepJudge, StepReview
from ray_messaging.model.batch import Batch


class StepListener(Protocol):
    """The object that acts between two steps. After a fault a step may end again."""

    async def step_ended(self, number: int) -> None:
        """Act when a step has ended in all groups, and before the next one begins in any."""

    def step_closed(self, number: int) -> None:
        """Note that the next step may begin."""


class RuleReviewer:
    """The rules of an interceptor that act at the end of each step.

    Args: `horizon` is how many steps ahead a message may be sent.
    """

    def __init__(self, interceptor: Interceptor, horizon: int, listener: StepListener | None = None) -> None:
        interceptor.supervised = True
        self._listener = listener
        self._interceptor = interceptor
        self.judge = StepJudge(interceptor.exp_id, self._rules, interceptor.calls, interceptor.watch, horizon)

    def _rules(self, number: int) -> tuple[StepRule, ...]:  # noqa: ARG002 - a StepJudge's
        return self._interceptor.rules.whole

    def reads(self, number: int) -> bool:
        """Tell whether a rule sees the step."""
        return bool(self._rules(number))

    async def review(self, number: int, batch: Batch) -> StepReview:
        """Return the verdicts on the step's messages, and the messages to add."""
        return await self.judge.review(number, batch)

    async def end(self, number: int, violations: Mapping[AgentId | None, int]) -> None:
        """End the round of the step, once; count blocked messages by sender."""
        await self._interceptor.end_step(number, violations)
        if self._listener is not None:
            await self._listener.step_ended(number)

    def closed(self, number: int) -> None:
        """Note that the next step may begin."""
        if self._listener is not None:
            self._listener.step_closed(number)

    def dump(self, number: int) -> bytes | None:
        """Return the state that the rules have after a step; None: they keep none."""
        return self.judge.dump(number)

    def load(self, state: bytes | None, number: int) -> None:
        """Give the rules of a step the state of the step before."""
        self.judge.load(state, number)
