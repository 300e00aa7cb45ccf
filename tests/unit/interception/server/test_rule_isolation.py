"""Isolation of rules: a failure on one message, or on the rule's state, blocks only that and delays nothing."""

import asyncio
from dataclasses import dataclass, field

import numpy as np
import pytest
from support.interceptors import Store, answered, batch, waited, whole

from ray_messaging.interception.rules import ALLOW, Block, Moderator, Rule, SenderBan, Table, block, rewrite
from ray_messaging.interception.server import interceptor as interceptor_module
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.watchdog import Watchdog

ERRORS = [ValueError("odd"), SystemExit(3), asyncio.CancelledError(), RecursionError()]


class OnOne(Rule):
    """Fail on one message of a batch, or answer nonsense."""

    needs_payload = True

    def __init__(self, error):
        self.error = error

    def check(self, message):
        if message.payload["text"] != "1":
            return ALLOW
        if isinstance(self.error, BaseException):
            raise self.error
        return self.error


def texts(count, first=0):
    return batch([{"text": str(n)} for n in range(count)], pairs=[(n, 9) for n in range(count)], first=first)


@pytest.mark.parametrize("error", [*ERRORS, None, "no"], ids=repr)
@pytest.mark.parametrize("wrap", [lambda rule: rule, SenderBan], ids=["check", "a ban's check"])
async def test_a_check_that_fails_on_one_message_blocks_that_one(wrap, error):
    rule = wrap(OnOne(error))
    interceptor = Interceptor("x", [rule])
    assert set((await answered(interceptor, texts(4))).blocked) == {1}
    assert interceptor.failures.of(rule)["failures"] == 1


async def test_long_reasons_are_cut_so_that_the_answer_can_be_sent():
    interceptor = Interceptor("x", [whole("long", {n: block(f"{n}" + "x" * 1_000_000) for n in range(4)})])
    found = await answered(interceptor, texts(4))
    assert [found.blocked[n][1][:2] for n in range(4)] == ["0x", "1x", "2x", "3x"]
    assert {len(reason) for _, reason in found.blocked.values()} == {2_000}


async def test_verdicts_that_are_too_large_to_be_sent_block_and_say_so(monkeypatch):
    monkeypatch.setattr(interceptor_module, "FRAME_LIMIT", 1_000)
    interceptor = Interceptor("x", [whole("large", {n: rewrite({"text": f"{n}" * 400}) for n in range(4)})])
    found = await answered(interceptor, texts(4))
    assert {rule for rule, _ in found.blocked.values()} == {"interceptor"}
    assert "the limit is 1000" in found.blocked[3][1]


# -- calls of slow rules ----------------------------------------------------------------------------------------------


async def spins(message):
    while True:
        pass


def block_of(call):
    class Calls:
        async def forward(self, llm, from_id, to_id, msg, violation_counts, black_set):
            await call(msg)

    return Block(Calls())


SLOW = {
    "a moderator": Moderator,
    "a moderator without a cache": lambda call: Moderator(call, cache=0),
    "a block of AgentSociety": block_of,
}


@pytest.mark.parametrize("kind", SLOW)
async def test_a_call_that_never_lets_go_of_the_loop_is_interrupted(kind):
    rule = SLOW[kind](spins)
    interceptor = Interceptor("x", [rule])
    watchdog = Watchdog(interceptor.watch, rule_timeout_s=0.1)
    watchdog.start()
    try:
        found = await waited(interceptor, texts(1))
        assert "was interrupted" in found.blocked[0][1]
        assert interceptor.failures.of(rule)["failures"] == 1
        await interceptor.close()
    finally:
        watchdog.stop()


# -- state ------------------------------------------------------------------------------------------------------------


@dataclass
class Counting(Rule):
    """A rule that keeps each batch's size; two of these are always equal."""

    weights: object = None
    state: Table = field(default_factory=Table, compare=False)

    def check_batch(self, batch, exp_id):
        self.state[batch.first] = len(batch)
        return {}

    def new_round(self):
        self.state = Table()


async def kept_after(store, change):
    """Count two, make a change, count one; return the state that a successor finds."""
    interceptor = Interceptor("x", [Counting()], epoch=1, store=store)
    await answered(interceptor, texts(2))
    await interceptor.change(lambda: change(interceptor))
    await answered(interceptor, texts(1, first=2))
    await interceptor.stop()
    fresh = Counting()
    await store.successor([fresh]).stop()
    return dict(fresh.state)


async def test_a_rule_replaced_by_an_equal_one_leaves_it_nothing_of_its_state():
    assert await kept_after(Store(), lambda each: each.rules.replace("counting", Counting())) == {2: 1}


async def test_rules_that_cannot_be_compared_are_put_in():
    def replace(each):
        each.rules.replace("counting", Counting(np.arange(3)))
        each.rules.replace("counting", Counting(np.arange(4)))

    assert await kept_after(Store(), replace) == {2: 1}
    rules = [Counting(np.arange(3))]
    interceptor = Interceptor("x", rules, epoch=1, store=Store())
    await interceptor.change(lambda: interceptor.rules.replace(0, Counting(np.arange(3))))
    await interceptor.stop()


async def test_a_round_that_begins_with_a_new_table_is_kept():
    store = Store()

    def begin(each):
        assert each.new_round() == []

    assert await kept_after(store, begin) == {2: 1}
