"""The interceptor, which gives a verdict on every message, by applying rules in order."""

import asyncio
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from typing import Any, TypeVar

import msgspec
import numpy as np

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.compat.msg import Msg
from ray_messaging.default_limits_and_leases import FRAME_LIMIT, PAYLOAD_LIMIT
from ray_messaging.errors import Fenced, RuleError
from ray_messaging.interception.broadcasts import Intersections, pair_rows
from ray_messaging.interception.interceptor.attempts import StepAttempts
from ray_messaging.interception.interceptor.rule_delegation import PublishSnapshot, RuleDelegation
from ray_messaging.interception.interceptor.rule_pipeline import RulePipeline, parts_of
from ray_messaging.interception.interceptor.rule_set import RuleFailures, RuleSet
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.interceptor.rule_versions import RuleVersions, StepGate
from ray_messaging.interception.interceptor.saved_answers import SavedAnswers, key_of, record
from ray_messaging.interception.interceptor.slow_rule_runner import Judging, Sections, SlowRuleRunner
from ray_messaging.interception.interceptor.state_writer import StateStore, StateWriter
from ray_messaging.interception.interceptor.watchdog import FAILURES, RuleCalls, RunningRule
from ray_messaging.interception.rule_snapshot import decode_snapshot_request
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule, failure
from ray_messaging.interception.verdicts import (
    FOREIGN,
    PATIENCE_S,
    BatchVerdict,
    VerdictReply,
    decode_verdicts,
    encode_verdicts,
)
from ray_messaging.model.batch import Attempt, Batch
from ray_messaging.model.columns import IdColumn, PayloadColumn, encode_payload
from ray_messaging.observability.tracing.untraced import UNTRACED, AnyTracer
from ray_messaging.wire.frames import decode

logger = logging.getLogger(__name__)

T = TypeVar("T")

# The name, on the server, of the table that counts the blocked messages of each sender. No rule's table can have this
# name, because no rule's name begins with a colon.
VIOLATIONS = ":violations"
ROUNDS, ATTEMPTS, CHANGES = ":rounds", ":attempts", ":changes"
OWN_TABLES = (VIOLATIONS, ROUNDS, ATTEMPTS, CHANGES)
ANSWERS = ":answers"
_OVER = ("interceptor", "a later task takes the group through its steps, so nothing that this task sends counts")
_ROUND_CALLS = 100  # how many calls of `new_round_once` are remembered
_CLOSE_S = 3.0  # the time limit for a rule's close()
_KEEP_S = 120.0  # the default of `keep_s`: how long senders may ask again about a batch


