"""The base class of rules that judge a whole step."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId
from ray_messaging.compat.msg import Payload
from ray_messaging.interception.rules.rule import Rule, Verdict
from ray_messaging.model.batch import Batch


class Added(NamedTuple):
    """A message that a rule adds to a step; `deliver_at` is the step in which it is read (None: the next one)."""

    to_id: AgentId
    payload: Payload
    from_id: AgentId | None = None
    subtopic: str = AGENT_CHAT
    deliver_at: int | None = None


class StepVerdicts(NamedTuple):
    """The verdicts on a step by row (rows that are left out pass), and the messages that are added to it."""

    rows: Mapping[int, Verdict] = {}
    add: Sequence[Added] = ()


class StepRule(Rule):
    """A rule that sees all messages of a step at once, before any of them is delivered.

    It is asked once all groups have closed the step, and the next step begins once it has answered. If its process
    dies, it is asked again about the same messages; `state` is then as it was before the step. It sees what the other
    rules let pass to agents of groups.

    Attributes:
        time_limit_s: an answer that takes longer is a failure of the rule.

    Example:
        class Quiet(StepRule):
            async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
                return StepVerdicts({row: block("too many") for row in range(1_000, len(batch))})
    """

    time_limit_s: float = 120.0
    admission: str = ""  # given by the interceptor: another rule of this name has another one, and other state

    async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        """Return the verdicts on a step: on its rows, which are in canonical order, and the messages to add."""
        raise NotImplementedError(f"rule {self.name!r} must override check_step")

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - a Rule's
        """Let all messages of a batch pass: they are judged with their step."""
        return {}


def forces_all(rules: Iterable[Rule]) -> bool:
    """Tell whether each step must end in all groups before the next one begins, because a rule acts in between."""
    return any(isinstance(rule, StepRule) or rule.has_rounds for rule in rules)
