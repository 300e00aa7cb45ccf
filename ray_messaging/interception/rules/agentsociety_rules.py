"""Rules that run classes written for AgentSociety: blocks of its interceptor, and supervisors."""

import inspect
import json
import re
from collections import UserDict
from collections.abc import Callable, Iterable, Iterator, MutableSet, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.compat.supervisor import Message as RoundMessage
from ray_messaging.compat.supervisor import MessageKind
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.checks import check_choice, check_name, check_positive
from ray_messaging.interception.rules.moderator import NO_LIMIT_S, ModeratorCalls, OnError
from ray_messaging.interception.rules.pairs import Pair
from ray_messaging.interception.rules.rule import ALLOW, Added, SlowRule, StepRule, StepVerdicts, Verdict, block
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.interceptor import Interceptor

_TIMEOUT_S = 300.0  # the time limit that AgentSociety's own blocks have for one request to a model
_FAILED = {"content": "Message sent failed"}  # what AgentSociety sends to the sender of an invalid message
_KINDS = {kind.value: kind for kind in MessageKind}
_BEGIN = datetime(1970, 1, 1, tzinfo=UTC)


class Block(SlowRule):
    """Run an unchanged block of AgentSociety: an object that was written for AgentSociety's interceptor.

    Its method `async forward(llm, from_id, to_id, msg, violation_counts, black_set) -> (bool, str)` gets the same
    arguments as in AgentSociety:

    - `msg`: the payload as JSON text, exactly as `json.dumps` writes it;
    - `violation_counts`: how many messages of each sender were blocked (0 for a sender that is missing). These messages
      are counted by this package's interceptor, the actor that applies the rules, and not by the block;
    - `black_set`: the black list of this package's interceptor. The block changes this list if it adds or discards a
      pair.

    A block is called for one message at a time, in the order of sending, because such classes often count messages. So
    the time of one call delays all messages that wait for the block. AgentSociety judges only messages from one agent
    to another one. So all other messages pass without a call of the block. These are messages from the user, to the
    user or to a plain channel, which belongs to no agent, and broadcasts. In a pair of the black set, None stands for
    all agents.

    A block's own attributes are lost if the interceptor's process dies.

    Args:
        block: the instance.
        llm: passed on to `forward`.
        make_llm: a function that returns `llm`, for clients that cannot be pickled (most clients cannot). It is called
            once, in the interceptor's process.
        timeout_s: limit for one call.
        on_error: the verdict if a block raises, takes too long, or returns neither a bool nor a pair (bool, reason):
            "block" or "allow".
        name: the rule's name; by default the block's `name`, or its class's name.

    Raises: RuleError if an argument is not valid.
    """

    time_limit_s = NO_LIMIT_S  # this limit is never reached, because each call of the block has its own limit
    _described = ("timeout_s", "on_error")

    def __init__(
        self,
        block: object,
        llm: object = None,
        *,
        make_llm: Callable[[], object] | None = None,
        timeout_s: float = _TIMEOUT_S,
        on_error: OnError = "block",
        name: str | None = None,
    ) -> None:
        self.name = check_name(_name_of(block) if name is None else name)
        form = "self, llm, from_id, to_id, msg, violation_counts, black_set) -> (bool, str)"
        _check_forward(block, "block", form, self.name)
        if make_llm is not None and (llm is not None or not callable(make_llm)):
            raise RuleError(
                f"rule {self.name!r} has both llm and make_llm, or a make_llm that is not a function: pass either llm, "
                "or make_llm, a function that returns the llm",
                rule=self.name,
            )
        self.block = block
        self.timeout_s = check_positive("timeout_s", timeout_s, self.name)
        self.on_error = check_choice("on_error", on_error, ("block", "allow"), self.name)
        self._llm = llm
        self._make_llm = make_llm
        self._calls = ModeratorCalls(1, self.timeout_s)

    def at_once(self, message: Message) -> Verdict | None:
        """Return None if the message goes from agent to agent, because the block must judge it; otherwise ALLOW."""
        return ALLOW if message.from_id is None or message.to_id is None else None

    async def judge(self, message: Message) -> Verdict:
        """Return the block's verdict on one message. If the block fails or takes too long, `on_error` decides."""
        known = self.at_once(message)
        if known is not None:
            return known
        try:
            answer = await self._calls.run(self, lambda: self._forward(message))
            return self._verdict(answer, message)
        except Exception as error:  # noqa: BLE001 - of the block's own code: on_error decides
            return self.count_failure(error)

    @property
    def counts_blocked(self) -> bool:
        """Return True, because the block may look at how many messages of the sender were blocked before."""
        return True

    def room(self, senders: Sequence[AgentId | None]) -> Sequence[int]:
        """Return for each sender how many more of its messages must be blocked before verdicts may change: always 1.

        The block can read the sender's count of blocked messages, so any further blocked message may change a verdict.
        """
        return [1] * len(senders)

    async def close(self) -> None:
        """Wait up to a second for a cancelled call to end."""
        await self._calls.close()

    def describe(self) -> dict[str, Any]:
        """Return the rule's name, kind and settings, and the name of the block's class, as JSON values."""
        return {**super().describe(), "block": type(self.block).__qualname__}

    def __getstate__(self) -> dict[str, Any]:
        llm = self._llm if self._make_llm is None else None
        return self.__dict__ | {"context": None, "_llm": llm, "_calls": ModeratorCalls(1, self.timeout_s)}

    def __repr__(self) -> str:
        return f"Block({type(self.block).__qualname__}, name={self.name!r})"

    async def _forward(self, message: Message) -> object:
        if self.context is None:
            raise RuleError(
                f"rule {self.name!r} belongs to no interceptor yet: pass it to Messaging.start(..., rules=[...])",
                rule=self.name,
            )
        if self._llm is None and self._make_llm is not None:
            self._llm = self._make_llm()
        forward: Any = getattr(self.block, "forward")  # noqa: B009 - an object of any class
        answer: object = await forward(
            llm=self._llm,
            from_id=message.from_id,
            to_id=message.to_id,
            msg=json.dumps(message.payload),
            violation_counts=ViolationCounts(self.context),
            black_set=BlackSet(self.context),
        )
        return answer

    def _verdict(self, answer: object, message: Message) -> Verdict:
        passed, why = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, "")
        if not isinstance(passed, bool):
            raise TypeError(f"forward returned {answer!r}: return (True, '') or (False, 'why')")
        if passed:
            return ALLOW
        if why:
            return block(why if isinstance(why, str) else str(why))
        return block(f"{self.name} refused it, from {message.from_id!r} to {message.to_id!r}")


