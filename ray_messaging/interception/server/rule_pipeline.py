"""One batch on its way through the rules: the first block wins, rewrites compose, later rules see what is left."""

import logging
from collections.abc import Mapping, Sequence
from operator import index
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.limits import PAYLOAD_LIMIT
from ray_messaging.interception.rules.rule import ALLOW, RAISED, Rule, SlowRule, Verdict, block, checked
from ray_messaging.interception.server.watchdog import Stuck, Watch
from ray_messaging.interception.wire.verdicts import BatchVerdict
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.payload_column import encode_payload

logger = logging.getLogger(__name__)

FAILURES = (*RAISED, Stuck)
REASON_CHARS = 2_000  # of a block: every message of a batch may have a reason of its own


class Waiting(NamedTuple):
    """A message that a slow rule must judge: alone in a batch, as the rules before it left it.

    `passed` are the names of those rules.
    """

    message: Batch
    so_far: BatchVerdict
    rule: SlowRule
    then: tuple[Rule, ...]
    passed: tuple[str, ...]

    def needs(self, rule: Rule) -> bool:
        """Tell whether a rule has still to do with this message."""
        return self.rule is rule or any(later is rule for later in self.then)


class RulePipeline:
    """Take a batch through rules; `judgement` says what became of its rows, `waiting` which must wait, by row."""

    def __init__(self, batch: Batch, exp_id: str, watch: Watch) -> None:
        self.judgement = BatchVerdict()
        self.waiting: dict[int, Waiting] = {}
        self._exp_id = exp_id
        self._watch = watch
        self._rest = batch
        self._rows: NDArray[np.intp] | None = None  # where the rest's rows stand in the batch; None: at their places

    def run(self, rules: Sequence[Rule], passed: tuple[str, ...] = ()) -> None:
        """Apply rules in their order; those named in `passed` came before."""
        for place, rule in enumerate(rules):
            if not len(self._rest):
                return
            if isinstance(rule, SlowRule):
                before = (*passed, *(other.name for other in rules[:place]))
                self._take(rule, self._at_once(rule, before, tuple(rules[place + 1 :])))
            else:
                self._take(rule, self._apply(rule))

    def _apply(self, rule: Rule) -> Mapping[int, Verdict]:
        batch, watch = self._rest, self._watch
        try:
            watch.enter(rule)
            try:
                found = rule.check_batch(batch, self._exp_id)
            finally:
                watch.leave()
            if found:
                found = {_row(row, len(batch)): checked(verdict) for row, verdict in found.items()}
            elif not isinstance(found, Mapping):
                raise TypeError(f"{found!r} is no mapping of rows to verdicts")
        except FAILURES as error:
            verdict = failed(rule, error, len(batch))
            return {} if verdict is ALLOW else dict.fromkeys(range(len(batch)), verdict)
        return found

    def _at_once(self, rule: SlowRule, passed: tuple[str, ...], then: tuple[Rule, ...]) -> Mapping[int, Verdict]:
        """Return what a slow rule knows already; the other rows leave the batch."""
        found: dict[int, Verdict] = {}
        batch, slow = self._rest, []
        for row in range(len(batch)):
            try:
                self._watch.enter(rule)
                try:
                    verdict = rule.at_once(Message(self._exp_id, batch, row))
                finally:
                    self._watch.leave()
                verdict = None if verdict is None else checked(verdict)
            except FAILURES as error:
                verdict = failed(rule, error)
            if verdict is None:
                slow.append(row)
                place = self._place(row)
                self.judgement.deferred.add(place)
                alone = batch.take(np.array([row], np.intp))
                self.waiting[place] = Waiting(alone, self._take_out(place), rule, then, passed)
            elif verdict is not ALLOW:
                found[row] = verdict
        if slow:
            kept = self._drop(slow)
            places = {old: new for new, old in enumerate(kept.tolist())} if found else {}
            found = {places[row]: verdict for row, verdict in found.items()}
        return found

    def _take_out(self, place: int) -> BatchVerdict:
        """Take what is known of one row out of the judgement, as that of a batch of its own."""
        alone = of_row(self.judgement, place)
        self.judgement.rewritten.pop(place, None)
        for name in alone.labels:
            self.judgement.labels[name].discard(place)
        return alone

    def _take(self, rule: Rule, verdicts: Mapping[int, Verdict]) -> None:
        if not verdicts:
            return
        blocked: list[int] = []
        changed: dict[int, bytes] = {}
        for row, verdict in verdicts.items():
            place = self._place(row)
            try:
                line = _sendable(verdict)
            except Exception as error:  # noqa: BLE001 - what cannot be sent must not pass as it was
                verdict, line = failed(rule, error), None  # noqa: PLW2901 - the verdict on what the rule answered
            for name in verdict.labels:
                self.judgement.labels.setdefault(name, set()).add(place)
            if verdict.blocked:
                blocked.append(row)
                self.judgement.blocked[place] = (rule.name, verdict.reason[:REASON_CHARS])
                self.judgement.rewritten.pop(place, None)
            elif line is not None:
                changed[row] = line
                self.judgement.rewritten[place] = (rule.name, line)
        if changed:
            self._rest = self._rest.with_payloads(changed)
        if blocked:
            self._drop(blocked)

    def _drop(self, rows: list[int]) -> NDArray[np.intp]:
        """Let rows leave the rest; return those that stay."""
        stay = np.ones(len(self._rest), np.bool_)
        stay[rows] = False
        kept = np.flatnonzero(stay)
        self._rest = self._rest.take(kept)
        self._rows = kept if self._rows is None else self._rows[kept]
        return kept

    def _place(self, row: int) -> int:
        return row if self._rows is None else int(self._rows[row])


