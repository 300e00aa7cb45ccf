"""RateLimit, RoundQuota and MaxLength."""

import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import PAIRS, batch_of, blocked, follow, judged, one_by_one, revived

from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.rules import MaxLength, RateLimit, RoundQuota
from ray_messaging.model.columns import PayloadColumn

RATES = st.one_of(st.none(), st.sampled_from([0.25, 1, 2.5, 3]))
ROUNDS = st.one_of(st.none(), st.integers(1, 4))


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@given(PAIRS, RATES, ROUNDS, st.lists(st.integers(0, 20), max_size=4))
def test_rates_by_hand_at_once_and_one_by_one(pairs, per_second, per_round, pauses):
    """Times and rates are such that the reference rounds nothing."""
    if per_second is None and per_round is None:
        per_second = 1
    clock = Clock()
    together, alone = (RateLimit(per_second, per_round, clock=clock) for _ in range(2))
    full, tokens, sent = max(1, per_second or math.inf), {}, {}
    for quarters in [0, *pauses]:
        clock.now += quarters / 4
        tokens = {who: min(full, left + (per_second or 0) * quarters / 4) for who, left in tokens.items()}
        expected = []
        for row, (who, _) in enumerate(pairs):
            left = tokens.get(who, full)
            if who is not None and (left < 1 or sent.get(who, 0) == per_round):
                expected.append(row)
            else:
                tokens[who], sent[who] = left - 1, sent.get(who, 0) + 1
        verdicts = judged(together, batch_of(pairs))
        assert [row for row, verdict in enumerate(verdicts) if verdict] == expected
        assert one_by_one(alone, batch_of(pairs)) == verdicts
    assert None not in (together.state or ())


@given(PAIRS, st.integers(1, 3))
def test_a_round_by_hand(pairs, per_round):
    rule, counts, expected = RateLimit(per_round=per_round), {}, []
    for row, (from_id, _) in enumerate(pairs):
        counts[from_id] = counts.get(from_id, 0) + 1
        if from_id is not None and counts[from_id] > per_round:
            expected.append(row)
    assert blocked(rule, batch_of(pairs)) == expected
    used_up = {from_id for from_id, count in counts.items() if from_id is not None and count >= per_round}
    again = [(from_id, 1) for from_id in used_up]
    if again:
        heir = revived(rule, RateLimit(per_round=per_round))
        assert blocked(heir, batch_of(again)) == list(range(len(again)))
        heir.new_round()
        assert blocked(heir, batch_of(again)) == []


@pytest.mark.parametrize("rate", [2**63 - 1, 1e19, 10**30])
def test_a_rate_that_nobody_reaches_blocks_nobody(rate):
    assert blocked(RateLimit(per_second=rate), batch_of([(1, 2)] * 5)) == []


def test_a_rate_of_seconds_alone_keeps_no_state():
    assert RateLimit(2).state is None


def test_reasons_name_sender_and_limit():
    rule = RateLimit(2, 3, clock=Clock())
    (first, *_, last) = [verdict for verdict in judged(rule, batch_of([("ann", 1)] * 4)) if verdict]
    assert first.reason == last.reason == "agent 'ann' sends too many messages: the limit is 2 a second"
    rule = RateLimit(5, 3, clock=Clock())
    assert judged(rule, batch_of([(7, 1)] * 4))[3].reason.endswith(
        "agent 7 sends too many messages: the limit is 3 a round"
    )
    reason = judged(quota(contacts=1), batch_of([(7, 1), (7, 2)]))[1].reason
    assert reason.startswith("agent 7 has written to 1 agents in this round")


def test_sums_of_seconds_cost_no_message():
    """A sender within the limit passes for ever, although 0.1 s is no sum of powers of two."""
    clock = Clock()
    rule = RateLimit(10, clock=clock)
    assert blocked(rule, batch_of([(1, 2)] * 10)) == []
    for _ in range(1000):
        clock.now += 0.1
        assert blocked(rule, batch_of([(1, 2)] * 2)) == [1]


def test_buckets_of_the_silent_are_forgotten():
    clock = Clock()
    rule = RateLimit(1, clock=clock)
    for start in range(0, 50_000, 1000):
        judged(rule, batch_of([(start + n, 1) for n in range(1000)]))
        clock.now += 2.0
    assert len(rule._empty_at) <= 4000  # no public way to see what is kept


