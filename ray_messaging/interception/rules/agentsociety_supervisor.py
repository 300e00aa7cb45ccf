"""A rule that runs a supervisor written for AgentSociety 1.5."""

import inspect
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from ray_messaging.compat.supervisor import Message, MessageKind
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.moderator import OnError, check_name, check_on_error, check_timeout
from ray_messaging.interception.rules.rule import block
from ray_messaging.interception.rules.step_rule import Added, StepRule, StepVerdicts
from ray_messaging.message import Message as Received
from ray_messaging.model.batch import Batch

_TIMEOUT_S = 300.0
_FAILED = {"content": "Message sent failed"}  # AgentSociety's words
_KINDS = {kind.value: kind for kind in MessageKind}
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class Supervisor(StepRule):
    """Run a supervisor: an instance of a class written for AgentSociety's message interceptor, unchanged.

    Such a class has `async forward(current_round_messages) -> (validation, messages)`. A step is a round, of which it
    sees the messages of the subtopic agent-chat. One that it finds invalid is blocked, and its sender gets "Message
    sent failed" from the recipient; the messages that it returns are sent. So does AgentSociety.

    A message's `created_at` counts steps in seconds and messages in microseconds, so that it is the same in each run. A
    supervisor's own attributes are lost with the interceptor's process.

    Args:
        supervisor: the instance.
        clock: returns the day and the tick of a step; by default (0, step).
        timeout_s: limit for one call.
        on_error: the verdict on a step at which the supervisor fails: "block" or "allow".
        name: the rule's name.

    Raises: RuleError.
    """

    def __init__(
        self,
        supervisor: object,
        *,
        clock: Callable[[int], tuple[int, float]] | None = None,
        timeout_s: float = _TIMEOUT_S,
        on_error: OnError = "block",
        name: str = "supervisor",
    ) -> None:
        self.name = check_name(name)
        if isinstance(supervisor, type) or not inspect.iscoroutinefunction(getattr(supervisor, "forward", None)):
            raise RuleError(
                f"{supervisor!r} is no supervisor: pass an instance of a class with `async def forward(self, "
                "current_round_messages) -> (dict[Message, bool], list[Message])`",
                rule=self.name,
            )
        self.supervisor: Any = supervisor
        self.time_limit_s = check_timeout(timeout_s, self.name)
        self.on_error = check_on_error(on_error, self.name)
        self._clock = clock
        self._last: tuple[int, StepVerdicts] | None = None

    async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        """Return the supervisor's verdicts on the chat of a step, and its messages."""
        if self._last is None or self._last[0] != number:  # it may count, and a step may be asked about again
            self._last = number, await self._verdicts(number, batch, exp_id)
        return self._last[1]

    async def _verdicts(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        day, tick = (0, float(number)) if self._clock is None else self._clock(number)
        rows = [row for row in range(len(batch)) if _KINDS.get(batch.topic_of(row)) is MessageKind.AGENT_CHAT]
        messages = [_message(Received(exp_id, batch, row), number, row, day, tick) for row in rows]
        valid, persuasion = await self.supervisor.forward(messages)
        refused = {
            row: message for row, message in zip(rows, messages, strict=True) if not _valid(valid.get(message, True))
        }
        added = [_added(message) for message in persuasion]
        failures = [
            Added(message.from_id, _FAILED, from_id=message.to_id)
            for message in refused.values()
            if message.from_id is not None
        ]
        return StepVerdicts({row: block(f"refused by {self.name}") for row in refused}, [*failures, *added])

    def describe(self) -> dict[str, Any]:
        """Return name, kind, settings and the supervisor's class as JSON."""
        settings = {"timeout_s": self.time_limit_s, "on_error": self.on_error}
        return {**super().describe(), "supervisor": type(self.supervisor).__qualname__, **settings}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "context"} | {"_last": None}


def _message(message: Received, number: int, row: int, day: int, tick: float) -> Message:
    return Message(
        from_id=message.from_id,
        to_id=message.to_id,
        day=day,
        t=tick,
        kind=MessageKind.AGENT_CHAT,
        payload=dict(message.payload),
        created_at=_BEGIN + timedelta(seconds=number, microseconds=row),
    )


def _valid(answer: object) -> bool:
    if not isinstance(answer, bool):
        raise TypeError(f"the supervisor says {answer!r} of a message: True or False")
    return answer


def _added(message: Message) -> Added:
    if not isinstance(message, Message) or message.to_id is None:
        raise TypeError(f"the supervisor sends {message!r}: it must be a Message with a to_id")
    return Added(message.to_id, message.payload, from_id=message.from_id, subtopic=message.kind.value)