def of_row(judgement: BatchVerdict, row: int) -> BatchVerdict:
    """Return what is known of one row, as that of a batch of its own."""
    alone = BatchVerdict()
    if row in judgement.blocked:
        alone.blocked[0] = judgement.blocked[row]
    if row in judgement.rewritten:
        alone.rewritten[0] = judgement.rewritten[row]
    for name, rows in judgement.labels.items():
        if row in rows:
            alone.labels[name] = {0}
    return alone


def joined(before: BatchVerdict, after: BatchVerdict) -> BatchVerdict:
    """Return what is known of one message after more rules."""
    both = BatchVerdict()
    both.add(before)
    both.add(after)
    both.deferred.clear()
    if both.blocked:
        both.rewritten.clear()
    return both


def failed(rule: Rule, error: BaseException, messages: int = 1) -> Verdict:
    """Count messages that a rule failed at; return its verdict on each."""
    if isinstance(error, Stuck):
        trace = error.__traceback__
        error = TimeoutError("it was at work for too long, and was interrupted").with_traceback(trace)
    if rule.context is None:  # it stands in no interceptor, or was let go
        logger.error("rule %r failed on %d messages", rule.name, messages, exc_info=error)
    try:
        return checked(rule.count_failure(error, messages))
    except Exception as worse:  # noqa: BLE001 - it cannot say what becomes of them, so they are blocked
        if rule.context is not None:
            rule.context.rule_failed(rule, worse, 0)
        return block(f"the rule failed: {type(error).__name__}")


def _sendable(verdict: Verdict) -> bytes | None:
    """Return a rewritten payload as JSON, if there is one; raise where it, or a label, cannot be sent."""
    for name in verdict.labels:
        name.encode()
    if verdict.payload is None or verdict.blocked:
        return None
    return encode_payload(verdict.payload, PAYLOAD_LIMIT)


def _row(row: object, count: int) -> int:
    number = index(row)  # type: ignore[arg-type]  # others raise
    if not 0 <= number < count:
        raise ValueError(f"it judges row {number} of {count}")
    return number
