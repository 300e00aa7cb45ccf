"""The pipeline, which applies the rules to one batch."""

import logging
from collections.abc import Generator, Iterator, Mapping, Sequence
from operator import index
from time import perf_counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ray_messaging.common.awaitables import RAISED
from ray_messaging.default_limits_and_leases import PAYLOAD_LIMIT
from ray_messaging.interception.broadcasts import Intersections, PairRows, once_each, pair_rows
from ray_messaging.interception.interceptor.watchdog import FAILURES, RunningRule, Stuck, explained
from ray_messaging.interception.rules.limits import group, ranks
from ray_messaging.interception.rules.rule import ALLOW, Rule, SlowRule, Verdict, block, checked
from ray_messaging.interception.verdicts import BatchVerdict
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.model.columns import encode_payload
from ray_messaging.model.typed.typed_table import TypedColumns

logger = logging.getLogger(__name__)

Asked = tuple[SlowRule, list[Batch]]  # a slow rule, and the messages that it must judge, each as a batch of one
# A block's reason is cut to this many characters, because each message of a batch may have another reason.
REASON_CHARS = 2_000


class Deferred(NamedTuple):
    """A message that waits for a slow rule.

    `message` is a batch of one, with the changes by the rules before the slow rule. `passed` has the names of these
    earlier rules, and `so_far` is their verdict. `rules` has the slow rule and the rules after it.
    """

    message: Batch
    so_far: BatchVerdict
    rules: Sequence[Rule]
    passed: tuple[str, ...]


