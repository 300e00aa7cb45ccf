"""What a rule is."""

import asyncio
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from ray_messaging.compat.msg import Msg, Payload
from ray_messaging.interception.server.state.table import Table
from ray_messaging.interception.server.watchdog import Watch
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch

if TYPE_CHECKING:
    from ray_messaging.interception.rules.black_list import BlackList


# What a rule may raise without harm to anybody else: it must end neither the loop nor the task it is called in.
RAISED = (Exception, SystemExit, asyncio.CancelledError)


class Verdict(NamedTuple):
    """Say what becomes of one message: blocked and why, or passed with another payload, or with labels."""

    blocked: bool = False
    reason: str = ""
    payload: Payload | None = None
    labels: tuple[str, ...] = ()


ALLOW = Verdict()


def block(reason: str) -> Verdict:
    """Build the verdict that stops a message."""
    return Verdict(blocked=True, reason=reason)


def rewrite(payload: Payload, *labels: str) -> Verdict:
    """Build the verdict that lets a message pass with another payload; the event log keeps the one it had."""
    return Verdict(payload=payload, labels=labels)


def label(*labels: str) -> Verdict:
    """Build the verdict that lets a message pass with labels, which its receiver and the event log see."""
    return Verdict(labels=labels)


class Context(Protocol):
    """What a rule may see of the interceptor it stands in."""

    violations: Table[int]  # from_id -> how many of its messages were blocked
    watch: Watch

    @property
    def black_list(self) -> "BlackList":
        """Return the first black list; an empty one is put before all other rules where there is none."""

    def rule_failed(self, rule: "Rule", error: BaseException, messages: int) -> None:
        """Count messages at which a rule failed."""


class Rule:
    """Judge messages, one by one or a whole batch at once.

    Override `check`, or `check_batch` where a batch can be judged by its columns. A rule that reads payloads sets
    `needs_payload`. A rule that raises, or answers nonsense, blocks; `on_error = "allow"` says otherwise. What a rule
    must remember when its process dies is kept in `state`, a Table.
    """

    name: str = ""
    needs_payload: bool = False
    on_error: Literal["block", "allow"] = "block"
    state: Table[Any] | None = None
    context: Context | None = None  # set when the rule is put in

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - as type's
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def check(self, message: Message) -> Verdict:
        """Judge one message: ALLOW, block("why"), rewrite({...}) or rewrite(msg), label("tag")."""
        raise NotImplementedError(f"rule {self.name!r} must override check or check_batch")

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:
        """Judge a batch; return the verdicts of the rows that do not just pass."""
        found: dict[int, Verdict] = {}
        for row in range(len(batch)):
            try:
                verdict = checked(self.check(Message(exp_id, batch, row)))
            except RAISED as error:  # a rule is the user's code: fail closed, and say so
                verdict = self.count_failure(error)
            if verdict is not ALLOW:
                found[row] = verdict
        return found

    def count_failure(self, error: BaseException, messages: int = 1) -> Verdict:
        """Have messages counted at which this rule failed; return the verdict on each of them."""
        if self.context is not None:
            self.context.rule_failed(self, error, messages)
        return self.failed(error)

    def failed(self, error: BaseException) -> Verdict:
        """Return the verdict on a message at which this rule failed."""
        return ALLOW if self.on_error == "allow" else block(failure(error))

    def new_round(self) -> None:
        """Begin a new round: quotas that count by round start again."""

    def restored(self) -> None:
        """Rebuild what is derived from `state`, which was just loaded."""

    async def close(self) -> None:
        """Let go of connections: the interceptor ends, or the rule was taken out."""

    def describe(self) -> dict[str, Any]:
        """Return name, kind and settings as JSON, for people to read."""
        return {"name": self.name, "kind": type(self).__name__}


class SlowRule(Rule):
    """Judge messages one by one, by something that takes its time: a model, a service.

    Only the messages that wait for it wait; whoever sends to others goes on.
    """

    needs_payload = True
    time_limit_s: float = 120.0  # a verdict that takes longer counts as a failure

    async def judge(self, message: Message) -> Verdict:
        """Judge one message; called once for each, many at a time."""
        raise NotImplementedError(f"rule {self.name!r} must override judge")

    def at_once(self, message: Message) -> Verdict | None:  # noqa: ARG002 - for those who know
        """Return a verdict that is known already; None: `judge` must be asked."""
        return None


def checked(verdict: object) -> Verdict:
    """Return what a rule answered, if it is a verdict; raise TypeError otherwise."""
    if (
        isinstance(verdict, Verdict)
        and isinstance(verdict.reason, str)
        and (verdict.payload is None or isinstance(verdict.payload, dict | Msg))
        and isinstance(verdict.labels, tuple)
        and all(isinstance(name, str) and name for name in verdict.labels)
    ):
        return verdict
    raise TypeError(f"{verdict!r} is no verdict: return ALLOW, block('why'), rewrite({{...}}) or label('tag')")


def failure(error: BaseException) -> str:
    """Say as a reason that a rule failed."""
    return f"the rule failed: {said_of(error)}"


def said_of(error: BaseException) -> str:
    """Return an error's type and text; a user's error may fail at saying it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the error at hand is the one to tell of
        return type(error).__name__
