"""Counts of rules: each message counts once, at a successor, while waiting, and on a server that lost changes."""

import asyncio
import logging
from itertools import accumulate

import pytest
from support.interceptors import Held, Store, answered, batch, waited

from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import ConnectionFailed, Fenced, RuleError
from ray_messaging.interception.interceptor import state_writer as store
from ray_messaging.interception.interceptor.interceptor import VIOLATIONS, Interceptor
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.interceptor.state_writer import ServerBehindError
from ray_messaging.interception.rules import ALLOW, BlackList, MaxLength, RateLimit, Rule, block
from ray_messaging.interception.verdicts import decode_verdicts
from ray_messaging.wire.frames import encode


class Counting(Rule):
    """A rule that counts each agent's messages, and blocks the third one."""

    name = "counting"

    def __init__(self):
        self.state = Table()

    def check(self, message):
        count = self.state[message.from_id] = self.state.get(message.from_id, 0) + 1
        return block(f"number {count}") if count >= 3 else ALLOW


async def test_a_batch_asked_again_is_counted_once():
    kept = Store()
    interceptor = Interceptor("x", [Counting()], epoch=1, store=kept)
    asked = batch([{}] * 4, pairs=[(1, 2)] * 4)
    kept.pause()
    twice = [asyncio.ensure_future(answered(interceptor, asked)) for _ in range(2)]
    await kept.called(1)
    assert not any(task.done() for task in twice)  # nobody is answered before it is safe
    assert interceptor.judged == 4
    kept.go_on()
    for found in [*await asyncio.gather(*twice), await answered(interceptor, asked)]:
        assert found.blocked == {2: ("counting", "number 3"), 3: ("counting", "number 4")}
    assert dict(interceptor.rules.now[0].state) == {1: 4}
    assert dict(interceptor.violations) == {1: 2}
    assert len(kept.saves) == 1


async def test_a_batch_that_changes_nothing_writes_nothing():
    kept = Store()
    interceptor = Interceptor("x", [BlackList([(7, 8)])], epoch=1, store=kept)
    await interceptor.store_all()
    written = len(kept.saves)
    assert isinstance(interceptor.answer(encode(batch([{}] * 100))), bytes)
    assert len(kept.saves) == written


async def test_a_change_is_on_the_server_once_it_has_returned():
    kept = Store()
    interceptor = Interceptor("x", [Counting()], epoch=1, store=kept)
    await interceptor.change(lambda: interceptor.black_list.add([(1, 2), ("ann", None)]))
    assert kept.tables["black_list"] == {b"[1,2]": b"1", b'["ann",null]': b"1"}
    await interceptor.change(lambda: interceptor.rules.pop("black_list"))
    assert kept.tables["black_list"] == {}
    await answered(interceptor, batch([{}] * 3, pairs=[(1, 2)] * 3))
    await interceptor.change(lambda: interceptor.rules.replace("counting", Counting()))
    assert kept.tables["counting"] == {}
    assert kept.tables[":violations"] == {b"1": b"1"}


async def test_a_successor_counts_nothing_again():
    kept = Store()
    old = Interceptor("x", [Counting()], epoch=1, store=kept)
    asked = batch([{}] * 4, pairs=[(1, 2)] * 4)
    before = await answered(old, asked)
    new = kept.successor([Counting()])
    assert (await answered(new, asked)).blocked == before.blocked
    assert decode_verdicts(new.answer(encode(asked))).epoch == 2
    assert dict(new.rules.now[0].state) == {1: 4}
    assert dict(new.violations) == {1: 2}
    assert (await answered(new, batch([{}], pairs=[(1, 2)], first=4))).blocked == {0: ("counting", "number 5")}
    with pytest.raises(Fenced):
        await answered(old, batch([{}], pairs=[(5, 5)], first=5))
    # What was not safe when the newer one came is not answered, and from then on nothing is.
    with pytest.raises(Fenced):
        old.answer(encode(batch([{}], pairs=[(6, 6)], first=6)))
    with pytest.raises(Fenced):
        await old.forward(1, 2, "hello")


async def test_a_slow_verdict_is_counted_once_by_a_successor_too():
    kept = Store()
    slow = Held("slow", block("slow"), is_open=True)
    old = Interceptor("x", [slow], epoch=1, store=kept)
    asked = batch([{"text": "0"}] * 2, pairs=[(1, 2)] * 2)
    found = await waited(old, asked)
    again = Held("slow", block("again"), is_open=True)
    new = kept.successor([again])
    assert (await waited(new, asked)).blocked == found.blocked
    assert (await answered(new, asked, rows=[1])).blocked == {0: ("slow", "slow")}
    assert again.calls == 0
    assert dict(new.violations) == {1: 2}


