"""Rules on broadcasts: pairs are judged each, messages once."""

import asyncio

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import batch_to
from support.interceptors import Held, Store, answered, waited
from support.rules import Only

from ray_messaging.errors import RuleError
from ray_messaging.interception.broadcasts import Intersections, pair_rows
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import (
    AllowGraph,
    BlackList,
    EdgeBan,
    MaxLength,
    Pattern,
    RateLimit,
    RoundQuota,
    SenderBan,
    SlowRule,
    block,
    rewrite,
)
from ray_messaging.interception.rules.rule import ALLOW, PairCheck
from ray_messaging.interception.verdicts import decode_verdicts
from ray_messaging.model.columns import PayloadColumn
from ray_messaging.model.extension import AudiencePairs, Extension

FRIENDS = AudiencePairs("friends", 1)


def broadcasts(said, *, audience=FRIENDS, lines=None, first=0):
    """Build the batch of broadcasts (sender, hearers), a row for each hearer."""
    rows = np.repeat(np.arange(len(said)), [len(hearers) for _, hearers in said])
    lines = [b"{}"] * len(said) if lines is None else lines
    return batch_to(
        [hearer for _, hearers in said for hearer in hearers],
        [said[row][0] for row in rows.tolist()],
        first=first,
        numbers=rows.astype(np.uint32),
        lines=PayloadColumn.of(lines, rows.astype(np.uint32)),
        extension=Extension(audience=audience),
    )


def judged(*rules, said, **more):
    """Return the blocked rows of broadcasts with their reasons."""
    return asyncio.run(Interceptor("town", rules).judge(broadcasts(said, **more))).blocked


IDS = st.integers(0, 6)
PAIRS = st.frozensets(st.tuples(IDS, IDS), max_size=25)
LISTED = st.frozensets(st.tuples(st.one_of(IDS, st.none()), st.one_of(IDS, st.none())), max_size=6)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "remove", "ask"]), LISTED, st.lists(IDS, max_size=6)), max_size=8)


@given(PAIRS, PAIRS, CHANGES, st.sampled_from([0, 7, 2**24]))
@settings(max_examples=120, deadline=None)
def test_kept_intersections_decide_as_the_rules_do(heard, edges, changes, most):
    hearers = {sender: sorted(b for a, b in heard if a == sender) for sender in range(7)}
    kept, rules = Intersections(most), (BlackList(), AllowGraph(edges))
    for act, pairs, senders in changes:
        if act != "ask":
            getattr(rules[0], act)(pairs)
        said = [(sender, hearers[sender]) for sender in senders if hearers[sender]]
        batch = broadcasts(said)
        if not said:
            continue
        for rule in rules:
            check = kept.check(rule)
            found = kept.rows(rule, check, batch, pair_rows(batch))
            assert found.tolist() == sorted(rule.check_batch(batch, "town"))
        assert kept.size <= max(most, 1) or most == 0


async def test_each_pair_is_looked_at_once_per_version_of_the_audience_and_of_the_rule():
    looked = []

    class Counting(BlackList):
        def pair_check(self):
            check = super().pair_check()

            def bars(from_ids, to_ids):
                looked.append(len(from_ids))
                return check.bars(from_ids, to_ids)

            return check._replace(bars=bars)

    rule = Counting((1, 3))
    interceptor = Interceptor("town", [rule])
    said = [(1, [2, 3, 4]), (5, [1, 2])]
    for first in (0, 10, 20):
        assert set((await interceptor.judge(broadcasts(said, first=first))).blocked) == {1}
    assert looked == [5]
    await interceptor.judge(broadcasts(said, first=30, audience=AudiencePairs("friends", 2)))
    assert looked == [5, 5]
    await interceptor.change(lambda: rule.add((5, 2)))
    assert set((await interceptor.judge(broadcasts(said, first=40))).blocked) == {1, 4}
    assert looked == [5, 5, 5]
    await interceptor.judge(broadcasts([(7, [1]), *said], first=50))  # only the new sender
    assert looked == [5, 5, 5, 1]


def test_the_pairs_of_many_rules_are_kept():
    kept, rules, asked = Intersections(), [BlackList([(1, 2)], name=f"rule {number}") for number in range(40)], []
    batch = broadcasts([(1, [2, 3])])
    for rule in 2 * rules:
        bars, reason = kept.check(rule)
        check = PairCheck(lambda *ids, bars=bars: asked.append(1) or bars(*ids), reason)
        assert kept.rows(rule, check, batch, pair_rows(batch)).tolist() == [0]
    assert len(asked) == len(rules)


class Lenient(BlackList):
    """A subclass that decides in another way."""

    def check_batch(self, batch, exp_id):
        return {row: why for row, why in super().check_batch(batch, exp_id).items() if batch.to_ids[row] != 3}


def odd(message):
    return block("odd") if (message.from_id + message.to_id) % 2 else ALLOW


