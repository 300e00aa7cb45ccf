"""A successor goes on where its predecessor died: messages that waited pass no rule twice."""

import asyncio
from types import SimpleNamespace

from support.interceptors import Held, Store, answered, batch, waited, whole
from support.rules import Only, Whole

from ray_messaging.common import once_by_call
from ray_messaging.interception.interceptor import saved_answers
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import BlackList, RateLimit, block, label, rewrite
from ray_messaging.wire.frames import encode


async def test_a_rule_between_two_slow_rules_counts_once():
    def rules(last):
        return [Held("one", is_open=True), RateLimit(per_round=1), last, BlackList([(8, 9)])]

    kept = Store()
    two = Held("two")
    first = Interceptor("x", rules(two), epoch=1, store=kept)
    asked = batch([{"t": 1}])
    assert (await answered(first, asked)).deferred == {0}
    await two.called(1)
    # Another change takes the limit's count to the server, where this message has no verdict yet.
    await first.change(lambda: first.violations.update({8: 1}))
    for again in (None, [0]):  # the whole batch, or the row that waits
        made = rules(Held("two", is_open=True))
        second = kept.successor(made)
        assert (await waited(second, asked, again)).blocked == {}
        assert dict(made[1].state) == {1: 1}
    await first.close()


async def test_a_round_ends_once_although_its_call_comes_again_to_a_successor():
    kept, limit = Store(), RateLimit(per_round=2)
    first = Interceptor("x", [limit], epoch=1, store=kept)
    await answered(first, batch([{"t": 1}] * 2))
    for _ in range(2):
        assert await first.change(lambda: first.new_round_once("call")) == []
    await answered(first, batch([{"t": 1}], first=2))
    second = kept.successor([RateLimit(per_round=2)])
    await second.change(lambda: second.new_round_once("call"))
    assert dict(second.rules.get(0).state) == {1: 1}
    await second.change(lambda: second.new_round_once("another call"))
    assert dict(second.rules.get(0).state) == {}
    second.forget_calls()
    await answered(second, batch([{"t": 1}], first=3))
    await second.change(lambda: second.new_round_once("call"))  # of another run
    assert dict(second.rules.get(0).state) == {}
    for each in (first, second):
        await each.close()


async def test_rewrites_and_labels_pass_to_the_successor():
    def rules(last):
        more = Only(lambda message: rewrite({"text": message.payload["text"] + "+"}), "more", needs_payload=True)
        return [whole("tag", {0: label("old")}), more, RateLimit(per_round=9), last]

    kept = Store()
    slow = Held("slow")
    first = Interceptor("x", rules(slow), epoch=1, store=kept)
    asked = batch([{"text": "a"}, {"text": "b"}])
    assert (await answered(first, asked)).rewritten == {}  # not before their verdict
    await slow.called(2)
    again = Held("slow", label("new"), is_open=True)
    found = await waited(kept.successor(rules(again)), asked, [0, 1])
    assert again.seen == [{"text": "a+"}, {"text": "b+"}]
    assert found.rewritten == {0: ("more", b'{"text":"a+"}'), 1: ("more", b'{"text":"b+"}')}
    assert found.labels == {"old": {0}, "new": {0, 1}}
    await first.close()


async def test_a_new_rule_judges_waiting_messages():
    kept = Store()
    slow = Held("slow")
    first = Interceptor("x", [RateLimit(per_round=1), slow], epoch=1, store=kept)
    asked = batch([{"t": 1}])
    await answered(first, asked)
    await slow.called(1)
    second = kept.successor([RateLimit(per_round=1), BlackList([(1, 2)]), Held("slow", is_open=True)])
    assert (await waited(second, asked, [0])).blocked[0][0] == "black_list"
    await first.close()


async def test_a_record_lives_as_long_as_its_message_waits(monkeypatch):
    clock = iter(range(0, 10**6, 1000))  # each answer comes when the time of those before it is over
    monkeypatch.setattr(once_by_call, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    kept = Store()
    slow = Held("slow", only=lambda message: message.from_id == 1)
    first = Interceptor("x", [RateLimit(per_round=1), slow], epoch=1, store=kept)
    asked = batch([{"t": 1}])
    await answered(first, asked)
    await slow.called(1)
    for n in range(3):  # answers whose time is over at once
        await waited(first, batch([{"t": 2}], pairs=[(10 + n, 2)], first=10 + n))
    assert len(kept.answers) < 4
    second = kept.successor([RateLimit(per_round=1), Held("slow", is_open=True)])
    assert (await waited(second, asked, [0])).blocked == {}
    await first.close()


async def test_others_are_judged_between_messages_that_waited():
    judged, begun = [], asyncio.Event()

    def look(batch):
        judged.append(batch.from_ids.tolist())
        begun.set()
        return {}

    interceptor = Interceptor("x", [Whole(look), Held("slow", only=lambda message: message.from_id)])
    asked = batch([{"t": 1}] * 1000)
    waiting = asyncio.ensure_future(interceptor.answer(encode(asked), patient=True))
    await begun.wait()
    await answered(interceptor, batch([{"t": 2}], pairs=[(0, 2)], sender="other"))
    assert [0] in judged[:3]
    waiting.cancel()
    await interceptor.close()


async def test_answers_are_bounded_by_their_bytes(monkeypatch):
    monkeypatch.setattr(saved_answers, "LIMIT_BYTES", 20_000)
    kept = Store()
    pairs = [(n, n + 1) for n in range(1000)]
    interceptor = Interceptor("x", [BlackList(pairs)], epoch=1, store=kept)
    asked = [batch([{}] * 1000, pairs=pairs, first=1000 * n, sender=f"s{n % 3}") for n in range(10)]
    for each in asked:
        plain = interceptor.answer(encode(each))
        assert len(await plain) > 40_000  # a reason each
    await answered(interceptor, batch([{}], pairs=[(1, 2)], sender="last"))
    await interceptor.store_all()
    assert sum(map(len, kept.answers.values())) < 20_000
    second = kept.successor([BlackList(pairs)])
    before = dict(second.violations)
    assert len((await answered(second, asked[-1])).blocked) == 1000  # the newest is there
    assert dict(second.violations) == before


async def test_a_slow_verdict_that_cannot_be_kept_is_counted_once(caplog):
    kept = Store()
    slow = Held("slow", block("no"))
    interceptor = Interceptor("x", [slow], epoch=1, store=kept)
    asked = batch([{"t": 1}])
    await answered(interceptor, asked)
    await slow.called(1)
    kept.errors += [RuntimeError("broken")] * 2
    slow.release()
    assert (await waited(interceptor, asked, [0])).blocked == {0: ("slow", "no")}
    assert slow.calls == 1
    assert dict(interceptor.violations) == {1: 1}
    assert not kept.errors
    assert "is lost" in caplog.text