class RulePipeline:
    """The rules applied to one batch. A later rule does not see the rows that a rule has blocked.

    If a rule has rewritten a row, later rules see its new payload.

    `verdict` is the result by row. `deferred` has the messages that wait for a slow rule, by row. `rest` has the
    messages that no rule has blocked or deferred, with their present payloads. `pairs` groups the rows by broadcast
    (None: the batch has no broadcasts). In a batch of broadcasts each row is one hearer, and a rule that judges a
    broadcast as one message judges it once.

    Args: `intersections` is a cache of pairs of sender and hearer that rules block. If it is given, a rule that can
    check pairs by ids alone judges each hearer by this check. `so_far` is the verdict of the rules that the batch has
    passed before. The pipeline adds to it.
    """

    def __init__(
        self,
        batch: Batch,
        exp_id: str,
        watch: RunningRule,
        intersections: Intersections | None = None,
        *,
        so_far: BatchVerdict | None = None,
    ) -> None:
        self.verdict = so_far or BatchVerdict()
        self.deferred: dict[int, Deferred] = {}
        self._exp_id = exp_id
        self._watch = watch
        self.rest = batch
        self._whole = batch
        self.pairs = None if batch.extension is None else pair_rows(batch)
        self._intersections = intersections
        # For each row in `rest`, its number in the whole batch. None: `rest` is the whole batch.
        self._rows: NDArray[np.intp] | None = None

    def judge(
        self, rules: Sequence[Rule], passed: tuple[str, ...] = ()
    ) -> Generator[Asked, Sequence[Verdict] | None, None]:
        """Apply rules in order.

        This generator yields a slow rule, and the messages that the rule must judge. If the caller sends the rule's
        verdicts into the generator, they are used like those of any other rule. If the caller sends None, as a `for`
        loop does, these messages are put aside, in `deferred`, and later rules judge only the other rows.

        Args: `passed` has the names of the rules that the batch has passed before.
        """
        for place, rule in enumerate(rules):
            if not self.rest.rows:
                return
            if isinstance(rule, SlowRule):
                known, slow = self._ask_at_once(rule)
                verdicts = (yield rule, [message for _, message in slow]) if slow else ()
                if verdicts is None:
                    before = (*passed, *(other.name for other in rules[:place]))
                    known = self._defer(rules[place:], before, known, slow)
                else:
                    for (rows, _), verdict in zip(slow, verdicts, strict=True):
                        known |= dict.fromkeys(rows, verdict)
                found: Mapping[int, Verdict] = known
            else:
                found = self._check(rule, self.rest) if self.pairs is None else self._check_pairs(rule, self.pairs)
            if found:
                self.take(rule, found)

    def run(self, rules: Sequence[Rule], passed: tuple[str, ...] = ()) -> None:
        """Apply rules to the batch, in order.

        Messages that a slow rule must judge are put aside in `deferred`, with this rule and the rules after it.

        Args: `passed` has the names of the rules that the batch has passed before.
        """
        for _ in self.judge(rules, passed):
            pass

    def _check_pairs(self, rule: Rule, pairs: PairRows) -> Mapping[int, Verdict]:
        """Return a rule's verdicts on a batch with broadcasts, in which each row is one hearer of a broadcast.

        The keys are row numbers in `rest`. Rows that are left out pass.
        """
        barred = self._barred(rule, pairs)
        found: Mapping[int, Verdict] = {}
        if rule.judges_broadcasts == "message":
            rest = pair_rows(self.rest)
            assert rest is not None
            verdicts = self._check(rule, once_each(self.rest, rest))
            found = {row: verdict for each, verdict in verdicts.items() for row in range(*rest.bounds(each))}
        elif barred is None:
            found = self._check(rule, self.rest)
        return {**found, **(barred or {})}

    def _barred(self, rule: Rule, pairs: PairRows) -> Mapping[int, Verdict] | None:
        """Return, by row in `rest`, verdicts that block the pairs of sender and hearer that a rule bars by ids alone.

        Return None if the rule has no check of pairs, or the pipeline has no `intersections`.
        """
        if self._intersections is None:
            return None
        try:
            check = self._intersections.check(rule)
            if check is None:
                return None
            rows = self._intersections.rows(rule, check, self._whole, pairs)
        except RAISED as error:
            verdict = failed(rule, error, len(self.rest))
            return {} if verdict is ALLOW else dict.fromkeys(range(len(self.rest)), verdict)
        if self._rows is not None:
            barred = np.zeros(len(self._whole), np.bool_)
            barred[rows] = True
            rows = np.flatnonzero(barred[self._rows])
        return dict.fromkeys(rows.tolist(), block(check.reason))

    def _check(self, rule: Rule, batch: Batch) -> Mapping[int, Verdict]:
        watch = self._watch
        try:
            # This repeats RunningRule.run without a function call, which saves time for each rule and batch.
            watch.calls += 1
            watch.rule = rule
            began = perf_counter()
            try:
                found = rule.check_batch(batch, self._exp_id)
                # This line is inside of the `try`, because an interrupt may come here, too.
                watch.spent[rule.name] += perf_counter() - began
            finally:
                watch.rule = None
                if watch.struck:
                    try:
                        watch.take_back()
                    except Stuck:  # the watchdog interrupted the call of take_back
                        watch.take_back()
            if found:
                found = checked_rows(found, batch.rows)
            elif not isinstance(found, Mapping):
                raise TypeError(f"check_batch returned {found!r}, which is not a mapping of rows to verdicts")
        except FAILURES as error:
            verdict = failed(rule, error, len(batch))
            return {} if verdict is ALLOW else dict.fromkeys(range(len(batch)), verdict)
        return found

    def _ask_at_once(self, rule: SlowRule) -> tuple[dict[int, Verdict], list[tuple[range, Batch]]]:
        """Return the verdicts that a slow rule gives at once, by row, and the messages that it cannot judge at once.

        Each of these messages comes with its rows: one row, or for a broadcast one for each hearer. A row in neither
        result passes.
        """
        found: dict[int, Verdict] = {}
        slow: list[tuple[range, Batch]] = []
        pairs = None if self.pairs is None else pair_rows(self.rest)
        batch = self.rest if pairs is None else once_each(self.rest, pairs)
        for row in range(len(batch)):
            rows = range(row, row + 1) if pairs is None else range(*pairs.bounds(row))
            try:
                verdict = self._watch.run(rule, rule.at_once, Message(self._exp_id, batch, row))
                verdict = None if verdict is None else checked(verdict)
            except FAILURES as error:
                verdict = failed(rule, error)
            if verdict is None:
                slow.append((rows, batch.take(np.array([row], np.intp))))
            elif verdict is not ALLOW:
                found |= dict.fromkeys(rows, verdict)
        return found, slow

    def _defer(
        self,
        rules: Sequence[Rule],
        passed: tuple[str, ...],
        found: dict[int, Verdict],
        slow: Sequence[tuple[range, Batch]],
    ) -> dict[int, Verdict]:
        """Move the messages that wait for a slow rule from `rest` to `deferred`.

        Return the verdicts in `found`, by the new row numbers in `rest`.

        Args: `slow` has each message that waits, with its rows. `rules` has the slow rule and the rules after it,
        `passed` the names of the rules before it, and `found` the verdicts that the slow rule gave without waiting, by
        the old row numbers.
        """
        for rows, message in slow:
            place = self._place(rows[0])
            self.deferred[place] = Deferred(message, self._take_out(place), rules, passed)
            self.verdict.deferred.update(map(self._place, rows))
        kept = self._drop([row for rows, _ in slow for row in rows])
        places = {old: new for new, old in enumerate(kept.tolist())} if found else {}
        return {places[row]: verdict for row, verdict in found.items()}

    def _take_out(self, place: int) -> BatchVerdict:
        """Remove a row's new payload and labels from `verdict`. Return them as the verdict on a batch of one row."""
        single = self.verdict.moved({place: 0})
        self.verdict.rewritten.pop(place, None)
        for name in single.labels:
            self.verdict.labels[name].discard(place)
        return single

    def take(self, rule: Rule, verdicts: Mapping[int, Verdict]) -> None:
        """Add a rule's verdicts to the result. Blocked rows leave `rest`, and rewritten rows get new payloads there."""
        blocked: list[int] = []
        changed: dict[int, bytes] = {}
        for row, verdict in verdicts.items():
            place = self._place(row)
            try:
                line = _sendable(verdict)
                if line is not None and isinstance(self.rest.lines, TypedColumns):
                    self.rest.lines.check(row, line)
            except Exception as error:  # noqa: BLE001 - after a bad rewrite the original message must not pass
                verdict, line = failed(rule, error), None  # noqa: PLW2901 - replaces the bad verdict
            for name in verdict.labels:
                self.verdict.labels.setdefault(name, set()).add(place)
            if verdict.blocked:
                blocked.append(row)
                # An earlier rule's rewrite stays in `rewritten`: the event log has the payload that this rule has seen.
                self.verdict.blocked[place] = (rule.name, verdict.reason[:REASON_CHARS])
            elif line is not None:
                changed[row] = line
                self.verdict.rewritten[place] = (rule.name, line)
        if changed:
            self.rest = self.rest.with_payloads(changed)
        if blocked:
            self._drop(blocked)

    def _drop(self, rows: list[int]) -> NDArray[np.intp]:
        """Remove rows from `rest`; return the numbers that the other rows had in `rest` until now."""
        stay = np.ones(len(self.rest), np.bool_)
        stay[rows] = False
        kept = np.flatnonzero(stay)
        self.rest = self.rest.take(kept)
        self._rows = kept if self._rows is None else self._rows[kept]
        return kept

    def _place(self, row: int) -> int:
        return row if self._rows is None else int(self._rows[row])