class ViolationCounts(UserDict[AgentId, int]):
    """The interceptor's counts of blocked messages by sender. A missing sender has 0, as in a defaultdict."""

    def __init__(self, context: "Interceptor") -> None:
        self.data: Any = context.violations  # the interceptor's own table, and not a copy

    def __missing__(self, from_id: AgentId) -> int:
        return 0

    def get(self, from_id: AgentId, default: Any = 0) -> Any:  # noqa: ANN401 - as dict's
        """Return a sender's count, or `default` if the sender has none."""
        return self.data.get(from_id, default)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or an unpickled object is a plain dict. Changes of this dict do not change the interceptor's counts.
        return dict, (dict(self),)

    def __repr__(self) -> str:
        return f"ViolationCounts({len(self)} senders)"  # a short text, because AgentSociety writes it at every call


class BlackSet(MutableSet[Pair]):
    """The interceptor's black list as a set of (from_id, to_id). A change of this set changes the black list."""

    __slots__ = ("_context",)

    def __init__(self, context: "Interceptor") -> None:
        self._context = context

    @classmethod
    def _from_iterable(cls, pairs: Iterable[Any]) -> Any:  # noqa: ANN401 - the result of |, & and - is a plain set
        return set(pairs)

    def __contains__(self, pair: object) -> bool:
        return pair in self._context.black_list.state

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._context.black_list.state)

    def __len__(self) -> int:
        return len(self._context.black_list.state)

    def add(self, value: Pair) -> None:
        """Add a pair to the interceptor's black list."""
        self._context.black_list.add([value])

    def discard(self, value: Pair) -> None:
        """Remove a pair from the interceptor's black list."""
        if value in self:
            self._context.black_list.remove([value])

    def clear(self) -> None:
        """Remove all pairs from the interceptor's black list."""
        # Removing one pair after the other would take a time that grows with the square of their number.
        self.difference_update(self)

    def update(self, *others: Iterable[Pair]) -> None:
        """Add pairs to the interceptor's black list."""
        for pairs in others:
            self._context.black_list.add(list(pairs))

    def difference_update(self, *others: Iterable[Pair]) -> None:
        """Remove pairs from the interceptor's black list."""
        for pairs in others:
            self._context.black_list.remove(list(pairs))

    def __ior__(self, other: Any) -> "BlackSet":  # type: ignore[misc]  # noqa: ANN401 - a set
        self.update(other)  # all pairs are added, or none, in one change
        return self

    def __isub__(self, other: Any) -> "BlackSet":  # type: ignore[misc]  # noqa: ANN401 - a set
        self.difference_update(other)
        return self

    def copy(self) -> set[Pair]:
        """Return a copy as a plain set."""
        return set(self)

    def union(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a plain set of the pairs that are in this set or in one of the `others`."""
        return self.copy().union(*others)

    def difference(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a plain set of the pairs that are in this set, but in none of the `others`."""
        return self.copy().difference(*others)

    def intersection(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a plain set of the pairs that are in this set and in all of the `others`."""
        return self.copy().intersection(*others)

    def __reduce__(self) -> tuple[Any, ...]:
        # A copy or an unpickled object is a plain set, whose changes do not change the black list.
        return set, (list(self),)

    def __repr__(self) -> str:
        return f"BlackSet({len(self)} pairs)"  # a short text, because AgentSociety writes it at every call


def _name_of(block: object) -> str:
    name = getattr(block, "name", "")
    if isinstance(name, str) and name:
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(block).__name__).lower()


def _check_forward(found: object, what: str, form: str, rule: str) -> None:
    if isinstance(found, type) or not inspect.iscoroutinefunction(getattr(found, "forward", None)):
        why = f"{found!r} is not a {what} of AgentSociety: pass an instance of a class with `async def forward({form}`"
        raise RuleError(why, rule=rule)


class Supervisor(StepRule):
    """Run an unchanged supervisor of AgentSociety: an object that was written for AgentSociety's message interceptor.

    Its class has `async forward(current_round_messages) -> (validation, messages)`. A step counts as a round. The
    supervisor sees the step's messages of the subtopic agent-chat. As in AgentSociety, a message that the supervisor
    finds invalid is blocked, and its sender gets the message "Message sent failed" from the recipient. The messages
    that the supervisor returns are sent.

    A message's `created_at` is made from the step (as seconds) and the message's place in the step (as microseconds),
    so that it is the same in each run. A supervisor's own attributes are lost if the interceptor's process dies.

    Args:
        supervisor: the instance.
        clock: a function that returns the day and the tick of a step; by default (0, step).
        timeout_s: limit for one call.
        on_error: the verdict on a step if the supervisor fails on it: "block" or "allow".
        name: the rule's name.

    Raises: RuleError if an argument is not valid.
    """

    _described = ("timeout_s", "on_error")

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
        form = "self, current_round_messages) -> (dict[Message, bool], list[Message])"
        _check_forward(supervisor, "supervisor", form, self.name)
        self.supervisor: Any = supervisor
        self.timeout_s = self.time_limit_s = check_positive("timeout_s", timeout_s, self.name)
        self.on_error = check_choice("on_error", on_error, ("block", "allow"), self.name)
        self._clock = clock
        self._last: tuple[int, StepVerdicts] | None = None

    async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        """Return the supervisor's verdicts on the chat of a step, and the messages that it sends."""
        if self._last is None or self._last[0] != number:  # the supervisor is asked about each step only once
            self._last = number, await self._verdicts(number, batch, exp_id)
        return self._last[1]

    async def _verdicts(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        day, tick = (0, float(number)) if self._clock is None else self._clock(number)
        rows = [row for row in range(len(batch)) if _KINDS.get(batch.topic_of(row)) is MessageKind.AGENT_CHAT]
        messages = [_message(Message(exp_id, batch, row), number, row, day, tick) for row in rows]
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
        """Return the rule's name, kind and settings, and the name of the supervisor's class, as JSON values."""
        return {**super().describe(), "supervisor": type(self.supervisor).__qualname__}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"context": None, "_last": None}


def _message(message: Message, number: int, row: int, day: int, tick: float) -> RoundMessage:
    return RoundMessage(
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
        raise TypeError(f"the supervisor's verdict on a message is {answer!r}: it must be True or False")
    return answer


def _added(message: RoundMessage) -> Added:
    if not isinstance(message, RoundMessage) or message.to_id is None:
        raise TypeError(f"the supervisor sends {message!r}: it must be a Message with a to_id")
    return Added(message.to_id, message.payload, from_id=message.from_id, subtopic=message.kind.value)