async def test_deferred_rows_of_a_dead_interceptor_are_judged_by_its_successor():
    old = Interceptor("x", [Held("slow", ALLOW)], epoch=1, store=(kept := Store()))
    asked = batch([{"text": "0"}, {"text": "1"}], pairs=[(1, 2), (3, 4)])
    assert (await answered(old, asked)).deferred == {0, 1}
    await old.close()
    new = kept.successor([Held("slow", block("new"), is_open=True), Counting()])
    found = await answered(new, asked, rows=[1])
    while found.deferred:
        found = await answered(new, asked, rows=[1])
    assert found.blocked == {0: ("slow", "new")}
    assert dict(new.violations) == {3: 1}
    without = kept.successor([Counting()])
    assert (await waited(without, asked, rows=[0])).blocked == {}
    assert dict(without.rules.now[0].state) == {1: 1}
    assert kept.tables["counting"] == {b"1": b"1"}


async def test_a_store_that_fails_loses_no_count_and_counts_nothing_twice():
    kept = Store()
    interceptor = Interceptor("x", [Counting()], epoch=1, store=kept)
    kept.errors.append(RuntimeError("broken"))
    asked = batch([{}] * 2, pairs=[(1, 2)] * 2)
    with pytest.raises(RuntimeError):
        await answered(interceptor, asked)
    assert (await answered(interceptor, asked)).blocked == {}
    assert kept.tables["counting"] == {b"1": b"2"}
    assert (await answered(interceptor, batch([{}], pairs=[(1, 2)], first=2))).blocked == {0: ("counting", "number 3")}


async def test_counts_of_a_batch_are_written_with_its_answer():
    kept = Store()
    kept.pause()
    interceptor = Interceptor("x", [MaxLength(2)], epoch=1, store=kept)

    def ask(first):
        return asyncio.ensure_future(interceptor.answer(encode(batch([{"text": "long"}], first=first))))

    asked = [ask(0)]
    await kept.called(1)
    asked.append(ask(1))
    await asyncio.sleep(0)
    kept.go_on()
    asked.append(ask(2))  # judged between two writes
    await asyncio.gather(*asked)
    counted = [int(each.tables[VIOLATIONS].put[b"1"]) for each in kept.saves]
    assert counted == [*accumulate(len(each.answers) for each in kept.saves)]
    assert (len(counted) > 1, counted[-1]) == (True, 3)


class Restored(Store):
    """A store that returns to an older state, and reports it at the next write."""

    def __init__(self):
        super().__init__()
        self.behind = False

    def goes_back(self):
        self.behind, self.tables, self.answers = True, {"gone_since": {b"1": b"1"}}, {"stale": b""}

    async def save(self, epoch, kept):
        if self.behind and not kept.whole:
            raise ServerBehindError
        if kept.whole:
            self.answers = {}
        await super().save(epoch, kept)
        self.behind = False


def begin(kept):
    return Interceptor("x", [BlackList([(7, 8)]), RateLimit(per_round=2)], epoch=1, store=kept)


@pytest.mark.parametrize("noticed", [False, True], ids=["with the next change", "when the loss is noticed"])
async def test_lost_changes_are_written_once(noticed, caplog):
    kept = Restored()
    first = begin(kept)
    early, late = batch([{}] * 2, pairs=[(1, 2)] * 2, first=0), batch([{}] * 2, pairs=[(1, 2), (3, 2)], first=2)
    told = [await answered(first, early)]
    await first.change(lambda: first.black_list.add((5, 6)))
    kept.goes_back()
    with caplog.at_level(logging.ERROR):
        if noticed:
            await first.renew()
            assert kept.tables["black_list"].keys() == {b"[7,8]", b"[5,6]"}
        saves = len(kept.saves)
        told.append(await answered(first, late))
    assert [save.whole for save in kept.saves[saves:]] == [not noticed]
    assert "restored from older data" in caplog.text
    assert first.server_behind == 1
    assert kept.tables["black_list"].keys() == {b"[7,8]", b"[5,6]"}
    second = kept.successor([BlackList(), RateLimit(per_round=2)])
    again = [await answered(second, asked) for asked in (early, late)]
    assert [found.blocked for found in again] == [found.blocked for found in told]
    assert dict(second.rules.now[1].state) == {1: 2, 3: 1}
    assert "stale" not in kept.answers


async def test_changes_that_could_not_be_rewritten_go_with_the_next_write(monkeypatch):
    monkeypatch.setattr(store, "RULE_STATE_RETRY", RetryPolicy(0.001, 0.001))
    kept = Restored()
    first = begin(kept)
    asked = batch([{}] * 2, pairs=[(7, 8), (1, 2)])
    told = await answered(first, asked)
    await first.change(lambda: first.rules.pop("rate_limit"))
    kept.goes_back()
    kept.errors = [ConnectionFailed("away", host="h", port=1), RuleError("broken", rule="x")]
    results = await asyncio.gather(first.renew(), first.renew(), return_exceptions=True)
    assert [type(result) for result in results] == [RuleError] * 2
    await first.change(lambda: first.black_list.add((5, 6)))
    assert kept.saves[-1].whole
    assert kept.tables["black_list"].keys() == {b"[7,8]", b"[5,6]"}
    assert kept.tables[VIOLATIONS] == {b"7": b"1"}
    second = kept.successor([BlackList()])
    assert (await answered(second, asked)).blocked == told.blocked
