"""The rules that judge whole steps. A StepSupervisor asks them when all groups have closed a step."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from ray_messaging.addressing.channels import AgentId, check_id, check_subtopic
from ray_messaging.default_limits_and_leases import PAYLOAD_LIMIT
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.rule_pipeline import RulePipeline, checked_rows, failed
from ray_messaging.interception.interceptor.watchdog import FAILURES
from ray_messaging.interception.rules.rule import ALLOW, Added, StepRule, StepVerdicts, Verdict
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import encode_payload
from ray_messaging.model.whole_numbers import delivery_step
from ray_messaging.transports.experiment_store import Fields

Tables = dict[str, tuple[str, Fields]]  # maps the name of a rule to the rule's `admission` (see StepRule) and state
_encode = msgspec.msgpack.Encoder().encode


class AddedMessage(NamedTuple):
    """A valid message that a rule adds to a step. `line` is the message's payload as one line of JSON."""

    rule: str
    from_id: AgentId | None
    to_id: AgentId
    subtopic: str
    deliver: int
    line: bytes


# Decodes what `RuleReviewer.dump` returns: the rules' tables, and how many messages of each sender were blocked.
_decode = msgspec.msgpack.Decoder(tuple[Tables, list[tuple[AgentId | None, int]]]).decode


class RuleReviewer:
    """The rules of an interceptor that act at the end of each step.

    When all groups have closed a step, rules that judge whole steps judge it. One write to the server saves their
    verdicts, their state, and the end of the step. If the interceptor dies before this write, its successor judges the
    step again, with the state that these rules had before the step. After the write, the rules that judge single
    messages begin a new round. Only then are batches of the next step judged.

    Args: `horizon` is how many steps ahead a message may be sent.
    """

    def __init__(self, interceptor: Interceptor, horizon: int) -> None:
        interceptor.supervised = True
        self._interceptor = interceptor
        # How many messages of each sender the rules have blocked in the step that was closed last.
        self._violations: Mapping[AgentId | None, int] = {}
        self.asking: StepRule | None = None  # the rule that is being asked now
        self._horizon = horizon
        # Maps `id(rule)` to the rule, and to the state that the rule had before it judged its first step.
        self._first: dict[int, tuple[StepRule, Fields]] = {}

    def _rules(self) -> tuple[StepRule, ...]:
        return self._interceptor.rules.whole

    # -- the order of steps ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Make each batch wait until `begin` is called for its step."""
        self._interceptor.gate.set(-1)

    def stop(self) -> None:
        """Let batches of any step be judged at once from now on, because no further step will begin."""
        self._interceptor.gate.set(math.inf)

    async def resume(self, number: int, state: bytes | None, *, ended: bool) -> None:
        """Begin a step after a restart, with the state that rules had after the previous step.

        Args: `state` is what `dump` returned after the previous step. `ended` says whether all groups have ended the
        previous step.
        """
        tables, violations = ({}, []) if state is None else _decode(state)
        self._violations = dict(violations)
        await self.begin(number, ended=ended)
        self._load(tables)

    async def begin(self, number: int, *, ended: bool = True) -> None:
        """Let the messages of step `number` be judged.

        If the previous step has ended for all groups (`ended`), first begin a new round for the rules that judge single
        messages.
        """
        if ended:
            await self._interceptor.end_step(number - 1, self._violations)
        await self._interceptor.versions.apply(number)
        self._interceptor.gate.set(number)

    # -- one step -------------------------------------------------------------------------------------------------

    def reads(self) -> bool:
        """Return whether any rule judges whole steps."""
        return bool(self._rules())

    async def review(self, number: int, batch: Batch) -> tuple[BatchVerdict, list[AddedMessage]]:
        """Let the rules that judge whole steps judge a step, and begin a new round for them.

        Return their verdicts, and the messages that they add to the step. If a rule fails, all messages of the step are
        blocked, unless the rule's `on_error` is "allow".
        """
        pipeline = RulePipeline(batch, self._interceptor.exp_id, self._interceptor.watch)
        added: list[AddedMessage] = []
        for rule in self._rules():
            self._note_first(rule)
            rows, more = await self._ask(rule, number, pipeline.rest)
            added += more
            pipeline.take(rule, rows)
        self._interceptor.new_round(self._rules())
        return pipeline.verdict, added

    async def _ask(self, rule: StepRule, number: int, batch: Batch) -> tuple[Mapping[int, Verdict], list[AddedMessage]]:
        """Return a rule's verdicts by row, and the messages that it adds.

        If the rule fails, all rows get the same verdict: they are blocked, or pass if `on_error` is "allow".
        """
        self.asking = rule
        try:
            found = await self._interceptor.calls.run(
                rule, lambda: rule.check_step(number, batch, self._interceptor.exp_id), rule.time_limit_s, "verdict"
            )
        finally:
            self.asking = None
        try:
            if isinstance(found, BaseException):
                raise found
            if not isinstance(found, StepVerdicts):
                raise TypeError(f"check_step returned {found!r}: it must return StepVerdicts(rows, add)")
            return checked_rows(found.rows, batch.rows), [self._added(rule, number, each) for each in found.add]
        except FAILURES as error:
            verdict = failed(rule, error, max(1, batch.rows))
            return {} if verdict is ALLOW else dict.fromkeys(range(batch.rows), verdict), []

    def _added(self, rule: StepRule, number: int, message: Added) -> AddedMessage:
        """Check and encode a message that a rule adds to step `number`.

        Raises: TypeError or a MessagingError if the message is not valid.
        """
        if not isinstance(message, Added):
            raise TypeError(f"StepVerdicts.add has {message!r}, which is not a message: write Added(to_id, payload)")
        return AddedMessage(
            rule.name,
            None if message.from_id is None else check_id(message.from_id),
            check_id(message.to_id),
            check_subtopic(message.subtopic),
            delivery_step(message.deliver_at, number, self._horizon),
            encode_payload(message.payload, PAYLOAD_LIMIT),
        )

    # -- state ----------------------------------------------------------------------------------------------------

    def dump(self, violations: Mapping[AgentId | None, int]) -> bytes | None:
        """Encode the state that the rules have after they have judged a step.

        Return None if no rule has a state, and no message was blocked.

        Args: `violations` says how many messages of each sender these rules have blocked in this step. It is a part of
        the encoded state.
        """
        self._violations = violations
        tables = {rule.name: (rule.admission, rule.state.dump()) for rule in self._rules() if rule.state is not None}
        return _encode((tables, list(violations.items()))) if tables or violations else None

    def _load(self, tables: Tables) -> None:
        """Load the state of each rule that judges whole steps from `tables`, which `dump` has saved.

        A rule that was inserted after the call of `dump` goes back to the state that it had before its first step.
        """
        self._first = {id(rule): self._first[id(rule)] for rule in self._rules() if id(rule) in self._first}
        for rule in self._rules():
            if rule.state is not None:
                admission, fields = tables.get(rule.name, ("", None))
                first = self._note_first(rule)
                rule.state.load(first if fields is None or admission != rule.admission else fields)
                rule.restored()

    def _note_first(self, rule: StepRule) -> Fields:
        """Return the state that a rule had before it judged its first step. The first call records this state."""
        return self._first.setdefault(id(rule), (rule, {} if rule.state is None else rule.state.dump()))[1]