def parts_of(batch: Batch, rules: Sequence[Rule]) -> Iterator[NDArray[np.intp]]:
    """Yield the rows of a batch in parts, which must be judged and counted one after the other.

    Some rules judge a sender by how many of its messages were blocked before. The parts are so small that no verdict
    depends on messages that are blocked in the same part. So the result does not depend on how messages were divided
    into batches. The rows of each sender stay in order, and the rows of a broadcast stay together.
    """
    counting = [rule for rule in rules if rule.counts_blocked]
    if not counting or not batch.rows:
        yield np.arange(batch.rows)
        return
    senders = group(batch.from_ids)
    before = ranks(senders.codes)
    if batch.extension is not None and batch.extension.audience is not None and batch.numbers is not None:
        begins = np.diff(batch.numbers.astype(np.int64), prepend=-1) != 0
        before = before[begins][np.cumsum(begins) - 1]
    # The rows are sorted by sender, so that the time for a part depends on the part's rows only. This matters because
    # many messages may need many parts.
    order = np.argsort(senders.codes, kind="stable")
    places = (senders.codes * (batch.rows + 1) + before)[order]  # ascending
    ends = np.cumsum(senders.counts)
    begin = ends - senders.counts
    # `left` has the senders of which not all rows are in a part yet. In `order`, the rows of a sender begin at the
    # sender's item of `firsts`, and those rows that are in no part yet begin at the sender's item of `begin`.
    firsts, left = begin.copy(), np.arange(len(ends))
    while len(left):
        keys = [senders.keys[code] for code in left.tolist()]
        room = np.min([rule.room(keys) for rule in counting], axis=0)
        until = np.minimum(begin[left] - firsts[left] + np.clip(room, 1, batch.rows), batch.rows)
        stop = np.searchsorted(places, left * (batch.rows + 1) + until)
        counts = stop - begin[left]
        taken = np.arange(counts.sum()) + np.repeat(stop - np.cumsum(counts), counts)
        yield np.sort(order[taken])
        begin[left] = stop
        left = left[stop < ends[left]]


def failed(rule: Rule, error: BaseException, messages: int = 1) -> Verdict:
    """Count messages on which a rule has failed; return one verdict for all of them, as the rule's `on_error` says."""
    error = explained(error)
    if rule.context is None:  # the rule is in no interceptor, or was removed
        logger.error("rule %r failed on %d messages", rule.name, messages, exc_info=error)
    try:
        return checked(rule.count_failure(error, messages))
    except Exception as worse:  # noqa: BLE001 - the rule's `failed` has failed too: block the messages
        if rule.context is not None:
            rule.context.rule_failed(rule, worse, 0)
        return block(f"the rule failed: {type(error).__name__}")


def _sendable(verdict: Verdict) -> bytes | None:
    """Return a verdict's new payload as JSON, or None if the verdict has no payload or blocks the message.

    An error is raised if the payload or a label is not valid.
    """
    for name in verdict.labels:
        name.encode()
    if verdict.payload is None or verdict.blocked:
        return None
    return encode_payload(verdict.payload, PAYLOAD_LIMIT)


def checked_rows(verdicts: Mapping[int, Verdict], count: int) -> dict[int, Verdict]:
    """Return a rule's verdicts by row, after checking them.

    Raises: TypeError if a value is not a `Verdict`, or a row is not an int; ValueError if a row is not among the
    `count` rows of the batch.
    """
    return {_row(row, count): checked(verdict) for row, verdict in verdicts.items()}


def _row(row: object, count: int) -> int:
    number = index(row)  # type: ignore[arg-type]  # raises TypeError if it is no int
    if not 0 <= number < count:
        raise ValueError(f"the rule judges row {number}, but the batch has {count} rows, numbered from 0")
    return number
