"""Helpers of the interceptor's tests: batches, rules that wait, and a store."""

import asyncio

import numpy as np

from ray_messaging.errors import Fenced
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import ALLOW, SlowRule
from ray_messaging.interception.verdicts import FOREIGN, BatchVerdict, decode_verdicts
from ray_messaging.wire.frames import encode
from support.delegation import Method
from support.patience import WAIT_S
from support.rules import Whole, batch_of


def batch(payloads, *, pairs=None, first=0, sender="s"):
    """Build a batch of one message for each payload."""
    return batch_of(pairs or [(1, 2)] * len(payloads), payloads=payloads, sender=sender, first=first, epoch=1)


async def answered(interceptor, asked, rows=None):
    """Ask as a messager does: about a batch, or patiently about some rows of it."""
    asked = asked if rows is None else asked.take(np.array(rows, np.intp))
    answer = interceptor.answer(encode(asked), patient=rows is not None)
    answer = answer if isinstance(answer, bytes) else await answer
    verdicts = decode_verdicts(answer)
    assert verdicts.judged
    return verdicts.batch_verdict(len(asked))


async def waited(interceptor, asked, rows=None):
    """Ask until the verdict on every row is there."""
    found = await answered(interceptor, asked, rows)
    places = rows or list(range(len(asked)))
    while found.deferred:
        left = sorted(found.deferred)
        found.deferred.clear()
        found.add((await answered(interceptor, asked, [places[at] for at in left])).moved(dict(enumerate(left))))
    return found


async def judged(rules, rows):
    """Judge a few messages by rules."""
    found = await answered(Interceptor("x", rules), batch([{"text": str(n)} for n in range(rows)]))
    assert isinstance(found, BatchVerdict)
    return found


def interceptor_with(*rules, epoch=FOREIGN):
    """Return an interceptor in this process, which judges by some rules."""
    return Interceptor("x", rules, epoch=epoch)


def failures_of(interceptor, name):
    """Return on how many messages a rule of an interceptor has failed."""
    return interceptor.failures.of(interceptor.rules.get(name))["failures"]


def whole(name, answer, on_error="block"):
    """Make a rule that gives one answer on any batch, or raises it."""

    def judge(_batch):
        if isinstance(answer, BaseException):
            raise answer
        return answer

    rule = Whole(judge, name, on_error)
    rule.needs_payload = True
    return rule


class Held(SlowRule):
    """A rule that gives or raises one answer once it is released; `answers` by sender take precedence."""

    def __init__(self, name, answer=ALLOW, *, is_open=False, on_error="block", at_once=None, only=None):
        self.name = name
        self.answer = answer
        self.answers = {}
        self.on_error = on_error
        self.seen = []
        self.only = only or (lambda message: True)
        self._at_once = at_once
        self._open = asyncio.Event()
        self._news = asyncio.Event()
        if is_open:
            self._open.set()

    @property
    def calls(self):
        return len(self.seen)

    def release(self):
        self._open.set()

    async def called(self, count):
        """Wait until it was asked so many times."""
        async with asyncio.timeout(WAIT_S):
            while self.calls < count:
                self._news.clear()
                await self._news.wait()

    def at_once(self, message):
        return None if self._at_once is None else self._at_once(message)

    async def judge(self, message):
        self.seen.append(message.payload)
        self._news.set()
        if self.only(message):
            await self._open.wait()
        answer = self.answers.get(message.from_id, self.answer)
        if isinstance(answer, BaseException):
            raise answer
        return answer


class Foreign(Method):
    """An actor with AgentSociety's `forward`, which answers by a function, async or not."""

    def __init__(self, answer=lambda from_id, to_id, msg: True):
        super().__init__(answer)
        self.forward = self


class Store:
    """Keep state as the server does: under the epoch of the newest interceptor."""

    def __init__(self):
        self.epoch = 1
        self.tables = {}
        self.answers = {}
        self.saves = []
        self.errors = []
        self._open = asyncio.Event()
        self._open.set()
        self._news = asyncio.Event()
        self._calls = 0

    def pause(self):
        self._open.clear()

    def go_on(self):
        self._open.set()

    async def called(self, count):
        async with asyncio.timeout(WAIT_S):
            while self._calls < count:
                self._news.clear()
                await self._news.wait()

    async def save(self, epoch, kept):
        self._calls += 1
        self._news.set()
        await self._open.wait()
        if self.errors:
            raise self.errors.pop(0)
        if epoch != self.epoch:
            raise Fenced("another interceptor judges", name="interceptor", epoch=epoch)
        self.saves.append(kept)
        for name, changes in kept.tables.items():
            table = {} if changes.cleared else self.tables.get(name, {})
            self.tables[name] = table | changes.put
            for gone in changes.gone:
                self.tables[name].pop(gone, None)
        self.answers |= kept.answers
        for name in kept.forget:
            self.answers.pop(name, None)

    def successor(self, rules):
        """Make the next interceptor, which takes over and loads the kept state."""
        self.epoch += 1
        made = Interceptor("x", rules, epoch=self.epoch, store=self)
        made.load(self.tables, self.answers, merge=False)
        return made
