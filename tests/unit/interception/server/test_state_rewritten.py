"""A store that lost confirmed changes gets all of them again: counters of rules, and answers to batches."""

import asyncio
import logging

from support.interceptors import Store, answered, batch

from ray_messaging.common.backoff import RetryPolicy
from ray_messaging.errors import ConnectionFailed, RuleError
from ray_messaging.interception.rules import BlackList, RateLimit
from ray_messaging.interception.server import state_writer as store
from ray_messaging.interception.server.interceptor import VIOLATIONS, Interceptor
from ray_messaging.interception.server.state_writer import ServerBehindError


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


async def test_lost_changes_are_written_with_the_next_change(caplog):
    kept = Restored()
    first = begin(kept)
    early, late = batch([{}] * 2, pairs=[(1, 2)] * 2, first=0), batch([{}] * 2, pairs=[(1, 2), (3, 2)], first=2)
    told = [await answered(first, early)]
    await first.change(lambda: first.black_list.add((5, 6)))
    kept.goes_back()
    with caplog.at_level(logging.ERROR):
        told.append(await answered(first, late))
    assert "restored from older data" in caplog.text
    assert first.server_behind == 1
    assert kept.tables["black_list"].keys() == {b"[7,8]", b"[5,6]"}
    second = kept.successor([BlackList(), RateLimit(per_round=2)])
    again = [await answered(second, asked) for asked in (early, late)]
    assert [found.blocked for found in again] == [found.blocked for found in told]
    assert dict(second.rules.now[1].state) == {1: 2, 3: 1}
    assert "stale" not in kept.answers


async def test_lost_changes_are_written_when_the_loss_is_noticed():
    kept = Restored()
    first = begin(kept)
    await first.change(lambda: first.black_list.add((5, 6)))
    kept.goes_back()
    await first.renew()
    assert kept.tables["black_list"].keys() == {b"[7,8]", b"[5,6]"}
    assert first.server_behind == 1
    saves = len(kept.saves)
    await first.change(lambda: first.black_list.add((6, 6)))  # and only once
    assert not kept.saves[saves].whole


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
