"""The base classes of rules, and the verdicts that rules return."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId
from ray_messaging.common.awaitables import RAISED
from ray_messaging.compat.msg import Msg, Payload
from ray_messaging.default_limits_and_leases import SLOW_RULE_TIMEOUT_S
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import IdColumn

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.interceptor import Interceptor


class Verdict(NamedTuple):
    """The verdict on one message: blocked for a reason, or passed, possibly with a new payload or labels.

    Build verdicts with `ALLOW`, `block`, `rewrite` and `label`. `payload` is the new payload (None: the message keeps
    its payload), and `labels` are added to the message's labels.
    """

    blocked: bool = False
    reason: str = ""
    payload: Payload | None = None
    labels: tuple[str, ...] = ()


ALLOW = Verdict()
UNLIMITED = 2**62  # more messages than any sender can send


def block(reason: str) -> Verdict:
    """Return the verdict that blocks a message. The sender and the event log get the reason."""
    return Verdict(blocked=True, reason=reason)


def rewrite(payload: Payload, *labels: str) -> Verdict:
    """Return the verdict that passes a message with a new payload. The event log keeps the original payload."""
    return Verdict(payload=payload, labels=labels)


def label(*labels: str) -> Verdict:
    """Return the verdict that passes a message with labels. The receiver and the event log see the labels."""
    return Verdict(labels=labels)


class PairCheck(NamedTuple):
    """A check that decides by ids alone which hearers a sender's broadcast may reach.

    `bars(from_ids, to_ids)` gets pairs of a sender and a hearer, and returns which pairs are blocked, as a bool array
    with an item for each pair. `reason` is the reason of each block.
    """

    bars: Callable[[IdColumn, IdColumn], NDArray[np.bool_]]
    reason: str


class Rule:
    """A rule that judges messages, one by one or a whole batch at once.

    A rule returns verdicts: ALLOW, block("why"), rewrite(payload) or label("tag"). Override `check`, or `check_batch`
    to judge a batch by its columns. If a rule raises an exception, or returns anything but verdicts, it has failed on
    the message. The message is then blocked, unless `on_error` is "allow".

    Attributes:
        name: the rule's name in receipts and in the event log. Two rules of an experiment cannot have the same name. By
            default the name is made from the class's name.
        needs_payload: whether the rule reads payloads. If False, the rule may get batches without payloads.
        on_error: the verdict on messages on which the rule fails: "block" or "allow".
        judges_broadcasts: "pair": the rule sees a broadcast as one message for each hearer, and may block, rewrite or
            label each of these messages. "message": the rule judges a broadcast once, with to_id None; this suits rules
            on texts, lengths, rates or senders.
        state: a `Table` with everything that must survive the death of the rule's process; None if the rule keeps
            nothing.
        context: the interceptor, the object that applies the rule; None before the rule is inserted, and after it is
            removed.

    Example:
        class QuietHours(Rule):
            def check(self, message: Message) -> Verdict:
                hour = datetime.now().hour
                return block("quiet from 22 to 6") if hour >= 22 or hour < 6 else ALLOW
    """

    name: str = ""
    needs_payload: bool = False
    on_error: Literal["block", "allow"] = "block"
    judges_broadcasts: Literal["pair", "message"] = "pair"
    state: Table[Any] | None = None
    context: "Interceptor | None" = None
    _described: ClassVar[tuple[str, ...]] = ()  # the attributes that `describe` returns

    def __init_subclass__(cls, **kwargs: Any) -> None:  # noqa: ANN401 - as in type
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()

    def check(self, message: Message) -> Verdict:
        """Return the verdict on one message.

        The verdict is ALLOW, `block("why")`, `rewrite(payload)` with a new payload, or `label("tag")`, which lets the
        message pass with a label.
        """
        raise NotImplementedError(f"rule {self.name!r} judges nothing: define its method check or check_batch")

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:
        """Return the verdicts on a batch of messages, {row: verdict}; rows that are left out pass.

        The batch has columns such as `from_ids` and `to_ids`. The message of a row is `Message(exp_id, batch, row)`.
        """
        found: dict[int, Verdict] = {}
        for row in range(len(batch)):
            try:
                verdict = checked(self.check(Message(exp_id, batch, row)))
            # `check` may be any code. If it fails, the message is blocked, unless `on_error` is "allow".
            except RAISED as error:
                verdict = self.count_failure(error)
            if verdict is not ALLOW:
                found[row] = verdict
        return found

    def pair_check(self) -> PairCheck | None:
        """Return an object that judges many pairs of sender and hearer of a broadcast at once, by their ids.

        Return None if `check_batch` must judge each pair. The object is valid until `state` changes.
        """
        return None

    def count_failure(self, error: BaseException, messages: int = 1) -> Verdict:
        """Count messages on which this rule has failed, and return one verdict for all of them.

        The verdict blocks or allows the messages, as `on_error` says.
        """
        if self.context is not None:
            self.context.rule_failed(self, error, messages)
        return self.failed(error)

    def failed(self, error: BaseException) -> Verdict:
        """Return the verdict on a message on which this rule has failed: a block, or ALLOW if `on_error` is "allow"."""
        return ALLOW if self.on_error == "allow" else block(failure(error))

    @property
    def counts_blocked(self) -> bool:
        """Return whether verdicts depend on how many of the sender's earlier messages were blocked, by any rule."""
        return False

    def room(self, senders: Sequence[AgentId | None]) -> Sequence[int]:
        """Return, for each sender, how many more of its messages must be blocked before verdicts may change.

        Each number must be at least 1. A rule that bans senders after 3 blocked messages returns 2 for a sender that
        has 1. The numbers are used only if `counts_blocked` is True, which means that verdicts depend on how many
        messages of the sender were blocked before, by any rule. In a simulation in steps, messages are then judged in
        parts, so that no verdict depends on messages that are blocked in the same part. A part has at most as many
        messages of a sender as this method returns for the sender. Only a broadcast may make a part larger, because the
        messages to its hearers stay together.
        """
        return [UNLIMITED] * len(senders)

    def new_round(self) -> None:
        """Begin a new round: reset the counts that the rule keeps for each round.

        In an experiment with steps, each step is a round.
        """

    @property
    def has_rounds(self) -> bool:
        """Return whether this rule resets counts in `new_round`. In an experiment with steps, each step is a round."""
        return type(self).new_round is not Rule.new_round

    def restored(self) -> None:
        """Rebuild everything that is derived from `state`. This is called after `state` was loaded."""

    async def close(self) -> None:
        """Close the rule's connections. This is called when the rule's process ends, or after the rule was removed."""

    def describe(self) -> dict[str, Any]:
        """Return the rule's name, its class's name as `kind`, and its settings, as JSON values for people to read."""
        shown = {name: getattr(self, name) for name in self._described}
        settings = {name: list(value) if isinstance(value, tuple) else value for name, value in shown.items()}
        return {"name": self.name, "kind": type(self).__name__, **settings}


