"""The interceptor: a verdict for every message, by rules in order."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.limits import FRAME_LIMIT
from ray_messaging.errors import Fenced, RuleError
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule, failure
from ray_messaging.interception.server.deferred.answers import key_of, record
from ray_messaging.interception.server.deferred.slow_rule_runner import SlowRuleRunner
from ray_messaging.interception.server.forward_call import forwarded
from ray_messaging.interception.server.rule_closer import RuleCloser
from ray_messaging.interception.server.rule_delegation import RuleDelegation, Write
from ray_messaging.interception.server.rule_failures import RuleFailures
from ray_messaging.interception.server.rule_pipeline import FAILURES, RulePipeline
from ray_messaging.interception.server.rule_set import RuleSet
from ray_messaging.interception.server.state.state_saver import StateSaver
from ray_messaging.interception.server.state.store import Saver, StateStore
from ray_messaging.interception.server.state.table import Table
from ray_messaging.interception.server.user_calls import UserCalls
from ray_messaging.interception.server.watchdog import Watch
from ray_messaging.interception.wire.rule_snapshot import decode_standing
from ray_messaging.interception.wire.verdicts import (
    FOREIGN,
    BatchVerdict,
    VerdictReply,
    decode_verdicts,
    encode_verdicts,
)
from ray_messaging.model.batch import Batch
from ray_messaging.wire.frames import decode

logger = logging.getLogger(__name__)

T = TypeVar("T")

VIOLATIONS = ":violations"  # the name of their table; no rule's name begins with a colon on the server
ANSWERS = ":answers"
# A sender asks again about a batch for no longer than this, unless told otherwise, in seconds.
_KEEP_S = 120.0


class Interceptor:
    """Judge batches by ordered rules; a plain object, so that its hot code is not wrapped by Ray.

    With a `store`, what the rules count is on the server before a batch that changed it is answered. With `stand`, by
    which the server learns under which number they count, rules that look at ids alone are granted to messagers.
    """

    def __init__(
        self,
        exp_id: str,
        rules: Iterable[Rule] = (),
        *,
        epoch: int = FOREIGN,
        store: StateStore | None = None,
        keep_s: float = _KEEP_S,
        stand: Write | None = None,
    ) -> None:
        self.exp_id = exp_id
        self.epoch = epoch
        self.judged = 0
        self.blocked = 0
        self.violations: Table[int] = Table()
        self.failures = RuleFailures()
        self.rules = RuleSet(rules, self)
        self.standing = RuleDelegation(self.rules, epoch, stand)
        self._tables: dict[str, Table[Any]] = {}
        self._saver = None if store is None else Saver(store, self._tables, epoch)
        self._follow_rules()
        self.watch = Watch()
        self._pending: dict[str, asyncio.Task[bytes]] = {}
        self._keeper = StateSaver(self._saver, keep_s, self._waits)
        calls = UserCalls(self.watch)
        self._alone = SlowRuleRunner(
            exp_id,
            self.rules,
            self._keeper,
            keep_s,
            calls,
            self.watch,
            count=self._count,
            encode=self._encode,
            version=self._version,
        )
        self._deferrals = self._alone.deferrals
        self._farewell = RuleCloser(self.rules, self._deferrals, calls)
        self._forwarded = 0
        self._fenced: Fenced | None = None

    @property
    def black_list(self) -> BlackList:
        """Return the first black list; an empty one is put before all other rules where there is none."""
        found = self.rules.black_list
        self._follow_rules()
        return found

    def rule_failed(self, rule: Rule, error: BaseException, messages: int) -> None:
        """Count messages at which a rule failed: the one that is at work, which may have asked this one."""
        self.failures.note(self.watch.rule or rule, error, messages)

    @property
    def deferred(self) -> int:
        """Return how many messages wait for a slow rule."""
        return len(self._deferrals)

    def kept(self) -> dict[str, int]:
        """Return how many entries each rule keeps, how many agents have violations, and the bytes of answers kept."""
        tables = {rule.name: len(rule.state) for rule in self.rules if rule.state is not None}
        return tables | {VIOLATIONS: len(self.violations), ANSWERS: self._keeper.answers.nbytes}

    # -- state ----------------------------------------------------------------------------------------------------

    def load(self, tables: Mapping[str, Mapping[bytes, bytes]], answers: Mapping[str, bytes], *, merge: bool) -> None:
        """Take over what a predecessor kept; `merge`: beside what the rules say themselves, as they were given anew."""
        for name, table in self._tables.items():
            if tables.get(name):
                table.load(tables[name], merge=merge)
        for rule in self.rules:
            if rule.state is not None and tables.get(rule.name):
                self._restore(rule)
        self._keeper.answers.load(answers, self.epoch)
        self.standing.begin()

    def _restore(self, rule: Rule) -> None:
        try:
            rule.restored()
        except Exception as error:  # the user's code
            raise RuleError(
                f"rule {rule.name!r} cannot go on from the state it kept ({failure(error)}): mend its `restored`",
                rule=rule.name,
            ) from error

    async def change(self, change: Callable[[], T], also: Callable[[], Awaitable[None]] | None = None) -> T:
        """Change rules or their state; it is on the server, and in force, once this has returned.

        Args: also is awaited before the server is told, where rules came or went.
        """
        before, tables = self.rules.now, dict(self._tables)
        result = change()
        self.standing.look()
        self._follow_rules()
        for name, table in self._tables.items():
            if table is not tables.get(name):  # another rule's, or a rule has a new one
                table.rewrite()
        if self.rules.now is not before:
            self.failures.keep(self.rules)
            self._farewell.begin(before)
            if also is not None:
                await also()
        await self._keeper.save()
        await self.standing.settle()
        return result

    def new_round(self) -> list[str]:
        """Tell all rules that a new round begins; return the names of those that failed at it."""
        failures: list[str] = []
        for rule in self.rules:
            try:
                self.watch.enter(rule)
                try:
                    rule.new_round()
                finally:
                    self.watch.leave()
            except FAILURES as error:  # the others' rounds begin nevertheless
                self.failures.note(rule, error, at="a new round")
                failures.append(rule.name)
        return failures

    async def store_all(self) -> None:
        """Write everything, in place of whatever is on the server."""
        for table in self._tables.values():
            table.rewrite()
        await self._keeper.save()

    async def renew(self) -> None:
        """Write everything anew, as the server has lost some of what it had confirmed."""
        if self._saver is not None:
            await self._saver.renew()
        await self.standing.renew()

    @property
    def server_behind(self) -> int:
        """Return how often the server had lost what it had confirmed."""
        return 0 if self._saver is None else self._saver.behind_count

    def fence(self, error: Fenced) -> None:
        """Judge no more."""
        self._fenced = self._fenced or error

    def _follow_rules(self) -> None:
        tables = {rule.name: rule.state for rule in self.rules if rule.state is not None}
        for name in set(self._tables) - set(tables) - {VIOLATIONS}:
            if self._saver is None:
                del self._tables[name]
            else:
                self._saver.drop(name)
        self._tables |= {VIOLATIONS: self.violations} | tables

    def _version(self) -> int:
        return sum(table.version for table in self._tables.values())

    # -- answering ------------------------------------------------------------------------------------------------

    async def forward(self, from_id: AgentId | None, to_id: AgentId | None, message: object) -> bool:
        """Tell whether one message may pass: the call of AgentSociety's interceptor."""
        self._check()
        self._forwarded += 1
        batch = forwarded(from_id, to_id, message, epoch=max(0, self.epoch), number=self._forwarded)
        answer = self._judge(batch)
        verdicts = decode_verdicts(answer if isinstance(answer, bytes) else await answer)
        while verdicts.deferred:
            verdicts = decode_verdicts(await self._wait(batch))
        return not verdicts.blocked

    def answer(self, request: bytes, *, patient: bool = False) -> bytes | Awaitable[bytes]:
        """Answer a request for verdicts (a frame); the same batch asked again is answered as before.

        Args: patient asks about deferred rows; its answer waits for news.
        """
        self._check()
        batch = decode(request)
        if patient:
            # A task, which ends well where nobody comes to await it.
            return asyncio.create_task(self._wait(batch), name="ray_messaging deferred answer")
        if self.rules.wants_payload and batch.lines is None:
            return encode_verdicts(VerdictReply(self.epoch, judged=False, wants_payload=True))
        known = self._keeper.answers.get(batch)
        if known is not None:
            return known
        pending = self._pending.get(key_of(batch))
        return self._judge(batch) if pending is None else asyncio.shield(pending)

    def stand(self, request: bytes) -> bytes | Awaitable[bytes]:
        """Answer a request for standing verdicts (see `grants`), and count what has passed by them."""
        self._check()
        asked = decode_standing(request)
        self.judged += asked.passed
        return self.standing.answer(asked.held)

    def _check(self) -> None:
        """Raise where a newer interceptor has taken over."""
        if self.fenced is not None:
            raise self.fenced.with_traceback(None)

    def _judge(self, batch: Batch) -> bytes | Awaitable[bytes]:
        key = key_of(batch)
        if self._keeper.unsafe and (unsafe := self._keeper.unsafe.get(key)) is not None:
            return self._keep_answer(batch, key, *unsafe)
        version = self._version()
        course = RulePipeline(batch, self.exp_id, self.watch)
        course.run(self.rules.now)
        self._count(batch, course.judgement)
        answer = self._encode(course.judgement, len(batch))
        for waiting in course.waiting.values():
            self._alone.begin(waiting)
        if self._saver is None or version == self._version():
            self._keeper.answers.put(batch, answer)
            return answer
        return self._keep_answer(batch, key, answer, record(answer, course.waiting.values()))

    def _keep_answer(self, batch: Batch, key: str, answer: bytes, data: bytes) -> Awaitable[bytes]:
        """Answer a batch once what it has counted is safe, and not before."""
        kept = self._keeper.keep(key, answer, data)
        task = self._pending[key] = asyncio.create_task(
            self._kept(batch, key, answer, kept), name="ray_messaging answer"
        )
        return asyncio.shield(task)

    async def _kept(self, batch: Batch, key: str, answer: bytes, kept: Awaitable[None]) -> bytes:
        try:
            await kept
            self._keeper.answers.put(batch, answer)
        finally:
            del self._pending[key]
        return answer

    def _count(self, batch: Batch, judgement: BatchVerdict) -> None:
        self.judged += len(batch) - len(judgement.deferred)
        if judgement.blocked:
            self.blocked += len(judgement.blocked)
            rows = np.fromiter(judgement.blocked, np.intp, len(judgement.blocked))
            for from_id, count in Counter(batch.from_ids.take(rows).tolist()).items():
                self.violations[from_id] = self.violations.get(from_id, 0) + count

    def _encode(self, judgement: BatchVerdict, count: int) -> bytes:
        try:
            answer = judgement.encode(self.epoch, wants_payload=self.rules.wants_payload, standing=self.standing.offer)
            if len(answer) <= FRAME_LIMIT:
                return answer
            raise ValueError(f"they take {len(answer)} bytes, the limit is {FRAME_LIMIT}: rewrite less in one batch")  # noqa: TRY301
        except Exception as error:
            # A rule can answer what passes every check and still cannot be sent; nobody must wait for it for ever.
            logger.exception("the verdicts on a batch of %d messages cannot be sent", count)
            why = ("interceptor", ascii(failure(error)))
            return BatchVerdict(blocked=dict.fromkeys(range(count), why)).encode(self.epoch, wants_payload=True)

    async def _wait(self, batch: Batch) -> bytes:
        unknown = self._deferrals.unknown(batch)
        if unknown:  # a predecessor deferred them
            if self.rules.wants_payload and batch.lines is None:
                return encode_verdicts(VerdictReply(self.epoch, judged=False, wants_payload=True))
            await self._alone.go_on(batch, unknown)
        judgement = await self._deferrals.wait(batch)
        return self._encode(judgement, len(batch))

    def _waits(self, key: str) -> bool:
        return self._deferrals.waits(key)

    # -- the end --------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Judge no more, and write no more; both are waited for, though not for ever."""
        await self._deferrals.close()
        await self._keeper.close()
        await self.standing.close()

    async def close(self) -> None:
        """Stop, then let all rules go."""
        await self.stop()
        await self._farewell.close()

    @property
    def fenced(self) -> Fenced | None:
        """Return the error that says that a newer interceptor has taken over."""
        return self._fenced or (None if self._saver is None else self._saver.error)