def test_pickling_forgets_the_seconds_and_keeps_the_round():
    rule = RateLimit(1.0, 2)
    judged(rule, batch_of([(1, 2)] * 3))
    copy = pickle.loads(pickle.dumps(rule))
    assert blocked(copy, batch_of([(1, 2)] * 3)) == [1, 2]
    assert blocked(copy, batch_of([(1, 2)])) == [0]
    assert "round" in judged(copy, batch_of([(1, 2)]))[0].reason


def quota(context=None, **settings):
    rule = RoundQuota(**settings)
    rule.context = context or Interceptor("e")
    return rule


@given(PAIRS, st.integers(0, 3))
def test_contacts_by_hand_at_once_one_by_one_and_after_a_death(pairs, contacts):
    met, expected = {}, []
    for row, (from_id, to_id) in enumerate(pairs):
        if from_id is None or to_id is None:
            continue
        known = met.setdefault(from_id, set())
        if to_id not in known and len(known) >= contacts:
            expected.append(row)
        else:
            known.add(to_id)
    batch, rule = batch_of(pairs), quota(contacts=contacts)
    verdicts = judged(rule, batch)
    assert [row for row, verdict in enumerate(verdicts) if verdict] == expected
    assert one_by_one(quota(contacts=contacts), batch) == verdicts
    heir = revived(rule, quota(contacts=contacts))
    assert judged(heir, batch) == verdicts
    heir.new_round()
    assert judged(heir, batch) == verdicts


def test_blocked_messages_count_by_round():
    context = Interceptor("e")
    context.violations.update({1: 5, 2: 1, None: 9})
    rule = quota(context, blocked=2)
    batch = batch_of([(1, 2), (2, 1), (None, 1), ("ann", 1)])
    assert blocked(rule, batch) == []  # what was blocked before the rule came does not count
    context.violations.update({1: 6, 2: 3, None: 99, "ann": 2})
    assert blocked(rule, batch) == [1, 3]
    assert judged(rule, batch)[1].reason.startswith("2 messages of agent 2 were blocked in this round")
    rule.new_round()
    assert blocked(rule, batch) == []
    context.violations[1] += 2
    assert blocked(rule, batch) == [0]


def test_the_round_survives_a_death():
    context, kept = Interceptor("e"), {}
    context.violations[1] = 3
    rule = quota(context, contacts=1, blocked=2)
    judged(rule, batch_of([(1, 2)]))
    follow(rule.state.changes(), kept)
    context.violations[1] = 4
    heir = quota(context, contacts=1, blocked=2)
    heir.state.load(kept)
    heir.restored()
    assert blocked(heir, batch_of([(1, 2), (1, 3)])) == [1]
    context.violations[1] = 5
    assert blocked(heir, batch_of([(1, 2)])) == [0]
    rule.context = None
    copy = pickle.loads(pickle.dumps(rule))
    copy.context = context
    assert blocked(copy, batch_of([(1, 2)])) == [0]


def test_a_silenced_agent_makes_no_contacts():
    context = Interceptor("e")
    rule = quota(context, contacts=1, blocked=1)
    judged(rule, batch_of([(2, 1)]))
    context.violations[1] = 1
    assert blocked(rule, batch_of([(1, 2)])) == [0]
    context.violations.clear()
    assert blocked(rule, batch_of([(1, 3)])) == []


def test_counts_that_are_set_back_begin_at_zero():
    context = Interceptor("e")
    context.violations[1] = 10
    rule = quota(context, blocked=2)
    judged(rule, batch_of([(1, 2)]))
    context.violations.clear()
    context.violations[1] = 1
    assert blocked(rule, batch_of([(1, 2)])) == []
    context.violations[1] = 2
    assert blocked(rule, batch_of([(1, 2)])) == [0]


@given(st.lists(st.text(max_size=9), min_size=1), st.integers(2, 30))
def test_lengths_at_once_and_one_by_one(texts, limit):
    batch, rule = batch_of([(None, 2)] * len(texts), texts), MaxLength(limit)
    assert judged(rule, batch) == one_by_one(rule, batch)
    assert blocked(rule, batch) == [row for row, line in enumerate(batch.lines.list) if len(line) > limit]


def test_lengths_of_lines_that_messages_share():
    batch = batch_of([(1, 2)] * 3)
    batch.lines = PayloadColumn.of([b"{}", b'{"x":1}'], np.array([1, 0, 1], np.uint32))
    assert blocked(MaxLength(6), batch) == [0, 2]
    assert judged(MaxLength(6), batch)[0].reason == "payload of 7 bytes, the limit is 6"