class SlowRule(Rule):
    """A rule that awaits its verdicts, such as those of a language model or a service.

    A slow rule delays only the messages that it judges, and later messages of the same sender to the same receiver. In
    an experiment with steps, it delays all messages that are sent in one batch with a message that it judges. It judges
    a broadcast once, with to_id None. Override `judge`.

    Attributes:
        time_limit_s: the most seconds for a message. If the verdict takes longer, the rule has failed on the message.
    """

    needs_payload = True
    judges_broadcasts = "message"
    time_limit_s: float = SLOW_RULE_TIMEOUT_S

    async def judge(self, message: Message) -> Verdict:
        """Return the verdict on one message.

        Calls for many messages may run at the same time. A message is judged again if the process of the rule dies
        before the verdict, or if the message's step runs again.
        """
        raise NotImplementedError(f"rule {self.name!r} judges nothing: define its method judge")

    def at_once(self, message: Message) -> Verdict | None:  # noqa: ARG002 - for subclasses
        """Return a verdict that needs no waiting, or None if `judge` must be called."""
        return None


def checked(verdict: object) -> Verdict:
    r"""Return a rule's answer if it is a verdict; raise TypeError otherwise.

    A reason may contain a lone surrogate (half of a character), which no log can store. It is replaced by its escape,
    such as `\\ud83d`.
    """
    if (
        isinstance(verdict, Verdict)
        and isinstance(verdict.reason, str)
        and (verdict.payload is None or isinstance(verdict.payload, dict | Msg))
        and isinstance(verdict.labels, tuple)
        and all(isinstance(name, str) and name for name in verdict.labels)
    ):
        reason = verdict.reason
        if reason.isascii():
            return verdict
        return verdict._replace(reason=reason.encode(errors="backslashreplace").decode())
    raise TypeError(f"{verdict!r} is not a verdict: return ALLOW, block('why'), rewrite({{...}}) or label('tag')")


def failure(error: BaseException) -> str:
    """Return the reason that is given for a block if a rule has failed."""
    return f"the rule failed: {text_of(error)}"


def text_of(error: BaseException) -> str:
    """Return an error's type and text, or only its type if its `__str__` fails."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - the original error matters more
        return type(error).__name__


class Added(NamedTuple):
    """A message that a rule adds to a step. `deliver_at` is the step in which it is read (None: the next step).

    `to_id` is the recipient, `from_id` the sender (None: the user), and `subtopic` the subtopic of the message.
    """

    to_id: AgentId
    payload: Payload
    from_id: AgentId | None = None
    subtopic: str = AGENT_CHAT
    deliver_at: int | None = None


class StepVerdicts(NamedTuple):
    """The verdicts on the messages of a step, and the messages that are added to the step.

    `rows` maps rows of the step's batch to verdicts; rows that are left out pass. `add` has the messages to add.
    """

    rows: Mapping[int, Verdict] = {}
    add: Sequence[Added] = ()


class StepRule(Rule):
    """A rule that sees all messages of a step at once, before any message is delivered.

    The rule is asked when all groups have closed the step, and the next step begins when the rule has answered. If the
    rule's process dies, the rule is asked again about the same messages. The rule's `state`, the data that it keeps, is
    then as it was before the step. The rule sees the messages that agents of groups have sent in the step to agents of
    groups, except those that another rule has blocked.

    Attributes:
        time_limit_s: the most seconds for a step. If the answer takes longer, the rule has failed on the step.

    Example:
        class Quiet(StepRule):
            async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
                return StepVerdicts({row: block("too many") for row in range(1_000, len(batch))})
    """

    time_limit_s: float = SLOW_RULE_TIMEOUT_S
    # A unique text, which the interceptor sets, so that a later rule of the same name does not get this rule's state.
    admission: str = ""

    async def check_step(self, number: int, batch: Batch, exp_id: str) -> StepVerdicts:
        """Return the verdicts on the messages of step `number`, and the messages to add to the step.

        `batch` has the messages that were sent in this step. Its rows are sorted by to_id, then by from_id, then in the
        order of sending.
        """
        raise NotImplementedError(f"rule {self.name!r} judges nothing: define its method check_step")

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:  # noqa: ARG002 - every rule gets it
        """Pass all messages of a batch, because the rule judges them later, together with their step."""
        return {}


def forces_all(rules: Iterable[Rule]) -> bool:
    """Return whether any rule acts between steps. All groups must then close a step before the next step begins."""
    return any(isinstance(rule, StepRule) or rule.has_rounds for rule in rules)