class Interceptor:
    """Ordered rules that judge batches. This is a plain class, because Ray would wrap each method of an actor class.

    A batch takes this way: `answer` looks for an earlier answer, a `RulePipeline` applies the rules, the verdict is
    counted and encoded, and the answer is kept in case the sender asks again. `judge` serves messagers of this process,
    which get the verdict as an object. A batch of a step is judged once in each attempt at the step. Its answer waits
    for slow rules, whose checks are coroutines, and is kept until the group goes on to the next step.

    Args:
        store: where the rules' state is saved. If a batch has changed the state, it is answered after the state is
            saved.
        keep_s: how long senders may ask again about a batch, in seconds.
        publish_snapshot: registers the number of a rule snapshot with the server. If it is given, rules that judge by
            ids alone are delegated to messagers.
        versions: the rules that judge later steps (None: `rules` judge all steps).
    """

    def __init__(
        self,
        exp_id: str,
        rules: Iterable[Rule] = (),
        *,
        epoch: int = FOREIGN,
        store: StateStore | None = None,
        keep_s: float = _KEEP_S,
        publish_snapshot: PublishSnapshot | None = None,
        versions: RuleVersions | None = None,
    ) -> None:
        self.exp_id = exp_id
        self.epoch = epoch
        self.supervised = False  # whether a StepSupervisor asks the rules that judge whole steps
        self.versions = RuleVersions() if versions is None else versions
        self.gate = StepGate()
        self.tracer: AnyTracer = UNTRACED
        self.judged = 0
        self.blocked = 0
        self.violations: Table[int] = Table()
        # Under "step": the last step after which a round was ended. Under "calls": the calls that have begun a round,
        # each with the names of the rules that failed in it.
        self.rounds: Table[Any] = Table()
        # The changes of the rules, as the RuleEditor has recorded them.
        self.changes: Table[Any] = Table()
        self._attempts = StepAttempts(lambda: self._counted, self._restore_rules, self._attempt_begun)
        self.failures = RuleFailures()
        self._intersections = Intersections()
        self.rules = RuleSet(rules, self)
        self.delegation = RuleDelegation(self.rules, epoch, publish_snapshot, self.versions)
        self.watch = RunningRule()
        self._tables: dict[str, Table[Any]] = {}
        self._counted: dict[str, Table[Any]] = {}  # the tables that verdicts change
        self._writer = StateWriter(store, self._tables, epoch)
        self._follow_rules()
        self._answers = SavedAnswers(self._writer, keep_s, self._attempts.keeps)
        self.calls = RuleCalls()
        self._slow_rules = SlowRuleRunner(self, self._writer, self._answers, self._attempts, keep_s)
        self._closing: set[asyncio.Task[None]] = set()
        self._forwarded = 0

    # -- judging messages -----------------------------------------------------------------------------------------

    async def judge(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch of a messager in this process.

        If the rules' state is saved in a store, return the verdicts only after the changed state is saved.

        Raises: Fenced if a newer interceptor has taken over.
        """
        if self._writer.stores or batch.attempt is not None:
            answer = self.answer(batch)
            return decode_verdicts(answer if isinstance(answer, bytes) else await answer).batch_verdict(batch.rows)
        self._check()
        verdict = self._run_rules(self._as_wanted(batch)).verdict
        if verdict.blocked or verdict.rewritten or verdict.labels or verdict.deferred:
            # The verdict is encoded and decoded as if it was sent, because a verdict that cannot be sent to other
            # processes must not be valid here either.
            return decode_verdicts(self.encode(verdict, batch.rows)).batch_verdict(batch.rows)
        verdict.epoch = self.epoch
        return verdict

    def answer(self, request: bytes | memoryview | Batch, *, patient: bool = False) -> bytes | Awaitable[bytes]:
        """Return the encoded verdicts on a batch. A repeated batch gets the same answer again.

        Args:
            request: the batch: as a frame, whose memory may be used during this call only, or as an object from a
                messager of this process.
            patient: whether the sender knows from an earlier answer that rows of the batch wait for slow rules. If so,
                this answer waits, too, until some of the rows have verdicts, or for PATIENCE_S seconds.

        Raises: Fenced if a newer interceptor has taken over; FrameError if the request is not a valid frame.
        """
        self._check()
        batch = request if isinstance(request, Batch) else decode(bytes(request))
        attempt = batch.attempt
        if attempt is not None:
            return self._answer_in_step(batch, attempt, patient=patient)
        if patient:
            # A task finishes the work even if nobody awaits the result.
            return asyncio.create_task(self._wait(batch), name="ray_messaging deferred answer")
        if self.versions.first < math.inf:
            return self._judge_outside(batch)
        return self._judge_once(self._as_wanted(batch))

    async def _judge_outside(self, batch: Batch) -> bytes:
        """Judge messages that were sent outside of steps, by the rules of the step in which they will be read."""
        await self.in_force(await self.versions.following())
        answer = self._judge_once(self._as_wanted(batch))
        return answer if isinstance(answer, bytes) else await answer

    def before_step(self, step: int) -> Awaitable[None] | None:
        """Return None if batches of a step can be judged now, otherwise an awaitable that ends when they can be."""
        return None if self.gate.begun >= step < self.versions.first else self.in_force(step)

    async def in_force(self, step: int) -> None:
        """Wait until batches of a step may be judged, then make the interceptor use the rules for this step."""
        await self.gate.until(step)
        await self.versions.apply(step)

    def _answer_in_step(self, batch: Batch, attempt: Attempt, *, patient: bool) -> bytes | Awaitable[bytes]:
        """Answer a request about a batch of a step.

        If slow rules do not decide in time, the answer says that all rows of the batch wait, and the sender asks again.

        Args: `patient` says whether the answer waits for slow rules, for up to PATIENCE_S seconds.
        """
        before = self.before_step(attempt.step)
        if before is not None:
            return self._answer_after(before, batch, attempt, patient=patient)
        key, running = key_of(batch), self._slow_rules.running
        if key not in running:
            answer = self._judge_once(self._as_wanted(batch))
            if key not in running:
                return answer
        return self._answer_in_time(running[key].done, batch.rows, PATIENCE_S if patient else 0.0)

    async def _answer_after(self, before: Awaitable[None], batch: Batch, attempt: Attempt, *, patient: bool) -> bytes:
        await before
        answer = self._answer_in_step(batch, attempt, patient=patient)
        return answer if isinstance(answer, bytes) else await answer

    async def _answer_in_time(self, answer: asyncio.Future[bytes], rows: int, limit_s: float) -> bytes:
        if (await asyncio.wait((answer,), timeout=limit_s))[0]:
            return _over(rows) if answer.cancelled() else answer.result()
        return self.deferral(rows)

    def deferral(self, rows: int) -> bytes:
        """Return the answer which says that all `rows` rows of a batch still wait for slow rules."""
        return self.encode(BatchVerdict(deferred=set(range(rows))), rows)

    async def forward(self, from_id: AgentId | None, to_id: AgentId | None, message: object) -> bool:
        """Return whether one message may pass. The arguments are those of AgentSociety's interceptor."""
        self._check()
        self._forwarded += 1
        batch = forwarded(from_id, to_id, message, epoch=max(0, self.epoch), number=self._forwarded)
        answer = self._judge_once(batch)
        verdicts = decode_verdicts(answer if isinstance(answer, bytes) else await answer)
        while verdicts.deferred:
            verdicts = decode_verdicts(await self._wait(batch))
        return not verdicts.blocked

    def snapshot(self, request: bytes | memoryview, messagers: int = 1) -> bytes | Awaitable[bytes]:
        """Answer a messager's request for a rule snapshot, and count the messages that the request reports as passed.

        Args: `messagers` is the number of messagers that may request snapshots.
        """
        self._check()
        asked = decode_snapshot_request(request)
        self.judged += asked.passed
        return self.delegation.answer(asked.held, messagers)

    def _as_wanted(self, batch: Batch) -> Batch:
        """Return the batch as rules get it. If no rule needs payloads, the returned batch has none."""
        if batch.lines is None or self.rules.wants_payload:
            return batch
        made = copy(batch)
        made.lines = made.frame = None
        return made

    def _check(self) -> None:
        if self._writer.error is not None:
            raise self._writer.error.with_traceback(None)

    def _judge_once(self, batch: Batch) -> bytes | Awaitable[bytes]:
        key = key_of(batch)
        known = self._answers.get(batch.sender, key)
        if known is not None:
            return known
        if self.rules.wants_payload and batch.lines is None:
            return self._payload_wanted()
        attempt = batch.attempt
        if attempt is not None:
            return self._judge_in_step(batch, key, attempt)
        version = self.state_version
        pipeline = self._run_rules(batch)
        answer = self.encode(pipeline.verdict, batch.rows)
        if not self._writer.stores or version == self.state_version:
            self._answers.put(batch.sender, key, answer)
            return answer
        return self._answers.keep(key, answer, record(answer, pipeline.deferred.values()), sender=batch.sender)

    def _judge_in_step(self, batch: Batch, key: str, attempt: Attempt) -> bytes | Awaitable[bytes]:
        version = self.state_version
        if not self._attempts.enter(attempt):
            return _over(batch.rows)
        rules, verdict = self.rules.for_broadcasts if pair_rows(batch) is not None else self.rules.each, BatchVerdict()
        for rule in rules:
            if rule.counts_blocked:
                # `room` lets the rule record how many messages were blocked before the round, if it has not done so. A
                # later attempt at the step undoes the changes of this attempt, but must not undo this record. So `room`
                # is called before the attempt makes changes.
                rule.room(())
        judging = Judging(key, batch, verdict, rules, self._in_parts(batch, rules, verdict), attempt)
        with self.tracer.judging(batch):
            self._slow_rules.advance(judging)
        if judging.asked is not None:
            self._slow_rules.start(judging)
            return judging.done
        answer, data = self.answer_of(judging)
        if not self._writer.stores or version == self.state_version:
            self._answers.hold({key: data})
            return answer
        return self._answers.keep(key, answer, data, sender=batch.sender)

    def _in_parts(self, batch: Batch, rules: Sequence[Rule], verdict: BatchVerdict) -> Sections:
        """Apply rules to a batch in parts: messages that are blocked in one part may count in the verdicts on the next.

        Yield each slow rule with the messages that it must judge. After each part, count its messages, and add the
        verdicts on them to `verdict`.
        """
        for rows in parts_of(batch, rules):
            whole = len(rows) == batch.rows
            part = batch if whole else batch.take(rows)
            pipeline = RulePipeline(part, self.exp_id, self.watch, self._intersections)
            yield from pipeline.judge(rules)
            self.count(part, pipeline.verdict)
            verdict.add(pipeline.verdict if whole else pipeline.verdict.moved(dict(enumerate(rows.tolist()))))

    def answer_of(self, judging: Judging) -> tuple[bytes, bytes]:
        """Return the answer to a batch of a step, and the same answer in the form in which it is saved on the server.

        Both are valid until the group's next attempt or step.
        """
        answer = self.encode(judging.verdict, judging.batch.rows)
        self._attempts.answers.setdefault(judging.batch.sender, set()).add(judging.key)
        return answer, record(answer, ())

    def _attempt_begun(self, attempt: Attempt, answers: Collection[str]) -> None:
        self._slow_rules.begun(attempt)
        self._answers.forget(answers)

    def _run_rules(self, batch: Batch) -> RulePipeline:
        pipeline = RulePipeline(batch, self.exp_id, self.watch, self._intersections)
        with self.tracer.judging(batch):
            pipeline.run(self.rules.each if pipeline.pairs is None else self.rules.for_broadcasts)
        self.count(batch, pipeline.verdict)
        for deferred in pipeline.deferred.values():
            self._slow_rules.begin(deferred)
        return pipeline

    async def _wait(self, batch: Batch) -> bytes:
        if batch.lines is None and self.rules.wants_payload and self._slow_rules.unknown(batch):
            # An earlier interceptor has deferred these messages, and has died with their payloads.
            return self._payload_wanted()
        verdict = await self._slow_rules.wait(batch)
        return self.encode(verdict, len(batch))

    def _payload_wanted(self) -> bytes:
        return encode_verdicts(VerdictReply(self.epoch, judged=False, wants_payload=True))

    # -- counting and encoding verdicts ------------------------------------------------------------------------

    @property
    def state_version(self) -> int:
        """Return a number that rises with each change of the state that is saved."""
        return sum(table.version for table in self._tables.values())

    def count(self, batch: Batch, verdict: BatchVerdict) -> None:
        """Count the messages of a batch on which there are verdicts, and the blocked messages by sender.

        Messages that still wait for a slow rule are counted later.
        """
        self.judged += batch.rows - len(verdict.deferred)
        if verdict.blocked:
            rows = np.fromiter(verdict.blocked, np.intp, len(verdict.blocked))
            self._count_violations(Counter(batch.from_ids.take(rows).tolist()))

    def _count_violations(self, violations: Mapping[AgentId | None, int]) -> None:
        self.blocked += sum(violations.values())
        for from_id, count in violations.items():
            self.violations[from_id] = self.violations.get(from_id, 0) + count

    def encode(self, verdict: BatchVerdict, rows: int) -> bytes:
        """Encode the verdict on a batch. If it cannot be sent, all rows of the batch are blocked."""
        try:
            wants_payload, snapshot = self.rules.wants_payload, self.delegation.offer
            answer = verdict.encode(self.epoch, wants_payload=wants_payload, snapshot=snapshot)
            if len(answer) <= FRAME_LIMIT:
                return answer
            raise ValueError(  # noqa: TRY301 - handled like an error of `encode`
                f"the verdicts on a batch take {len(answer)} bytes, but the limit is {FRAME_LIMIT}: rewrite fewer or "
                "shorter payloads"
            )
        except Exception as error:
            # A verdict may pass every check, and still be impossible to send. The sender must get an answer
            # nevertheless.
            logger.exception("the verdicts on a batch of %d messages cannot be sent", rows)
            why = ("interceptor", ascii(failure(error)))
            return BatchVerdict(blocked=dict.fromkeys(range(rows), why)).encode(self.epoch, wants_payload=True)

    # -- rules and their state ------------------------------------------------------------------------------------

    @property
    def black_list(self) -> BlackList:
        """Return the first black list. If there is none, insert an empty black list before all other rules."""
        found = self.rules.black_list
        self._follow_rules()
        return found

    def rule_failed(self, rule: Rule, error: BaseException, messages: int) -> None:
        """Count messages on which a rule has failed.

        If the failed rule was called by a rule that is running now, the running rule counts as the failed one.
        """
        self.failures.note(self.watch.rule or rule, error, messages)

    @property
    def deferred(self) -> int:
        """Return how many messages wait for a slow rule."""
        return len(self._slow_rules)

    def kept(self) -> dict[str, int]:
        """Return the number of entries in each rule's table, by the rule's name.

        Under `VIOLATIONS` is the number of senders with blocked messages, under `ANSWERS` the size in bytes of the
        answers that are kept for senders.
        """
        tables = {rule.name: len(rule.state) for rule in self.rules if rule.state is not None}
        return tables | {VIOLATIONS: len(self.violations), ANSWERS: self._answers.nbytes}

    def load(self, tables: Mapping[str, Mapping[bytes, bytes]], answers: Mapping[str, bytes], *, merge: bool) -> None:
        """Load the rules' state and the saved answers of an earlier interceptor.

        The loaded entries of a rule replace all its present entries. With `merge`, present entries with other keys
        stay.
        """
        for name, table in self._tables.items():
            if tables.get(name):
                table.load(tables[name], merge=merge)
        over = self._attempts.load(answers)
        self._restore_rules([name for name, table in tables.items() if table])
        self._answers.load(answers, self.epoch)
        self._answers.forget(over)
        self.delegation.restart()

    def _restore_rules(self, names: Collection[str]) -> None:
        for rule in [rule for rule in self.rules.each if rule.state is not None and rule.name in names]:
            try:
                rule.restored()
            except Exception as error:  # `restored` may be code from outside of this library
                raise RuleError(
                    f"rule {rule.name!r} cannot go on from its saved state ({failure(error)}): fix the rule's method "
                    "`restored`",
                    rule=rule.name,
                ) from error

    async def change(self, change: Callable[[], T], also: Callable[[], Awaitable[None]] | None = None) -> T:
        """Call `change`, which changes rules or their state. Return its result when the change is saved and in force.

        Args: `also` is awaited before the change is saved, if rules were inserted, replaced or removed.
        """
        before, tables = self.rules.now, dict(self._tables)
        result = change()
        self.delegation.notice_changes()
        self._follow_rules()
        for name, table in self._tables.items():
            # The table belongs to another rule than before, or the rule has a new table.
            if table is not tables.get(name):
                table.rewrite()
        if self.rules.now is not before:
            self.failures.keep(self.rules)
            for rule in before:
                if not self._is_in(rule):
                    closing = asyncio.create_task(self._close_unused(rule), name=f"ray_messaging end of {rule.name}")
                    self._closing.add(closing)
                    closing.add_done_callback(self._closing.discard)
            if also is not None:
                await also()
        await self._writer.keep({})
        await self.delegation.revoked()
        return result

    def new_round(self, rules: Iterable[Rule] | None = None) -> list[str]:
        """Begin a new round for rules (None: for all rules).

        Return the names of the rules whose `new_round` has failed.
        """
        failures: list[str] = []
        for rule in self.rules if rules is None else rules:
            try:
                self.watch.run(rule, rule.new_round)
            except FAILURES as error:  # caught here, so that the other rules begin their round
                self.failures.note(rule, error, at="a new round")
                failures.append(rule.name)
        return failures

    def new_round_once(self, call: str) -> list[str]:
        """Begin a new round for all rules, unless the call with the id `call` has done so before.

        Returns: the names of the rules whose `new_round` failed when the call with this id was made first.
        """
        calls: dict[str, list[str]] = self.rounds.get("calls", {})
        if call not in calls:
            calls = dict([*calls.items(), (call, self.new_round())][-_ROUND_CALLS:])
            self.rounds["calls"] = calls
        return calls[call]

    def forget_calls(self) -> None:
        """Forget which calls have begun rounds or changed rules, because this is a new start of the experiment.

        Ray may give calls of this start the ids that calls of an earlier start had.
        """
        self.rounds.pop("calls", None)
        self.changes.clear()

    async def end_step(self, number: int, violations: Mapping[AgentId | None, int]) -> None:
        """End the round of a step that has ended for all groups. A repeated call does nothing.

        The rounds of rules that judge whole steps have ended before this call.

        Args: `violations` has, by sender, how many messages were blocked by rules that judge the whole step.
        """

        def end() -> None:
            self._count_violations(violations)
            self.new_round(self.rules.each)
            self._attempts.end_step()
            self.rounds["step"] = number

        if self.rounds.get("step", -1) < number:
            await self.change(end)

    async def store_all(self) -> None:
        """Save all state of the rules. It replaces their state on the server."""
        for table in self._tables.values():
            table.rewrite()
        await self._writer.keep({})

    async def renew(self) -> None:
        """Save all state again, because the server has lost state that it had confirmed."""
        await self._writer.renew()
        await self.delegation.renew()

    @property
    def server_behind(self) -> int:
        """Return how many times the server has lost state that it had confirmed."""
        return self._writer.behind_count

    def _follow_rules(self) -> None:
        """From now on, save the state of the current rules, and of no other rules."""
        # The state of rules that judge whole steps is saved with the steps.
        tables = {rule.name: rule.state for rule in self.rules.each if rule.state is not None}
        for name in set(self._tables) - set(tables) - {*OWN_TABLES}:
            self._writer.drop(name)
        self._counted = {VIOLATIONS: self.violations} | tables
        self._tables |= self._counted | {ROUNDS: self.rounds, ATTEMPTS: self._attempts.kept, CHANGES: self.changes}

    # -- the end --------------------------------------------------------------------------------------------------

    @property
    def fenced(self) -> Fenced | None:
        """Return the error that says that a newer interceptor has replaced this one, or None if none has."""
        return self._writer.error

    def fence(self, error: Fenced) -> None:
        """Refuse all further requests with this error."""
        self._writer.error = self._writer.error or error

    async def stop(self) -> None:
        """Stop judging and saving. Work that is in progress is awaited up to a time limit."""
        await self._slow_rules.close()
        await self._writer.close()
        await self.delegation.close()

    async def close(self) -> None:
        """Stop the interceptor, then close all its rules."""
        await self.stop()
        await asyncio.gather(*self._closing, *map(self._close, self.rules))

    def _is_in(self, rule: Rule) -> bool:
        return any(other is rule for other in self.rules)

    async def _close_unused(self, rule: Rule) -> None:
        """Close a removed rule when no message needs it any more."""
        await self._slow_rules.done_with(rule)
        if not self._is_in(rule):  # the rule may have been inserted again
            await self._close(rule)
            rule.context = None

    async def _close(self, rule: Rule) -> None:
        error = await self.calls.run(rule, rule.close, _CLOSE_S, "end of its close()")
        if isinstance(error, BaseException):
            logger.error("rule %r could not be closed, and is dropped: %r", rule.name, error, exc_info=error)


def _over(rows: int) -> bytes:
    """Return the answer to a batch of an outdated attempt at a step. It blocks all `rows` rows of the batch.

    The server accepts none of these rows.
    """
    return BatchVerdict(blocked=dict.fromkeys(range(rows), _OVER)).encode(FOREIGN, wants_payload=False)


def forwarded(from_id: AgentId | None, to_id: AgentId | None, message: object, *, epoch: int, number: int) -> Batch:
    """Build the batch of one message, which is judged by a call of AgentSociety's `forward`.

    Raises: InvalidAddress, InvalidPayload or PayloadTooLarge if an id or the payload is not valid.
    """
    return Batch(
        sender=":forward",  # a name that no messager can have, because it has a colon
        epoch=epoch,
        first=number,
        from_ids=IdColumn.of([None if from_id is None else check_id(from_id)]),
        rows=1,
        to_ids=IdColumn.of([None if to_id is None else check_id(to_id)]),
        topics=(AGENT_CHAT,),
        lines=PayloadColumn.of([encode_payload(_payload(message), PAYLOAD_LIMIT)]),
    )


def _payload(message: object) -> object:
    """Return the payload of a message, which AgentSociety passes as the JSON text of an object.

    Anything else, unless it is a dict or a Msg, becomes the field "content" of the payload.
    """
    if isinstance(message, dict | Msg):
        return message
    if isinstance(message, str):
        with suppress(msgspec.MsgspecError):
            return msgspec.json.decode(message, type=dict[str, Any])
    return {"content": message}
