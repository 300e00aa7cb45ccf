"""RateLimit."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.rules import PAIRS, batch_of, blocked, judged, one_by_one, revived

from ray_messaging.interception.rules import RateLimit


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


RATES = st.one_of(st.none(), st.sampled_from([0.25, 1, 2.5, 3]))
ROUNDS = st.one_of(st.none(), st.integers(1, 4))


@given(PAIRS, RATES, ROUNDS, st.lists(st.floats(0, 5), max_size=4))
def test_at_once_and_one_by_one(pairs, per_second, per_round, pauses):
    if per_second is None and per_round is None:
        per_second = 1
    clock = Clock()
    together, alone = (RateLimit(per_second, per_round, clock=clock) for _ in range(2))
    for pause in [0.0, *pauses]:
        clock.now += pause
        assert judged(together, batch_of(pairs)) == one_by_one(alone, batch_of(pairs))


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


def test_seconds():
    clock = Clock()
    rule = RateLimit(per_second=3, clock=clock)
    many = batch_of([(1, 2)] * 5 + [(2, 1)])
    assert blocked(rule, many) == [3, 4]
    assert blocked(rule, many) == [0, 1, 2, 3, 4]
    clock.now += 1 / 3
    assert blocked(rule, many) == [1, 2, 3, 4]
    clock.now += 100.0
    assert blocked(rule, many) == [3, 4]


@pytest.mark.parametrize("rate", [2**63 - 1, 1e19, 10**30])
def test_a_rate_that_nobody_reaches_blocks_nobody(rate):
    assert blocked(RateLimit(per_second=rate), batch_of([(1, 2)] * 5)) == []


def test_less_than_one_a_second():
    clock = Clock()
    rule = RateLimit(per_second=0.5, clock=clock)
    passed = []
    for _ in range(8):
        passed.append(not blocked(rule, batch_of([("ann", 1)])))
        clock.now += 0.5
    assert passed == [True, False, False, False] * 2


def test_reasons_name_sender_and_limit():
    rule = RateLimit(2, 3, clock=Clock())
    (first, *_, last) = [verdict for verdict in judged(rule, batch_of([("ann", 1)] * 4)) if verdict]
    assert first.reason == last.reason == "agent 'ann' writes more messages than it may: the limit is 2 a second"
    rule = RateLimit(5, 3, clock=Clock())
    assert judged(rule, batch_of([(7, 1)] * 4))[3].reason.endswith(
        "agent 7 writes more messages than it may: the limit is 3 a round"
    )


def test_the_user_is_not_limited():
    rule = RateLimit(1, 1, clock=Clock())
    assert blocked(rule, batch_of([(None, 1)] * 9 + [(1, 2)] * 2)) == [10]
    assert set(rule.state) == {1}


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
