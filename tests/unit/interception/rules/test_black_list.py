"""The black list, held against a naive one, and the index that rules out most rows."""

import pickle
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import batch_to
from support.rules import batch_of, blocked, follow

from ray_messaging.errors import InvalidAddress, RuleError
from ray_messaging.interception.rules import BlackList

AGENT = st.one_of(st.integers(0, 6), st.integers(-(2**63), 2**63 - 1), st.sampled_from(["ann", "bob"]))
PAIR = st.tuples(st.one_of(AGENT, st.none()), st.one_of(AGENT, st.none()))
FEW_AGENTS = st.sampled_from([0, 1, -(2**63), 2**63 - 1, "ann", "bob", None])
CLOSE_PAIR = st.one_of(PAIR, st.tuples(FEW_AGENTS, FEW_AGENTS))


def naive(listed, pair):
    """A wildcard stands for any agent; None among ids is the user, or a channel that is no agent's."""
    from_id, to_id = pair
    for a, b in listed:
        from_fits = from_id is not None and a in (None, from_id)
        to_fits = b is None if to_id is None else b in (None, to_id)
        if from_fits and to_fits:
            return True
    return False


def by_hand(listed, pairs):
    return [row for row, pair in enumerate(pairs) if naive(listed, pair)]


@given(st.sets(CLOSE_PAIR, max_size=8), st.lists(CLOSE_PAIR, max_size=8), st.lists(CLOSE_PAIR, min_size=9, max_size=40))
def test_it_blocks_as_a_naive_one_does(listed, few, many):
    """Few are looked up, many are held against the index first."""
    for asked in (few, [*many, *listed]):
        assert blocked(BlackList(listed), batch_of(asked)) == by_hand(listed, asked)


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ((1, 2), "agent 1 may not write to agent 2"),
        ((1, None), "agent 1 may not write to any agent"),
        ((None, 2), "no agent may write to agent 2"),
        ((None, None), "no agent may write to any agent"),
    ],
)
def test_a_reason_says_who_may_not_write_to_whom(pair, reason):
    assert BlackList([pair]).check_batch(batch_of([(1, 2)]), "town")[0].reason == reason


@given(st.sets(PAIR, max_size=5), st.lists(st.tuples(st.booleans(), PAIR), max_size=30), st.lists(PAIR, max_size=12))
def test_changes(first, changes, sent):
    rule, listed, kept = BlackList(first), set(first), {}
    for add, pair in changes:
        (rule.add if add else rule.remove)([pair])
        listed = listed | {pair} if add else listed - {pair}
        follow(rule.state.changes(), kept)
    asked = [*sent, *listed]
    assert rule.pairs == listed
    assert blocked(rule, batch_of(asked)) == by_hand(listed, asked)
    copy = BlackList([("nobody", 1)])
    if changes:
        copy.state.load(kept)
        copy.restored()
        assert blocked(copy, batch_of(asked)) == by_hand(listed, asked)
    rule.set(first)
    assert blocked(pickle.loads(pickle.dumps(rule)), batch_of(asked)) == by_hand(first, asked)


def test_only_changes_are_written():
    rule = BlackList((n, 0) for n in range(1000))
    rule.state.changes()
    rule.add([(1, 0), (1, 2)])
    assert rule.state.changes().put == {b"[1,2]": b"1"}
    rule.remove([(1, 2), (7, 7)])
    written = rule.state.changes()
    assert (written.put, written.gone, written.cleared) == ({}, [b"[1,2]"], False)
    rule.remove((7, 7))
    assert rule.state.changes() is None


def test_a_single_pair_will_do():
    rule = BlackList((1, 2))
    rule.add(("ann", None))
    assert rule.pairs == {(1, 2), ("ann", None)}
    rule.add(((3, 4), (5, 6)))
    rule.remove((1, 2))
    assert rule.pairs == {("ann", None), (3, 4), (5, 6)}
    rule.set({(8, 9)})
    assert rule.pairs == {(8, 9)}


@pytest.mark.parametrize("pairs", [[(1, 2, 3)], 7, "ab", [7], None])
def test_invalid_pairs_are_refused(pairs):
    rule = BlackList([(1, 2)])
    for change in (rule.set, rule.add, rule.remove):
        with pytest.raises(RuleError, match=r"write \[?\(from_id, to_id\)"):
            change(pairs)
    with pytest.raises(InvalidAddress, match=r"1\.5"):
        rule.set([(3, 4), (1.5, None)])
    assert rule.pairs == {(1, 2)}


def test_a_list_of_pairs_in_another_list_is_no_pair_of_ids():
    with pytest.raises(RuleError, match=r"the pair \[\(1, 2\), \(3, 4\)\] is a list"):
        BlackList([[(1, 2), (3, 4)]])
    assert BlackList([((1, 2), (3, 4))]).pairs == {("(1, 2)", "(3, 4)")}
    assert BlackList([[(1, 2), None]]).pairs == {("(1, 2)", None)}


def test_pairs_added_one_by_one_are_all_there():
    rule = BlackList()
    pairs = (
        [(n, n + 1) for n in range(300)] + [(f"a{n}", None) for n in range(300)] + [(None, -n) for n in range(1, 99)]
    )
    for pair in pairs:
        rule.add(pair)
    asked = [*pairs, *((b, a) for a, b in pairs)]
    assert blocked(rule, batch_of(asked)) == by_hand(set(pairs), asked)


def test_an_id_costs_less_than_half_a_microsecond():
    """The best of many runs: a busy machine must not fail this, a loop over rows must."""
    random = np.random.default_rng(1)
    rule = BlackList(zip(*random.integers(0, 1_000_000, (2, 100_000)).tolist(), strict=True))
    from_ids, to_ids = random.integers(0, 1_000_000, (2, 4000))
    batch = batch_to(to_ids.tolist(), from_ids.tolist())
    best = float("inf")
    for _ in range(50):
        began = time.thread_time()
        rule.check_batch(batch, "e")
        best = min(best, time.thread_time() - began)
    assert best / len(batch) < 0.5e-6
