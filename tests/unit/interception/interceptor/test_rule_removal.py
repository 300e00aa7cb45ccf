"""Removed rules with waiting messages, and rules that fail or hang in their callbacks."""

import asyncio
import contextlib
from functools import partial

import pytest
from support.interceptors import Held, Store, answered, batch, waited
from support.patience import WAIT_S
from support.rules import AskingBlock

from ray_messaging.errors import Closed, ConnectionFailed, RuleError
from ray_messaging.interception.interceptor import interceptor as farewell
from ray_messaging.interception.interceptor import slow_rule_runner as deferral
from ray_messaging.interception.interceptor import state_writer as store
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import ALLOW, Block, Moderator, RateLimit, Rule
from ray_messaging.wire.frames import encode


class Asked:
    """A moderator's function that answers when the test says so."""

    def __init__(self):
        self.called, self.go = asyncio.Event(), asyncio.Event()

    async def __call__(self, message):
        self.called.set()
        await self.go.wait()
        return True


@pytest.mark.parametrize(
    "kind",
    [lambda asked: Block(AskingBlock(asked), name="slow"), partial(Moderator, name="slow")],
    ids=["block", "moderator"],
)
@pytest.mark.parametrize("replaced", [False, True])
async def test_a_removed_rule_judges_its_waiting_messages(kind, replaced):
    asked = Asked()
    rule = kind(asked)
    closed = asyncio.Event()
    close = rule.close

    async def closing():
        await close()
        closed.set()

    rule.close = closing
    interceptor = Interceptor("x", [rule])
    messages = batch([{"n": 1}, {"n": 2}], pairs=[(1, 2), (3, 4)])
    assert (await answered(interceptor, messages)).deferred == {0, 1}
    await asyncio.wait_for(asked.called.wait(), WAIT_S)
    if replaced:
        await interceptor.change(lambda: interceptor.rules.replace("slow", kind(Asked())))
    else:
        await interceptor.change(lambda: interceptor.rules.pop("slow"))
    assert not closed.is_set()
    asked.go.set()
    assert (await waited(interceptor, messages, [0, 1])).blocked == {}
    await asyncio.wait_for(closed.wait(), WAIT_S)
    assert interceptor.rules.names == (["slow"] if replaced else [])
    await interceptor.close()


async def test_a_removed_rule_behind_a_waiting_one_stays_until_then():
    slow, late = Held("slow"), Leaving("late")
    interceptor = Interceptor("x", [slow, late])
    messages = batch([{"n": 1}])
    await answered(interceptor, messages)
    await slow.called(1)
    await interceptor.change(lambda: interceptor.rules.pop("late"))
    assert not late.closing.is_set()
    slow.release()
    assert (await waited(interceptor, messages, [0])).blocked == {}
    assert late.saw is interceptor.violations
    await interceptor.close()
    assert late.closing.is_set()
    assert late.context is None


async def test_a_removed_rule_without_waiting_messages_is_closed_at_once():
    odd = Leaving("odd", RuntimeError("no"))
    interceptor = Interceptor("x", [odd])
    await interceptor.change(lambda: interceptor.rules.pop("odd"))
    await asyncio.wait_for(odd.closing.wait(), WAIT_S)
    await interceptor.close()


class Leaving(Rule):
    """A rule that fails or hangs in its callbacks."""

    def __init__(self, name, error=None, *, hangs=False):
        self.name = name
        self.error = error
        self.hangs = hangs
        self.rounds = 0
        self.saw = None
        self.closing = asyncio.Event()

    def check_batch(self, batch, exp_id):
        self.saw = self.context.violations
        return {}

    def new_round(self):
        self.rounds += 1
        if self.error is not None:
            raise self.error

    async def close(self):
        self.closing.set()
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [RuntimeError("no"), SystemExit(3), asyncio.CancelledError()], ids=repr)
async def test_a_rule_that_fails_at_a_new_round_or_at_its_end_keeps_no_other_from_its_own(error, caplog):
    odd, good = Leaving("odd", error), Leaving("good")
    interceptor = Interceptor("x", [odd, good])
    assert await interceptor.change(interceptor.new_round) == ["odd"]
    assert (odd.rounds, good.rounds) == (1, 1)
    assert "rule 'odd' failed at a new round" in caplog.text
    await interceptor.close()
    assert good.closing.is_set()
    assert "rule 'odd' could not be closed" in caplog.text


async def test_a_rule_that_hangs_at_its_end_is_let_go(monkeypatch, caplog):
    monkeypatch.setattr(farewell, "_CLOSE_S", 0.02)
    hangs, good = Leaving("hangs", hangs=True), Leaving("good")
    async with asyncio.timeout(WAIT_S):
        await Interceptor("x", [hangs, good]).close()
    assert good.closing.is_set()
    assert "rule 'hangs' could not be closed" in caplog.text


async def test_an_interceptor_closes_while_the_server_is_away(monkeypatch):
    monkeypatch.setattr(store, "_CLOSE_S", 0.02)
    kept = Store()
    kept.errors = [ConnectionFailed("away", host="h", port=1)] * 1000
    interceptor = Interceptor("x", [RateLimit(per_round=1)], epoch=1, store=kept)
    asked = asyncio.ensure_future(interceptor.answer(encode(batch([{}]))))
    await kept.called(1)
    async with asyncio.timeout(WAIT_S):
        await interceptor.close()
    with pytest.raises(Closed):
        await asked
    kept.errors.clear()
    with pytest.raises(Closed):  # what is deleted now must not come back
        await interceptor.store_all()
    assert kept.saves == []


class Deaf(Held):
    """A rule that ignores cancellation."""

    async def judge(self, message):
        self.seen.append(message.payload)
        self._news.set()
        while not self._open.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self._open.wait()
        return ALLOW


async def test_a_slow_rule_that_swallows_its_cancellation_is_left_behind(monkeypatch):
    monkeypatch.setattr(deferral, "_GRACE_S", 0.02)
    deaf = Deaf("deaf")
    deaf.time_limit_s = 0.02
    interceptor = Interceptor("x", [deaf])
    async with asyncio.timeout(WAIT_S):
        found = await waited(interceptor, batch([{"text": "0"}]))
    assert found.blocked == {0: ("deaf", "the rule failed: TimeoutError: no verdict within 0.02 s")}
    deaf.time_limit_s = 100.0
    await answered(interceptor, batch([{"text": "1"}], first=1))
    await deaf.called(2)
    async with asyncio.timeout(WAIT_S):
        await interceptor.close()
    deaf.release()


async def test_a_rule_that_cannot_go_on_from_its_state_names_itself():
    lost = RateLimit(per_round=1, name="lost")
    lost.restored = lambda: {}["gone"]
    with pytest.raises(RuleError, match="rule 'lost' cannot go on"):
        Interceptor("x", [lost]).load({"lost": {b"1": b"1"}}, {}, merge=False)
