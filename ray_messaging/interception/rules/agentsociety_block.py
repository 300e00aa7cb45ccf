"""Put classes that were written for AgentSociety's interceptor to work."""

import inspect
import json
import re
from collections.abc import Callable, Iterable, Iterator, MutableMapping, MutableSet
from typing import Any

from ray_messaging.addressing.channels import AgentId
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.moderator import (
    NO_LIMIT_S,
    OnError,
    check_name,
    check_on_error,
    check_timeout,
)
from ray_messaging.interception.rules.rule import ALLOW, Context, SlowRule, Verdict, block
from ray_messaging.interception.rules.support.calls import Calls
from ray_messaging.interception.rules.support.pairs import Pair
from ray_messaging.message import Message

_TIMEOUT_S = 300.0  # what AgentSociety's own blocks give one request to a model


class Block(SlowRule):
    """Ask an instance of a class written for AgentSociety, as it is.

    Such a class has `async forward(llm, from_id, to_id, msg, violation_counts, black_set) -> (bool, str)`, and meets
    here what it meets there: `msg` is the payload as JSON text, exactly as `json.dumps` writes it; `violation_counts`
    holds how many messages of each sender were blocked (0 for who is not in it) and is counted by the interceptor, not
    by the block; `black_set` is the interceptor's black list, live: what the block adds or discards is added to and
    removed from that. Calls of one block are one at a time, in the order of sending, because such classes count: what
    one message takes, all others that wait for this block take, too. Messages without a sender or a receiver (from the
    user, to the user) pass unasked: AgentSociety asks about messages between agents only, and what a block adds to the
    black set with None stands for everybody.

    `llm` is handed on as it is; where it cannot be pickled (most clients), give `make_llm`, called once where the
    interceptor runs. A block that raises, answers nonsense or takes longer than `timeout_s` blocks the message, unless
    on_error="allow". What a block keeps in attributes of its own is lost with the interceptor's process.
    """

    time_limit_s = NO_LIMIT_S  # the calls have theirs

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
        _check_block(block, self.name)
        if make_llm is not None and (llm is not None or not callable(make_llm)):
            raise RuleError("give llm, or make_llm, a function that makes it; not both", rule=self.name)
        self.block = block
        self.timeout_s = check_timeout(timeout_s, self.name)
        self.on_error = check_on_error(on_error, self.name)
        self._llm = llm
        self._make_llm = make_llm
        self._calls = Calls(1, self.timeout_s)

    def at_once(self, message: Message) -> Verdict | None:
        """Let pass what no agent sent, or what no agent gets."""
        return ALLOW if message.from_id is None or message.to_id is None else None

    async def judge(self, message: Message) -> Verdict:
        """Ask the block about one message."""
        known = self.at_once(message)
        if known is not None:
            return known
        try:
            answer = await self._calls.run(self, lambda: self._forward(message))
            return self._verdict(answer, message)
        except Exception as error:  # noqa: BLE001 - the user's class: fail as they wish
            return self.count_failure(error)

    async def close(self) -> None:
        """Wait a moment for a call that was cancelled."""
        await self._calls.close()

    def describe(self) -> dict[str, Any]:
        """Return name, kind, settings and the block's class as JSON."""
        settings = {"timeout_s": self.timeout_s, "on_error": self.on_error}
        return {**super().describe(), "block": type(self.block).__qualname__, **settings}

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name not in {"_calls", "context"}}
        return state if self._make_llm is None else {**state, "_llm": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._calls = Calls(1, self.timeout_s)

    def __repr__(self) -> str:
        return f"Block({type(self.block).__qualname__}, name={self.name!r})"

    async def _forward(self, message: Message) -> object:
        if self.context is None:
            raise RuleError(f"rule {self.name!r} stands in no interceptor yet: pass it to Messaging", rule=self.name)
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
            raise TypeError(f"forward answered {answer!r}: return (True, '') or (False, 'why')")
        if passed:
            return ALLOW
        if why:
            return block(why if isinstance(why, str) else str(why))
        return block(f"{self.name} refused it, from {message.from_id!r} to {message.to_id!r}")


class ViolationCounts(MutableMapping[AgentId, int]):
    """Be the interceptor's violation counts; who is not in it has 0, as in a defaultdict."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def __getitem__(self, from_id: AgentId) -> int:
        return self._context.violations.get(from_id, 0)

    def __setitem__(self, from_id: AgentId, count: int) -> None:
        self._context.violations[from_id] = count

    def __delitem__(self, from_id: AgentId) -> None:
        del self._context.violations[from_id]

    def __contains__(self, from_id: object) -> bool:
        return from_id in self._context.violations

    def __iter__(self) -> Iterator[AgentId]:
        return iter(self._context.violations)

    def __len__(self) -> int:
        return len(self._context.violations)

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # copies and pickles are plain, and change nothing here

    def __repr__(self) -> str:
        return f"ViolationCounts({len(self)} senders)"  # short: AgentSociety's lock_decorator writes it at every call


class BlackSet(MutableSet[Pair]):
    """Be the interceptor's black list as a set of (from_id, to_id); what is changed here is changed there."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    @classmethod
    def _from_iterable(cls, pairs: Iterable[Any]) -> Any:  # noqa: ANN401 - what |, & and - give is a set of its own
        return set(pairs)

    def __contains__(self, pair: object) -> bool:
        return pair in self._context.black_list.state

    def __iter__(self) -> Iterator[Pair]:
        return iter(self._context.black_list.state)

    def __len__(self) -> int:
        return len(self._context.black_list.state)

    def add(self, value: Pair) -> None:
        """Block a pair."""
        self._context.black_list.add([value])

    def discard(self, value: Pair) -> None:
        """Let a pair pass again."""
        if value in self:
            self._context.black_list.remove([value])

    def clear(self) -> None:
        """Let all pairs pass again."""
        self.difference_update(list(self))

    def update(self, *others: Iterable[Pair]) -> None:
        """Block more pairs."""
        for pairs in others:
            self._context.black_list.add(list(pairs))

    def difference_update(self, *others: Iterable[Pair]) -> None:
        """Let pairs pass again."""
        for pairs in others:
            self._context.black_list.remove(list(pairs))

    def __ior__(self, other: Any) -> "BlackSet":  # type: ignore[misc]  # noqa: ANN401 - a set
        self.update(other)
        return self

    def __isub__(self, other: Any) -> "BlackSet":  # type: ignore[misc]  # noqa: ANN401 - a set
        self.difference_update(other)
        return self

    def copy(self) -> set[Pair]:
        """Return a set of its own."""
        return set(self)

    def union(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a set of its own, of these and others."""
        return self.copy().union(*others)

    def difference(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a set of its own, of these but others."""
        return self.copy().difference(*others)

    def intersection(self, *others: Iterable[Pair]) -> set[Pair]:
        """Return a set of its own, of these that are in others."""
        return self.copy().intersection(*others)

    def __reduce__(self) -> tuple[Any, ...]:
        return set, (list(self),)  # copies and pickles are plain, and change nothing here

    def __repr__(self) -> str:
        return f"BlackSet({len(self)} pairs)"  # short: AgentSociety's lock_decorator writes it at every call


def _name_of(block: object) -> str:
    """Return the name a block was given, or its class's."""
    name = getattr(block, "name", "")
    if isinstance(name, str) and name:
        return name
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(block).__name__).lower()


def _check_block(block: object, rule: str) -> None:
    forward = getattr(block, "forward", None)
    if isinstance(block, type) or not inspect.iscoroutinefunction(forward):
        raise RuleError(
            f"{block!r} is no block: pass an instance of a class with `async def forward(self, llm, from_id, to_id, "
            "msg, violation_counts, black_set) -> (bool, str)`",
            rule=rule,
        )