GRAPH = AllowGraph([("ann", 2), ("ann", "bob"), ("ann", 3), (4, "bob")])
NAMED = {0: "black_list", 2: "black_list", 3: "black_list", 4: "allow_graph"}
RULED = [
    (
        [BlackList([("ann", 2), (None, "bob")]), GRAPH],
        [("ann", [2, 3, "bob"]), (4, ["bob", "eve"]), (None, [2])],
        NAMED,
    ),
    ([RateLimit(per_round=2)], [(1, [2, 3]), (1, [2]), (1, [2, 3]), (5, [1])], {3: "rate_limit", 4: "rate_limit"}),
    ([RateLimit(per_round=1), BlackList((1, 2))], [(1, [2]), (1, [3])], {0: "black_list"}),  # it costs none of the rate
    ([Only(odd, "odd")], [(1, [2, 3]), (2, [3, 4])], {0: "odd", 2: "odd"}),
    ([Lenient([(1, 2), (1, 3)])], [(1, [2, 3])], {0: "black_list"}),
    ([RoundQuota(contacts=2)], [(1, [2, 3, 4]), (1, [3])], {2: "round_quota"}),
]


@pytest.mark.parametrize(("rules", "said", "found"), RULED)
def test_rules_block_pairs_and_count_a_broadcast_once(rules, said, found):
    assert {row: rule for row, (rule, _) in judged(*rules, said=said).items()} == found


def test_a_ban_of_a_sender_counts_a_broadcast_once():
    ban = SenderBan(Pattern(["spam"]), after=2)
    judged(ban, said=[(1, range(2, 30))], lines=[b'{"content":"spam"}'])
    assert ban.describe()["banned"] == 0


def test_a_text_is_looked_at_once_and_blocks_all_pairs():
    class Counting(MaxLength):
        seen = 0

        def check_batch(self, batch, exp_id):
            self.seen += batch.rows
            assert batch.to_ids.tolist() == [None] * batch.rows
            return super().check_batch(batch, exp_id)

    rule = Counting(20)
    long = b'{"text":"' + b"x" * 20 + b'"}'
    assert sorted(judged(rule, said=[(1, [2, 3]), (4, [5, 6, 7])], lines=[b"{}", long])) == [2, 3, 4]
    assert rule.seen == 2


@pytest.mark.parametrize("on_error", ["block", "allow"])
@pytest.mark.parametrize("how", ["pair", "check"])
def test_a_rule_that_crashes_on_pairs_blocks_them(how, on_error):
    class Crashing(BlackList):
        def check_batch(self, batch, exp_id):
            raise ValueError("broken")

        def pair_check(self):
            if how == "check":
                raise ValueError("broken")

    rule = Crashing()
    rule.on_error = on_error
    found = judged(rule, said=[(1, [2, 3])])
    assert [*found.values()] == [("black_list", "the rule failed: ValueError: broken")] * (
        2 if on_error == "block" else 0
    )


def test_a_ban_of_a_pair_is_for_broadcasts_too():
    ban = EdgeBan(Pattern(["spam"]), after=1)
    ban.state[1, 3] = 1
    ban.restored()
    assert sorted(judged(ban, said=[(1, [2, 3])], lines=[b'{"content":"hello"}'])) == [1]
    assert sorted(judged(ban, said=[(1, [2, 3])], lines=[b'{"content":"spam"}'])) == [0, 1]
    assert dict(ban.state) == {(1, 3): 1, (1, None): 1}


async def test_a_slow_rule_is_asked_once_about_a_broadcast():
    class Slow(SlowRule):
        asked = 0

        async def judge(self, message):
            assert message.to_id is None
            self.asked += 1
            return block("bad") if message.from_id == 1 else rewrite({"content": "good"})

    rule = Slow()
    interceptor = Interceptor("town", [rule, BlackList((1, 2))])
    batch = broadcasts([(1, [2, 3, 4]), (5, [2, 3])])
    verdict = await interceptor.judge(batch)
    assert [*verdict.blocked] == [0]
    assert verdict.deferred == {1, 2, 3, 4}
    waiting = batch.take(np.array(sorted(verdict.deferred)))
    while verdict.deferred:
        verdict = decode_verdicts(await interceptor.answer(waiting, patient=True)).batch_verdict(4)
    assert sorted(verdict.blocked) == [0, 1]
    assert sorted(verdict.rewritten) == [2, 3]
    assert rule.asked == 2
    await interceptor.close()


async def test_a_successor_asks_rules_on_pairs_about_pairs_alone():
    """A broadcast waits for a slow rule when its interceptor dies."""

    def rules(slow):
        pairs = Only(lambda message: block("far") if abs(message.from_id - message.to_id) > 1 else ALLOW, "pairs")
        return [slow, pairs]

    kept, asked = Store(), broadcasts([(1, [2, 0]), (2, [3])])
    first = Interceptor("town", rules(Held("slow")), epoch=1, store=kept)
    found = await answered(first, asked)
    assert (found.blocked, found.deferred) == ({}, {0, 1, 2})
    slow = Held("slow", is_open=True)
    found = await waited(kept.successor(rules(slow)), asked, [0, 1, 2])
    assert (found.blocked, slow.calls) == ({}, 2)
    await first.close()


def test_a_slow_rule_cannot_judge_pairs():
    class Slow(SlowRule):
        judges_broadcasts = "pair"

    with pytest.raises(RuleError, match="judges_broadcasts='pair': write 'message'"):
        Interceptor("town", [Slow()])
